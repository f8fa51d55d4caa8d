"""Commands that change files, and what must be the same after each, however often one was cut off
and typed again."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from benchmarks.crashes import digest, fingerprint
from kindling.records import checkpoint
from kindling.records.folder import Run
from kindling.records.sweep_folder import Sweep

TINY = (
    "data=digits", "data.batch_size=500", "model.hidden_sizes=[8]", "trainer.max_epochs=3",
    "trainer.progress_bar=false",
)  # fmt: skip
Command = tuple[str, ...]
Runner = Callable[..., "subprocess.CompletedProcess[str]"]
RUN, OTHER, SWEEP, SEARCH = "runs/a/run", "runs/a/other", "sweeps/a/sweep", "searches/a"
TRAIN: Command = ("src.train", *TINY, f"hydra.run.dir={RUN}")
SWEPT: Command = (
    "src.train", "-m", *TINY, f"hydra.sweep.dir={SWEEP}", "optimizer.lr=0.1,0.5",
)  # fmt: skip
FUSED: Command = (*SWEPT, "hydra/launcher=fused")
ANOTHER: Command = ("src.train", *TINY, f"hydra.run.dir={OTHER}")
SAMPLES: Command = (
    "-c", "import numpy; numpy.savez('samples.npz', x=numpy.zeros((3, 1, 28, 28), 'uint8'))",
)  # fmt: skip
TABLE: Command = (
    "-c", "rows = [(n * 37 % 101, n * 53 % 89) for n in range(200)];"
    "text = ''.join(f'{a},{b},{a > b}\\n' for a, b in rows);"
    "open('table.csv', 'w').write('a,b,c\\n' + text)",
)  # fmt: skip
# A run without weights, as of a command that failed.
FAILING: Command = (
    "-c", "from pathlib import Path; from kindling.records.folder import Run;"
    f"run = Run(Path('{RUN}')); run.folder.mkdir(parents=True);"
    "run.write_result({'status': 'failed', 'error': 'of the test'})",
)  # fmt: skip


def runs_of(sweep: str) -> Callable[[Path], Any]:
    return lambda root: [fingerprint(run) for run in Sweep(root / sweep).runs]


def the_run(root: Path) -> Any:
    return fingerprint(Run(root / RUN))


def best_of(folder: str) -> Callable[[Path], Any]:
    return lambda root: digest(checkpoint.read(Run(root / folder).best_checkpoint))


def whole(folder: str) -> Callable[[Path], Any]:
    """A committee: its weights, configuration and figures."""

    def outcome(root: Path) -> Any:
        run = Run(root / folder)
        return best_of(folder)(root), run.config.to_primitives(), run.result.get("test/acc")

    return outcome


def bytes_of(path: str) -> Callable[[Path], Any]:
    return lambda root: (root / path).read_bytes()


def confirmed(root: Path) -> Any:
    return [fingerprint(Run(path.parent)) for path in sorted(root.rglob("result.json"))]


def others(root: Path) -> Any:
    left = [path.name for path in (root / RUN).parent.iterdir()]
    return sorted(name for name in left if name[0] != "."), fingerprint(Run(root / OTHER))


def kept_of(sweep: str) -> Callable[[Path], Any]:
    """The results of all trials, and the weights that stay."""

    def outcome(root: Path) -> Any:
        runs = Sweep(root / sweep).runs
        kept = {str(path.relative_to(root)) for path in root.rglob("*.ckpt")}
        best = [digest(checkpoint.read(path)) for path in sorted(root.rglob("best.ckpt"))]
        return [run.monitored for run in runs], kept, best

    return outcome


def files_in(root: Path) -> list[str]:
    return sorted(name for name in names_in(root) if (root / name).is_file())


def names_in(root: Path) -> list[str]:
    """Without what is hidden."""
    names = (path.relative_to(root) for path in root.rglob("*"))
    return sorted(str(name) for name in names if not any(part[0] == "." for part in name.parts))


@dataclass(frozen=True)
class Operation:
    """A command; what went before; what must be the same after it. After a cut the command is typed
    again. If its error has the text `says`, the work was done before the cut; with `then`, that
    command is typed, and works. What was cut may stay in the folder `leaves`. `restarted`: a
    cluster starts a process that fails again, and nobody reads its words."""

    command: Command
    outcome: Callable[[Path], Any]
    before: Sequence[Command] = ()
    says: str = ""
    then: Command = ()
    leaves: str = ""
    restarted: bool = False


OPERATIONS: dict[str, Operation] = {
    "a run": Operation((*TRAIN, "model.dropout=0.2", "resume=auto"), the_run),
    "a run that keeps the best": Operation(
        (*TRAIN, "checkpoint.keep=best", "resume=auto"), best_of(RUN)
    ),
    "a fused sweep": Operation((*FUSED, "seed=0,1", "resume=auto"), runs_of(SWEEP)),
    "a sweep": Operation((*SWEPT, "resume=auto"), runs_of(SWEEP)),
    "a sweep that keeps the best trial": Operation(
        (*FUSED, "seed=0,1", "checkpoint.keep=1", "resume=auto"), kept_of(SWEEP)
    ),
    "a sweep with halving": Operation(
        (*FUSED, "seed=0,1", "hydra.launcher.halving=2", "resume=auto"), runs_of(SWEEP)
    ),
    "a sweep of groups side by side": Operation(
        (*FUSED, "hydra.launcher.max_trials=1", "hydra.launcher.executor=local",
         "hydra.launcher.slots=2", "resume=auto"),
        runs_of(SWEEP),
    ),
    "a search": Operation(
        ("src.search", *TINY, "optimizer.lr=interval(0.1,1)", "search.trials=3",
         f"search.folder={SEARCH}"),
        runs_of(SEARCH), says=f"resume={SEARCH}", then=("src.search", f"resume={SEARCH}"),
    ),
    "a confirmation": Operation(("src.confirm", SWEEP, "--seeds", "3"), confirmed, [FUSED]),
    "a committee": Operation(
        ("src.committee", SWEEP, "--best", "2"), whole(f"{SWEEP}/committee"), [FUSED],
        says="exists already",
    ),
    "an export": Operation(
        ("src.export", RUN, "--format", "safetensors", "--force"),
        lambda root: digest(load_file(root / RUN / "model.safetensors")), [TRAIN],
    ),
    "a bundle": Operation(
        ("src.report", RUN, "--bundle", "run.zip"),
        bytes_of("run.zip"), [TRAIN], says="exists already",
    ),
    "a label": Operation(
        ("src.runs", "label", RUN, "--name", "best"), bytes_of(f"{RUN}/labels.json"), [TRAIN]
    ),
    "a removal": Operation(
        ("src.runs", "rm", RUN, "--yes"), others,
        [TRAIN, ANOTHER], says="there is no such",
    ),
    "a removal of a sweep": Operation(
        ("src.runs", "rm", SWEEP, "--yes"), names_in, [FUSED], says="there is no such"
    ),
    "a cleaning": Operation(("src.runs", "clean", "--yes"), others, [FAILING, ANOTHER]),
    "a report": Operation(
        ("src.report", RUN), lambda root: (root / RUN / "report.html").stat().st_size // 4096,
        [TRAIN],
    ),
    "predictions": Operation(
        ("src.predict", RUN, "samples.npz", "--csv", "out.csv"), bytes_of("out.csv"),
        [TRAIN, SAMPLES], says="exists already",
    ),
    "a project": Operation(
        ("src.new", "mine"),
        lambda root: [(root / "mine" / name).read_text() for name in files_in(root / "mine")],
        says="is there already",
    ),
    "a pack": Operation(
        ("src.tables", "table.csv", "--target", "c", "--networks", "4", "--folder", SWEEP,
         "trainer.max_epochs=5"),
        whole(f"{SWEEP}/committee"), [TABLE], says="exists already",
    ),
    "a reproduction": Operation(
        ("src.reproduce", "run.zip", "--output", "again"),
        lambda root: fingerprint(Run(max(root.glob("again*")))),
        [TRAIN, ("src.report", RUN, "--bundle", "run.zip")], says="exists already",
        then=("src.reproduce", "run.zip", "--output", "again2"), leaves="again",
    ),
}  # fmt: skip


OTHER_OUTCOME = "another outcome"

# Each try takes seconds, because the processes of groups import torch.
ON_CLUSTERS = {
    "a sweep on Slurm": Operation(
        ("-c", "from tests.helpers.slurm_here import train; train()", *FUSED[1:],
         "hydra.launcher.executor=slurm", "hydra.launcher.max_trials=1", "resume=auto"),
        runs_of(SWEEP),
    ),
    "a group on Ray": Operation(
        ("-c", "from tests.helpers.ray_here import train; train()"),
        lambda root: fingerprint(Run(root / "0")), restarted=True,
    ),
}  # fmt: skip


def found_or_skipped(name: str) -> Operation:
    if name in ON_CLUSTERS:
        pytest.importorskip("ray" if name.endswith("Ray") else "submitit")
    return (OPERATIONS | ON_CLUSTERS)[name]


@dataclass
class Done:
    """An operation that was done in `root`, and what came of it. `start` is the folder as it was
    before."""

    operation: Operation
    root: Path
    start: Path
    expected: Any
    said: str = ""  # by the last command

    def fault(self, run: Runner) -> str:
        """What is wrong after the same command in the root as it is now; "" if nothing is. `run`
        runs a command in a folder."""
        operation = self.operation
        done = run(self.root, *operation.command)
        told = bool(operation.says and operation.says in done.stderr)
        if told and operation.then:
            done, told = run(self.root, *operation.then), False
        self.said = done.stdout + done.stderr
        if done.returncode and not told:
            return f"status {done.returncode}: {self.said[-2000:]}"
        if fault := self.wrong():
            return fault
        cleaned = run(self.root, "src.runs", "clean", "--yes")
        if cleaned.returncode:
            return f"clean: {cleaned.stderr[-500:]}"
        left = [*self.root.rglob("*.part"), *self.root.rglob(".discarded-*")]
        if operation.leaves:
            left = [path for path in left if self.root / operation.leaves not in path.parents]
        return f"left: {left}" if left else ""

    def wrong(self) -> str:
        """How the root differs from what the operation left there; "" if it does not."""
        try:
            if self.operation.outcome(self.root) != self.expected:
                return OTHER_OUTCOME
        except Exception as error:  # libraries raise any for a damaged file
            return f"no outcome: {error}"
        return ""
