"""Pieces of a recipe for tables, each alone against the default run, on those of R's data sets that
`suite=real_tables` leaves for development. A round divides each table anew. Scores are accuracy and
R², at least -1, on the test rows."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from benchmarks.environment import describe_environment, environment
from benchmarks.measure import quiet
from benchmarks.settings import Settings
from benchmarks.suites import real_tables
from benchmarks.suites.real_tables import SCORES, TESTED, interval, one_run, tables
from kindling.system.errors import InputError
from kindling.training.fit import fit

DECAY = ("optimizer=adamw", "optimizer.weight_decay=0.02")
PIECES: list[tuple[str, ...]] = [
    ("trainer.max_epochs=100", "trainer.early_stopping_patience=20"),
    ("trainer.ema_decay=0.99",), DECAY, ("trainer.ema_decay=0.99", *DECAY),
    ("trainer.label_smoothing=0.1",), ("scheduler=onecycle",), ("scheduler=cosine",),
    ("model.activation=gelu",), ("model.dropout=0.15",), ("data.batch_size=64",),
    ("optimizer.lr=0.003",), ("model.noise=0.1",), ("model.hidden_sizes=[128,128]",),
    ("optimizer.lr=0.003", "scheduler=cosine", "model.dropout=0.15"), ("model.norm=layer",),
]  # fmt: skip


def run(settings: Settings) -> tuple[str, str]:
    found: dict[str, dict[str, list[float]]] = {t: defaultdict(list) for t in SCORES}
    counts = dict.fromkeys(SCORES, 0)
    everything = [*tables(real_tables.archive(), development=True)]
    for table in tqdm(everything, unit="table", leave=False, disable=None):
        try:
            gains = _gains(table, settings.rounds)
        except InputError:  # of a table that does not train
            continue
        counts[table.task] += 1
        for piece, gain in gains.items():
            found[table.task][piece].append(gain)
    rows = [
        [piece, *(_cell(found[task].get(piece, [])) for task in SCORES)]
        for piece in map(" ".join, PIECES)
    ]
    told = [f"{score} on {counts[task]} tables" for task, score in SCORES.items()]
    around = environment()
    shown = tabulate(rows, ["added to the default run", *told])
    line = json.dumps({"suite": "pieces", "rounds": settings.rounds, "gains": found, **around})
    return f"{shown}\n\n{describe_environment(around)}", line


def _gains(table: real_tables.Table, rounds: int) -> dict[str, float]:
    """What each piece adds to the score, the mean over the rounds."""
    gains: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name, quiet():
        path = Path(name) / "table.csv"
        path.write_text(table.content)

        def score(seed: int, number: int, *more: str) -> float:
            config = one_run(table, path, seed, *more)
            result: Mapping[str, Any] = fit(config, Path(name) / f"{seed}-{number}").result
            return max(-1.0, float(result[TESTED[table.task]]))

        for seed in range(rounds):
            usual = score(seed, 0)
            for number, piece in enumerate(PIECES, 1):
                smooths = piece == ("trainer.label_smoothing=0.1",)  # classes alone
                if table.task == "classification" or not smooths:
                    gains[" ".join(piece)].append(score(seed, number, *piece) - usual)
    return {piece: fmean(each) for piece, each in gains.items()}


def _cell(gains: list[float]) -> str:
    if not gains:
        return "–"
    low, high = interval(gains)
    return f"{fmean(gains):+.4f} ({low:+.4f} to {high:+.4f})"
