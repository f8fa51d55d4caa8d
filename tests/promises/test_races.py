"""Two commands at once on the same folders end as one after the other, or one is refused.

One command is stopped before one of its calls to the file system, also of those that only read. The
other one runs meanwhile, to its end or until it waits for the first; then the first goes on. The
state of the folders must be one that the two commands leave one after the other; of a command that
was refused, nothing may be left. `make torture` draws stops for every pair: RACES=N draws N of
each, RACE_AT=M+N repeats one: the first is stopped before its call number M, the second one before
call number N. With RACE_LOSE=1, no lock keeps anybody out.
"""

import functools
import itertools
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from benchmarks.crashes import digest, fingerprint
from kindling.records import checkpoint
from kindling.records.folder import Run
from kindling.system.errors import InputError
from tests.helpers.power.cuts import Call, compile_recorder, read_calls
from tests.helpers.warm import Warm

Command = tuple[str, ...]
KINDS = "ctwsrudmlyoif"
BLOCKED = 3.0  # seconds after which a command that has not ended is taken to wait for the other
TINY = (
    "data=digits", "data.batch_size=500", "model.hidden_sizes=[8]", "trainer.max_epochs=3",
    "trainer.progress_bar=false",
)  # fmt: skip
RUN, SWEEP, SEARCH = "runs/a/run", "sweeps/a/sweep", "searches/a"
TRAIN: Command = ("src.train", *TINY, f"hydra.run.dir={RUN}")
FUSED: Command = (
    "src.train", "-m", *TINY, f"hydra.sweep.dir={SWEEP}", "optimizer.lr=0.1,0.5",
    "hydra/launcher=fused",
)  # fmt: skip
SEARCHED: Command = (
    "src.search", *TINY, "optimizer.lr=interval(0.1,1)", "search.trials=2", "search.batch=1",
    f"search.folder={SEARCH}",
)  # fmt: skip
SAMPLES: Command = (
    "-c", "import numpy; numpy.savez('samples.npz', x=numpy.zeros((3, 1, 28, 28), 'uint8'))",
)  # fmt: skip
NEW = "runs/a/new"
BEGUN: Command = ("src.train", *TINY, f"hydra.run.dir={NEW}")

# What went before, and the commands of which each two run at once.
GROUPS: dict[str, tuple[Sequence[Command], dict[str, Command]]] = {
    "a run": (
        [TRAIN, SAMPLES],
        {
            "train on": ("src.train", f"resume={RUN}", "trainer.max_epochs=5"),
            "train again": (*TRAIN, "resume=auto"),
            "name": ("src.runs", "label", RUN, "--name", "best"),
            "tag": ("src.runs", "label", RUN, "--tag", "good"),
            "rm": ("src.runs", "rm", RUN, "--yes"),
            "clean": ("src.runs", "clean", "--yes"),
            "list": ("src.runs", "list", "runs"),
            "report": ("src.report", RUN),
            "bundle": ("src.report", RUN, "--bundle", "run.zip"),
            "export": ("src.export", RUN, "--format", "safetensors", "--force"),
            "evaluate": ("src.evaluate", RUN),
            "predict": ("src.predict", RUN, "samples.npz", "--csv", "out.csv", "--force"),
        },
    ),
    "a new run": (
        [TRAIN],
        {
            "train": BEGUN,
            "train or resume": (*BEGUN, "resume=auto"),
            "train another": (*BEGUN, "optimizer.lr=0.7"),
            "clean": ("src.runs", "clean", "--yes"),
            "rm": ("src.runs", "rm", NEW, "--yes"),
            "report": ("src.report", "runs"),
        },
    ),
    "a new sweep": (
        [],
        {
            "train": FUSED,
            "train or resume": (*FUSED, "resume=auto"),
            "train another": (*FUSED, "model.hidden_sizes=[4]"),
            "clean": ("src.runs", "clean", "--yes"),
            "rm": ("src.runs", "rm", SWEEP, "--yes"),
            "report": ("src.report", "sweeps"),
        },
    ),
    "a sweep": (
        [FUSED],
        {
            "train again": (*FUSED, "resume=auto"),
            "committee": ("src.committee", SWEEP, "--best", "2"),
            "greedy": ("src.committee", SWEEP, "--greedy", "2"),
            "confirm": ("src.confirm", SWEEP, "--seeds", "2"),
            "rm": ("src.runs", "rm", SWEEP, "--yes"),
            "report": ("src.report", SWEEP),
            "tag": ("src.runs", "label", SWEEP, "--tag", "good"),
        },
    ),
    "a search": (
        [],
        {
            "search": SEARCHED,
            "search another": (*SEARCHED, "search.seed=7"),
            "clean": ("src.runs", "clean", "--yes"),
            "rm": ("src.runs", "rm", SEARCH, "--yes"),
            "report": ("src.report", "searches"),
        },
    ),
}  # fmt: skip


@dataclass
class Ended:
    """What two commands came to: for each, whether it succeeded; and the state of the folders."""

    worked: tuple[bool, ...]
    state: dict[str, Any]


class Racers:
    """Two processes that run commands, one of them with stops."""

    def __init__(self, library: Path, folder: Path) -> None:
        modules = ("kindling.training.fit", "kindling.reports.page")
        self.warm = [Warm(*modules, preload=library) for _ in range(2)]
        self.root, self.start = folder / "root", folder / "start"
        self.gates = [folder / "gate0", folder / "gate1"]
        self.logs = [folder / "first", folder / "second"]
        self.told, self.group = ["", ""], ""
        self.known = functools.cache(self.in_turn)

    def stop(self) -> None:
        for warm in self.warm:
            warm.stop()

    def begin(self, group: str) -> None:
        """Makes the folders that the commands of a group find."""
        if self.group != group:
            self.group = group
            shutil.rmtree(self.start, ignore_errors=True)
            self.start.mkdir()
            self.known.cache_clear()
            self.fresh()
            for command in GROUPS[group][0]:
                assert self.run(0, command)
            shutil.rmtree(self.start)
            shutil.copytree(self.root, self.start)

    def run(self, number: int, command: Command, stop: int = 0) -> bool:
        """Whether the command succeeded. It waits before its call number `stop`."""
        module, *arguments = command
        self.logs[number].unlink(missing_ok=True)
        done: subprocess.CompletedProcess[str] = self.warm[number](
            self.root, module, *arguments, RECORDER_ROOT=str(self.root),
            RECORDER_LOG=str(self.logs[number]), RECORDER_KINDS=KINDS,
            RECORDER_LOSE=os.environ.get("RACE_LOSE", "0"), RECORDER_PAUSE=str(stop),
            RECORDER_GATE=str(self.gates[number]),
        )  # fmt: skip
        self.told[number] = done.stdout[-500:] + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode in (0, 1, 2), (done.returncode, done.stderr)
        assert not done.returncode or done.stderr.strip(), "it says nothing"
        return not done.returncode

    def fresh(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.start, self.root)

    def in_turn(self, *commands: Command) -> Ended:
        """One command after the other ends."""
        self.fresh()
        worked = tuple([self.run(0, command) for command in commands])
        return Ended(worked, state(self.root))

    def calls(self) -> list[Call]:
        return read_calls(self.logs[0], self.root)

    def race(self, first: Command, second: Command, stop: int, then: int = 0) -> Ended:
        """The second command runs while the first is stopped before call number `stop`; with
        `then`, up to its own call of that number, and goes on when the first has ended."""
        self.fresh()
        reached, go = (
            [Path(f"{gate}.{name}") for gate in self.gates] for name in ("reached", "go")
        )
        for path in [*reached, *go]:
            path.unlink(missing_ok=True)
        with ThreadPoolExecutor(2) as threads:
            runs = list[Future[bool]]()
            try:
                for number, (command, place) in enumerate([(first, stop), (second, then)]):
                    runs.append(threads.submit(self.run, number, command, place))
                    end = time.monotonic() + (BLOCKED if number else 1000)
                    while not (reached[number].exists() or runs[number].done()):
                        if time.monotonic() > end:  # it waits for the first
                            break
                        time.sleep(0.002)
                go[0].touch()
                with suppress(TimeoutError):
                    runs[0].exception(BLOCKED if then else None)
            finally:
                for path in go:
                    path.touch()
            worked = (runs[0].result(), runs[1].result())
        return Ended(worked, state(self.root))


def state(root: Path) -> dict[str, Any]:
    """What the folders hold: of a run what does not depend on the time, of other files that users
    care about the content, and of the rest the names."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        # A report and its figures show what was there when it.
        of_report = path.name == "report.html" or path.parent.name == "report"
        if path.is_dir() or path.name.endswith("lock") or of_report:
            continue
        found[name] = ""
        if path.name in ("config.yaml", "multirun.yaml", "labels.json", "out.csv"):
            found[name] = path.read_text()
        elif path.name == "model.safetensors":
            found[name] = digest(load_file(path))
        elif path.name == "result.json":
            try:
                found[name] = fingerprint(Run(path.parent))
            except (OSError, InputError):  # a committee, or a run without checkpoints
                found[name] = str(path.exists())
        elif path.name == "best.ckpt":
            found[name] = digest(checkpoint.read(path)["state_dict"])
    return found


def different(found: dict[str, Any], expected: dict[str, Any]) -> str:
    names, absent = sorted(found.keys() | expected.keys()), "absent"
    return ", ".join(
        f"{name}: {found.get(name, absent)!s:.300} instead of {expected.get(name, absent)!s:.300}"
        for name in names
        if found.get(name, absent) != expected.get(name, absent)
    )


@pytest.fixture(scope="module")
def racers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Racers]:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler for the recorder")
    folder = tmp_path_factory.mktemp("races")
    made = Racers(compile_recorder(folder), folder)
    yield made
    made.stop()


def chosen(calls: Sequence[Call], many: int, seed: str) -> list[int]:
    """Numbers of calls, from 1, drawn at random: half of them of calls that change something."""
    draw, found = random.Random(seed), list[int]()
    for changes in (True, False):
        numbers = [n for n, call in enumerate(calls, 1) if (call.kind in "ctwsrudm") is changes]
        found += draw.sample(numbers, min(len(numbers), (many + changes) // 2))
    return sorted(found)


def faults(racers: Racers, group: str, names: tuple[str, str], many: int) -> list[str]:
    """What goes wrong when the first command is stopped, at so many of its calls."""
    racers.begin(group)
    first, second = (GROUPS[group][1][name] for name in names)
    forth, back = racers.known(first, second), racers.known(second, first)
    fair = [forth, Ended(back.worked[::-1], back.state)]
    assert racers.known(second).worked[0] or group not in ("a run", "a sweep"), racers.told
    for number, command in enumerate((first, second)):  # the other one is refused
        worked = racers.known(command).worked[0]
        fair.append(
            Ended((worked and not number, worked and bool(number)), racers.known(command).state)
        )
    for number, name in enumerate(names):
        if name == "rm":  # of what the other one had just begun
            fair.append(Ended((number == 0, number == 1), state(racers.start)))
    if first == second or {*names} == {"train", "train or resume"}:  # each has what it asked for,
        # or one is refused, and the other one goes on with what it had begun
        for ends in ((True, True), (True, False), (False, True)):
            fair += [Ended(ends, racers.known(each).state) for each in (first, second)]
    racers.in_turn(second)
    others = racers.calls()
    racers.in_turn(first)
    calls = racers.calls()
    many = int(os.environ.get("RACES", many))
    places = chosen(calls, many, f"{names}")
    stops = [(place, 0) for place in places]
    # Also with two stops, so that each command changes something in the middle of the other one.
    seconds = chosen(others, len(places), f"{names} then")
    stops += [*zip(places, random.Random(0).sample(seconds, len(seconds)), strict=False)]
    if at := os.environ.get("RACE_AT"):
        stops = [(int(at.partition("+")[0]), int(at.partition("+")[2] or 0))]
    found = []
    for stop, then in stops:
        try:
            ended = racers.race(first, second, stop, then)
            allowed = [each for each in fair if each.worked == ended.worked]
            differences = [different(ended.state, each.state) for each in allowed]
            why = min(differences or [f"worked: {ended.worked}"], key=len)
        except AssertionError as error:
            why = str(error)
        if why:
            told = "\n  ".join([why, *racers.told])
            met = calls[stop - 1], others[then - 1] if then else "its end"
            found.append(f"RACE_AT={stop}+{then}, before {met[0]} and {met[1]}: {told}")
    print(json.dumps({"pair": [group, *names], "calls": len(calls), "faults": found}), flush=True)
    return found


PAIRS = [
    (group, names)
    for group, (_, commands) in GROUPS.items()
    for names in itertools.product(commands, repeat=2)
]


SOME = [
    ("a run", ("name", "tag")),
    ("a run", ("train on", "rm")),
    ("a new run", ("train", "train another")),
    ("a sweep", ("committee", "rm")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("group", "names"), SOME)
def test_some_commands_at_once(group: str, names: tuple[str, str], racers: Racers) -> None:
    assert faults(racers, group, names, 2) == []


@pytest.mark.torture
@pytest.mark.parametrize(
    ("group", "names"), PAIRS, ids=[f"{group}-{'-'.join(names)}" for group, names in PAIRS]
)
def test_two_commands_at_once(group: str, names: tuple[str, str], racers: Racers) -> None:
    assert faults(racers, group, names, 4) == []
