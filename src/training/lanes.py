"""How a run uses the cores of a CPU: lanes of a stack in parallel, or threads within a product.

Threads that share a product wait for each other at its end. If other programs use the cores too,
each wait is for a thread that does not run: at a load of 9 on two cores a sweep took 16 times as
long with two threads as with one. Lanes wait for each other only once a block.
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

# The operations of a step that are worth another thread: 1 ms of a core. With fewer, Python and the
# hand-over of work to the thread cost as much time as it saves.
WORTH = 1e8


def threads_for(models: Sequence[nn.Module], batch: int, most: int) -> int:
    """How many of `most` threads the steps of these models keep busy, at batches of this size.

    A step has three products for each weight and sample, each a multiplication and an addition.
    Convolutions use a weight more often, but too many threads cost more than too few.
    """
    operations = 6 * batch * sum(map(count_parameters, models))
    return max(1, min(most, int(operations / WORTH)))


def available() -> int:
    """How many threads this process may use: its cores, or fewer if OMP_NUM_THREADS says so."""
    return min(torch.get_num_threads(), cpu_count())


class Lanes:
    """Calls a function for several parts: in parallel within `opened`, else one after the other."""

    def __init__(self, count: int = 1, threads: int = 1) -> None:
        """`threads` is the number of threads of each product in a lane."""
        self.count, self.threads = count, threads
        self.pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        """The results in the order of the parts. Waits for all parts before it raises an error."""
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
        """The threads exist only within this context. The caller's thread takes the first part."""
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
