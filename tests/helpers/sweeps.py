"""A sweep of four trials in groups of two, long enough to be killed in the middle."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kindling.config.compose import compose
from kindling.records.folder import Run
from kindling.records.sweep_folder import Sweep
from kindling.sweeps.trials import train_trials
from tests.helpers.weights import same

COMMON = ("data=digits", "trainer=cpu", "data.batch_size=5", "trainer.max_epochs=50")
POINTS = [(width, seed) for width in (128, 512) for seed in (0, 1)]


def until(condition: Callable[[], object], seconds: float = 600) -> None:
    """`seconds`: so many that a busy machine reaches the condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def lived(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    try:
        os.kill(process, 0)
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:  # perhaps since the process was looked for
        return False


class SweepCommand:
    """The sweep as a process: `more` are the overrides that choose its executor."""

    program: Sequence[str] = ("-m", "src.train")

    def __init__(self, folder: Path, *more: str) -> None:
        self.folder, self.log = folder, folder.with_name(f"{folder.name}.log")
        self.start(
            "-m", "hydra/launcher=fused", *COMMON, "model.hidden_sizes=128,512", "seed=0,1",
            f"hydra.sweep.dir={folder}", *more,
        )  # fmt: skip

    def start(self, *arguments: str) -> None:
        with self.log.open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, *arguments],
                cwd=self.folder.parent,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def resume(self, *more: str) -> None:
        self.start(f"resume={self.folder}", *more)

    def epochs(self) -> list[int]:
        """The number of epochs that each trial has trained."""
        files = [self.folder / str(trial) / "history.csv" for trial in range(4)]
        return [max(0, file.read_text().count("\n") - 2) if file.exists() else 0 for file in files]

    def workers(self, epochs: int = 4) -> list[int]:
        """The processes that hold the locks of the groups, once both have trained some epochs."""

        def ready() -> bool:
            assert not self.process.poll(), self.log.read_text()
            return min(self.epochs()) >= epochs

        until(ready)
        locks = [file.read_text() for file in self.folder.glob(".stacks/*/.lock")]
        found = [re.match(r"process (\d+) of", text) for text in locks]
        return [int(match[1]) for match in found if match]

    def wait(self) -> int:
        return self.process.wait(timeout=900)


class ClusterCommand(SweepCommand):
    """The command asks the scheduler ten times as often."""

    program = (
        "-c",
        "from kindling.sweeps.executors import cluster; cluster.POLL_SECONDS = 1.0; "
        "from kindling.system.process import run; from kindling.commands.train import main; "
        "import src; run(main)",
    )


def trained_here(folder: Path, *more: str) -> list[Run]:
    """The four trials, trained in this process."""
    configs = [
        compose(*COMMON, f"model.hidden_sizes=[{width}]", f"seed={seed}", *more)
        for width, seed in POINTS
    ]
    folders = [folder / str(number) for number in range(4)]
    train_trials(configs, folders, Sweep(folder), None)
    return [Run(each) for each in folders]


def require_same(folder: Path, expected: list[Run]) -> None:
    for number, run in enumerate(expected):
        trained = Run(folder / str(number))
        assert same(trained, run)
        for name in ("status", "test/acc", "test/loss", "best", "epochs", "steps"):
            assert trained.result[name] == run.result[name]
        assert [row["val/loss"] for row in trained.history] == [
            row["val/loss"] for row in run.history
        ]
    assert len(Sweep(folder).results_file.read_text().splitlines()) == 1 + len(expected)
    assert not (folder / ".stacks").exists()
