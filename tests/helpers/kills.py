"""Processes that die at a write, and what their runs must come to."""

import itertools
import os
import signal
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from benchmarks.crashes import fingerprint
from kindling.config.schema import Config
from kindling.records import checkpoint
from kindling.records.checkpoint import CheckpointPair
from kindling.records.folder import Run
from kindling.training.fit import fit


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


# Where the process dies, its files are not closed; pytest would report them.
dead_leave_files_open = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
CALLS = ("mkdir", "open", "rename", "replace", "unlink", "rmdir", "fsync", "link")


def die_at_call(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The process dies before the call of this number that changes the disk, and does nothing that
    follows; the first one is number 0."""
    count, real = itertools.count(), {name: getattr(os, name) for name in CALLS}

    def fatal(name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            reads = name == "open" and not given[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if not reads and next(count) >= number:
                raise Killed(name)
            return real[name](*given, **named)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, fatal(name))


def position(run: Run) -> tuple[int, int]:
    """Epoch and batch of the last checkpoint."""
    found = checkpoint.read(run.last_checkpoint)["position"]
    return found["epoch"], found["batch"]


def undisturbed(config: Config, tmp_path: Path) -> dict[str, str]:
    """The fingerprint of a run that nothing stopped."""
    return fingerprint(fit(config, tmp_path / "undisturbed"))


def kill_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills the fork server before it has started the next process."""
    usual = forkserver.connect_to_new_process

    def connect(*descriptors: Any) -> Any:
        monkeypatch.setattr(forkserver, "connect_to_new_process", usual)
        forkserver.ensure_running()
        server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        os.kill(server, signal.SIGSTOP)
        connected = usual(*descriptors)
        os.kill(server, signal.SIGKILL)
        return connected

    monkeypatch.setattr(forkserver, "connect_to_new_process", connect)
