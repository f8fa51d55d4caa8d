"""The picture of several samples with their means and intervals."""

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from src.config.schema import is_fraction
from src.plots.style import COLOURS, FAINT

LABEL_WIDTH, LABEL_LINES = 44, 6  # characters, and lines of a label
MEAN = "mean and 95% interval"

LINE_HEIGHT = 0.17  # inches
APART = (-0.12, 0.12, -0.24, 0.24)  # of a row: where the points of a sample lie, off the mean


@dataclass(frozen=True)
class Sample:
    """A row of the picture. Without values it has neither a mean nor an interval."""

    label: str
    values: Sequence[float]
    mean: float | None
    interval: tuple[float, float] | None
    promised: float | None = None  # drawn as a mark


def interval_data(
    samples: Sequence[Sample], quantity: str, value: str, mean: str = MEAN
) -> dict[str, Any]:
    """What charts.js draws in place of the picture of the same arguments, as primitives."""
    names = {"name": quantity, "fraction": is_fraction(quantity), "value": value, "mean": mean}
    return {**names, "samples": [asdict(sample) for sample in samples]}


def intervals(samples: Sequence[Sample], quantity: str, value: str, mean: str = MEAN) -> Figure:
    """A row for each sample, the first one on top: all points, the mean with its interval, and the
    promised value, if there is one. Long labels have several lines; one that is longer than
    LABEL_LINES ends with "…". `quantity` is the name of the values; fractions are in percent.
    `value` says what has a value, and `mean` of what the mean is."""
    labels = [textwrap.wrap(each.label, LABEL_WIDTH, max_lines=LABEL_LINES, placeholder=" …",
                            break_on_hyphens=False) for each in samples]  # fmt: skip
    row_height = max(0.5, 0.15 + LINE_HEIGHT * max(map(len, labels), default=1))
    figure = Figure(figsize=(9, 1.4 + row_height * len(samples)), layout="constrained")
    axis = figure.subplots()
    for row, sample in enumerate(samples):
        apart = row + np.resize(APART, len(sample.values))
        axis.plot(sample.values, apart, "o", color=FAINT, ms=3, alpha=0.6)
        if sample.mean is not None:
            low, high = sample.interval or (sample.mean, sample.mean)
            error = [[sample.mean - low], [high - sample.mean]]
            axis.errorbar(
                sample.mean, row, xerr=error, color=COLOURS[0], marker="o", ms=6, capsize=4, lw=2
            )
    axis.plot([], [], "o", color=FAINT, ms=3, label=value)
    axis.plot([], [], "o-", color=COLOURS[0], ms=6, label=mean)
    promised = [
        (each.promised, row) for row, each in enumerate(samples) if each.promised is not None
    ]
    if promised:
        mark: Any = {"color": COLOURS[1], "ms": 6, "mfc": "none", "mew": 1.5}
        axis.plot(*np.array(promised).T, "D", label="promised by the sweep", **mark)
    axis.set_yticks(range(len(samples)), ["\n".join(lines) for lines in labels])
    axis.set_ylim(len(samples) - 0.5, -0.5)
    axis.set_xlabel(quantity)
    axis.grid(axis="x")
    axis.tick_params(axis="y", length=0)
    if is_fraction(quantity):
        axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
