"""How many threads train one model together: as many as were fastest a moment ago.

The threads of a team wait for each other twice in each step, which takes some tens of microseconds.
That pays where they run at the same time, and not on a busy machine. The results are the same.
"""

import math
import time
from collections.abc import Callable

PROBE = 16  # batches, at most, by which a size is measured
AGAIN = 8  # blocks, after which all sizes are measured again; at first 1, 2, 4
SLOWER = 1.5  # times as slow as measured: measure again in the next block


class TeamSize:
    """Chooses among 1, 2, 4, … and `most` threads."""

    def __init__(self, most: int) -> None:
        self.sizes = [2**n for n in range(most.bit_length()) if 2**n < most] + [most]
        self.chosen = most
        self.blocks = 0  # until the next measurement
        self.pause = 1  # blocks between measurements

    def train(self, run: Callable[[int, int, int], object], batches: int) -> None:
        """Trains a block by calls run(size, begin, end), each on some of its batches."""
        begin, measured = 0, dict.fromkeys(self.sizes, math.inf)
        if self.blocks == 0 and len(self.sizes) > 1:
            probe = max(1, min(PROBE, batches // (8 * len(self.sizes))))
            for size in 2 * self.sizes:  # twice, because the first call of a size starts threads
                end = min(begin + probe, batches)
                if begin < end:
                    seconds = _seconds(run, size, begin, end) / (end - begin)
                    measured[size] = min(measured[size], seconds)
                begin = end
            self.chosen = min(self.sizes, key=lambda size: measured[size])
            self.blocks, self.pause = self.pause, min(2 * self.pause, AGAIN)
        self.blocks = max(0, self.blocks - 1)
        if begin < batches:
            seconds = _seconds(run, self.chosen, begin, batches) / (batches - begin)
            if seconds > SLOWER * measured[self.chosen]:
                self.blocks, self.pause = 0, 1


def _seconds(run: Callable[[int, int, int], object], size: int, begin: int, end: int) -> float:
    began = time.perf_counter()
    run(size, begin, end)
    return time.perf_counter() - began
