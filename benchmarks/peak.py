"""The peak of the machine: the best rate of the installed libraries in a large matrix product."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg.blas import sgemm

from benchmarks.measure import Seconds, Spread, spread

SIDE = 2048  # of the square matrices: large enough that only the arithmetic counts
REPEATS = 5
LIBRARIES = ("torch.mm", "numpy.matmul", "scipy's sgemm")


class Peak(NamedTuple):
    """GFLOP/s of each library, and the library with the highest rate."""

    library: str
    gflops: dict[str, float]

    def share(self, operations: float, seconds: Sequence[float]) -> Spread:
        """The part of the peak at which operations were done in each of these times."""
        best = 1e9 * self.gflops[self.library]
        return spread([operations / each / best for each in seconds])

    def __str__(self) -> str:
        rates = ", ".join(f"{library} {rate:.1f}" for library, rate in self.gflops.items())
        return f"peak of the machine: {self.library}, of products in GFLOP/s: {rates}"


def operations(widths: Sequence[int], samples: int) -> int:
    """The operations of an epoch's training steps: a multiplication and an addition for each weight
    and sample in each of forward, gradient of the weights, and gradient of the layer's inputs,
    which the first layer does not compute. Widths are inputs, hidden layers, classes."""
    weights = [above * below for above, below in pairwise(widths)]
    return 2 * samples * (3 * sum(weights) - weights[0])


def large_products() -> dict[str, Callable[[], float]]:
    """Contenders by library: each times a large float32 product, by the threads that the library
    takes by default, and returns the least seconds of REPEATS."""
    stream = np.random.default_rng(0)
    a, b = stream.random((2, SIDE, SIDE), np.float32)
    # sgemm takes Fortran's order without a copy, which the transposed matrices have.
    products: list[Callable[[], object]] = [
        partial(torch.mm, *map(torch.from_numpy, (a, b)), out=torch.empty(SIDE, SIDE)),
        partial(np.matmul, a, b, out=np.empty_like(a)),
        partial(sgemm, 1.0, a.T, b.T, c=np.empty_like(a).T, overwrite_c=True),
    ]

    def least(product: Callable[[], object]) -> float:
        times = [time.perf_counter()]
        for _ in range(REPEATS):
            product()
            times.append(time.perf_counter())
        return min(end - begin for begin, end in pairwise(times))

    return {
        library: partial(least, product)
        for library, product in zip(LIBRARIES, products, strict=True)
    }


def take_peak(seconds: Seconds) -> Peak:
    """Removes the times of `large_products` from those of a suite, and returns their best rates."""
    gflops = {library: 2e-9 * SIDE**3 / min(seconds.pop(library)) for library in LIBRARIES}
    return Peak(max(gflops, key=gflops.__getitem__), gflops)
