"""Signals that end a run in good order: after the running block, with a checkpoint."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from src.system.errors import Interrupted

# Ctrl-C, what a scheduler sends before it kills, and what it sends some time before that.
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """What was received. While `patient`, it waits for the next block to end; else it interrupts.

    A second signal ends the process at once: every file is whole at every instant. A rank ignores
    it instead, since its launcher passes on what the terminal sent to both.
    """

    def __init__(self, rank: bool) -> None:
        self.rank = rank
        self.received: int | None = None
        self.patient = False

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in HANDLED:
                signal.signal(number, self._handle)

    def wait_for_block(self) -> None:
        """From now on a signal is only noted. Lightning has just put its own handler in place."""
        self.install()
        self.patient = True

    def interrupt_if_received(self) -> None:
        if self.received is not None:
            raise Interrupted(self.received)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            if not self.rank:
                os._exit(128 + number)
            return
        self.received = number
        if not self.patient:
            raise Interrupted(number)


@contextmanager
def handled(*, rank: bool) -> Iterator[Signals]:
    """Handles the signals within, in the main thread; elsewhere nothing can be handled."""
    before: dict[int, Any] = {number: signal.getsignal(number) for number in HANDLED}
    signals = Signals(rank)
    signals.install()
    try:
        yield signals
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)
