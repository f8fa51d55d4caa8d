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

    Lightning's WeightAveraging and torch's AveragedModel average one model, not a stack.
    """

    def __init__(self, decay: float, *lanes: Sequence[Tensor]) -> None:
        """`lanes` holds the tensors of each lane. Each lane updates its own averages."""
        self.decay = decay
        self.tensors = [[tensor.detach() for tensor in lane] for lane in lanes]
        self.values = [[tensor.clone() for tensor in lane] for lane in self.tensors]

    def update(self, step: int, lane: int = 0) -> None:
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.values[lane], self.tensors[lane], weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the context, the models hold the averages instead of their weights."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def swap(self) -> None:
        """Swaps the values of averages and weights, in place."""
        for value, tensor in zip(chain(*self.values), chain(*self.tensors), strict=True):
            weights = tensor.clone()
            tensor.copy_(value)
            value.copy_(weights)
