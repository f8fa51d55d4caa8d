"""A model and arrays of a program. Other processes import the model by its name."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from kindling.config.compose import compose
from kindling.config.schema import Config

RECIPE = ("experiment=few_samples", "trainer=cpu", "trainer.progress_bar=false")
X = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
Y = np.where(X.sum(1) > 0, "high", "low")


class Net(nn.Module):
    """Has running statistics, and draws random numbers while it trains."""

    def __init__(self, inputs: int = 4, outputs: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, 8)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.2)
        self.last = nn.Linear(8, outputs)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.last(self.drop(torch.tanh(self.norm(self.first(features)))))
        return logits


def make(shape: Sequence[int], outputs: int) -> nn.Module:
    return Net(shape[0], outputs)


def plain(shape: Sequence[int], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 8), nn.SiLU(), nn.Linear(8, outputs))


def recipe(*overrides: str, epochs: int = 2) -> Config:
    return compose(*RECIPE, f"trainer.max_epochs={epochs}", *overrides)
