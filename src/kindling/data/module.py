"""The LightningDataModule: the loaders of splits."""

from typing import Any

import torch
from lightning.pytorch import LightningDataModule

from kindling.config import schema
from kindling.data import loader
from kindling.data.loader import Blocks, Rows, Slices
from kindling.data.sources.source import Split
from kindling.data.splits import CPU, Splits


class DataModule(Splits, LightningDataModule):
    """Blocks of K batches for training; the validation and test sets in order, in large slices.

    There is no `prepare_data`: each rank opens the data set by `setup`.
    """

    def __init__(self, config: schema.Data, **settings: Any) -> None:
        LightningDataModule.__init__(self)
        Splits.__init__(self, config, **settings)
        self.device = CPU  # of the loaders' tensors, if there is no trainer

    def train_dataloader(self) -> Any:
        sampler = self.sampler(self._rank, self._device)
        if self.config.loader == "resident":
            rows = self.operations is not None
            return loader.ResidentLoader(self.train, sampler, self._device, rows=rows)
        return loader.worker_loader(Blocks(self.train), sampler, self.config)

    def val_dataloader(self) -> Any:
        loaders = [self._slices(validation) for validation in self.validations]
        return loaders if len(loaders) > 1 else loaders[0]

    def test_dataloader(self) -> Any:
        return self._slices(self.test)

    def transfer_batch_to_device(
        self,
        batch: Any,
        device: torch.device,
        dataloader_idx: int,  # noqa: ARG002
    ) -> Any:
        if isinstance(batch, Rows):  # the loader has moved them
            return batch
        return type(batch)(
            *(part if part is None else part.to(device, non_blocking=True) for part in batch)
        )

    def blocks_before(self, batch: int) -> int:
        """How many of the blocks that `len` of a training loader counts are done at this batch of
        an epoch. Another kind of step or another device may have had blocks of another size."""
        sampler = self.sampler(self._rank, self._device)
        return len(sampler) - sampler.blocks_from(batch)

    def _slices(self, split: Split) -> Any:
        resident = self.config.loader == "resident"
        split = split.to(self._device) if resident else split
        slices = Slices(split, rank=self._rank, world_size=self.world_size)
        return slices if resident else loader.worker_loader(slices, None, self.config)

    @property
    def _rank(self) -> int:
        return 0 if self.trainer is None else self.trainer.global_rank

    @property
    def _device(self) -> torch.device:
        return self.device if self.trainer is None else self.trainer.strategy.root_device
