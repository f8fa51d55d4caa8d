"""Two hidden layers. Any torch module from features (N, …) to logits (N, classes) will do."""

from collections.abc import Sequence
from math import prod

from torch import nn

from mine.extension import Model


def build(config: Model, shape: Sequence[int], classes: int) -> nn.Module:
    """`shape` is that of a sample."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), config.units),
        nn.SiLU(),
        nn.Linear(config.units, config.units),
        nn.SiLU(),
        nn.Linear(config.units, classes),
    )
