"""A moving average of the weights, kept during training."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor


class Average:
    """Exponential moving average over optimizer steps (Polyak and Juditsky 1992), in the form of
    TensorFlow's ExponentialMovingAverage: step t, counted from 0, keeps
    min(decay, (1 + t) / (10 + t)) of the average.

    Lightning's WeightAveraging and torch's AveragedModel keep a second model, not a stack's.
    """

    def __init__(self, decay: float, *parts: Sequence[Tensor]) -> None:
        """`parts` are the tensors of each lane. Each lane updates its own."""
        self.decay = decay
        self.parts = [[tensor.detach() for tensor in part] for part in parts]
        self.values = [[tensor.clone() for tensor in part] for part in self.parts]

    def update(self, step: int, part: int = 0) -> None:
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.values[part], self.parts[part], weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the context the models hold the averages instead of their weights."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def swap(self) -> None:
        """Swaps the values of averages and weights, in place."""
        for value, tensor in zip(chain(*self.values), chain(*self.parts), strict=True):
            kept = tensor.clone()
            tensor.copy_(value)
            value.copy_(kept)
