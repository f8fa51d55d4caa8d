"""Whole commands, to the files: a run from a cold start and through the warm process, by two ranks,
its report and its evaluation, beside scripts of scikit-learn, PyTorch, Keras where it is installed,
and Lightning, which train the same network on the same samples for as many epochs at the same rate.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import ROOT, interleave, quiet, ratio, report, time_command
from benchmarks.questions import Question, draw
from benchmarks.settings import Settings
from kindling.config.compose import compose
from kindling.data.module import DataModule
from kindling.data.sources.source import Split
from kindling.plots.style import save_png
from kindling.records.folder import Run
from kindling.system import warm

EPOCHS, PICTURE = 10, Path("commands.png")
SCRIPTS = {
    "a script of scikit-learn": "scikit_learn",
    "a script of PyTorch": "plain_torch",
    "a script of Keras": "keras_model",
    "a script of Lightning": "lightning_module",
}
OURS, WARM = "python -m src.train", "python -m src.train, warm"
FIRST = "its first epoch, warm"
RANKS, REPORT = "two ranks of this machine", "python -m src.report"
EVALUATION = "python -m src.evaluate, warm"


def run(settings: Settings) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = _written(settings.data, folder / "data.npz")
        ours = [f"data={data}", f"trainer.max_epochs={EPOCHS}", "optimizer.lr=0.1",
                "scheduler=none", "trainer.accelerator=cpu"]  # fmt: skip
        reached: dict[str, float] = {}
        contenders = {OURS: partial(_ours, OURS, folder, ours, reached)}
        contenders[RANKS] = partial(_by_two_ranks, folder, ours)
        contenders[REPORT] = partial(_of_run, "src.report", folder, OURS)
        if warm.available():
            contenders[WARM] = partial(_ours, WARM, folder, ours, reached)
            line = f"epoch {1:>{len(str(EPOCHS))}}/"
            contenders[FIRST] = partial(_ours, FIRST, folder, ours, {}, until=line)
            contenders[EVALUATION] = partial(_of_run, "src.evaluate", folder, WARM)
        absent = () if find_spec("keras") else ("a script of Keras",)
        contenders |= {
            told: partial(_time_script, told, folder, reached)
            for told in SCRIPTS
            if told not in absent
        }
        with _warm_process(folder):
            seconds = interleave(contenders, settings.rounds)
    others = [told for told in contenders if told != OURS]
    ratios = {f"{told}/{OURS}": ratio(seconds, told, OURS) for told in others}
    asked = Question(f"784-32-10 on {data}, {EPOCHS} epochs: whole commands", {}, unit="seconds")
    save_png(partial(draw, asked, seconds), PICTURE)
    facts: dict[str, Any] = {"data": data, "epochs": EPOCHS, "test_accuracy": reached}
    table, line = report("commands", seconds, ratios, **facts)
    return f"picture: {PICTURE}\n\n{table}", line


def _written(data: str, file: Path) -> str:
    """Writes the samples of each part as bytes, and returns the name of the data set."""
    with quiet():
        module = DataModule(compose(f"data={data}").data)
        module.setup()
    parts = {"train": module.train, "val": module.validations[0], "test": module.test}
    arrays = {f"x_{part}": _bytes(split) for part, split in parts.items()}
    labels = {f"y_{part}": split.labels.numpy() for part, split in parts.items()}
    np.savez(file, allow_pickle=False, **arrays, **labels)
    return module.source.name


def _bytes(split: Split) -> np.ndarray:
    found: np.ndarray = split.features.reshape(len(split), -1).numpy()
    return found if found.dtype == np.uint8 else (found * 255).round().astype(np.uint8)


@contextmanager
def _warm_process(folder: Path) -> Iterator[None]:
    """A warm process whose socket lies in the folder."""
    if not warm.available():
        yield
        return
    time_command(ROOT, "src.warm", environment=_environment(folder, WARM))
    try:
        while subprocess.run(
            [sys.executable, "-m", "src.warm", "--status"],
            cwd=ROOT, env={**os.environ, **_environment(folder, WARM)},
            check=False, capture_output=True,
        ).returncode:  # fmt: skip
            time.sleep(0.1)
        yield
    finally:
        time_command(ROOT, "src.warm", "--stop", environment=_environment(folder, WARM))


def _environment(folder: Path, told: str) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(folder), warm.SWITCH: "off" if told == OURS else "on"}


def _ours(
    told: str,
    folder: Path,
    overrides: Sequence[str],
    reached: dict[str, float],
    until: str | None = None,
) -> float:
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    command = ("src.train", *overrides, f"hydra.run.dir={run}")
    seconds = time_command(ROOT, *command, environment=_environment(folder, told), until=until)
    reached[told] = float(Run(run).result["test/acc"] or 0)
    return seconds


def _by_two_ranks(folder: Path, overrides: Sequence[str]) -> float:
    """From a cold start; they train on twice the batch size."""
    run = folder / "ranks"
    shutil.rmtree(run, ignore_errors=True)
    ranks = ("trainer.devices=2", "trainer.strategy=ddp", f"hydra.run.dir={run}")
    return time_command(
        ROOT, "src.train", *overrides, *ranks, environment=_environment(folder, OURS)
    )


def _of_run(module: str, folder: Path, told: str) -> float:
    return time_command(ROOT, module, str(folder / "run"), environment=_environment(folder, told))


def _time_script(told: str, folder: Path, reached: dict[str, float]) -> float:
    """Seconds of a script, which prints the test accuracy last. Raises CalledProcessError when it
    fails."""
    file = Path(__file__).parents[1] / "scripts" / f"{SCRIPTS[told]}.py"
    with tempfile.TemporaryDirectory(dir=folder) as out:
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, str(file), str(folder / "data.npz"), f"{out}/model"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        seconds = time.perf_counter() - began
    name, value = done.stdout.splitlines()[-1].split()
    assert name == "test"
    reached[told] = float(value)
    return seconds
