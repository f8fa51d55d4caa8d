"""What choosing costs: a search beside a grid, a halved sweep beside the whole one."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate
from tqdm import tqdm

from src.benchmarks.measure import Seconds, ratio, report
from src.runs.outcome import format_metric
from src.runs.sweep_folder import Sweep

ROOT = Path(__file__).parent.parent.parent
FUSED = ("-m", "hydra/launcher=fused")
BRIEF = ("scheduler=cosine", "trainer.max_epochs=5", "trainer=cpu")
RATES = ",".join(f"{0.01 * 10 ** (2 * number / 15):.3g}" for number in range(16))
WIDTHS = ("16", "32", "64", "128")
SHAPES = ",".join(f"[{','.join([width] * depth)}]" for depth in (1, 2) for width in WIDTHS)
# The README's sweep.
SWEEP = ("model.hidden_sizes=16,32,64,128", "optimizer.lr=0.03,0.1,0.3,0.5", "seed=0,1,2,3")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "grid": (
        "src.train", *FUSED, *BRIEF,
        f"model.hidden_sizes={','.join(WIDTHS)}", f"optimizer.lr={RATES}",
    ),
    "search": (
        "src.search", *BRIEF, f"model.hidden_sizes=choice({SHAPES})",
        "optimizer.lr=tag(log,interval(0.01,1))", "optimizer.momentum=interval(0,0.95)",
        "optimizer.weight_decay=tag(log,interval(1e-6,1e-3))", "search.trials=64",
        "search.batch=32",
    ),
    "sweep": ("src.train", *FUSED, *SWEEP, "trainer=cpu"),
    "halved sweep": ("src.train", *FUSED, *SWEEP, "trainer=cpu", "hydra.launcher.halving=2"),
}  # fmt: skip
# Of a command that is one stack, the training is a row of its own.
TRAINING = {"sweep": "sweep, training", "halved sweep": "halved sweep, training"}
RATIOS = (
    ("search", "grid"),
    ("halved sweep", "sweep"),
    ("halved sweep, training", "sweep, training"),
)


class Outcome(NamedTuple):
    """Seconds of a whole command, those of training the stack that has its best trial, that trial,
    and what it came to."""

    seconds: float
    training: float
    best: str
    value: float


def run(rounds: int, data: str) -> tuple[str, str]:
    """Whole commands, start-up, folders and report included; all four see the same machine."""
    seconds: Seconds = {name: [] for name in (*COMMANDS, *TRAINING.values())}
    found: dict[str, Outcome] = {}
    jobs = [(name, command) for _ in range(rounds) for name, command in COMMANDS.items()]
    for name, command in tqdm(jobs, unit="command", leave=False, disable=None):
        found[name] = outcome(command, f"data={data}")
        seconds[name].append(found[name].seconds)
        if name in TRAINING:
            seconds[TRAINING[name]].append(found[name].training)
    ratios = {f"{above}/{below}": ratio(seconds, above, below) for above, below in RATIOS}
    best = {name: {"trial": each.best, "val/acc": each.value} for name, each in found.items()}
    table, line = report("search", seconds, ratios, data=data, best=best)
    rows = [[name, format_metric("val/acc", each.value), each.best] for name, each in found.items()]
    trials = tabulate(rows, ["contender", "best val/acc", "trial"])
    return f"{table}\n\n{trials}", line


def outcome(command: tuple[str, ...], *others: str) -> Outcome:
    """Of `python -m` with this command in a folder of its own."""
    module, *arguments = command
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if "DATA_ROOT" in os.environ:
        environment["DATA_ROOT"] = str(Path(os.environ["DATA_ROOT"]).absolute())
    with tempfile.TemporaryDirectory() as folder:
        place = "search.folder=here" if module == "src.search" else "hydra.sweep.dir=here"
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", module, *arguments, *others, place],
            cwd=folder, env=environment, check=True, capture_output=True,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        best = max(Sweep(Path(folder) / "here").trials, key=lambda run: run.monitored)
        chosen = " ".join(f"{key}={value}" for key, value in best.overrides.items())
        training = best.result["seconds"]["fit"]
        return Outcome(seconds, training, f"{best.folder.name}: {chosen}", best.monitored)
