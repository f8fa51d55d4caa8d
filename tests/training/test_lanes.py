"""Threads of a run: how many, and what they raise."""

import pytest
import torch

from src.models.mlp import Mlp
from src.training import lanes


def test_one_thread_is_enough_for_little_work() -> None:
    """A step needs some milliseconds of work before a second thread pays."""
    small, large = models_of_width(32), models_of_width(2048)
    assert lanes.threads_for(small, [784], 100, 8) == 1
    assert lanes.threads_for(large, [784], 100, 8) == 8
    assert lanes.threads_for(small * 64, [784], 100, 2) == 2
    # 24 x 24 pixels of 8 channels, of 25 products each: 0.69 million operations a sample.
    convolution: list[torch.nn.Module] = [torch.nn.Conv2d(1, 8, 5)]
    assert lanes.threads_for(convolution, [1, 28, 28], 300, 4) == 2
    assert lanes.threads_for(convolution, [1, 28, 28], 140, 4) == 1
    before = torch.get_num_threads()
    with lanes.Lanes(2, 1).running():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def models_of_width(width: int) -> list[torch.nn.Module]:
    return [Mlp(784, [width], 10)]


def test_errors_of_lanes_are_raised() -> None:
    def fail(number: int) -> int:
        if number == 1:
            raise ValueError("lane 1")
        return number

    pool = lanes.Lanes(3)
    with pool.running():
        assert pool.map(lambda number: 2 * number, [0, 1, 2]) == [0, 2, 4]
        with pytest.raises(ValueError, match="lane 1"):
            pool.map(fail, [0, 1, 2])
