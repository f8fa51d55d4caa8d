"""Kills runs at random instants, resumes them, and compares them with an undisturbed run.

Runs the commands that users type, in processes forked from one that has already imported all
modules: a start then takes a tenth of a second, and two hundred kills take some minutes.
"""

import csv
import fcntl
import hashlib
import json
import multiprocessing
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tabulate import tabulate
from torch import Tensor
from tqdm import tqdm

from benchmarks.slow_files import SECONDS, slow_down_with_children
from kindling.records import checkpoint
from kindling.records.folder import Run, columns
from kindling.records.sweep_folder import Sweep

MEASURED = (
    "seconds", "samples_per_second", "peak_memory_bytes", "peak_gpu_allocated_bytes",
    "peak_gpu_reserved_bytes", "gpu_utilisation", "commit",
)  # fmt: skip  # differ between any two runs

# Small but hard to resume: dropout, momentum, a schedule by steps, checkpoints inside an epoch,
# gradients accumulated across blocks. An epoch takes some tenths of a second.
COMMON = (
    "data=synthetic", "data.samples=40000", "data.batch_size=50", "data.shape=[784]",
    "trainer=cpu", "trainer.progress_bar=false", "checkpoint.every_n_steps=70",
)  # fmt: skip
GROUPS = (
    "-m", *COMMON, "hydra/launcher=fused", "model.dropout=0.2", "model.hidden_sizes=16,24",
    "optimizer.momentum=0.5,0.9", "optimizer.lr=0.01", "trainer.max_epochs=40",
    "checkpoint.every_n_epochs=1",
)  # fmt: skip
SCENARIOS: dict[str, tuple[str, ...]] = {
    "single": (
        *COMMON, "model.dropout=0.2", "optimizer=adamw", "scheduler=onecycle",
        "trainer.accumulate_grad_batches=3", "trainer.max_epochs=8",
    ),
    "sweep": (
        "-m", *COMMON, "hydra/launcher=fused", "model.dropout=0.2", "model.hidden_sizes=16,24",
        "optimizer.momentum=0.5,0.9", "optimizer.lr=0.01", "trainer.max_epochs=5",
    ),
    "halving": (  # trials leave their stack; averages and augmentation continue
        "-m", *COMMON, "data.shape=[1,28,28]", "data.samples=10000", "augmentation=digits",
        "hydra/launcher=fused", "hydra.launcher.halving=2", "trainer.ema_decay=0.9",
        "model.hidden_sizes=16,24", "optimizer.lr=0.01,0.1", "trainer.max_epochs=5",
    ),
    "ranks": (
        *COMMON, "trainer.devices=2", "trainer.strategy=ddp", "model.dropout=0.2",
        "optimizer.momentum=0.9", "optimizer.lr=0.01", "trainer.max_epochs=6",
    ),
    # Groups in other processes: each kill hits the command, or the process of a group.
    "local": (*GROUPS, "hydra.launcher.executor=local", "hydra.launcher.slots=2"),
    "slurm": (*GROUPS, "hydra.launcher.executor=slurm"),
    "ray": (*GROUPS, "hydra.launcher.executor=ray"),
}  # fmt: skip
SIDE_BY_SIDE = ("local", "slurm", "ray")


def fingerprint(run: Run) -> dict[str, str]:
    """A digest of each part that a resumed run must share with an undisturbed run."""
    last, best = checkpoint.read(run.last_checkpoint), checkpoint.read(run.best_checkpoint)
    rows = [{key: row[key] for key in row if key not in MEASURED} for row in run.history]
    # The engine takes the cores that there are; its results do not depend on them.
    native = run.result.get("step") == "native"
    ignored = [*MEASURED, "hardware"] if native else MEASURED
    result = {key: value for key, value in run.result.items() if key not in ignored}
    return {
        "weights": digest(last["state_dict"]),
        "average": digest(last["average"]),
        "optimizer": digest(last["optimizer_states"]),
        "random": digest(last["ranks"]),
        "best": digest(best),
        "history": digest(rows),
        "result": digest(result),
    }


def digest(value: Any) -> str:
    """A digest of nested primitives and tensors, exact to the last bit."""
    checksum = hashlib.sha256()
    for part in _bytes(value):
        checksum.update(part)
    return checksum.hexdigest()[:16]


def _bytes(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().flatten().view(-1).numpy().tobytes()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{key!r}:".encode()
            yield from _bytes(item)
    elif isinstance(value, list | tuple):
        yield f"[{len(value)}".encode()
        for item in value:
            yield from _bytes(item)
    else:
        yield repr(value).encode()


def _command(arguments: Sequence[str], folder: Path, slow: Path | None) -> None:
    """The body of a process: runs `python -m src.train ARGUMENTS` in a folder."""
    os.setsid()
    with (folder / "output.txt").open("a") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(folder)
    tqdm.set_lock(threading.RLock())  # tqdm's own lock is shared between processes and would leak
    if slow is not None:
        slow_down_with_children(slow, folder)
    sys.argv[1:] = arguments
    import_module("src.train").main()


@dataclass
class Tally:
    """The outcome of the runs of a scenario."""

    scenario: str
    kills: int = 0
    during_write: int = 0
    runs: int = 0
    identical: int = 0
    lost_seconds: list[float] = field(default_factory=list)  # since a checkpoint
    different: list[str] = field(default_factory=list)

    def to_primitives(self) -> dict[str, Any]:
        lost = statistics.median(self.lost_seconds) if self.lost_seconds else None
        return vars(self) | {"lost_seconds": lost}


class Torture:
    """Kills the runs of a scenario until there are enough kills. Each run is resumed to its end."""

    def __init__(self, scenario: str, base: Path, overrides: Sequence[str], seed: int) -> None:
        self.scenario, self.base = scenario, base
        self.sweep = "-m" in SCENARIOS[scenario]
        self.arguments = [*SCENARIOS[scenario], *overrides, "resume=auto"]
        self.random = random.Random(f"{scenario} {seed}")
        self.context = multiprocessing.get_context("forkserver")
        # The tracker of semaphores would report those of killed processes at the end.
        os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
        self.context.set_forkserver_preload(["kindling.training.fit", "src.train"])
        self.tally = Tally(scenario)

    def run(self, kills: int, on_kill: Callable[[], Any]) -> Tally:
        """Calls `on_kill` after each kill. Raises RuntimeError when a command fails by itself."""
        idle = self.context.Process(target=int)
        idle.start()
        idle.join()  # the process that others are forked from has imported all modules now
        began = time.monotonic()
        self._finish(self._start(self.base / "undisturbed"), self.base / "undisturbed")
        self.duration = time.monotonic() - began
        expected = self._fingerprints(self.base / "undisturbed")
        while self.tally.kills < kills:
            folder = self.base / f"killed-{self.tally.runs}"
            self._run_with_kills(folder, kills, on_kill)
            self.tally.runs += 1
            if self._fingerprints(folder) == expected:
                self.tally.identical += 1
            else:
                self.tally.different.append(str(folder))
        return self.tally

    def _run_with_kills(self, folder: Path, kills: int, on_kill: Callable[[], Any]) -> None:
        """Starts a run, kills it at most ten times, then lets it finish."""
        kill = self._killed_group if self.scenario in SIDE_BY_SIDE else self._killed
        process: BaseProcess | None = None
        for _ in range(10):
            if self.tally.kills >= kills:
                break
            process, during_write = kill(folder, process)
            if process.exitcode == 0:
                return
            self.tally.kills += 1
            self.tally.during_write += during_write
            self._check_readable(folder)
            on_kill()
        if process is None or not process.is_alive():
            process = self._start(folder)
        self._finish(process, folder)

    def _killed_group(self, folder: Path, process: BaseProcess | None) -> tuple[BaseProcess, bool]:
        """Kills the command, or the process of a group once it has trained an epoch or more since
        the last kill. The command lives on then."""
        if process is None or not process.is_alive():
            process = self._start(folder)
        trained = _rows(folder)
        end = time.monotonic() + self.random.uniform(0, 0.6 * self.duration)
        hits_group = self.random.random() < 0.6
        while process.is_alive() and (
            time.monotonic() < end or (hits_group and _rows(folder) <= trained + 8)
        ):
            time.sleep(0.01)
        groups = _holders(folder) if hits_group else []
        if not process.is_alive():
            self._finish(process, folder)
        elif groups:
            self.tally.lost_seconds.append(self._lost(folder, end - self.duration))
            with suppress(ProcessLookupError):
                os.kill(self.random.choice(groups), signal.SIGKILL)
        else:
            process.kill()
            process.join()
        return process, False

    def _killed(self, folder: Path, _: BaseProcess | None) -> tuple[BaseProcess, bool]:
        """Starts and kills a process, unless it ends first; whether it was writing a file."""
        slow = self.random.random() < 0.5
        wait = self.random.uniform(0, 0.6 * self.duration)  # start-up included
        with _pipe(self.base / "pipe") as writes:
            process = self._start(folder, self.base / "pipe" if slow else None)
            began = time.monotonic()
            process.join(wait)
            writing = slow and _awaited(writes, process)
            if writing:
                time.sleep(self.random.uniform(0, 2 * SECONDS))
            if process.is_alive():
                self.tally.lost_seconds.append(self._lost(folder, began))
                process.kill()
            process.join()
        if process.exitcode not in (0, -9):
            self._finish(process, folder)
        return process, writing

    def _lost(self, folder: Path, began: float) -> float:
        """Seconds since the newest checkpoint, or since the process began."""
        written = [path.stat().st_mtime for path in folder.rglob("last.ckpt")]
        since = time.monotonic() - began
        return min(since, time.time() - max(written)) if written else since

    def _start(self, folder: Path, slow: Path | None = None) -> BaseProcess:
        folder.mkdir(parents=True, exist_ok=True)
        key = "hydra.sweep.dir" if self.sweep else "hydra.run.dir"
        arguments = [*self.arguments, f"{key}=run"]
        process = self.context.Process(target=_command, args=(arguments, folder, slow))
        process.start()
        return process

    def _finish(self, process: BaseProcess, folder: Path) -> None:
        process.join()
        if process.exitcode:
            output = (folder / "output.txt").read_text()[-3000:]
            raise RuntimeError(f"{folder}: exit status {process.exitcode}\n{output}")

    def _fingerprints(self, folder: Path) -> list[dict[str, str]]:
        runs = Sweep(folder / "run").runs if self.sweep else [Run(folder / "run")]
        return [fingerprint(run) for run in runs]

    def _check_readable(self, folder: Path) -> None:
        """Histories and results must be valid CSV and JSON at every instant."""
        for path in folder.rglob("history.csv"):
            with path.open(newline="") as file:
                rows = list(csv.reader(file, strict=True))
            if not rows or any(
                len(row) != len(columns("classification", "val/acc")) for row in rows
            ):
                raise RuntimeError(f"{path}: has half a row")
        for path in folder.rglob("result.json"):
            json.loads(path.read_text())


def _rows(folder: Path) -> int:
    """The rows of all histories of a sweep."""
    return sum(path.read_text().count("\n") for path in folder.glob("run/*/history.csv"))


def _holders(folder: Path) -> list[int]:
    """The processes that train the groups of a sweep, by the locks that they hold."""
    found = []
    for path in folder.glob("run/.stacks/*/.lock"):
        with suppress(FileNotFoundError), path.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                match = re.match(r"process (\d+) of", file.read())
                found += [int(match[1])] if match else []
    return found


@contextmanager
def _pipe(path: Path) -> Iterator[int]:
    """The reading end of a named pipe."""
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        path.unlink()


def _awaited(pipe: int, process: BaseProcess) -> bool:
    """Waits for the next write of a process; False when the process ends first."""
    with suppress(BlockingIOError):
        while os.read(pipe, 4096):  # earlier writes
            pass
    while process.is_alive():
        with suppress(BlockingIOError):
            if os.read(pipe, 4096):
                return True
        time.sleep(0.001)
    return False


def torture(
    kills: int,
    scenarios: Sequence[str],
    *,
    seed: int = 0,
    overrides: Sequence[str] = (),
    keep: Path | None = None,
) -> list[Tally]:
    """Distributes the kills over the scenarios. `keep` is a new folder to keep the runs in."""
    tallies = []
    shares = [kills // len(scenarios) + (i < kills % len(scenarios)) for i in range(len(scenarios))]
    with ExitStack() as stack:
        if keep is None:
            keep = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torture-")))
        else:
            keep.mkdir(parents=True)
        bar = stack.enter_context(tqdm(total=kills, unit="kill", disable=None))
        for scenario, share in zip(scenarios, shares, strict=True):
            bar.set_description_str(scenario)
            one = Torture(scenario, keep.absolute() / scenario, overrides, seed)
            tallies.append(one.run(share, bar.update))
    return tallies


def describe_tallies(tallies: Sequence[Tally]) -> str:
    """The tallies as a table."""
    rows = [tally.to_primitives() for tally in tallies]
    names = [name for name in rows[0] if name != "different"]
    header = [name.replace("_", " ") for name in names]
    return tabulate([[row[name] for name in names] for row in rows], header, floatfmt=".2f")
