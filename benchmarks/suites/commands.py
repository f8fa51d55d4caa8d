"""Whole commands, from a cold start to the files: a run beside scripts of scikit-learn, PyTorch and
Lightning, which train the same network on the same samples for as many epochs at the same rate."""

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.measure import ROOT, interleave, quiet, ratio, report, time_command
from benchmarks.settings import Settings
from kindling.config.compose import compose
from kindling.data.module import DataModule
from kindling.data.sources.source import Split
from kindling.records.folder import Run

EPOCHS = 10
SCRIPTS = {
    "a script of scikit-learn": "scikit_learn",
    "a script of PyTorch": "plain_torch",
    "a script of Lightning": "lightning_module",
}
OURS = "python -m src.train"


def run(settings: Settings) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = _written(settings.data, folder / "data.npz")
        ours = [f"data={data}", f"trainer.max_epochs={EPOCHS}", "optimizer.lr=0.1",
                "scheduler=none", "trainer.accelerator=cpu"]  # fmt: skip
        reached: dict[str, float] = {}
        contenders = {OURS: partial(_ours, folder, ours, reached)}
        contenders |= {told: partial(_time_script, told, folder, reached) for told in SCRIPTS}
        seconds = interleave(contenders, settings.rounds)
    ratios = {f"{told}/{OURS}": ratio(seconds, told, OURS) for told in SCRIPTS}
    return report("commands", seconds, ratios, data=data, epochs=EPOCHS, test_accuracy=reached)


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


def _ours(folder: Path, overrides: list[str], reached: dict[str, float]) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as run:
        seconds = time_command(ROOT, "src.train", *overrides, f"hydra.run.dir={run}/run")
        reached[OURS] = float(Run(Path(run) / "run").result["test/acc"] or 0)
        return seconds


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
