"""How a run uses the cores of a CPU: parts of a stack side by side, or threads within a product.

Threads that share a product meet at its end. If other programs use the cores too, each meeting
waits for a thread that does not run: at a load of 9 on two cores a sweep took 16 times as long with
two threads as with one. Parts of a stack meet once a block.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from src.models import count_parameters
from src.system.resources import cpu_count

T = TypeVar("T")
R = TypeVar("R")

# Operations of a step from which a thread of its own pays, 1 ms of a core: below it, handing work
# over and Python itself take as long as they save.
WORTH = 1e8


def threads_for(models: Sequence[nn.Module], batch: int, most: int) -> int:
    """How many of `most` threads the steps of these models keep busy, at batches of this size.

    A step is three products for each weight and sample, of a multiplication and an addition. What a
    convolution does beyond that is not counted: too many threads cost more than too few.
    """
    operations = 6 * batch * sum(map(count_parameters, models))
    return max(1, min(most, int(operations / WORTH)))


def available() -> int:
    """Threads that this process may use: its cores, or fewer where OMP_NUM_THREADS says so."""
    return min(torch.get_num_threads(), cpu_count())


class Lanes:
    """Calls a function for several parts at once, the first on the caller's own thread; one after
    the other where it is not `opened`."""

    def __init__(self, count: int = 1, threads: int = 1) -> None:
        """`threads` is how many each product takes in a lane."""
        self.count, self.threads = count, threads
        self.pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        """The results in the order of the parts. Returns, or raises what a part raised, when all
        have ended."""
        if self.pool is None:
            return [function(part) for part in parts]
        others = [self.pool.submit(function, part) for part in parts[1:]]
        try:
            first = function(parts[0])
        finally:
            wait(others)
        return [first, *(other.result() for other in others)]

    @contextmanager
    def opened(self) -> Iterator[None]:
        """The threads are there within it alone, and products of the caller's own take as many
        threads as theirs."""
        before, own = torch.get_num_threads(), self.threads
        torch.set_num_threads(own)
        try:
            if self.count == 1:
                yield
                return
            with ThreadPoolExecutor(
                self.count - 1, "lane", initializer=torch.set_num_threads, initargs=(own,)
            ) as self.pool:
                yield
        finally:
            self.pool = None
            torch.set_num_threads(before)
