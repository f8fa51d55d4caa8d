"""A moving average of the weights, beside the training."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class Average:
    """Exponential moving average over optimizer steps: Polyak and Juditsky 1992, in the form of
    TensorFlow's ExponentialMovingAverage, which lets the first steps count for more.

    Step t, from 0, leaves min(decay, (1 + t) / (10 + t)) of the average as it was. Lightning's
    WeightAveraging and torch's AveragedModel keep a second model, which no stack could train.
    """

    def __init__(self, decay: float, tensors: Sequence[Tensor]) -> None:
        self.decay, self.tensors = decay, [tensor.detach() for tensor in tensors]
        self.values = [tensor.clone() for tensor in self.tensors]

    def update(self, step: int) -> None:
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.values, self.tensors, weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the averages where the weights are, and the weights back behind it."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    def exchange(self) -> None:
        for value, tensor in zip(self.values, self.tensors, strict=True):
            kept = tensor.clone()
            tensor.copy_(value)
            value.copy_(kept)
