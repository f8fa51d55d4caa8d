"""Processes that die at a write, and what their runs must come to."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from src.benchmarks.crashes import fingerprint
from src.config.schema import Config
from src.runs import checkpoint
from src.runs.checkpoint import CheckpointPair
from src.runs.folder import Run
from src.training.fit import fit


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


def position(run: Run) -> tuple[int, int]:
    """Epoch and batch of the last checkpoint."""
    found = checkpoint.read(run.last_checkpoint)["position"]
    return found["epoch"], found["batch"]


def undisturbed(config: Config, tmp_path: Path) -> dict[str, str]:
    """The fingerprint of a run that nothing stopped."""
    return fingerprint(fit(config, tmp_path / "undisturbed"))
