"""The picture of a confusion matrix."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from src.plots.style import COLOURS

MOST_NAMED = 20  # classes


def noun(labels: Sequence[str]) -> str:
    """What a class is called."""
    return "digit" if "".join(labels) == "0123456789" else "class"


def confusion(counts: np.ndarray, labels: Sequence[str]) -> Figure:
    """counts[i, j]: the number of samples of class i that were predicted as class j. Only mistakes
    decide the colours, because right answers would outshine them."""
    classes = len(counts)
    wrong = counts.astype(float)
    np.fill_diagonal(wrong, 0)
    shares = wrong / np.maximum(counts.sum(1, keepdims=True), 1)
    size = 1.2 + 0.42 * min(classes, MOST_NAMED)
    figure = Figure(figsize=(size + 0.4, size), layout="constrained")
    axis = figure.subplots()
    if classes > MOST_NAMED:
        axis.imshow(shares, cmap="Reds", vmin=0)
    else:
        _write_confusion(axis, counts, shares)
        axis.set_xticks(range(classes), labels, rotation=90 if max(map(len, labels)) > 2 else 0)
        axis.set_yticks(range(classes), labels)
    axis.set(xlim=(-0.5, classes - 0.5), ylim=(classes - 0.5, -0.5), aspect="equal")
    axis.set(xlabel=f"predicted {noun(labels)}", ylabel=f"true {noun(labels)}")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return figure


def _write_confusion(axis: Axes, counts: np.ndarray, shares: np.ndarray) -> None:
    greatest = shares.max() or 1
    for row, column in np.ndindex(counts.shape):
        share = float(shares[row, column] / greatest)
        if row == column:
            axis.add_patch(_cell(column, row, COLOURS[0], 0.18))
        elif share:
            axis.add_patch(_cell(column, row, COLOURS[1], 0.1 + 0.8 * share))
        if counts[row, column]:
            axis.text(column, row, f"{counts[row, column]}", ha="center", va="center", fontsize=8)


def _cell(column: int, row: int, colour: str, alpha: float) -> Rectangle:
    return Rectangle((column - 0.5, row - 0.5), 1, 1, color=colour, alpha=alpha, lw=0)
