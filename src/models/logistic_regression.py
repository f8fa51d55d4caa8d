"""Multinomial logistic regression: one linear layer."""

from torch import Tensor, nn


class LogisticRegression(nn.Module):
    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.output = nn.Linear(inputs, classes)

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, *shape) with prod(shape) = inputs, to logits (N, classes)."""
        logits: Tensor = self.output(features.flatten(1))
        return logits
