"""The random streams go on where they stood."""

import io
import random

import numpy as np
import torch

from src.training import random_state


def draws() -> list[float]:
    """A number of each stream. The normal streams draw pairs and keep one number."""
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),  # noqa: NPY002
        np.random.randn(),  # noqa: NPY002
        torch.rand(()).item(),
    ]


def test_streams_go_on_after_a_checkpoint() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    draws()
    file = io.BytesIO()
    torch.save(random_state.capture(), file)
    expected = [draws(), draws()]
    assert expected[0] != expected[1]
    file.seek(0)
    random_state.restore(torch.load(file, weights_only=True))
    assert [draws(), draws()] == expected
