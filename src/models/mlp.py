"""Multilayer perceptron of any depth and width."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
NORMS: dict[str, type[nn.BatchNorm1d] | type[nn.LayerNorm]] = {
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
}


class Mlp(nn.Module):
    """Linear layers inputs → hidden_sizes → classes; after each hidden one its norm, activation
    and dropout, in this order."""

    def __init__(
        self,
        inputs: int,
        hidden_sizes: Sequence[int],
        classes: int,
        activation: str = "relu",
        dropout: float | Sequence[float] = 0.0,
        *,
        input_dropout: float = 0.0,
        norm: str | None = None,
        max_norm: float | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        """`dropout` is one probability, or one for each hidden layer. `max_norm` bounds the 2-norm
        of the weights into each hidden unit (Srivastava et al. 2014, section 5.1). With
        `gradient_checkpointing` a hidden layer keeps its input alone, and is computed again when
        its gradient is."""
        super().__init__()
        self.gradient_checkpointing, self.activation = gradient_checkpointing, activation
        rates = dropout if isinstance(dropout, Sequence) else [dropout] * len(hidden_sizes)
        self.dropouts = tuple(rates)
        self.max_norm = max_norm
        self.input_dropout = nn.Dropout(input_dropout)
        layers: list[nn.Module] = []
        for (fan_in, fan_out), rate in zip(
            pairwise([inputs, *hidden_sizes]), self.dropouts, strict=True
        ):
            # A batch norm takes any bias before it away again.
            layers.append(nn.Linear(fan_in, fan_out, bias=norm != "batch"))
            if norm is not None:
                layers.append(NORMS[norm](fan_out))
            layers.append(ACTIVATIONS[activation]())
            if any(self.dropouts):
                layers.append(nn.Dropout(rate))
        self.layers = nn.Sequential(*layers, nn.Linear(hidden_sizes[-1], classes))

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, *shape) with prod(shape) = inputs, to logits (N, classes)."""
        hidden: Tensor = self.input_dropout(features.flatten(1))
        if not (self.gradient_checkpointing and torch.is_grad_enabled()):
            logits: Tensor = self.layers(hidden)
            return logits
        per_hidden = (len(self.layers) - 1) // len(self.dropouts)
        for first in range(0, len(self.layers) - 1, per_hidden):
            hidden = checkpoint(
                self.layers[first : first + per_hidden], hidden, use_reentrant=False
            )
        output: Tensor = self.layers[-1](hidden)
        return output

    def constrain(self) -> None:
        """Holds the weights to `max_norm`, to be called after each step of an optimizer."""
        if self.max_norm is not None:
            *hidden, _ = (layer for layer in self.layers if isinstance(layer, nn.Linear))
            for layer in hidden:
                bound_rows(layer.weight, self.max_norm)


@torch.no_grad()
def bound_rows(weight: Tensor, bound: float) -> None:
    """Scales those rows of (…, rows, columns) down, in place, whose 2-norm is above the bound."""
    norms = weight.norm(dim=-1, keepdim=True)
    weight.mul_(bound / norms.clamp_(min=bound))
