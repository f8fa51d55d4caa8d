"""The default run and an epoch of the README's sweep on a busy machine: all threads, or one."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.measure import SWEEP, interleave, ratio, report, time_command
from benchmarks.settings import Settings
from kindling.records.folder import Run

LOOPS = 8
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "run": ("trainer=cpu", "hydra.run.dir=here/0"),
    "sweep": (
        "-m", "hydra/launcher=fused", *SWEEP, "trainer=cpu", "trainer.max_epochs=1",
        "hydra.sweep.dir=here",
    ),
}  # fmt: skip


def run(settings: Settings) -> tuple[str, str]:
    contenders = {}
    for kind, command in COMMANDS.items():
        timed = partial(seconds_of_training, *command, f"data={settings.data}")
        contenders[kind] = timed
        contenders[f"{kind}, one thread"] = partial(timed, environment={"OMP_NUM_THREADS": "1"})
    with busy_loops(LOOPS):
        seconds = interleave(contenders, settings.rounds, warm_up=False)
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
