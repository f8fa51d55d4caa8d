"""The LightningDataModule: a data set, its splits, and their loaders."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule

from src.config import schema
from src.data.loader import (
    Blocks,
    BlockSampler,
    Order,
    ResidentLoader,
    SeededOrder,
    Slices,
    batches_per_block,
    worker_loader,
)
from src.data.sources.catalogue import open_source
from src.data.sources.source import Source, Split, held_out, without_samples
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
        self.share([SeededOrder(0)], trials=1)

    def setup(self, stage: str = "fit") -> None:  # noqa: ARG002, Lightning's argument
        """Opens the data set and holds out the validation set; once, whoever calls.

        Raises InputError for data that cannot be had, when the training part does not fill one
        batch, and when a part has fewer samples than devices.
        """
        if hasattr(self, "source"):
            return
        config, world_size = self.config, self.world_size
        self.source = source = open_source(config)
        self.train, self.validation = held_out(source.train, config.val_fraction, config.split_seed)
        sampler = self._sampler(rank=0)
        self.batches_per_epoch, self.smallest_batch = sampler.batches, sampler.smallest
        parts = {"training": self.train, "validation": self.validation, "test": source.test}
        part = min(parts, key=lambda name: len(parts[name]))
        if len(parts[part]) < world_size:
            more = ", or data.factor=4 for more points" if config.name == "toy" else ""
            raise InputError(
                f"trainer.devices: {len(parts[part])} {part} samples are too few for {world_size} "
                f"devices; type trainer.devices={len(parts[part])} or less{more}"
            )
        if not self.batches_per_epoch:
            raise InputError(
                f"data.batch_size={config.batch}: of {len(self.train)} samples on {world_size} "
                f"device(s) no batch is left with data.drop_last={str(config.drop_last).lower()}; "
                f"type data.batch_size={max(1, len(self.train) // world_size)} or less"
            )

    def share(self, orders: Sequence[Order], trials: int) -> None:
        """Sets the orders of samples, one per distinct seed; a block has every order's batches."""
        self.trials, self.all_orders = trials, orders
        self.orders = list(orders)  # the loader refers to this list

    def keep_orders(self, numbers: Sequence[int]) -> None:
        """Keeps only these orders from the next epoch on, because no trial uses the others."""
        self.orders[:] = [self.all_orders[number] for number in numbers]

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

    def incomplete(self) -> list[str]:
        """A text for each part that lacks samples of a class."""
        parts = {"training": self.train, "validation": self.validation}
        missing = {
            part: without_samples(split, self.source.labels) for part, split in parts.items()
        }
        return [
            f"the {part} part has no sample of {', '.join(names[:10])}"
            f"{f' and {len(names) - 10} more classes' if names[10:] else ''}; add samples, or try "
            "another data.split_seed or data.val_fraction"
            for part, names in missing.items()
            if names
        ]

    def train_dataloader(self) -> Any:
        sampler = self._sampler(self._rank)
        if self.config.loader == "resident":
            return ResidentLoader(self.train, sampler, self._device)
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
        features = len(self.orders) * math.prod(self.source.shape)
        logits = self.trials * self.source.classes  # kept until the block ends
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
