"""Timing of contenders, and the report of a suite: a table and one JSON line for programs."""

import contextlib
import json
import logging
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from tabulate import tabulate
from tqdm import tqdm

from src.config.schema import Config
from src.runs.folder import Row
from src.system import machine
from src.system.resources import versions
from src.training.fit import fit

Seconds = dict[str, list[float]]


def interleave(contenders: Mapping[str, Callable[[], float]], rounds: int) -> Seconds:
    """Seconds of each contender, measured once a round, so that all see the same machine.

    The first round warms up and is not counted.
    """
    seconds: Seconds = {name: [] for name in contenders}
    total = (rounds + 1) * len(contenders)
    with tqdm(total=total, unit="run", leave=False, disable=None) as bar:  # only on a terminal
        for number in range(rounds + 1):
            for name, measure in contenders.items():
                bar.set_description(f"{'warm-up' if number == 0 else f'round {number}'} {name}")
                taken = measure()
                if number:
                    seconds[name].append(taken)
                bar.update()
    return seconds


def epoch_seconds(config: Config) -> float:
    """Seconds per epoch of a run, without its first epoch."""
    with quiet(), tempfile.TemporaryDirectory() as folder:
        return seconds_per_epoch(fit(config, Path(folder)).history)


def seconds_per_epoch(rows: Sequence[Row], warm_up: int = 1) -> float:
    """The mean over a run's history after `warm_up` epochs; row 0 is before training."""
    first, last = (float(row["seconds"] or 0) for row in (rows[warm_up], rows[-1]))
    return (last - first) / (len(rows) - 1 - warm_up)


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of repeated measurements."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))

    def to_primitives(self) -> dict[str, float]:
        return {"median": self.median, "min": self.least, "max": self.greatest}

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.least:.3g} to {self.greatest:.3g})"


def ratio(seconds: Seconds, above: str, below: str) -> Spread:
    """One contender's time divided by another's, round by round."""
    return Spread.of([a / b for a, b in zip(seconds[above], seconds[below], strict=True)])


def report(
    suite: str, seconds: Seconds, ratios: Mapping[str, Spread], **facts: Any
) -> tuple[str, str]:
    """The table for people and the JSON line: medians, spreads, hardware, versions, commit."""
    rows = {name: Spread.of(values) for name, values in seconds.items()}
    table = tabulate(
        [[name, spread.median, spread.least, spread.greatest] for name, spread in rows.items()],
        ["contender", "median s", "min", "max"],
        floatfmt=".4f",
    )
    shares = tabulate(
        [[name, spread.median, spread.least, spread.greatest] for name, spread in ratios.items()],
        ["ratio", "median", "min", "max"],
        floatfmt=".3g",
    )
    content = {
        "suite": suite,
        "rows": {name: spread.to_primitives() for name, spread in rows.items()},
        "ratios": {name: spread.median for name, spread in ratios.items()},
        "ratio_spreads": {name: spread.to_primitives() for name, spread in ratios.items()},
        **facts,
        "hardware": machine.hardware(torch.device("cpu")),
        "versions": versions(),
        "commit": machine.commit(),
    }
    return f"{table}\n\n{shares}", json.dumps(content)


def few_ticks(axis: Axes) -> None:
    """Labels a logarithmic y axis at 1, 2, 3, 5, 7 times each power of ten.

    Matplotlib's own labels would overlap.
    """
    low, high = axis.get_ylim()
    steps = [digit * 10.0**power for power in range(-6, 3) for digit in (1, 2, 3, 5, 7)]
    ticks = [step for step in steps if low <= step <= high]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides progress bars, warnings and log lines. Bars are still drawn, so their cost stays."""
    chatter = [logging.getLogger(name) for name in ("src", "lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in chatter]
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stderr(nowhere),
        contextlib.redirect_stdout(nowhere),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for logger in chatter:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(chatter, levels, strict=True):
                logger.setLevel(level)
