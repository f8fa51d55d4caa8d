"""Training on a busy machine: all threads against one thread.

Times the default run and one epoch of the README's sweep beside LOOPS processes that each keep a
core busy.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from src.benchmarks.commands import SWEEP, time_command
from src.benchmarks.measure import Seconds, ratio, report
from src.benchmarks.settings import Settings
from src.runs.folder import Run

LOOPS = 8
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "run": ("trainer=cpu", "hydra.run.dir=here/0"),
    "sweep": (
        "-m", "hydra/launcher=fused", *SWEEP, "trainer=cpu", "trainer.max_epochs=1",
        "hydra.sweep.dir=here",
    ),
}  # fmt: skip
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def run(settings: Settings) -> tuple[str, str]:
    names = [name for kind in COMMANDS for name in (kind, f"{kind}, one thread")]
    seconds: Seconds = {name: [] for name in names}
    with busy_loops(LOOPS):
        jobs = [
            (kind, command) for _ in range(settings.rounds) for kind, command in COMMANDS.items()
        ]
        for kind, command in tqdm(jobs, unit="pair", leave=False, disable=None):
            given = (*command, f"data={settings.data}")
            seconds[kind].append(seconds_of_training(*given))
            alone = seconds_of_training(*given, environment=ONE_THREAD)
            seconds[f"{kind}, one thread"].append(alone)
    ratios = {
        f"{kind}/one thread": ratio(seconds, kind, f"{kind}, one thread") for kind in COMMANDS
    }
    return report("busy", seconds, ratios, data=settings.data, loops=LOOPS)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keeps `count` other processes running that each want a core all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def seconds_of_training(*arguments: str, environment: Mapping[str, str] | None = None) -> float:
    """Seconds of training in `python -m src.train ARGUMENTS`, of the first run or its stack."""
    with tempfile.TemporaryDirectory() as folder:
        time_command(Path(folder), "src.train", *arguments, environment=environment)
        return float(Run(Path(folder) / "here" / "0").result["seconds"]["fit"])
