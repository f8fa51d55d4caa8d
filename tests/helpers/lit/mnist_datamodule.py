"""The shape of lightning-hydra-template's MNISTDataModule, on drawn numbers instead of MNIST."""

from pathlib import Path
from typing import Any

import torch
from lightning import LightningDataModule
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset, random_split


def drawn(train: bool) -> "Dataset[Any]":
    """Pictures (1, 8, 8) of ten classes: a bright row or column, and noise."""
    stream = torch.Generator().manual_seed(int(train))
    count = 300 if train else 60
    y = torch.randint(10, (count,), generator=stream)
    x = 0.5 * torch.randn(count, 1, 8, 8, generator=stream)
    for place, label in enumerate(y.tolist()):
        x[place, 0, label % 8, (label // 8) * 4 :] += 2
    return TensorDataset(x, y)


class MNISTDataModule(LightningDataModule):
    def __init__(
        self,
        data_dir: str = "data/",
        train_val_test_split: tuple[int, int, int] = (240, 60, 60),
        batch_size: int = 64,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.data_train: Any = None
        self.data_val: Any = None
        self.data_test: Any = None
        self.batch_size_per_device = batch_size

    @property
    def num_classes(self) -> int:
        return 10

    def prepare_data(self) -> None:
        Path(self.hparams["data_dir"]).mkdir(exist_ok=True)

    def setup(self, stage: str | None = None) -> None:
        if self.trainer is not None:
            if self.hparams["batch_size"] % self.trainer.world_size != 0:
                raise RuntimeError("Batch size is not divisible by the number of devices")
            self.batch_size_per_device = self.hparams["batch_size"] // self.trainer.world_size
        if not self.data_train and not self.data_val and not self.data_test:
            dataset: Dataset[Any] = ConcatDataset([drawn(train=True), drawn(train=False)])
            self.data_train, self.data_val, self.data_test = random_split(
                dataset=dataset,
                lengths=self.hparams["train_val_test_split"],
                generator=torch.Generator().manual_seed(42),
            )

    def _loader(self, dataset: "Dataset[Any]", *, shuffle: bool) -> "DataLoader[Any]":
        return DataLoader(
            dataset=dataset,
            batch_size=self.batch_size_per_device,
            num_workers=self.hparams["num_workers"],
            pin_memory=self.hparams["pin_memory"],
            shuffle=shuffle,
        )

    def train_dataloader(self) -> "DataLoader[Any]":
        return self._loader(self.data_train, shuffle=True)

    def val_dataloader(self) -> "DataLoader[Any]":
        return self._loader(self.data_val, shuffle=False)

    def test_dataloader(self) -> "DataLoader[Any]":
        return self._loader(self.data_test, shuffle=False)

    def state_dict(self) -> dict[Any, Any]:
        return {}
