"""After a power cut at any call, the same command ends as if nothing had happened.

Each operation is recorded once. Its states after a cut (tests/helpers/power/cuts.py) are built on
the disk, one after the other, and the operation is repeated on each. The default suite tries some
states, `make torture` more: POWER_CUTS=N tries N of each operation, POWER_CUTS=all every one.
"""

import json
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from benchmarks.crashes import digest, fingerprint
from kindling.records import checkpoint
from kindling.records.folder import Run
from kindling.records.sweep_folder import Sweep
from kindling.system.errors import InputError
from tests.helpers.commands import ROOT
from tests.helpers.power.cuts import Call, Cut, after, build, compile_recorder, cuts, recorded
from tests.helpers.warm import Warm

TINY = (
    "data=digits", "data.batch_size=500", "model.hidden_sizes=[8]", "trainer.max_epochs=3",
    "trainer.progress_bar=false",
)  # fmt: skip
Command = tuple[str, ...]
RUN, OTHER, SWEEP, SEARCH = "runs/a/run", "runs/a/other", "sweeps/a/sweep", "searches/a"
TRAIN: Command = ("src.train", *TINY, f"hydra.run.dir={RUN}")
SWEPT: Command = (
    "src.train", "-m", *TINY, f"hydra.sweep.dir={SWEEP}", "optimizer.lr=0.1,0.5",
)  # fmt: skip
FUSED: Command = (*SWEPT, "hydra/launcher=fused")


def runs_of(sweep: str) -> Callable[[Path], Any]:
    return lambda root: [fingerprint(run) for run in Sweep(root / sweep).runs]


def the_run(root: Path) -> Any:
    return fingerprint(Run(root / RUN))


def best_of(folder: str) -> Callable[[Path], Any]:
    return lambda root: digest(checkpoint.read(Run(root / folder).best_checkpoint))


def texts_of(path: str) -> Callable[[Path], Any]:
    return lambda root: (root / path).read_text()


def confirmed(root: Path) -> Any:
    return [fingerprint(Run(path.parent)) for path in sorted(root.rglob("result.json"))]


def others(root: Path) -> Any:
    left = [path.name for path in (root / RUN).parent.iterdir()]
    return sorted(name for name in left if name[0] != "."), fingerprint(Run(root / OTHER))


@dataclass(frozen=True)
class Operation:
    """A command; what went before; what must be the same after it. `again` is typed after a cut, by
    default the command; where it ends with one of `says`, it was done before the cut, or `then` is
    typed, which works."""

    command: Command
    outcome: Callable[[Path], Any]
    before: Sequence[Command] = ()
    says: str = ""
    then: Command = ()


OPERATIONS: dict[str, Operation] = {
    "a run": Operation((*TRAIN, "model.dropout=0.2", "resume=auto"), the_run),
    "a run that keeps the best": Operation(
        (*TRAIN, "checkpoint.keep=best", "resume=auto"), best_of(RUN)
    ),
    "a fused sweep": Operation((*FUSED, "seed=0,1", "resume=auto"), runs_of(SWEEP)),
    "a sweep": Operation((*SWEPT, "resume=auto"), runs_of(SWEEP)),
    "a search": Operation(
        ("src.search", *TINY, "optimizer.lr=interval(0.1,1)", "search.trials=3",
         f"search.folder={SEARCH}"),
        runs_of(SEARCH), says=f"resume={SEARCH}", then=("src.search", f"resume={SEARCH}"),
    ),
    "a confirmation": Operation(("src.confirm", SWEEP, "--seeds", "3"), confirmed, [FUSED]),
    "a committee": Operation(
        ("src.committee", SWEEP, "--best", "2"), best_of(f"{SWEEP}/committee"), [FUSED],
        says="exists already",
    ),
    "an export": Operation(
        ("src.export", RUN, "--format", "safetensors", "--force"),
        lambda root: digest(load_file(root / RUN / "model.safetensors")), [TRAIN],
    ),
    "a bundle": Operation(
        ("src.report", RUN, "--bundle", "run.zip"),
        lambda root: (root / "run.zip").stat().st_size // 4096, [TRAIN], says="exists already",
    ),
    "a label": Operation(
        ("src.runs", "label", RUN, "--name", "best"), texts_of(f"{RUN}/labels.json"), [TRAIN]
    ),
    "a removal": Operation(
        ("src.runs", "rm", RUN, "--yes"), others,
        [TRAIN, ("src.train", *TINY, f"hydra.run.dir={OTHER}")], says="there is no such",
    ),
}  # fmt: skip


@dataclass
class Recorded:
    """An operation that was recorded in `root`, and what came of it."""

    operation: Operation
    root: Path
    start: Path
    calls: Sequence[Call]
    expected: Any

    def fault(self, cut: Cut, warm: Warm) -> str:
        """What is wrong after the cut and the same command; "" if nothing is."""
        operation = self.operation
        build(cut.tree, self.root)
        done = warm(self.root, *operation.command)
        told = bool(operation.says and operation.says in done.stderr)
        if told and operation.then:
            done, told = warm(self.root, *operation.then), False
        if done.returncode and not told:
            return f"status {done.returncode}: {done.stderr[-500:]}"
        try:
            if operation.outcome(self.root) != self.expected:
                return "another outcome"
        except (OSError, InputError) as error:
            return f"no outcome: {error}"
        cleaned = warm(self.root, "src.runs", "clean", "--yes")
        if cleaned.returncode:
            return f"clean: {cleaned.stderr[-500:]}"
        left = [*self.root.rglob("*.part"), *self.root.rglob(".discarded-*")]
        return f"left: {left}" if left else ""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler for the recorder")
    return compile_recorder(tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    runner = Warm("kindling.training.fit", "kindling.reports.page")
    yield runner
    runner.stop()


def record(operation: Operation, library: Path, warm: Warm, folder: Path) -> Recorded:
    root, start = folder / "root", folder / "start"
    root.mkdir()
    for earlier in operation.before:
        assert warm(root, *earlier).returncode == 0
    shutil.copytree(root, start)
    command = [sys.executable, "-m", *operation.command]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    calls = recorded(library, command, root, PYTHONPATH=path)
    return Recorded(operation, root, start, calls, operation.outcome(root))


def chosen(found: Sequence[Cut], number: int, seed: int = 0) -> list[Cut]:
    """As many states as wanted, drawn at random."""
    wanted = os.environ.get("POWER_CUTS", str(number))
    count = len(found) if wanted == "all" else min(int(wanted), len(found))
    return random.Random(seed).sample(found, count)


def faults(done: Recorded, tried: Sequence[Cut], warm: Warm) -> list[str]:
    return [
        f"{cut.rule} after call {cut.calls}, {done.calls[cut.calls - 1]}: {fault}"
        for cut in tried
        if (fault := done.fault(cut, warm))
    ]


@pytest.mark.parametrize("name", [pytest.param("a run", marks=pytest.mark.slow), "a label"])
def test_the_record_is_what_happened(name: str, library: Path, warm: Warm, tmp_path: Path) -> None:
    """The simulated disk holds what the real one does, and from some of its states the operation
    goes on as if nothing had happened."""
    done = record(OPERATIONS[name], library, warm, tmp_path)
    real = {
        str(path.relative_to(done.root)): None if path.is_dir() else path.read_bytes()
        for path in done.root.rglob("*")
    }
    assert after(done.calls, done.start) == real
    assert faults(done, chosen(cuts(done.calls, done.start), 3), warm) == []


@pytest.mark.torture
@pytest.mark.parametrize("name", OPERATIONS)
def test_after_a_power_cut_the_same_command_ends_as_undisturbed(
    name: str, library: Path, warm: Warm, tmp_path: Path
) -> None:
    done = record(OPERATIONS[name], library, warm, tmp_path)
    found = cuts(done.calls, done.start, any_order=1)
    tried = chosen(found, 40)
    told = faults(done, tried, warm)
    rules = Counter(cut.rule.rstrip(" 0") for cut in tried)
    row = {"operation": name, "calls": len(done.calls), "states": len(found), "tried": len(tried)}
    print(json.dumps(row | {"rules": rules, "faults": told}))
    assert told == []


@pytest.mark.torture
@pytest.mark.parametrize("name", ["a run", "a label", "a committee"])
def test_each_sync_is_needed(name: str, library: Path, warm: Warm, tmp_path: Path) -> None:
    """Without one of the syncs there is a state that the same command does not mend, or the sync is
    in the list of those that only narrow what is lost."""
    done = record(OPERATIONS[name], library, warm, tmp_path)
    usual = {frozenset(cut.tree.items()) for cut in cuts(done.calls, done.start)}
    needless = []
    for number, call in enumerate(done.calls):
        if call.kind != "s":
            continue
        fewer = [*done.calls[:number], *done.calls[number + 1 :]]
        more = [cut for cut in cuts(fewer, done.start) if frozenset(cut.tree.items()) not in usual]
        tried = chosen(more, 12)
        noticed = bool(faults(done, tried, warm))
        print(json.dumps({"call": str(call), "new states": len(more), "noticed": noticed}))
        needless += [] if noticed else [str(call)]
    print(json.dumps({"operation": name, "needless": needless}))
