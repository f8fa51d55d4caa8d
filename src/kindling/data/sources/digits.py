"""scikit-learn's handwritten digits, which need no download."""

import functools
import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kindling.config import schema
from kindling.data.sources.source import DIGITS, Description, Source, Split


def digits() -> Source:
    """1,797 digits of 8 × 8 pixels, scaled to (1, 28, 28) in [0, 1], float32.

    The digit fills the middle 20 × 20 pixels, as in MNIST. Scaled to the whole picture, a digit
    would have twice MNIST's energy, and recipes made for MNIST would diverge. Every fifth sample
    belongs to the test set. Source: UCI, "Optical recognition of handwritten digits".
    """
    return every_fifth_held_out("digits", Split(*_scaled()), DIGITS)


def every_fifth_held_out(name: str, everything: Split, labels: tuple[str, ...]) -> Source:
    is_test = torch.arange(len(everything)) % 5 == 4
    return Source(name, everything.take(~is_test), everything.take(is_test), labels)


def packaged(name: str, **options: Any) -> NDArray[Any]:
    """The numbers of a file of scikit-learn, whose import takes as long as that of torch."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    with gzip.open(Path(package.origin).parent / f"datasets/data/{name}.csv.gz") as file:
        return np.loadtxt(file, **options)


@functools.cache  # takes as long as an epoch
def _scaled() -> tuple[torch.Tensor, torch.Tensor]:
    """The pictures and the labels, which nobody may change."""
    small, labels = _scanned()
    middle = torch.nn.functional.interpolate(small, size=(20, 20), mode="bilinear")
    return torch.nn.functional.pad(middle, (4, 4, 4, 4)), labels


def _scanned() -> tuple[torch.Tensor, torch.Tensor]:
    """The pictures (N, 1, 8, 8) in [0, 1], float32, and the labels (N,)."""
    rows = torch.from_numpy(packaged("digits", dtype=np.uint8, delimiter=","))
    return rows[:, :64].float().div_(16).view(-1, 1, 8, 8), rows[:, 64].long()


def open_source(_config: schema.Digits) -> Source:
    return digits()


def describe(_config: schema.Digits) -> Description:
    return Description((1, 28, 28), len(DIGITS))
