"""A ladder network: a noisy multilayer perceptron that also learns to undo its noise."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, mse_loss

from kindling.config import schema
from kindling.models.mlp import noise_like

EPSILON = 1e-5  # of the norms


def build(config: schema.Ladder, shape: Sequence[int], classes: int) -> "Ladder":
    widths = [math.prod(shape), *config.hidden_sizes, classes]
    return Ladder(widths, config.noise, config.denoising)


class Ladder(nn.Module):
    """The ladder network of Rasmus et al. 2015 (arXiv:1507.02672, algorithm 1), with all labels.

    The encoder is linear layers, each with a batch norm. Noise is added to the inputs and to the
    normalised values of each layer. A decoder goes back from the logits, and estimates from the
    noisy values of each layer what they are without noise. `auxiliary_loss` is the weighted mean
    square of its errors. In evaluation there is neither noise nor decoder.

    Unlike there, the values without noise are constants: no gradient flows through them, and the
    encoder has one backward pass in place of two.
    """

    auxiliary_loss: Tensor | None = None

    def __init__(self, widths: Sequence[int], noise: float, denoising: Sequence[float]) -> None:
        """`widths` are those of inputs, hidden layers and classes. `noise` is a standard deviation.
        `denoising` has the weights of the errors of the inputs and of the layers, in this order;
        the last one is that of all further layers."""
        super().__init__()
        self.noise = noise
        self.denoising = [denoising[min(d, len(denoising) - 1)] for d in range(len(widths))]
        pairs = [*pairwise(widths)]
        self.encoder = nn.ModuleList(_linear(before, after) for before, after in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm1d(after, affine=False) for _, after in pairs)
        self.shifts = nn.ParameterList(torch.zeros(after) for _, after in pairs)
        self.scale = nn.Parameter(torch.ones(widths[-1]))  # of logits: relu needs none before
        self.decoder = nn.ModuleList(_linear(after, before) for before, after in pairs)
        self.combinators = nn.ModuleList(map(Combinator, widths))

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, *shape) with prod(shape) = inputs, to logits (N, classes). In training, sets
        `auxiliary_loss`."""
        inputs = features.flatten(1)
        if not self.training:
            return self._encode(inputs)[0]
        logits, noisy, _ = self._encode(inputs, self.noise)
        with torch.no_grad():
            _, clean, before_norms = self._encode(inputs)
        losses = []
        for depth, estimate in self._decode(logits, noisy):
            found = _normalised_as(before_norms[depth - 1], estimate) if depth else estimate
            losses.append(self.denoising[depth] * mse_loss(found, clean[depth]))
        self.auxiliary_loss = torch.stack(losses).sum()
        return logits

    def _encode(
        self, inputs: Tensor, noise: float | None = None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Logits; the values of the inputs, and of each layer after its norm; and the values of
        each layer before its norm. Without noise, the running statistics change."""
        values, before_norms = [_noisy(inputs, noise)], []
        hidden = values[0]
        for depth, (linear, norm) in enumerate(zip(self.encoder, self.norms, strict=True)):
            before_norms.append(linear(hidden))
            normalised = (norm if noise is None else _normalised)(before_norms[-1])
            values.append(_noisy(normalised, noise))
            hidden = values[-1] + self.shifts[depth]
            hidden = hidden.relu() if depth + 1 < len(self.encoder) else self.scale * hidden
        return hidden, values, before_norms

    def _decode(self, logits: Tensor, noisy: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
        """The estimates of the values without noise, from the logits back to the inputs (0)."""
        signal = logits.softmax(1)
        for depth in range(len(self.encoder), -1, -1):
            estimate = self.combinators[depth](_normalised(signal), noisy[depth])
            yield depth, estimate
            if depth:
                signal = self.decoder[depth - 1](estimate)


class Combinator(nn.Module):
    """Estimates values from noisy ones and from a signal of the layer above: a mean and a share of
    the noisy value, each a function of the signal with five numbers for each unit."""

    def __init__(self, units: int) -> None:
        super().__init__()
        start = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])  # estimates begin at 0
        self.factors = nn.Parameter(start[:, None].repeat(2, units))

    def forward(self, signal: Tensor, noisy: Tensor) -> Tensor:
        """Signals and noisy values (N, units) to estimates (N, units)."""
        a = self.factors
        mean = a[0] * (a[1] * signal + a[2]).sigmoid() + a[3] * signal + a[4]
        share = a[5] * (a[6] * signal + a[7]).sigmoid() + a[8] * signal + a[9]
        return mean + share * (noisy - mean)  # torch.lerp refuses two precisions


def _linear(before: int, after: int) -> nn.Linear:
    """Without a bias, which the norm behind would subtract."""
    linear = nn.Linear(before, after, bias=False)
    nn.init.normal_(linear.weight, std=before**-0.5)
    return linear


def _noisy(values: Tensor, noise: float | None) -> Tensor:
    return values + noise_like(values, noise) if noise else values


def _normalised(values: Tensor) -> Tensor:
    """By the mean and variance of each unit in the batch."""
    return batch_norm(values, None, None, training=True, eps=EPSILON)


def _normalised_as(values: Tensor, estimate: Tensor) -> Tensor:
    """The estimate, by the mean and variance of the values."""
    variance, mean = torch.var_mean(values, 0, correction=0)
    return (estimate - mean) * (variance + EPSILON).rsqrt()
