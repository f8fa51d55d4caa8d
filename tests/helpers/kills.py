"""Processes that die at a write, and what their runs must come to."""

import itertools
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing import forkserver, util
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


# A server that has closed its connections, as a killed one does a while before its end.
DYING_SERVER = """
import os, socket, time
with socket.socket(fileno={}) as listener:
    listener.accept()
os.close({})
time.sleep(0.5)
"""


def kill_fork_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next fork server is killed before it has started a process. Its end takes a while."""
    usual = util.spawnv_passfds

    dying: list[int] = []

    def spawn(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
        if dying or "forkserver" not in args[-1]:  # the resource tracker begins so, too
            return usual(path, args, passfds)
        dying.append(usual(path, [*args[:-1], DYING_SERVER.format(*passfds)], passfds))
        return dying[0]

    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if server is not None:
        os.kill(server, signal.SIGKILL)
        os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(util, "spawnv_passfds", spawn)
