"""Pictures that training, reports and benchmarks share: the confusion matrix of a model, the
reliability diagram, numbers beside the true ones, several samples with their means and intervals,
and grey pictures."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from kindling.config.measures import is_fraction
from kindling.config.written import printable
from kindling.plots.samples import MEAN, Sample, noun
from kindling.plots.style import COLOURS, FAINT, INK

MOST_NAMED = 20  # classes
LABEL_WIDTH, LABEL_LINES = 44, 6  # characters, and lines of a label
LINE_HEIGHT = 0.17  # inches
GAP = 0.12  # between pictures of a montage, as a share of their width or height
APART = (-0.12, 0.12, -0.24, 0.24)  # of a row: where the points of a sample lie, off the mean


def confusion(counts: np.ndarray, labels: Sequence[str]) -> Figure:
    """counts[i, j]: the number of samples of class i that were predicted as class j. Only mistakes
    decide the colours, because right answers would outshine them."""
    classes, labels = len(counts), [*map(printable, labels)]
    wrong = counts.astype(float)
    np.fill_diagonal(wrong, 0)
    shares = wrong / np.maximum(counts.sum(1, keepdims=True), 1)
    size = 1.2 + 0.42 * min(classes, MOST_NAMED)
    figure = Figure(figsize=(size + 0.4, size), layout="constrained")
    axis = figure.subplots()
    if classes > MOST_NAMED:
        axis.imshow(shares, cmap="Reds", vmin=0)
    else:
        greatest = shares.max() or 1
        for row, column in np.ndindex(counts.shape):
            share = float(shares[row, column] / greatest)
            if row == column or share:
                alpha = 0.18 if row == column else 0.1 + 0.8 * share
                corner, colour = (column - 0.5, row - 0.5), COLOURS[int(row != column)]
                axis.add_patch(Rectangle(corner, 1, 1, color=colour, alpha=alpha, lw=0))
            if counts[row, column]:
                text = f"{counts[row, column]}"
                axis.text(column, row, text, ha="center", va="center", fontsize=8)
        axis.set_xticks(range(classes), labels, rotation=90 if max(map(len, labels)) > 2 else 0)
        axis.set_yticks(range(classes), labels)
    axis.set(xlim=(-0.5, classes - 0.5), ylim=(classes - 0.5, -0.5), aspect="equal")
    axis.set(xlabel=f"predicted {noun(labels)}", ylabel=f"true {noun(labels)}")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return figure


def reliability(
    counts: Sequence[int], confidence: Sequence[float], accuracy: Sequence[float],
    ends: Sequence[tuple[float, float]],
) -> Figure:  # fmt: skip
    """Equal bins of confidence from 0 to 1: a bar for the accuracy in each bin that has samples, a
    dot at the mean confidence and accuracy, a line between the `ends` of the accuracy's interval,
    which is long where few samples lie, and below the share of samples. On the diagonal, accuracy
    and confidence are equal."""
    figure = Figure(figsize=(4.4, 4.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    places = (np.arange(len(counts)) + 0.5) / len(counts)
    held = np.asarray(counts) > 0
    known, width = np.asarray(accuracy)[held], 0.9 / len(counts)
    above.plot([0, 1], [0, 1], ":", color=FAINT, lw=1.2)
    above.bar(places[held], known, width, color=COLOURS[0], alpha=0.35)
    at, (low, high) = np.asarray(confidence)[held], np.asarray(ends)[held].T
    above.vlines(at, low, high, color=COLOURS[1], lw=1.2, clip_on=False)
    above.plot(at, known, "o", color=COLOURS[1], ms=4, clip_on=False)
    above.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    below.bar(places, np.asarray(counts) / max(1, sum(counts)), width, color=FAINT)
    below.set(xlabel="confidence: the highest probability", ylabel="samples")
    for axis in (above, below):
        axis.grid(axis="y")
        axis.set_axisbelow(True)
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    below.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure


Ends = tuple[np.ndarray, np.ndarray]  # of the intervals of samples, (N, outputs)


def predicted_and_true(
    true: np.ndarray, predicted: np.ndarray, names: Sequence[str], ends: Ends | None
) -> Figure:
    """A panel for each number: predicted over true ones, both (N, outputs), in the unit of the
    number. On the line both are equal. A bar is the interval of a sample; bars of one width are two
    dashed lines."""
    figure, panels = _panels(names)
    for number, (axis, name) in enumerate(zip(panels, names, strict=False)):
        x, y = true[:, number], predicted[:, number]
        line = np.array([min(x.min(), y.min()), max(x.max(), y.max())])
        axis.plot(line, line, color=FAINT, lw=1.2)
        if ends is not None:
            low, high = (end[:, number] for end in ends)
            _draw_intervals(axis, x, low, high, y, (line, line))
        _dots(axis, x, y)
        axis.set(xlabel=f"true {name}", ylabel=f"predicted {name}")
    return figure


def errors(
    true: np.ndarray, predicted: np.ndarray, names: Sequence[str], ends: Ends | None
) -> Figure:
    """As predicted_and_true: the errors, predicted less true, over the predicted numbers. A dot is
    within its bar if the true number is within the interval."""
    figure, panels = _panels(names)
    for number, (axis, name) in enumerate(zip(panels, names, strict=False)):
        x = predicted[:, number]
        axis.axhline(0, color=FAINT, lw=1.2)
        if ends is not None:
            high, low = (x - end[:, number] for end in ends)
            line = np.array([x.min(), x.max()])
            _draw_intervals(axis, x, low, high, 0 * x, (line, 0 * line))
        _dots(axis, x, x - true[:, number])
        axis.set(xlabel=f"predicted {name}", ylabel=f"error of {name}")
    return figure


def _draw_intervals(
    axis: Any, x: np.ndarray, low: np.ndarray, high: np.ndarray, middle: np.ndarray, line: Ends
) -> None:
    """Bars at x, or lines beside `line` if all bars have one width."""
    widths = high - low
    if np.allclose(widths, widths[0], rtol=1e-6):
        for end in (low, high):
            axis.plot(line[0], line[1] + (end - middle)[0], "--", color=COLOURS[1], lw=1.2)
    else:
        axis.vlines(x, low, high, color=COLOURS[1], lw=0.8, alpha=0.5)


def _panels(names: Sequence[str]) -> tuple[Figure, Sequence[Any]]:
    """A panel for each name, up to three in a row."""
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    size = (4.6 if columns == 1 else 3.1 * columns, (4 if columns == 1 else 3) * rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    return figure, list(axes[: len(names)])


def _dots(axis: Any, x: np.ndarray, y: np.ndarray) -> None:
    axis.plot(x, y, "o", color=COLOURS[0], ms=3.5, alpha=0.6)
    axis.grid()
    axis.set_axisbelow(True)


def bars(names: Sequence[str], values: Sequence[float | None], quantity: str) -> Figure:
    """A bar for each fraction, the first one on top, with its value; of None, no bar."""
    figure = Figure(figsize=(5.8, 1 + 0.3 * len(names)), layout="constrained")
    axis = figure.subplots()
    lengths = [value or 0 for value in values]
    drawn = axis.barh(range(len(names)), lengths, color=COLOURS[0])
    texts = ["not known" if value is None else f"{value:.1%}" for value in values]
    axis.bar_label(drawn, texts, color=INK, padding=3)
    axis.set_yticks(range(len(names)), [*map(printable, names)])
    axis.invert_yaxis()
    axis.set(xlabel=quantity, xlim=(0, 1.15))
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.tick_params(axis="y", length=0)
    return figure


def intervals(
    samples: Sequence[Sample], quantity: str, value: str, mean: str = MEAN,
    ends: tuple[float, float] | None = None, width: float = 9,
) -> Figure:  # fmt: skip
    """A row for each sample, the first one on top: all points, the mean with its interval, and the
    promised value, if there is one. Long labels have several lines; one that is longer than
    LABEL_LINES ends with "…". `quantity` is the name of the values; fractions are in percent.
    `value` says what has a value, and `mean` of what the mean is; `width` is in inches. The axis
    has the `ends`, if given: a mean outside is a triangle at the end, with its value."""
    labels = [textwrap.wrap(each.label, LABEL_WIDTH, max_lines=LABEL_LINES, placeholder=" …",
                            break_on_hyphens=False) for each in samples]  # fmt: skip
    row_height = max(0.5, 0.15 + LINE_HEIGHT * max(map(len, labels), default=1))
    figure = Figure(figsize=(width, 1.4 + row_height * len(samples)), layout="constrained")
    axis = figure.subplots()
    for row, sample in enumerate(samples):
        apart = row + np.resize(APART, len(sample.values))
        axis.plot(sample.values, apart, "o", color=FAINT, ms=3, alpha=0.6)
        if sample.mean is not None and ends and not ends[0] <= sample.mean <= ends[1]:
            left = sample.mean < ends[0]
            text = f"{sample.mean:.2%}" if is_fraction(quantity) else f"{sample.mean:.3g}"
            inset = 0.012 * (ends[1] - ends[0])
            place, way = (ends[0] + inset, 8) if left else (ends[1] - inset, -8)
            axis.plot(place, row, "<" if left else ">", color=COLOURS[0], ms=6)
            axis.annotate(
                text, (place, row), (way, 0), textcoords="offset points", va="center",
                ha="left" if left else "right", color=FAINT,
            )  # fmt: skip
        elif sample.mean is not None:
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
    low, high = ends or axis.get_xlim()
    drawn = [x for each in samples for x in (*each.values, *(each.interval or ()))]
    # An axis of shares ends at 0% and 100%, with room for half a dot; differences have both signs.
    if is_fraction(quantity) and min(drawn, default=0) >= 0:
        low, high = max(low, -0.02), min(high, 1.02)
    axis.set_xlim(low, high)
    axis.set_xlabel(quantity)
    axis.grid(axis="x")
    axis.tick_params(axis="y", length=0)
    if is_fraction(quantity):
        axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def first_layer(weights: np.ndarray) -> Figure:
    """Weights (units, H, W) of the first layer, each unit on its own scale."""
    bounds = np.abs(weights).max((1, 2), keepdims=True)
    return _montage(weights / np.where(bounds, bounds, 1), 8, cmap="RdBu_r", clim=(-1, 1))


def greys(pictures: np.ndarray, columns: int, **layout: Any) -> Figure:
    """Grey pictures (N, H, W) in [0, 1], dark on light."""
    return _montage(1 - pictures, columns, cmap="gray", clim=(0, 1), **layout)


def mistakes(pictures: np.ndarray, titles: Sequence[str]) -> Figure:
    """Grey pictures (N, H, W), four in a row, each under its title."""
    return greys(pictures, 4, titles=titles, inches=4.5, above=0.45)


def _montage(
    pictures: np.ndarray,
    columns: int,
    *,
    titles: Sequence[str] = (),
    inches: float = 7,
    above: float = GAP,
    **colours: Any,
) -> Figure:
    """One image of all pictures (N, H, W), each under its title; an axis for each would take a
    second. The figure is `inches` wide: the fewer, the larger are texts in the page. `above` is the
    space above a picture, as a share of its height."""
    count, height, width = pictures.shape
    columns = min(columns, count)
    down, across = height + round(above * height), width + round(GAP * width)
    rows = -(-count // columns)
    whole = np.full((rows * down, columns * across), np.nan)
    shape = (inches, inches * whole.shape[0] / whole.shape[1])
    figure = Figure(figsize=shape, layout="constrained")
    axis = figure.subplots()
    for number, picture in enumerate(pictures):
        bottom, left = (number // columns + 1) * down, number % columns * across
        whole[bottom - height : bottom, left : left + width] = picture
        if titles:
            place = left - 0.5 + width / 2, bottom - height - 2.5
            axis.text(*place, titles[number], ha="center", fontsize=9)
    axis.imshow(whole, interpolation="nearest", **colours)
    axis.set_axis_off()
    return figure
