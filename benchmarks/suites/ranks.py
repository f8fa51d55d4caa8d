"""An epoch of a large and of a small network on one rank and on two of one thread each, and the
start of ranks."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.measure import ROOT, quiet
from benchmarks.questions import Question, answer, epoch
from benchmarks.settings import Settings
from kindling.config.compose import compose
from kindling.training.fit import fit

RANKS = ("model.hidden_sizes=[2048,2048]", "optimizer.lr=0.01", "trainer.accelerator=cpu")


def run(settings: Settings) -> tuple[str, str]:
    both = ("trainer.devices=2", "trainer.strategy=ddp", "data.batch_size=256")
    samples = 10_240

    def imports() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import kindling.training.fit"], check=True, cwd=ROOT)
        return time.perf_counter() - began

    def start() -> float:
        """The time before training of a run on two ranks that trains almost nothing."""
        config = compose("data=toy", "trainer.accelerator=cpu", *both[:2], "trainer.max_epochs=1")
        began = time.perf_counter()
        with quiet(), tempfile.TemporaryDirectory() as folder:
            seconds = fit(config, Path(folder)).result["seconds"]
        trained: float = seconds["fit"] + seconds["test"]
        return time.perf_counter() - began - trained

    small = ("trainer.accelerator=cpu", "data.batch_size=100")
    contenders: dict[str, Callable[[], float]] = {
        "1 rank": partial(
            epoch, *RANKS, "data.batch_size=512", samples=samples, epochs=2, threads=1
        ),
        "2 ranks": partial(epoch, *RANKS, *both, samples=samples, epochs=2),
        "784-32-10 on 1 rank": partial(
            epoch, small[0], "data.batch_size=200", samples=48_000, epochs=5, threads=1
        ),
        "784-32-10 on 2 ranks": partial(epoch, *small, *both[:2], samples=48_000, epochs=5),
        "784-32-10 on 2 ranks, closed form": partial(
            epoch, *small, *both[:2], "trainer.step=closed_form", samples=48_000, epochs=5
        ),
        "imports": imports,
        "start of 2 ranks": start,
    }
    ratios = {
        "1 rank/2 ranks": ("1 rank", "2 ranks"),
        "784-32-10: 2 ranks/1 rank": ("784-32-10 on 2 ranks", "784-32-10 on 1 rank"),
        "784-32-10: closed form/engine": (
            "784-32-10 on 2 ranks, closed form",
            "784-32-10 on 2 ranks",
        ),
        "start/imports": ("start of 2 ranks", "imports"),
    }
    return answer(
        settings, Question("ranks, 784-2048-2048-10, batch 512", contenders, ratios, "seconds")
    )
