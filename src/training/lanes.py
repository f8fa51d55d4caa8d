"""How a run uses the cores of a CPU: lanes of a stack in parallel, or threads within a product.

Threads that compute a product together wait for each other at its end, often for a thread that
another program keeps from running: at a load of 9 on two cores, a sweep took 16 times as long with
two threads as with one. Lanes wait for each other only once per block.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from src.models import count_parameters, forward_pass
from src.models.closed_form import closed_form_of
from src.system.machine import torch_threads
from src.system.resources import cpu_count

T = TypeVar("T")
R = TypeVar("R")

# The number of operations of a step that pays for a thread: 1 ms of a core. With fewer, Python and
# the hand-over of work to the thread cost as much time as the thread saves.
WORTH = 1e8


def threads_for(models: Sequence[nn.Module], shape: Sequence[int], batch: int, most: int) -> int:
    """How many of `most` threads the steps of these models keep busy, with batches of this size of
    samples of this shape. A step has three times the operations of a forward pass."""
    if closed_form_of(models[0]) is not None:
        each = [2 * count_parameters(model) for model in models]
    else:  # the models of a stack have the same layers
        each = [forward_pass(models[0], shape).operations] * len(models)
    operations = 3 * batch * sum(each)
    return max(1, min(most, int(operations / WORTH)))


def available() -> int:
    """How many threads this process may use: its cores, or fewer if OMP_NUM_THREADS says so."""
    return min(torch.get_num_threads(), cpu_count())


class Lanes:
    """Calls a function for each item: in parallel within `running`, else one after the other."""

    def __init__(self, count: int = 1, threads: int = 1) -> None:
        """`threads` is the number of threads of each product in a lane."""
        self.count, self.threads = count, threads
        self.pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """The results in the order of the items. Waits for all items before it raises an error."""
        if self.pool is None:
            return [function(item) for item in items]
        others = [self.pool.submit(function, item) for item in items[1:]]
        try:
            first = function(items[0])
        finally:
            wait(others)
        return [first, *(other.result() for other in others)]

    def deal(self, function: Callable[[T], object], items: Sequence[T]) -> None:
        """Calls the function for each item. A thread that is free takes the next one."""
        remaining = iter(items)  # a thread cannot interrupt another in the middle of `next`

        def work(_: int) -> None:
            for item in remaining:
                function(item)

        if items:
            self.map(work, range(min(self.count, len(items))))

    @contextmanager
    def running(self) -> Iterator[None]:
        """The threads exist only within this context. The caller's thread takes the first item."""
        with torch_threads(self.threads):
            if self.count == 1:
                yield
                return
            initializer = partial(torch.set_num_threads, self.threads)
            try:
                with ThreadPoolExecutor(self.count - 1, "lane", initializer) as self.pool:
                    yield
            finally:
                self.pool = None
