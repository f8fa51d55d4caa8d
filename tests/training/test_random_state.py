"""The random streams go on where they stood."""

import io
import random

import numpy as np
import pytest
import torch

from kindling.training import random_state


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


def test_only_the_gpu_of_this_process_is_part_of_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of eight GPUs goes on with one, or without any."""
    state, restored = random_state.capture(), list[torch.Tensor]()
    assert state["cuda"] == []
    own = torch.arange(16, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: own)
    monkeypatch.setattr(torch.cuda, "set_rng_state", restored.append)
    state = random_state.capture()
    random_state.restore(state)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    random_state.restore(state | {"mps": own})
    assert [each is own for each in restored] == [True]
