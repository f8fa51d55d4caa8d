"""Multinomial logistic regression: one linear layer."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from kindling.config import schema
from kindling.models.mlp import Architecture, DenseClosedForm


def build(_: schema.LogisticRegression, shape: Sequence[int], classes: int) -> "LogisticRegression":
    return LogisticRegression(math.prod(shape), classes)


class LogisticRegression(nn.Module):
    closed_form = DenseClosedForm

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(inputs, classes)

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, *shape) with prod(shape) = inputs, to logits (N, classes)."""
        logits: Tensor = self.output(features.flatten(1))
        return logits

    def architecture(self) -> Architecture:
        """The architecture of a multilayer perceptron without hidden layers."""
        return Architecture((self.output,))
