"""Pictures of runs and sweeps: SVG in the page, PNG and SVG in files beside it; and what charts.js
draws in their place, as JSON.

The script replaces pictures by charts with Plotly (MIT license), which the page holds compressed,
so that one file works without a network.
"""

import base64
import gzip
import io
import re
import secrets
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from kindling.config.measures import higher_is_better, in_words, is_fraction, measure_of
from kindling.plots.pictures import Sample
from kindling.plots.style import COLOURS, FAINT, INK, LINE, MOST_COLOURED, STYLE
from kindling.records.folder import Row
from kindling.records.outcome import (
    LABEL_LIMIT,
    REPLICATED,
    Replicates,
    format_metric,
    in_full,
    known_value,
    short,
)
from kindling.reports import analysis
from kindling.reports.analysis import Effect, Grid, by_size, ends_without_outliers
from kindling.reports.collect import Part, Reported
from kindling.system.extras import PLACE
from kindling.system.files import write_durably

MOST_SETTINGS = 20  # rows of a picture
MOST_DRAWN = 300  # curves, or dots of a value: more cannot be told apart
MOST_SHOWN = 1000  # runs
MOST_POINTS = 60_000  # of all curves of one quantity
FEWEST_EPOCHS = 20  # of a curve
PRECISION = 5  # significant digits of a value


def spread(items: Sequence[Any], most: int = MOST_DRAWN) -> Sequence[Any]:
    """At most so many items, evenly chosen, with the first and the last."""
    if len(items) <= most:
        return items
    return [items[round(place)] for place in np.linspace(0, len(items) - 1, most)]


def quantities(ranked: Sequence[Reported]) -> list[str]:
    """What is drawn over epochs: score and loss, after a measure that the best run monitors."""
    measure = measure_of(ranked[0].monitor)
    return [*([measure] if measure else []), ranked[0].score, "loss"]


@dataclass(frozen=True)
class PagePicture:
    """A figure with its file name, its caption, and the chart of charts.js that replaces it."""

    name: str
    caption: str
    draw: Callable[[], Figure]
    chart: str | None = None

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes NAME.png and NAME.svg. Returns what a page shows: the SVG, with unique identifiers
        and the colours of the page's theme, its name, its caption and its chart."""
        png, text = io.BytesIO(), io.StringIO()
        with mpl.rc_context(STYLE):
            figure = self.draw()
            figure.savefig(png, format="png", dpi=160)
            figure.set_layout_engine("none")  # the layout of the PNG is kept
            figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
        write_durably(folder / f"{self.name}.png", png.getvalue())
        write_durably(folder / f"{self.name}.svg", text.getvalue())
        svg = text.getvalue().replace(INK, "var(--ink)").replace(LINE, "var(--line)")
        svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{self.name}-", svg[svg.index("<svg") :])
        size = r'<svg([^>]*?) width="([\d.]+)pt" height="[^"]*"'  # the style sheet needs the width
        svg = re.sub(size, r'<svg\1 style="--points: \2"', svg, count=1)
        svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(self.caption)}"', 1)
        shown = {"name": self.name, "caption": self.caption, "chart": self.chart}
        return {**shown, "svg": Markup(svg)}


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
        _zoom(axis, np.concatenate(drawn))
        _label(axis, quantity, xlabel="epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        dashed = " (training: dashed)" if few and quantity == ranked[0].score else ""
        axis.set_title(f"validation {in_words(quantity)}{dashed}", fontsize=10)
    if len(entries) > 1:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=1)
    return figure


def _zoom(axis: Axes, points: np.ndarray) -> None:
    """Fits the axis to epochs from 1 on: beside an untrained model 98 % and 99.5 % look alike."""
    values = points[(points[:, 0] > 0) & np.isfinite(points[:, 1]), 1]
    if len(values):
        margin = 0.05 * np.ptp(values) or 0.01
        axis.set_ylim(values.min() - margin, values.max() + margin)


def _labels(entries: Sequence[Reported]) -> dict[str, str]:
    """A label for each run, by name; equal labels get the name of the folder. Of a long label the
    middle is left out, because its end is the value of the last key."""
    half = LABEL_LIMIT // 2
    labels = {
        entry.name: entry.label
        if len(entry.label) <= LABEL_LIMIT
        else f"{entry.label[: half - 1]}…{entry.label[-half:]}"
        for entry in entries
    }
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


def _colour_ends(grid: Grid, quantity: str) -> tuple[float, float]:
    """The least and the largest mean with a colour of its own."""
    known = grid.means[~np.isnan(grid.means)].tolist()
    return ends_without_outliers(known, higher=higher_is_better(quantity))


def colours_in_words(grid: Grid, quantity: str) -> str:
    """The means that the darkest and the brightest colour of a heat map stand for."""
    ends = _colour_ends(grid, quantity)
    dark, bright = ends if higher_is_better(quantity) else ends[::-1]
    outside = "" if ends == (np.nanmin(grid.means), np.nanmax(grid.means)) else " or worse"
    return (
        f"dark is {format_metric(quantity, dark)}{outside}, "
        f"bright is {format_metric(quantity, bright)}"
    )


def heat_data(grid: Grid, quantity: str) -> dict[str, Any]:
    """What charts.js draws of a heat map, as primitives without NaN."""
    return {
        "x": {"name": grid.column_key, "labels": grid.columns},
        "y": {"name": grid.row_key, "labels": grid.rows},
        "means": np.where(np.isnan(grid.means), None, grid.means).tolist(),  # type: ignore[call-overload]
        "ends": _colour_ends(grid, quantity),
    }


def heat_map(grid: Grid, quantity: str) -> Figure:
    """The means of `quantity` over two keys, each written in its cell. Means that are far worse
    than most share the darkest colour."""
    rows, columns = grid.means.shape
    figure = Figure(figsize=(2 + 0.95 * columns, 1.2 + 0.5 * rows), layout="constrained")
    axis = figure.subplots()
    colours = mpl.colormaps["viridis" if higher_is_better(quantity) else "viridis_r"]
    image = axis.imshow(grid.means, cmap=colours, clim=_colour_ends(grid, quantity), aspect="auto")
    for row, column in zip(*np.nonzero(~np.isnan(grid.means)), strict=True):
        value = grid.means[row, column]
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


def effects(found: Sequence[Effect], quantity: str) -> Figure:
    """A panel per key: a dot per trial, and a line of means with standard deviations. The axis of a
    key has the scale of the key."""
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(9.3, 2.5 * rows), layout="constrained")  # as wide as the page
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
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
        axis.errorbar(
            x, effect.means, effect.deviations, color=COLOURS[0], marker="o", ms=5, capsize=3
        )
        if log:
            axis.set_xscale("log")
            few_decades = np.ptp(np.concatenate(groups)) < 2
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few_decades else (1,)))
            axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.xaxis.set_minor_formatter(NullFormatter())
        if exact:
            turned = 40 if max(map(len, effect.labels)) > 6 else 0
            axis.set_xticks(x, effect.labels, rotation=turned)
        _label(axis, quantity, xlabel=effect.key)
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel(quantity)
    return figure


def best_settings(groups: Sequence[Replicates], keys: Sequence[str], quantity: str) -> list[Sample]:
    """The best settings, with their trials, mean and interval."""
    # Trials with another monitor may lack the quantity.
    known = [group for group in groups if group.known(quantity)]
    return [
        Sample(
            in_full(dict(zip(keys, group.values, strict=True))) if keys else "all trials",
            spread(sorted(group.known(quantity))),
            statistics.mean(group.repeats(quantity)),
            group.interval(quantity),
        )
        for group in known[:MOST_SETTINGS]
    ]


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


def importance(shares: Mapping[str, float]) -> Figure:
    """A bar for each key, the most important first; of very many keys, the first ones."""
    keys = [*shares][:MOST_SETTINGS]
    figure = Figure(figsize=(5.8, 0.8 + 0.3 * len(keys)), layout="constrained")
    axis = figure.subplots()
    bars = axis.barh(keys, [shares[key] for key in keys], color=COLOURS[0])
    axis.bar_label(bars, [f"{shares[key]:.0%}" for key in keys], color=INK, padding=3)
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


# --- what charts.js draws in place of the pictures ----------------------------------------------


def chart_content() -> dict[str, Any]:
    """What a page with charts needs beside their data: the library for browsers, as base64 of gzip.
    Without plotly, `library` is None and `no_charts` says what to install."""
    script = library_source()
    packed = base64.b64encode(gzip.compress(script or b"", 6, mtime=0)).decode()
    missing = f'plotly is not installed; type pip install {PLACE}[report]"'
    return {
        "nonce": secrets.token_hex(16),
        "colours": COLOURS,
        "library": Markup(packed) if script else None,
        "no_charts": None if script else missing,
    }


def library_source() -> bytes | None:
    try:
        return files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    except ModuleNotFoundError:
        return None


def chart_data(part: Part, entries: Sequence[Reported], keys: Sequence[str]) -> dict[str, Any]:
    """The content of the charts of a part, as primitives without NaN. `keys` are those in which the
    entries differ, the most interesting first. Of very many runs and epochs, some are left out,
    evenly by rank and by number."""
    ranked = sorted(entries, key=lambda entry: entry.rank)
    shown = [*ranked[:3], *spread(ranked[3:], MOST_SHOWN)]
    monitor, drawn = ranked[0].monitor, quantities(ranked)
    epochs = max(FEWEST_EPOCHS, MOST_POINTS // len(shown))
    others = [key for key in keys if key not in REPLICATED]
    groups: dict[tuple[str, ...], int] = {}  # of runs that differ only in seed and fold
    seen = set()
    trials = []
    for entry in shown:
        rows = spread(entry.history, epochs)
        setting, everything = (tuple(map(entry.setting, of)) for of in (others, keys))
        repeats = everything in seen  # a second run of a seed tells nothing about other seeds
        seen.add(everything)
        trials.append(
            {
                "name": part.name_of(entry),
                "settings": [*map(short, everything)],
                "value": _rounded(entry.value),
                "group": None if repeats else groups.setdefault(setting, len(groups)),
                "epochs": [row["epoch"] for row in rows],
                "curves": [
                    [_rounded(row.get(f"{split}/{name}")) for row in rows]
                    for name in drawn
                    for split in ("val", "train")
                ],
            }
        )
    higher = higher_is_better(monitor)
    known = [value for entry in shown if (value := _rounded(entry.value)) is not None]
    return {
        "noun": part.noun,
        "monitor": {
            "name": monitor,
            "fraction": is_fraction(monitor),
            "higher": higher,
            "ends": known and ends_without_outliers(known, higher=higher),  # of an axis
        },
        "quantities": [
            {"title": f"validation {in_words(name)}", "fraction": is_fraction(f"val/{name}")}
            for name in drawn
        ],
        "keys": [_key(name, shown, part.scales.get(name)) for name in keys],
        "trials": trials,
    }


def _key(name: str, shown: Sequence[Reported], drawn: bool | None) -> dict[str, Any]:
    """The labels of a key in their order, the place of each run's label, the scale of an axis with
    the numbers of the labels, and, where a label is a range, the number of each run. Without labels
    if there are too many."""
    values = [entry.setting(name) for entry in shown]
    label_of = analysis.labels(values)
    places = {label: place for place, label in enumerate(dict.fromkeys(label_of.values()))}
    few, ranges = len(places) <= analysis.MOST_LABELS, len(places) < len(label_of)
    scale = analysis.scale_of(values, drawn)
    numbered = scale != "category" and not ranges
    return {
        "name": name,
        "repeated": name in REPLICATED,
        "labels": [*places] if few else [],
        "scale": scale,
        "at": [by_size(value)[1] for value in label_of] if numbered else [*places.values()],
        "of": [places[label_of[value]] for value in values] if few else [],
        "numbers": [by_size(value)[1] for value in values] if ranges else None,
    }


def _rounded(value: float | None) -> float | None:
    known = known_value(value)
    return None if known is None else float(f"{known:.{PRECISION}g}")
