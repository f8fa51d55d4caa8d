"""How a run uses the cores of a CPU: lanes of a stack in parallel, threads within a product, or by
the engine a team of threads for one model.

Threads that compute a product together wait for each other at its end, often for a thread that
another program keeps from running: at a load of 9 on two cores, a sweep took 16 times as long with
two threads as with one. Lanes wait for each other only once per block. The threads of a team wait
for each other twice in each step, which takes some tens of microseconds. That pays where they run
at the same time, and not on a busy machine, so a team has as many as were fastest a moment ago. The
results are the same.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from kindling.models import count_parameters, forward_pass
from kindling.models.closed_form import closed_form_of
from kindling.system.machine import torch_threads
from kindling.system.resources import cpu_count

T = TypeVar("T")
R = TypeVar("R")

# The number of operations of a step that pays for a thread: 1 ms of a core. With fewer, Python and
# the hand-over of work to the thread cost as much time as the thread saves.
WORTH = 1e8

ENOUGH = 0.02  # seconds by which a team is measured: the system needs some to spread new threads
ENOUGH_ALONE = 0.005  # seconds by which one thread is measured
PAUSE, LONGEST_PAUSE = 0.5, 8.0  # seconds until the sizes are measured again; see `_choose`
SLOWER = 1.5  # times as slow as measured: measure again at once


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


class TeamSize:
    """How many threads of a team train one model."""

    def __init__(self, most: int) -> None:
        self.sizes = [2**n for n in range(most.bit_length()) if 2**n < most] + [most]
        self.chosen, self.pause = most, PAUSE
        self.measured: dict[int, float] = {}  # seconds of a batch by size
        self.to_measure: list[int] = []
        self.batches, self.seconds = 0, 0.0  # of the first size to measure, so far
        self.again = 0.0  # when to measure next
        self._measure_again()

    def train(self, run: Callable[[int, int, int], object], batches: int) -> None:
        """Trains a block by calls run(size, begin, end), each on some of its batches."""
        begin = 0
        while begin < batches:
            size, end = self.chosen, batches
            if self.to_measure:
                size, end = self.to_measure[0], min(batches, begin + max(1, self.batches))
            began = time.perf_counter()
            run(size, begin, end)
            now = time.perf_counter()
            self._note(size, end - begin, now - began, now)
            begin = end

    def _note(self, size: int, batches: int, seconds: float, now: float) -> None:
        if len(self.sizes) == 1:
            return
        if not self.to_measure:
            slower = seconds > SLOWER * batches * self.measured[size]
            if slower:
                self.pause = PAUSE
            if slower or now >= self.again:
                self._measure_again()
            return
        self.batches, self.seconds = self.batches + batches, self.seconds + seconds
        if self.seconds < (ENOUGH if size > 1 else ENOUGH_ALONE):
            return
        self.measured[size] = self.seconds / self.batches
        self.batches, self.seconds = 0, 0.0
        self.to_measure.pop(0)
        if not self.to_measure:
            self._choose(now)

    def _choose(self, now: float) -> None:
        """Takes the fastest size. The pause doubles while the choice stays the same, because other
        programs can spoil one measurement."""
        fastest = min(self.sizes, key=lambda size: self.measured[size])
        if fastest != self.chosen:
            self.chosen, self.pause = fastest, PAUSE
        self.again, self.pause = now + self.pause, min(2 * self.pause, LONGEST_PAUSE)

    def _measure_again(self) -> None:
        # The last choice first: a run may be over before all sizes are measured.
        others = [size for size in self.sizes if size != self.chosen]
        self.to_measure = [self.chosen, *others] if others else []
