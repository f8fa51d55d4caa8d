"""How many threads train one model together: as many as were fastest a moment ago.

The threads of a team wait for each other twice in each step, which takes some tens of microseconds.
That pays where they run at the same time, and not on a busy machine. The results are the same.
"""

import time
from collections.abc import Callable

ENOUGH = 0.02  # seconds by which a team is measured: the system needs some to spread new threads
ENOUGH_ALONE = 0.005  # seconds by which one thread is measured
PAUSE, LONGEST_PAUSE = 0.5, 8.0  # seconds until the sizes are measured again; see `_choose`
SLOWER = 1.5  # times as slow as measured: measure again at once


class TeamSize:
    """Chooses among 1, 2, 4, … and `most` threads."""

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
        """Takes in that a team of this size trained some batches, until now."""
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
