"""Multilayer perceptron of any depth and width."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


class Mlp(nn.Module):
    """Linear layers inputs → hidden_sizes → classes; activation, then dropout after the hidden."""

    def __init__(
        self,
        inputs: int,
        hidden_sizes: Sequence[int],
        classes: int,
        activation: str = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation, self.dropout = activation, dropout
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise([inputs, *hidden_sizes]):
            layers += [nn.Linear(fan_in, fan_out), ACTIVATIONS[activation]()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers, nn.Linear(hidden_sizes[-1], classes))

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, *shape) with prod(shape) = inputs, to logits (N, classes)."""
        logits: Tensor = self.layers(features.flatten(1))
        return logits
