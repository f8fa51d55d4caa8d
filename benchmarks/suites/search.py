"""A search against a grid, and a sweep with successive halving against the whole sweep."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate
from tqdm import tqdm

from benchmarks.measure import SWEEP, Seconds, ratio, report, time_command
from benchmarks.settings import Settings
from kindling.records.outcome import format_metric
from kindling.records.sweep_folder import Sweep

FUSED = ("-m", "hydra/launcher=fused")
BRIEF = ("scheduler=cosine", "trainer.max_epochs=5", "trainer=cpu")
RATES = ",".join(f"{0.01 * 10 ** (2 * number / 15):.3g}" for number in range(16))
WIDTHS = ("16", "32", "64", "128")
SHAPES = ",".join(f"[{','.join([width] * depth)}]" for depth in (1, 2) for width in WIDTHS)
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
# These commands train one stack, so their training is also timed without start-up and report.
TRAINING = {"sweep": "sweep, training", "halved sweep": "halved sweep, training"}
RATIOS = (
    ("search", "grid"),
    ("halved sweep", "sweep"),
    ("halved sweep, training", "sweep, training"),
)


class Outcome(NamedTuple):
    """The result of one command."""

    seconds: float  # of the whole command
    training: float  # seconds of training the stack with the best trial
    best: str  # the best trial: its number and overrides
    value: float  # the monitored value of the best trial


def run(settings: Settings) -> tuple[str, str]:
    """The seconds include start-up, folders and report."""
    seconds: Seconds = {name: [] for name in (*COMMANDS, *TRAINING.values())}
    outcomes: dict[str, Outcome] = {}
    jobs = [(name, command) for _ in range(settings.rounds) for name, command in COMMANDS.items()]
    for name, command in tqdm(jobs, unit="command", leave=False, disable=None):
        outcomes[name] = outcome(command, f"data={settings.data}")
        seconds[name].append(outcomes[name].seconds)
        if name in TRAINING:
            seconds[TRAINING[name]].append(outcomes[name].training)
    ratios = {f"{above}/{below}": ratio(seconds, above, below) for above, below in RATIOS}
    best = {name: {"trial": each.best, "val/acc": each.value} for name, each in outcomes.items()}
    table, line = report("search", seconds, ratios, data=settings.data, best=best)
    rows = [[name, format_metric("val/acc", o.value), o.best] for name, o in outcomes.items()]
    trials = tabulate(rows, ["contender", "best val/acc", "trial"])
    return f"{table}\n\n{trials}", line


def outcome(command: tuple[str, ...], *others: str) -> Outcome:
    """Runs `python -m COMMAND OTHERS` in a temporary folder."""
    key = "search.folder" if command[0] == "src.search" else "hydra.sweep.dir"
    with tempfile.TemporaryDirectory() as folder:
        seconds = time_command(Path(folder), *command, *others, f"{key}=here")
        best = max(Sweep(Path(folder) / "here").runs, key=lambda run: run.monitored)
        chosen = " ".join(f"{key}={value}" for key, value in best.overrides.items())
        training = best.result["seconds"]["fit"]
        return Outcome(seconds, training, f"{best.folder.name}: {chosen}", best.monitored)
