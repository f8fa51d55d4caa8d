"""Processes that die at a write."""

import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest

from src.runs.checkpoint import CheckpointPair


class Killed(BaseException):
    pass


def die_after_writing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on a process dies after its first checkpoint; the call returned undoes it."""
    write = CheckpointPair.write

    def once(self: CheckpointPair, content: dict[str, Any]) -> None:
        write(self, content)
        raise Killed

    monkeypatch.setattr(CheckpointPair, "write", once)
    return lambda: monkeypatch.setattr(CheckpointPair, "write", write)


def die_at_sync(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The process dies when it syncs a file for this time; the first one is number 0."""
    count, sync = itertools.count(), os.fsync

    def fatal(descriptor: int) -> None:
        if next(count) == number:
            raise Killed
        sync(descriptor)

    monkeypatch.setattr("os.fsync", fatal)
