"""Timing of contenders, and the report of a suite: a table and one JSON line for programs."""

import contextlib
import json
import logging
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from tabulate import tabulate
from tqdm import tqdm

from benchmarks.environment import describe_environment, environment
from kindling.config.schema import Config
from kindling.records.folder import Row
from kindling.system.installation import PATHS
from kindling.training.fit import fit

ROOT = Path(__file__).parents[1]
# The sweep of 64 trials in the README.
SWEEP = ("model.hidden_sizes=16,32,64,128", "optimizer.lr=0.03,0.1,0.3,0.5", "seed=0,1,2,3")

Seconds = dict[str, list[float]]


def interleave(
    contenders: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: bool = True
) -> Seconds:
    """Seconds of each contender; all take turns in each round. Warm-ups do not count."""
    seconds: Seconds = {name: [] for name in contenders}
    numbers = range(0 if warm_up else 1, rounds + 1)
    jobs = tqdm(list(product(numbers, contenders)), unit="run", leave=False, disable=None)
    for number, name in jobs:
        jobs.set_description(f"{f'round {number}' if number else 'warm-up'} {name}")
        taken = contenders[name]()
        if number:
            seconds[name].append(taken)
    return seconds


def epoch_seconds(config: Config) -> float:
    """Seconds per epoch of a run, without its first epoch."""
    with quiet(), tempfile.TemporaryDirectory() as folder:
        return seconds_per_epoch(fit(config, Path(folder)).history)


def wait_for_gpu() -> None:
    """Until a CUDA GPU has done all that it was told, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_command(
    folder: Path,
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    until: str | None = None,
) -> float:
    """Seconds of `python -m MODULE ARGUMENTS` in a folder, with the code of this checkout; with
    `until`, to the first line that begins so. Raises CalledProcessError when the command fails, and
    ValueError when it prints no such line."""
    paths = [*PATHS, os.environ.get("PYTHONPATH", "")]  # packages may lie in a folder of theirs
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    variables |= environment or {}
    if "DATA_ROOT" in os.environ:
        variables["DATA_ROOT"] = str(Path(os.environ["DATA_ROOT"]).absolute())
    command = [sys.executable, "-m", module, *arguments]
    began, reached = time.perf_counter(), None
    with subprocess.Popen(
        command, cwd=folder, env=variables, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout
        for line in process.stdout:
            if until is not None and reached is None and line.startswith(until):
                reached = time.perf_counter() - began
    seconds = time.perf_counter() - began
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    if until is None:
        return seconds
    if reached is None:
        raise ValueError(f"no line of {shlex.join(command)} begins with {until}")
    return reached


def seconds_per_epoch(rows: Sequence[Row], warm_up: int = 1) -> float:
    """The mean over a run's history after `warm_up` epochs; row 0 is before training."""
    first, last = (float(row["seconds"] or 0) for row in (rows[warm_up], rows[-1]))
    return (last - first) / (len(rows) - 1 - warm_up)


class Spread(NamedTuple):
    """The spread of repeated measurements."""

    median: float
    min: float
    max: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratio(seconds: Seconds, above: str, below: str) -> Spread:
    """One contender's time divided by another's, round by round."""
    return spread([a / b for a, b in zip(seconds[above], seconds[below], strict=True)])


def report(
    suite: str, seconds: Seconds, ratios: Mapping[str, Spread], **facts: Any
) -> tuple[str, str]:
    """The table for people and the JSON line: medians, spreads, and the environment."""
    around = environment()
    rows = {name: spread(values) for name, values in seconds.items()}
    times = [[name, *row] for name, row in rows.items()]
    table = tabulate(times, ["contender", "median s", "min", "max"], floatfmt=".4f")
    shares = [[name, *row] for name, row in ratios.items()]
    shown = tabulate(shares, ["ratio", "median", "min", "max"], floatfmt=".3g")
    content = {
        "suite": suite,
        "rows": {name: row._asdict() for name, row in rows.items()},
        "ratios": {name: row.median for name, row in ratios.items()},
        "ratio_spreads": {name: row._asdict() for name, row in ratios.items()},
        **facts,
        **around,
    }
    return f"{table}\n\n{shown}\n\n{describe_environment(around)}", json.dumps(content)


def few_ticks(axis: Axes) -> None:
    """Labels a logarithmic y axis at 1, 2, 3, 5, 7 times the powers of ten, without overlaps; an
    axis with less than two of these, at round numbers."""
    low, high = axis.get_ylim()
    steps = [digit * 10.0**power for power in range(-6, 3) for digit in (1, 2, 3, 5, 7)]
    ticks = [step for step in steps if low <= step <= high]
    if len(ticks) < 2:  # times that hardly differ
        ticks = [tick for tick in MaxNLocator(4).tick_values(low, high) if low <= tick <= high]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides progress bars, warnings and log lines. Bars are still drawn, so their cost stays."""
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stderr(nowhere),
        contextlib.redirect_stdout(nowhere),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)
