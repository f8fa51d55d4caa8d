"""The LightningDataModule: a data set, its splits, and their loaders."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule

from src.config import schema
from src.data.class_balance import BALANCED, BalancedOrder
from src.data.loader import (
    CALL_OPERATIONS,
    OPERATIONS,
    Blocks,
    BlockSampler,
    FoldOrder,
    Order,
    ResidentLoader,
    RowLoader,
    Rows,
    SeededOrder,
    Slices,
    batches_per_block,
    worker_loader,
)
from src.data.sources.catalogue import open_source
from src.data.sources.folds import Folds
from src.data.sources.source import Source, Split, split_off_validation
from src.system.errors import InputError


class DataModule(LightningDataModule):
    """Blocks of K batches for training; the validation and test sets in order, in large slices.

    `setup` opens the data set. `world_size` devices share an epoch. There is no `prepare_data`:
    every rank opens the data set itself, and a lock lets one of them download.
    """

    source: Source
    train: Split  # what the orders choose from: with folds, the whole training set
    validations: Sequence[Split]  # one, or one for each of `folds`
    training_samples: int  # of an epoch

    def __init__(
        self,
        config: schema.Data,
        *,
        steps_per_call: int | str = "auto",
        world_size: int = 1,
        folds: Sequence[int] = (),
    ) -> None:
        """`folds` are the numbers of the folds that trials are validated on, by default
        `config.fold`."""
        super().__init__()
        self.folds = folds or ([] if config.fold is None else [config.fold])
        self.config, self.steps_per_call, self.world_size = config, steps_per_call, world_size
        self.start = (0, 0)  # epoch and batch where training begins
        self.device = torch.device("cpu")  # of the loaders' tensors, if there is no trainer
        self.operations: int | None = None  # see `use_rows`
        self.set_orders([SeededOrder(0)], trial_count=1)

    def setup(self, stage: str = "fit") -> None:  # noqa: ARG002, Lightning's argument
        """Opens the data set and splits off the validation set. Later calls do nothing. Raises
        InputError when the data cannot be loaded, when the training set does not fill one batch,
        and when a split has fewer samples than there are devices."""
        if hasattr(self, "source"):
            return
        config, world_size = self.config, self.world_size
        self.source = source = open_source(config)
        if config.folds is None:
            self.train, validation = split_off_validation(
                source.train, config.val_fraction, config.split_seed
            )
            self.validations, self.training_samples = [validation], len(self.train)
        else:
            folds = Folds(source.train, config.folds, config.split_seed, source.labels)
            self.train, self.training_samples = source.train, folds.training_samples
            self.rows = {fold: folds.training_rows(fold) for fold in self.folds}
            self.validations = [folds.validation(fold) for fold in self.folds]
        sampler = self._sampler(rank=0)
        self.batches_per_epoch, self.smallest_batch = sampler.batches, sampler.smallest
        sizes = {
            "training": self.training_samples,
            "validation": min(map(len, self.validations)),
            "test": len(source.test),
        }
        name = min(sizes, key=lambda name: sizes[name])
        size = sizes[name]
        if size < world_size:
            more = ", or data.factor=4 for more points" if config.name == "toy" else ""
            raise InputError(
                f"trainer.devices: {size} {name} samples are too few for {world_size} devices; "
                f"type trainer.devices={size} or less{more}"
            )
        if not self.batches_per_epoch:
            raise InputError(
                f"data.batch_size={config.batch}: {self.training_samples} training samples on "
                f"{world_size} device(s) do not fill one batch, and data.drop_last=true drops "
                "incomplete batches; type "
                f"data.batch_size={max(1, self.training_samples // world_size)} or less"
            )

    def order(self, seed: int, fold: int | None) -> Order:
        """The order of the samples of a trial with this seed, which is validated on this fold.
        Raises InputError as BalancedOrder."""
        train = self.train if fold is None else self.train.take(self.rows[fold])
        order: Order = SeededOrder(seed)
        if self.config.sampler == BALANCED:
            order = BalancedOrder(seed, train, self.source)
        return order if fold is None else FoldOrder(order, self.rows[fold])

    def validation_number(self, fold: int | None) -> int:
        """The place of a fold's samples in `validations`."""
        return 0 if fold is None else self.folds.index(fold)

    def set_orders(self, orders: Sequence[Order], trial_count: int) -> None:
        """Sets the orders of samples, one per distinct seed; a block has batches of each."""
        self.trial_count, self.all_orders = trial_count, orders
        self.orders = list(orders)  # the loader refers to this list

    def keep_orders(self, numbers: Sequence[int]) -> None:
        """Keeps only these orders from the next epoch on, because no trial uses the others."""
        self.orders[:] = [self.all_orders[number] for number in numbers]

    def use_rows(self, operations: int | None, most: int | None = None) -> None:
        """Sets whether blocks are Rows, which resident data can be: at most `most` batches, and as
        many as their number of operations allows. If `operations` is None, blocks are copies."""
        self.operations = operations if self.config.loader == "resident" else None
        self.most_batches = most or self.batches_per_epoch

    def origin(self) -> dict[str, Any]:
        """The data set's record in a checkpoint. A run is resumed only when the records agree."""
        source = self.source
        return {
            "data": source.name,
            "shape": list(source.shape),
            "labels": list(source.labels),
            "samples": [len(source.train), len(source.test)],
            "digest": source.digest,
            "columns": None if source.columns is None else source.columns.model_dump(),
        }

    def missing_class_warnings(self) -> list[str]:
        """A text for each split that lacks samples of a class."""
        splits = [("training", self.train), *(("validation", v) for v in self.validations)]
        texts = [
            f"the {name} set has no sample of {', '.join(missing[:10])}"
            f"{f' and {len(missing) - 10} more classes' if missing[10:] else ''}; add samples, or "
            "try another data.split_seed or data.val_fraction"
            for name, split in splits
            if (missing := split.empty_classes(self.source.labels))
        ]
        return [*dict.fromkeys(texts)]

    def train_dataloader(self) -> Any:
        sampler = self._sampler(self._rank)
        if self.config.loader == "resident":
            loader = ResidentLoader if self.operations is None else RowLoader
            return loader(self.train, sampler, self._device)
        return worker_loader(Blocks(self.train), sampler, self.config)

    def val_dataloader(self) -> Any:
        loaders = [self._slices(validation) for validation in self.validations]
        return loaders if len(loaders) > 1 else loaders[0]

    def test_dataloader(self) -> Any:
        return self._slices(self.source.test)

    def transfer_batch_to_device(
        self,
        batch: Any,
        device: torch.device,
        dataloader_idx: int,  # noqa: ARG002
    ) -> Any:
        if isinstance(batch, Rows):  # the loader has moved them
            return batch
        return type(batch)(*(tensor.to(device, non_blocking=True) for tensor in batch))

    def _sampler(self, rank: int) -> BlockSampler:
        ahead = self._device.type == "cuda" and self.config.loader == "resident"
        return BlockSampler(
            self.training_samples, self.orders, self.config.batch, self._batches_per_block(),
            drop_last=self.config.drop_last, rank=rank, world_size=self.world_size,
            start=self.start, ahead=ahead,
        )  # fmt: skip

    def _batches_per_block(self) -> int:
        if self.steps_per_call != "auto":
            return int(self.steps_per_call)
        if self.operations is not None:
            pays = math.ceil(CALL_OPERATIONS * self.trial_count / self.operations)
            return max(1, min(self.most_batches, max(OPERATIONS // self.operations, pays)))
        features = len(self.orders) * math.prod(self.source.shape)
        logits = self.trial_count * self.source.classes  # kept until the block ends
        return batches_per_block(4 * self.config.batch * (features + logits), self._device)

    def _slices(self, split: Split) -> Any:
        resident = self.config.loader == "resident"
        split = split.to(self._device) if resident else split
        slices = Slices(split, rank=self._rank, world_size=self.world_size)
        return slices if resident else worker_loader(slices, None, self.config)

    @property
    def _rank(self) -> int:
        return 0 if self.trainer is None else self.trainer.global_rank

    @property
    def _device(self) -> torch.device:
        return self.device if self.trainer is None else self.trainer.strategy.root_device
