"""A run and a sweep beside programs that want the cores too: their threads against one thread."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from src.benchmarks.measure import Seconds, ratio, report
from src.benchmarks.searches import SWEEP
from src.runs.folder import Run

ROOT = Path(__file__).parent.parent.parent
LOOPS = 8
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "run": ("trainer=cpu", "hydra.run.dir=here/0"),
    "sweep": (
        "-m", "hydra/launcher=fused", *SWEEP, "trainer=cpu", "trainer.max_epochs=1",
        "hydra.sweep.dir=here",
    ),
}  # fmt: skip
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def run(rounds: int, data: str) -> tuple[str, str]:
    """Seconds of training, beside LOOPS busy loops: the default run, and an epoch of the README's
    sweep, as they are and with one thread."""
    names = [name for kind in COMMANDS for name in (kind, f"{kind}, one thread")]
    seconds: Seconds = {name: [] for name in names}
    with busy_loops(LOOPS):
        jobs = [(kind, command) for _ in range(rounds) for kind, command in COMMANDS.items()]
        for kind, command in tqdm(jobs, unit="pair", leave=False, disable=None):
            seconds[kind].append(seconds_of_training(*command, f"data={data}"))
            alone = seconds_of_training(*command, f"data={data}", environment=ONE_THREAD)
            seconds[f"{kind}, one thread"].append(alone)
    ratios = {
        f"{kind}/one thread": ratio(seconds, kind, f"{kind}, one thread") for kind in COMMANDS
    }
    return report("busy", seconds, ratios, data=data, loops=LOOPS)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Within it so many other processes want a core each, all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def seconds_of_training(*arguments: str, environment: Mapping[str, str] | None = None) -> float:
    """Of `python -m src.train` with these arguments in a folder of its own; of a sweep that is one
    stack, the stack's."""
    own = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    if "DATA_ROOT" in os.environ:
        own["DATA_ROOT"] = str(Path(os.environ["DATA_ROOT"]).absolute())
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "src.train", *arguments],
            cwd=folder, env=own, check=True, capture_output=True,
        )  # fmt: skip
        return float(Run(Path(folder) / "here" / "0").result["seconds"]["fit"])
