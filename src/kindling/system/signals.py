"""Signals that stop a run after its current block, with a checkpoint."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from kindling.system.errors import Interrupted

# Ctrl-C, the signal that a scheduler sends before it kills a job, that of a terminal that is closed
# or of a lost connection, and a scheduler's earlier warnings.
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def heeded() -> list[signal.Signals]:
    """HANDLED, without a SIGHUP that nohup has told this process to ignore."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in HANDLED if number != signal.SIGHUP or not ignored]


class Signals:
    """Handles the first signal: raises Interrupted at once, but only notes the signal while
    `waits_for_block` is set. Then the caller calls `interrupt_if_received` after each block.

    A second signal ends the process at once. A rank ignores it, because the terminal and the
    launcher each send the same signal. A second SIGHUP is always ignored: a terminal that is closed
    sends one, and its shell another.
    """

    def __init__(self, rank: bool) -> None:
        self.rank = rank
        self.received: int | None = None
        self.waits_for_block = False

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in heeded():
                signal.signal(number, self._handle)

    def wait_for_block(self) -> None:
        """From now on only notes a signal. Installs again, after Lightning's own handlers."""
        self.install()
        self.waits_for_block = True

    def interrupt_if_received(self) -> None:
        if self.received is not None:
            raise Interrupted(self.received)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            if not self.rank and number != signal.SIGHUP:
                os._exit(128 + number)
            return
        self.received = number
        if not self.waits_for_block:
            raise Interrupted(number)


@contextmanager
def handled(*, rank: bool) -> Iterator[Signals]:
    """Handles the signals inside the body. Does nothing in other threads than the main thread."""
    before: dict[int, Any] = {number: signal.getsignal(number) for number in HANDLED}
    signals = Signals(rank)
    signals.install()
    try:
        yield signals
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)
