"""The pictures of a report, each once: as SVG in the page, and as PNG and SVG beside it."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from src.plots.style import COLOURS, FAINT, INK, LINE, MOST_COLOURED, STYLE
from src.reports.analysis import Effect, Grid
from src.reports.collect import Entry
from src.runs.folder import Row
from src.system.files import write_durably


@dataclass(frozen=True)
class Picture:
    """A figure under a name that is a file's, with what it shows in words."""

    name: str
    caption: str
    draw: Callable[[], Figure]

    def save(self, folder: Path) -> str:
        """Writes NAME.png and NAME.svg; returns the SVG for the page, which sets its colours."""
        svg, picture = io.StringIO(), io.BytesIO()
        with mpl.rc_context(STYLE):
            figure = self.draw()
            figure.savefig(picture, format="png", dpi=160)
            figure.set_layout_engine("none")  # laid out once, for both
            figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
        write_durably(folder / f"{self.name}.png", picture.getvalue())
        text = svg.getvalue()
        write_durably(folder / f"{self.name}.svg", text)
        text = text.replace(INK, "var(--ink)").replace(LINE, "var(--line)")
        return _for_page(text[text.index("<svg") :], self.name, self.caption)


def _for_page(svg: str, name: str, caption: str) -> str:
    """Identifiers of its own, the page's width, and its caption for those who cannot see it."""
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r'<svg([^>]*?) width="[^"]*"', r"<svg\1", svg, count=1)
    svg = re.sub(r'<svg([^>]*?) height="[^"]*"', r"<svg\1", svg, count=1)
    caption = caption.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return svg.replace("<svg", f'<svg role="img" aria-label="{caption}"', 1)


# --- runs ---------------------------------------------------------------------------------------


def curves(entries: Sequence[Entry]) -> Figure:
    """Accuracy and loss over epochs; up to six runs in colours, of more the best three. Row 0, the
    model before training, lies outside."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    accuracy, loss = figure.subplots(1, 2)
    ranked = sorted(entries, key=lambda entry: entry.rank)
    few = len(entries) <= MOST_COLOURED
    shown = list(entries) if few else ranked[:3]
    labels = _labels(shown)
    for axis, quantity in ((accuracy, "acc"), (loss, "loss")):
        drawn = [_points(entry.history, f"val/{quantity}") for entry in ranked[3:] if not few]
        axis.add_collection(
            LineCollection([p for p in drawn if len(p)], colors=FAINT, lw=0.5, alpha=0.5)
        )
        for entry, colour in zip(shown, COLOURS, strict=False):
            val = _points(entry.history, f"val/{quantity}")
            axis.plot(*val.T, color=colour, lw=1.8, label=labels[entry.name], marker="o", ms=3)
            train = _points(entry.history if few else [], f"train/{quantity}")
            axis.plot(*train.T, color=colour, lw=1, ls=":")
            drawn += [val, train]
        axis.autoscale_view()
        _zoom(axis, np.concatenate(drawn))
        axis.set(xlabel="epoch")
        axis.grid(axis="y")
        axis.xaxis.get_major_locator().set_params(integer=True)
    accuracy.set_title("validation accuracy" + (", training dotted" if few else ""), fontsize=10)
    loss.set_title("validation loss", fontsize=10)
    accuracy.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    if len(entries) > 1:
        figure.legend(*accuracy.get_legend_handles_labels(), loc="outside lower center", ncols=1)
    return figure


def _zoom(axis: Axes, points: np.ndarray) -> None:
    """To the epochs from the first on, of points (epoch, value): beside a model that has learnt
    nothing, 98 % and 99.5 % look alike."""
    values = points[(points[:, 0] > 0) & np.isfinite(points[:, 1]), 1]
    if len(values):
        margin = 0.05 * np.ptp(values) or 0.01
        axis.set_ylim(values.min() - margin, values.max() + margin)


def _labels(entries: Sequence[Entry]) -> dict[str, str]:
    """For each run what was asked of it; where that is the same, its folder too."""
    labels = {entry.name: entry.label for entry in entries}
    said = list(labels.values())
    return {
        name: label if said.count(label) == 1 else f"{label} ({Path(name).name})"
        for name, label in labels.items()
    }


def _points(history: Sequence[Row], name: str) -> np.ndarray:
    found = [(row["epoch"], row[name]) for row in history if row[name] is not None]
    return np.array(found, float).reshape(-1, 2)


# --- sweeps -------------------------------------------------------------------------------------


def heat_map(grid: Grid, quantity: str) -> Figure:
    rows, columns = grid.means.shape
    figure = Figure(figsize=(2 + 0.95 * columns, 1.2 + 0.5 * rows), layout="constrained")
    axis = figure.subplots()
    accuracy = quantity.endswith("acc")
    colours = mpl.colormaps["viridis" if accuracy else "viridis_r"]
    image = axis.imshow(grid.means, cmap=colours, aspect="auto")
    for row, column in np.ndindex(rows, columns):
        value = grid.means[row, column]
        if not np.isnan(value):
            red, green, blue, _ = colours(image.norm(value))
            bright = 0.3 * red + 0.59 * green + 0.11 * blue > 0.5
            text = f"{value:.2%}" if accuracy else f"{value:.3g}"
            axis.text(
                column, row, text, ha="center", va="center", color="black" if bright else "white"
            )
    axis.set_xticks(range(columns), grid.columns)
    axis.set_yticks(range(rows), grid.rows)
    axis.set(xlabel=grid.column_key, ylabel=grid.row_key)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return figure


def effects(found: Sequence[Effect], quantity: str) -> Figure:
    """A panel per key: each trial a dot, the mean over all else a line with its deviation."""
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.5 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axis, effect in zip(axes.flat, found, strict=False):
        for place, values in enumerate(effect.values):
            apart = np.linspace(-0.18, 0.18, len(values)) if len(values) > 1 else [0]
            axis.plot(place + np.asarray(apart), values, "o", color=FAINT, ms=3, alpha=0.6)
        places = range(len(effect.labels))
        axis.errorbar(
            places, effect.means, effect.deviations, color=COLOURS[0], marker="o", ms=5, capsize=3
        )
        axis.set_xticks(
            places, effect.labels, rotation=40 if max(map(len, effect.labels)) > 6 else 0
        )
        axis.set_xlabel(effect.key)
        axis.grid(axis="y")
        if quantity.endswith("acc"):
            axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel(quantity)
    return figure


def times(entries: Sequence[Entry]) -> Figure:
    """Seconds of each trial against what it came to."""
    figure = Figure(figsize=(6, 3), layout="constrained")
    axis = figure.subplots()
    known = [(e.seconds, e.value) for e in entries if e.seconds is not None and e.value is not None]
    axis.plot(*np.array(known, float).reshape(-1, 2).T, "o", color=COLOURS[0], ms=4, alpha=0.7)
    axis.set(xlabel="seconds per trial", ylabel=entries[0].monitor)
    axis.set_xlim(left=0)
    axis.grid()
    if entries[0].higher_is_better:
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=None))
    return figure


# --- models -------------------------------------------------------------------------------------


def mistakes(pictures: np.ndarray, titles: Sequence[str]) -> Figure:
    """Grey pictures (N, H, W) in [0, 1], dark on light, each under its title."""
    columns = 6
    figure, axis, places = _montage(1 - pictures, columns, gap=(0.45, 0.12))
    axis.images[0].set(cmap="gray", clim=(0, 1))
    for (x, y), title in zip(places, titles, strict=True):
        axis.text(x + pictures.shape[2] / 2, y - 2, title, ha="center", fontsize=9)
    return figure


def augmented(pictures: np.ndarray) -> Figure:
    """Grey pictures (rows, columns, H, W) in [0, 1], dark on light."""
    every = 1 - pictures.reshape(-1, *pictures.shape[2:])
    figure, axis, _ = _montage(every, pictures.shape[1], gap=(0.12, 0.12))
    axis.images[0].set(cmap="gray", clim=(0, 1))
    return figure


def first_layer(weights: np.ndarray) -> Figure:
    """Weights (units, H, W) of the first layer, each on its own scale: blue against, red for."""
    bounds = np.abs(weights).max((1, 2), keepdims=True)
    figure, axis, _ = _montage(weights / np.where(bounds, bounds, 1), 8, gap=(0.12, 0.12))
    axis.images[0].set(cmap="RdBu_r", clim=(-1, 1))
    return figure


def _montage(
    pictures: np.ndarray, columns: int, gap: tuple[float, float]
) -> tuple[Figure, Axes, list[tuple[float, float]]]:
    """Pictures (N, H, W) beside one another in one image, the gaps shares of their size, and the
    upper left corner of each. An axis for each would take matplotlib a second."""
    count, height, width = pictures.shape
    columns = min(columns, count)
    rows = -(-count // columns)
    step = height + round(gap[0] * height), width + round(gap[1] * width)
    whole = np.full((rows * step[0], columns * step[1]), np.nan)
    places = []
    for number, picture in enumerate(pictures):
        row, column = divmod(number, columns)
        bottom, left = (row + 1) * step[0], column * step[1]
        whole[bottom - height : bottom, left : left + width] = picture
        places.append((left - 0.5, bottom - height - 0.5))
    figure = Figure(figsize=(7, 7 * whole.shape[0] / whole.shape[1]), layout="constrained")
    axis = figure.subplots()
    axis.imshow(whole, interpolation="nearest")
    axis.set_axis_off()
    return figure, axis, places
