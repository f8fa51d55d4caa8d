"""Multilayer perceptron of any depth and width."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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
        gradient_checkpointing: bool = False,
    ) -> None:
        """With `gradient_checkpointing` a hidden layer keeps its input alone, and is computed
        again when its gradient is."""
        super().__init__()
        self.gradient_checkpointing = gradient_checkpointing
        self.activation, self.dropout = activation, dropout
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise([inputs, *hidden_sizes]):
            layers += [nn.Linear(fan_in, fan_out), ACTIVATIONS[activation]()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers, nn.Linear(hidden_sizes[-1], classes))

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, *shape) with prod(shape) = inputs, to logits (N, classes)."""
        hidden = features.flatten(1)
        if not (self.gradient_checkpointing and torch.is_grad_enabled()):
            logits: Tensor = self.layers(hidden)
            return logits
        per_hidden = 3 if self.dropout else 2
        for first in range(0, len(self.layers) - 1, per_hidden):
            hidden = checkpoint(
                self.layers[first : first + per_hidden], hidden, use_reentrant=False
            )
        output: Tensor = self.layers[-1](hidden)
        return output
