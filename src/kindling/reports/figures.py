"""Draws the charts of runs and sweeps, for files and for pages without a script."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from kindling.config.measures import higher_is_better, in_words, is_fraction
from kindling.plots.style import COLOURS, FAINT, INK, MOST_COLOURED
from kindling.records.folder import Row
from kindling.records.outcome import LABEL_LIMIT, known_value
from kindling.records.sweep_folder import KeyImportance
from kindling.reports.analysis import Effect, Grid
from kindling.reports.charts import MOST_DRAWN, quantities, spread
from kindling.reports.collect import Reported
from kindling.reports.dependence import Fitted

MOST_BARS = 20
OWN_SCALE = 3  # a panel whose lines span less than this part of the common axis has an own one
STRAY = 10  # times the size and the spread of a curve's values: the axis does not fit further ones
LINES: Sequence[tuple[dict[str, Any], str]] = (  # of an effect
    ({"marker": "o", "ms": 5}, "best setting"),
    ({"ls": "--", "lw": 1.2}, "best quarter of the settings"),
    ({"ls": ":", "lw": 1.2}, "median setting"),
)


def _label(axis: Axes, quantity: str, **labels: str) -> None:
    """Labels the axes, of which the vertical one has values of the quantity: fractions in
    percent."""
    axis.set(**labels)
    axis.grid(axis="y")
    if is_fraction(quantity):
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))


def curves(entries: Sequence[Reported]) -> Figure:
    """Score and loss over epochs, zoomed to the epochs from 1 on, after a measure that the best
    run monitors. Up to six runs have a colour each; of more runs the best three have one. Of very
    many, some hundred are drawn."""
    ranked = sorted(entries, key=lambda entry: entry.rank)
    names = quantities(ranked)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    (axes,) = figure.subplots(1, len(names), squeeze=False)
    few = len(entries) <= MOST_COLOURED
    shown, others = (list(entries), []) if few else (ranked[:3], spread(ranked[3:]))
    labels = _labels(shown)
    for axis, quantity in zip(axes, names, strict=True):
        drawn = [_points(entry.history, f"val/{quantity}") for entry in others]
        axis.add_collection(
            LineCollection([p for p in drawn if len(p)], colors=FAINT, lw=0.5, alpha=0.5)
        )
        for entry, colour in zip(shown, COLOURS, strict=False):
            val = _points(entry.history, f"val/{quantity}")
            axis.plot(*val.T, color=colour, lw=1.8, label=labels[entry.name], marker="o", ms=3)
            train = _points(entry.history if few else [], f"train/{quantity}")
            axis.plot(*train.T, color=colour, lw=1, ls="--")
            drawn += [val, train]
        axis.autoscale_view()
        _zoom(axis, np.concatenate([_near(points) for points in drawn]))
        _label(axis, quantity, xlabel="epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        dashed = " (training: dashed)" if few and quantity == ranked[0].score else ""
        axis.set_title(f"validation {in_words(quantity)}{dashed}", fontsize=10)
    if len(entries) > 1:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=1)
    return figure


def _near(points: np.ndarray) -> np.ndarray:
    """The finite values of a curve, (epochs, 2), from epoch 1 on, because beside an untrained model
    98 % and 99.5 % look alike, without those that are very far from its median: a loss of 1000
    after the first epoch hides all others."""
    values: np.ndarray = points[(points[:, 0] > 0) & np.isfinite(points[:, 1]), 1]
    if not len(values):
        return values
    quarters = (np.array((0.25, 0.5, 0.75)) * (len(values) - 1) + 0.5).astype(int)
    low, median, high = np.sort(values)[quarters]
    near: np.ndarray = values[np.abs(values - median) <= STRAY * (abs(median) + high - low)]
    return near


def _zoom(axis: Axes, values: np.ndarray) -> None:
    if len(values):
        margin = 0.05 * np.ptp(values) or 0.01
        axis.set_ylim(values.min() - margin, values.max() + margin)


def _labels(entries: Sequence[Reported]) -> dict[str, str]:
    """A label for each run, by name: what not all runs have, or all of the label if nothing is
    left; equal labels get the name of the folder. Of a long label the middle is left out, because
    its end is the value of the last key."""
    half = LABEL_LIMIT // 2
    parts = {entry.name: entry.label.split(", ") for entry in entries}
    shared = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    labels = {}
    for entry in entries:
        own = [part for part in parts[entry.name] if part not in shared]
        label = ", ".join(own) or entry.label
        long = len(label) > LABEL_LIMIT
        labels[entry.name] = f"{label[: half - 1]}…{label[-half:]}" if long else label
    counts = Counter(labels.values())
    return {
        name: label if counts[label] == 1 else f"{label} ({Path(name).name})"
        for name, label in labels.items()
    }


def _points(history: Sequence[Row], name: str) -> np.ndarray:
    """(epochs, 2): epoch and value, where the value is known."""
    known = [(row["epoch"], known_value(row.get(name))) for row in history]
    found = [point for point in known if point[1] is not None]
    return np.array(found, float).reshape(-1, 2)


def heat_map(grid: Grid, quantity: str, ends: tuple[float, float]) -> Figure:
    """The values of `quantity` over two keys, each written in its cell. `ends`: the least and the
    largest value with a colour of its own."""
    rows, columns = grid.best.shape
    wide = max(0.95, 0.2 + 0.08 * max(map(len, grid.columns)))  # inches, of a number and a label
    figure = Figure(figsize=(2 + wide * columns, 1.2 + 0.5 * rows), layout="constrained")
    axis = figure.subplots()
    colours = mpl.colormaps["viridis" if higher_is_better(quantity) else "viridis_r"]
    image = axis.imshow(grid.best, cmap=colours, clim=ends, aspect="auto")
    for row, column in zip(*np.nonzero(~np.isnan(grid.best)), strict=True):
        value = grid.best[row, column]
        red, green, blue, _ = colours(image.norm(value))
        colour = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
        text = f"{value:.2%}" if is_fraction(quantity) else f"{value:.3g}"
        axis.text(column, row, text, ha="center", va="center", color=colour)
    axis.set_xticks(range(columns), grid.columns)
    axis.set_yticks(range(rows), grid.rows)
    axis.set(xlabel=grid.column_key, ylabel=grid.row_key)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return figure


def effects(
    found: Sequence[Effect], quantity: str, fits: Mapping[str, Fitted] | None = None
) -> Figure:
    """A panel per key: a dot per trial, and lines of the best setting, the best quarter and the
    median, and where there is one, the fit with its interval. The axis of a key has the scale of
    the key. The panels have one axis of values in common, except for those whose lines would be
    flat there."""
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(9.3, 2.5 * rows), layout="constrained")  # as wide as the page
    axes = figure.subplots(rows, columns, squeeze=False)
    spans = []  # of the lines of each panel
    for axis, effect in zip(axes.flat, found, strict=False):
        log, exact = effect.scale == "log", all(len({*group}) == 1 for group in effect.numbers)
        groups = [np.log10(group) if log else np.asarray(group) for group in effect.numbers]
        middles = np.array([group.mean() for group in groups])
        room = np.diff(middles).min() if exact else 0
        for group, values in zip(groups, effect.values, strict=True):
            pairs = [*zip(values, np.resize(group, len(values)), strict=True)]
            dots = np.array(pairs if len(pairs) <= MOST_DRAWN else spread(sorted(pairs)))
            apart = np.linspace(-0.18, 0.18, len(dots)) if len(dots) > 1 else 0
            x = dots[:, 1] + room * apart
            axis.plot(10**x if log else x, dots[:, 0], "o", color=FAINT, ms=3, alpha=0.6)
        x = 10**middles if log else middles
        for values, (style, name) in zip(zip(*effect.levels, strict=True), LINES, strict=True):
            axis.plot(x, values, color=COLOURS[0], label=name, **style)
        fit = (fits or {}).get(effect.key)
        drawn = [*np.ravel(effect.levels), *(fit.values if fit else ())]
        spans.append((min(drawn), max(drawn)))
        if fit:
            axis.fill_between(fit.at, fit.low, fit.high, color=COLOURS[1], alpha=0.2, lw=0)
            axis.plot(fit.at, fit.values, color=COLOURS[1], lw=1.2, label="fitted")
        if log:
            axis.set_xscale("log")
            few_decades = np.ptp(np.concatenate(groups)) < 2
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few_decades else (1,)))
            axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.xaxis.set_minor_formatter(NullFormatter())
        if exact:
            turned = 40 if max(map(len, effect.labels)) > 6 else 0
            axis.set_xticks(x, effect.labels, rotation=turned)
        _label(axis, quantity)
    ends = [axis.get_ylim() for axis in axes.flat[: len(found)]]
    common = min(low for low, _ in ends), max(high for _, high in ends)
    for axis, effect, (low, high) in zip(axes.flat, found, spans, strict=False):
        weak = len(found) > 1 and high - low < (common[1] - common[0]) / OWN_SCALE
        margin = 0.05 * (high - low) or 0.01
        axis.set_ylim(*((low - margin, high + margin) if weak else common))
        axis.set_xlabel(f"{effect.key} (own scale)" if weak else effect.key)
        for line in axis.lines[: len(effect.values)]:  # its dots: none is lost
            x, y = np.asarray(line.get_xydata()).T
            bottom, top = axis.get_ylim()
            inset = 0.02 * (top - bottom)
            for mark, end, far in (
                ("v", bottom + inset, y < bottom), ("^", top - inset, y > top),
            ):  # fmt: skip
                axis.plot(x[far], np.full(far.sum(), end), mark, color=COLOURS[1], ms=3)
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel(quantity)
    handles = {
        name: handle
        for axis in axes.flat
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    names = [*handles]
    figure.legend([*handles.values()], names, loc="outside lower center", ncols=len(names))
    return figure


def history(trials: Sequence[Reported]) -> Figure:
    """The monitored value of each trial over its number, and the best so far."""
    monitor = trials[0].monitor
    known = [(int(t.run.folder.name), t.value) for t in trials if t.value is not None]
    numbers, values = np.array(sorted(known)).T
    so_far = np.maximum if higher_is_better(monitor) else np.minimum
    figure = Figure(figsize=(9, 3), layout="constrained")
    axis = figure.subplots()
    axis.plot(numbers, values, "o", color=FAINT, ms=3, alpha=0.6)
    axis.step(numbers, so_far.accumulate(values), where="post", color=COLOURS[0])
    _label(axis, monitor, xlabel="trial", ylabel=monitor)
    return figure


def importance(shares: Mapping[str, KeyImportance]) -> Figure:
    """A bar for each key with its interval, the most important first; of very many keys, the first
    ones."""
    keys = [*shares][:MOST_BARS]
    figure = Figure(figsize=(5.8, 0.8 + 0.3 * len(keys)), layout="constrained")
    axis = figure.subplots()
    axis.barh(keys, [shares[key].share for key in keys], color=COLOURS[0], alpha=0.7)
    for place, key in enumerate(keys):
        _, low, high = shares[key]
        axis.hlines(place, low, high, color=INK, lw=1.2)
        text = str(shares[key])
        axis.annotate(
            text, (high, place), (3, 0), textcoords="offset points", va="center", color=INK
        )
    axis.invert_yaxis()
    axis.margins(x=0.1)
    axis.set_xticks([])
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return figure


def times(entries: Sequence[Reported]) -> Figure:
    """The monitored value of each trial over its seconds."""
    known = [(e.seconds, e.value) for e in entries if e.seconds is not None and e.value is not None]
    figure = Figure(figsize=(6, 3), layout="constrained")
    axis = figure.subplots()
    points = np.array(spread(known), float).reshape(-1, 2)
    axis.plot(*points.T, "o", color=COLOURS[0], ms=4, alpha=0.7)
    _label(axis, entries[0].monitor, xlabel="seconds per trial", ylabel=entries[0].monitor)
    axis.set_xlim(left=0)
    axis.grid()
    return figure
