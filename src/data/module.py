"""The LightningDataModule: a data set, its splits, and their loaders."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule

from src.config import schema
from src.data.loader import (
    CALL_OPERATIONS,
    OPERATIONS,
    Blocks,
    BlockSampler,
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
from src.data.sources.source import Source, Split, split_off_validation
from src.system.errors import InputError


class DataModule(LightningDataModule):
    """Blocks of K batches for training; the validation and test sets in order, in large slices.

    `setup` opens the data set. `world_size` devices share an epoch. There is no `prepare_data`:
    every rank opens the data set itself, and a lock lets one of them download.
    """

    source: Source
    train: Split
    validation: Split

    def __init__(
        self, config: schema.Data, *, steps_per_call: int | str = "auto", world_size: int = 1
    ) -> None:
        super().__init__()
        self.config, self.steps_per_call, self.world_size = config, steps_per_call, world_size
        self.start = (0, 0)  # epoch and batch where training begins
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
        self.train, self.validation = split_off_validation(
            source.train, config.val_fraction, config.split_seed
        )
        sampler = self._sampler(rank=0)
        self.batches_per_epoch, self.smallest_batch = sampler.batches, sampler.smallest
        splits = {"training": self.train, "validation": self.validation, "test": source.test}
        name = min(splits, key=lambda name: len(splits[name]))
        size = len(splits[name])
        if size < world_size:
            more = ", or data.factor=4 for more points" if config.name == "toy" else ""
            raise InputError(
                f"trainer.devices: {size} {name} samples are too few for {world_size} devices; "
                f"type trainer.devices={size} or less{more}"
            )
        if not self.batches_per_epoch:
            raise InputError(
                f"data.batch_size={config.batch}: {len(self.train)} training samples on "
                f"{world_size} device(s) do not fill one batch, and data.drop_last=true drops "
                "incomplete batches; type "
                f"data.batch_size={max(1, len(self.train) // world_size)} or less"
            )

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
        splits = {"training": self.train, "validation": self.validation}
        return [
            f"the {name} set has no sample of {', '.join(missing[:10])}"
            f"{f' and {len(missing) - 10} more classes' if missing[10:] else ''}; add samples, or "
            "try another data.split_seed or data.val_fraction"
            for name, split in splits.items()
            if (missing := split.empty_classes(self.source.labels))
        ]

    def train_dataloader(self) -> Any:
        sampler = self._sampler(self._rank)
        if self.config.loader == "resident":
            loader = ResidentLoader if self.operations is None else RowLoader
            return loader(self.train, sampler, self._device)
        return worker_loader(Blocks(self.train), sampler, self.config)

    def val_dataloader(self) -> Any:
        return self._slices(self.validation)

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
        return BlockSampler(
            len(self.train), self.orders, self.config.batch, self._batches_per_block(),
            drop_last=self.config.drop_last, rank=rank, world_size=self.world_size,
            start=self.start,
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
        return torch.device("cpu") if self.trainer is None else self.trainer.strategy.root_device
