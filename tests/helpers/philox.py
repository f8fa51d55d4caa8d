"""The random numbers of the engine, by NumPy: masks of dropout, and noise."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


def philox(counter: Sequence[int | Array], key: Sequence[int]) -> list[Array]:
    """Philox 4x32-10 of Salmon et al. 2011: four words of each counter. The words of a counter are
    numbers, or arrays that broadcast."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    words, (low, high) = [np.asarray(word, np.uint64) for word in counter], key
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * words[0], np.uint64(0xCD9E8D57) * words[2]
        words = [
            (b >> shift) ^ words[1] ^ np.uint64(low), b & mask,
            (a >> shift) ^ words[3] ^ np.uint64(high), a & mask,
        ]  # fmt: skip
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return words


def _words(shape: Sequence[int], units: int, seed: int, batch: int, layer: int) -> list[Array]:
    """The four words of each counter, (samples, counters); a counter is for `units` units."""
    samples, width = shape
    counter: list[int | Array]
    counter = [np.arange(-(-width // units))[None], np.arange(samples)[:, None], batch, layer]
    return philox(counter, [seed & 0xFFFFFFFF, seed >> 32])


def mask(shape: Sequence[int], probability: float, seed: int, batch: int, layer: int) -> Tensor:
    samples, units = shape
    dropped = min(int(probability * 2**16 + 0.5), 2**16 - 1)
    words = _words(shape, 8, seed, batch, layer)
    halves = [half for word in words for half in (word & np.uint64(0xFFFF), word >> np.uint64(16))]
    draws = np.stack(halves, -1).reshape(samples, -1)
    return torch.from_numpy((draws >= dropped)[:, :units] * (2**16 / (2**16 - dropped)))


def normal_numbers(shape: Sequence[int], seed: int, batch: int, layer: int) -> Tensor:
    """Standard normal numbers (samples, units) by Box and Muller, from NumPy's functions. Of the
    64 units that 16 counters are for, each counter gives four, with 16 units between them."""
    samples, units = shape
    padded = -(-units // 64) * 64
    words = _words((samples, padded), 4, seed, batch, layer + 2**31)
    numbers = []
    for u, v in (words[:2], words[2:]):
        uniform = (2 * (u >> np.uint64(9)) + np.uint64(1)).astype(np.float64) / 2**24
        angle = 2 * np.pi * ((v >> np.uint64(8)).astype(np.float64) / 2**24 - 1 / 8)
        radius = np.sqrt(-2 * np.log(uniform))
        numbers += [radius * np.cos(angle), radius * np.sin(angle)]
    chunks = np.stack([each.reshape(samples, -1, 16) for each in numbers], 2)
    return torch.from_numpy(chunks.reshape(samples, padded)[:, :units])
