"""The LightningDataModule: a source, its splits, and the loaders over them."""

import logging
import math
from typing import Any

import torch
from lightning.pytorch import LightningDataModule

from src import config as schema
from src.data.loader import (
    EVALUATION_BATCH,
    BlockSampler,
    InOrder,
    Order,
    ResidentLoader,
    batches_per_block,
    worker_loader,
)
from src.data.sources import Source, Split, held_out
from src.errors import InputError

log = logging.getLogger(__name__)


class DataModule(LightningDataModule):
    """Blocks of K batches for training; the validation and test sets in order, in large batches.

    `ranks` is the number of devices that share an epoch. Raises InputError when not even one
    batch comes out of the training part.
    """

    def __init__(
        self,
        config: schema.Data,
        source: Source,
        order: Order,
        *,
        steps_per_call: int | str = "auto",
        ranks: int = 1,
    ) -> None:
        super().__init__()
        self.config, self.source, self.order = config, source, order
        self.steps_per_call, self.ranks = steps_per_call, ranks
        self.train, self.validation = held_out(source.train, config.val_fraction, config.split_seed)
        self.batches_per_epoch = self._sampler(rank=0).batches
        if not self.batches_per_epoch:
            raise InputError(
                f"data.batch_size={config.batch_size}: of {len(self.train)} samples on {ranks} "
                f"device(s) no batch is left with data.drop_last={str(config.drop_last).lower()}; "
                f"type data.batch_size={max(1, len(self.train) // ranks)} or less"
            )

    def train_dataloader(self) -> Any:
        assert self.trainer is not None
        return self._loader(self.train, self._sampler(self.trainer.global_rank))

    def val_dataloader(self) -> Any:
        return self._evaluation_loader(self.validation)

    def test_dataloader(self) -> Any:
        return self._evaluation_loader(self.source.test)

    def transfer_batch_to_device(
        self,
        batch: Any,
        device: torch.device,
        dataloader_idx: int,  # noqa: ARG002
    ) -> Any:
        return type(batch)(*(tensor.to(device, non_blocking=True) for tensor in batch))

    def _sampler(self, rank: int) -> BlockSampler:
        return BlockSampler(
            len(self.train),
            self.order,
            self.config.batch_size,
            self._batches_per_block(),
            drop_last=self.config.drop_last,
            rank=rank,
            ranks=self.ranks,
            equal=True,
        )

    def _batches_per_block(self) -> int:
        if self.steps_per_call != "auto":
            return int(self.steps_per_call)
        batch_bytes = 4 * self.config.batch_size * math.prod(self.source.shape)
        return batches_per_block(batch_bytes, self._device())

    def _evaluation_loader(self, split: Split) -> Any:
        assert self.trainer is not None
        sampler = BlockSampler(
            len(split),
            InOrder(),
            EVALUATION_BATCH,
            1,
            rank=self.trainer.global_rank,
            ranks=self.ranks,
        )
        return self._loader(split, sampler)

    def _loader(self, split: Split, sampler: BlockSampler) -> Any:
        if self.config.loader == "resident":
            return ResidentLoader(split, sampler, self._device())
        return worker_loader(
            split,
            sampler,
            num_workers=self.config.num_workers,
            pin_memory=self.config.pin_memory,
            persistent_workers=self.config.persistent_workers,
        )

    def _device(self) -> torch.device:
        if self.trainer is None:
            return torch.device("cpu")
        return self.trainer.strategy.root_device
