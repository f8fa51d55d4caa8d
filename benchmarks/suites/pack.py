"""A pack: how long its command takes beside the same networks in plain PyTorch, and whether the
intervals that it prints cover the truth as often as they say.

The table of the first part has 2,000 rows and 20 columns. PyTorch trains the same networks on the
same rows, one after the other, for the epochs that each took, without files, validation and
committee. Each round of the second part draws 400 rows of a population of 10,000 and makes a small
pack; the others are hidden from it, and tell what its committee is worth.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_classification, make_regression
from sklearn.metrics import r2_score
from tabulate import tabulate
from torch.nn import functional as F
from tqdm import tqdm

from benchmarks.environment import describe_environment, environment
from benchmarks.measure import quiet
from benchmarks.settings import Settings
from kindling.data.module import DataModule
from kindling.inference.model import load
from kindling.models import build_model
from kindling.records.confidence import wilson
from kindling.records.folder import Run
from kindling.sweeps.packs.command import check_command_line
from kindling.sweeps.packs.loop import make_pack

ROWS, COLUMNS, NETWORKS = 2000, 20, 64
DRAWN, HIDDEN, FEW = 400, 10_000, 8
QUICK = ("trainer.max_epochs=20", "trainer=cpu")
POPULATIONS: dict[str, Callable[..., Any]] = {
    "accuracy": make_classification, "R²": make_regression,
}  # fmt: skip


def run(settings: Settings) -> tuple[str, str]:
    ours, theirs = seconds()
    covered: dict[str, list[bool]] = {name: [] for name in POPULATIONS}
    for number in tqdm(range(settings.rounds), unit="round", leave=False, disable=None):
        for name, found in covered.items():
            found.append(covers(name, number))
    around = environment()
    rows = []
    for name, found in covered.items():
        low, high = wilson(sum(found) / len(found), len(found))
        rows.append([name, f"{sum(found)} of {len(found)}", f"{low:.0%} to {high:.0%}"])
    told = (
        f"a table of {ROWS:,} rows and {COLUMNS} columns, a pack of {NETWORKS}: {ours:.1f} s by "
        f"the whole command, {theirs:.1f} s in plain PyTorch, {theirs / ours:.1f} times as long\n"
        f"{HIDDEN:,} hidden rows, 95% intervals from {DRAWN // 5} test rows:"
    )
    shown = tabulate(rows, ["of", "cover the truth", "95% interval of the share"])
    values = {"seconds": [ours, theirs], "covered": covered}
    line = json.dumps({"suite": settings.suite, **values, **around})
    return f"{told}\n\n{shown}\n\n{describe_environment(around)}", line


def write_table(path: Path, features: Any, labels: Any) -> None:
    names = [f"x{number}" for number in range(features.shape[1])]
    rows = np.column_stack([features.round(4), labels]).tolist()
    texts = [",".join(map(str, [*names, "label"])), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(texts))


def seconds() -> tuple[float, float]:
    """Of the command, and of the same networks in plain PyTorch."""
    with tempfile.TemporaryDirectory() as name:
        path, folder = Path(name, "table.csv"), Path(name, "pack")
        x, y = make_classification(ROWS, COLUMNS, n_informative=8, flip_y=0.1, random_state=0)
        write_table(path, x, y.astype(int))
        command = [
            sys.executable, "-m", "src.tables", str(path), "--target", "label", "--networks",
            str(NETWORKS), "--folder", str(folder),
        ]  # fmt: skip
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        ours = time.perf_counter() - began
        runs = [Run(folder / str(number)) for number in range(NETWORKS)]
        data = DataModule(runs[0].config.data, task=runs[0].config.task)
        data.setup()
        train = data.train
        began = time.perf_counter()
        for each in runs:
            plain(each, train.features, train.labels)
        return ours, time.perf_counter() - began


def plain(run: Run, features: torch.Tensor, labels: torch.Tensor) -> torch.nn.Module:
    """A network as people train it: a loop over batches, with torch's optimizer."""
    config = run.config
    torch.manual_seed(config.seed)
    model = build_model(config.model, tuple(features.shape[1:]), int(labels.max()) + 1).train()
    rate, decay = config.optimizer.lr, config.read("optimizer.weight_decay")
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=decay)
    for _ in range(int(run.result["epochs"])):
        for batch in torch.split(torch.randperm(len(labels)), config.data.batch):
            optimizer.zero_grad()
            loss: Any = F.cross_entropy(model(features[batch]), labels[batch])
            loss.backward()
            optimizer.step()
    return model


def covers(name: str, number: int) -> bool:
    """Whether the interval of a pack has its score on all hidden rows."""
    more = {"flip_y": 0.2} if name == "accuracy" else {"noise": 50.0}
    x, y = POPULATIONS[name](DRAWN + HIDDEN, 8, n_informative=5, random_state=number, **more)
    if name == "accuracy":
        y = y.astype(int)
    with tempfile.TemporaryDirectory() as folder, quiet():
        path = Path(folder, "table.csv")
        write_table(path, x[:DRAWN], y[:DRAWN])
        texts = [*QUICK, f"data.split_seed={number}"]
        if name != "accuracy":
            texts.append("task=regression")
        pack = check_command_line(
            path, "label", texts, networks=FEW, seed=number, folder=Path(folder, "pack")
        )
        made = make_pack(pack)
        own = made.result["compared"][0]
        hidden = {f"x{place}": x[DRAWN:, place].round(4) for place in range(x.shape[1])}
        said = load(made.folder).predict(hidden)
        if name == "accuracy":
            truth = float((np.asarray(said).astype(float) == y[DRAWN:]).mean())
        else:
            truth = float(r2_score(y[DRAWN:], said))
    return bool(own["low"] <= truth <= own["high"])
