"""Ten epochs of 784-32-10 by Lightning: python lightning_module.py DATA.npz MODEL"""

import sys
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

data, model = sys.argv[1:]
torch.manual_seed(0)
arrays = np.load(data)


def loader(part: str) -> DataLoader[Any]:
    features = torch.from_numpy(arrays[f"x_{part}"]).float() / 255
    labels = torch.from_numpy(arrays[f"y_{part}"])
    return DataLoader(TensorDataset(features, labels), 100, shuffle=part == "train")


class Network(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor]) -> None:
        hits = (self.model(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("acc", hits, prog_bar=True)

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = Trainer(max_epochs=10, accelerator="cpu", devices=1, default_root_dir=model)
network = Network()
trainer.fit(network, loader("train"), loader("val"))
(found,) = trainer.test(network, loader("test"))
print("test", found["acc"])
