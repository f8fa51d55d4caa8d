"""Killed at any instant and typed again, a command ends as if nothing had happened.

Each command goes through a warm process. The kill hits the command that was typed, its process in
the warm process, one of those that it has started, or the warm process itself. KILL_SECONDS=N kills
each operation for N seconds, KILL_SEED=N at other instants.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers.operations import OPERATIONS, TRAIN, Command, Done, Operation, the_run
from tests.helpers.sweeps import lived, until
from tests.helpers.warm import prepared
from tests.helpers.warm_process import Place

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a warm process needs Linux")
# Have tracebacks where a process of multiprocessing is killed, and where a signal comes while an
# object is freed.
OF_PYTHON = ("resource_tracker.py", "weakref.py")
ROUNDS = 10  # kills of one command before it may end
SHARES = {"the command": 0.45, "a process of the command": 0.45, "the warm process": 0.1}
ON_RANKS = Operation(
    (*TRAIN, "trainer=cpu", "trainer.devices=2", "trainer.strategy=ddp", "resume=auto"), the_run
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("killed"))
    place.start("--for", "2h")
    yield place
    place.run("src.warm", "--stop")


def done_once(operation: Operation, place: Place, folder: Path) -> tuple[Done, float]:
    """The operation without a kill, and its seconds."""
    root, start = folder / "root", folder / "start"
    root.mkdir()
    for earlier in operation.before:
        assert prepared()(root, *earlier).returncode == 0
    shutil.copytree(root, start)
    place.folder, began = root, time.monotonic()
    ended = place.run(*operation.command)
    assert ended.returncode == 0, ended.stderr
    return Done(operation, root, start, operation.outcome(root)), time.monotonic() - began


def below(process: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    with suppress(FileNotFoundError, ProcessLookupError):
        own = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return [each for child in map(int, own) for each in (child, *below(child))]
    return []


def kill(place: Place, command: Command, seconds: float, draw: random.Random) -> tuple[str, str]:
    """Runs a command and kills it after so many seconds. Returns what the kill has hit, "" for a
    command that ended before, and what the command has said."""
    server = place.told()["process"]
    with place.begin(*command) as process:
        hit = ""
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            (hit,) = draw.choices([*SHARES], [*SHARES.values()])
            others = below(server)
            hit = hit if others or hit == "the warm process" else "the command"
            victims = {"the command": [process.pid], "the warm process": [server]}
            with suppress(ProcessLookupError):
                os.kill(draw.choice(victims.get(hit, others)), signal.SIGKILL)
        told = "".join(process.communicate(timeout=300))
    if hit == "the warm process":
        until(lambda: not any(map(lived, others)))
        place.start("--for", "2h")
    assert process.returncode in (0, 1, 2, -signal.SIGKILL), told
    assert "Traceback" not in told or any(name in told for name in OF_PYTHON), told
    return hit, told


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a run", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.torture) for name in OPERATIONS if name != "a run"),
        pytest.param("a run on two ranks", marks=pytest.mark.torture),
    ],
)
def test_a_killed_command_is_typed_again(name: str, place: Place, tmp_path: Path) -> None:
    operation = OPERATIONS.get(name, ON_RANKS)
    done, seconds = done_once(operation, place, tmp_path)
    seed, share = os.environ.get("KILL_SEED", "0"), float(os.environ.get("KILL_SECONDS", "10"))
    end, hits, faults, tried = time.monotonic() + share, Counter[str](), list[str](), 0
    while time.monotonic() < end:
        draw, command = random.Random(f"{name} {seed} {tried}"), operation.command
        shutil.rmtree(done.root)
        shutil.copytree(done.start, done.root)
        for _ in range(ROUNDS):
            hit, told = kill(place, command, draw.uniform(0, seconds), draw)
            if not hit:
                break
            hits[hit] += 1
            if operation.then and operation.says in told:
                if operation.leaves:  # what is killed now would need a third name
                    break
                command = operation.then
        if fault := done.fault(lambda _, *typed: place.run(*typed)):
            faults.append(f"folder {tried}: {fault}")
        tried += 1
    row = {"operation": name, "seed": seed, "kills": sum(hits.values()), "hits": hits}
    print(json.dumps(row | {"folders": tried, "faults": faults}))
    assert faults == []
    assert hits
