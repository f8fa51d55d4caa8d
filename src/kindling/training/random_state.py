"""The random streams of a process, as tensors and primitives that a checkpoint may hold."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
import torch


def seed_streams(seed: int) -> None:
    """Seeds the streams from which a model is drawn. Lightning's seed_everything seeds the GPUs
    too, and torch then notes the call stack several times, which takes 1 ms."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # the global stream
    torch.default_generator.manual_seed(seed)


_SEEDED = Lock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """As `kept`. Within the context, the streams are seeded; one thread at a time."""
    with _SEEDED, kept():
        seed_streams(seed)
        yield


@contextmanager
def kept() -> Iterator[None]:
    """After the context, the streams go on as if it had drawn nothing."""
    state = capture()
    try:
        yield
    finally:
        restore(state)


def capture() -> dict[str, Any]:
    """The state of Python's, NumPy's and torch's global streams, on the CPU and on the GPU of this
    process. Other GPUs belong to other ranks, and a machine that goes on may have fewer."""
    version, words, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002  user code may draw from it
    assert isinstance(numpy, dict)
    return {
        "python": [version, torch.tensor(words), gauss],
        "numpy": [
            torch.from_numpy(numpy["state"]["key"].astype(np.int64)),
            int(numpy["state"]["pos"]),
            int(numpy["has_gauss"]),
            float(numpy["gauss"]),
        ],
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
        "mps": torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
    }


def restore(state: dict[str, Any]) -> None:
    """Puts every stream where it stood when `state` was captured, as far as this machine has it."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    key, position, has_gauss, numpy_gauss = state["numpy"]
    np.random.set_state(  # noqa: NPY002
        ("MT19937", key.numpy().astype(np.uint32), position, has_gauss, numpy_gauss)
    )
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"][0])
    if state["mps"] is not None and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])
