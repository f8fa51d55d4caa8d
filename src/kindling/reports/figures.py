"""Pictures of runs and sweeps, SVG in the page, PNG and SVG in files beside it, and which of them a
page has. A new one is a function that draws it, and a few lines of `pictures`."""

import io
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from kindling.config.measures import higher_is_better, in_words, is_fraction
from kindling.plots.pictures import MEAN, Sample, interval_data, intervals
from kindling.plots.style import COLOURS, FAINT, INK, LINE, MOST_COLOURED, STYLE
from kindling.records.folder import Row
from kindling.records.outcome import (
    LABEL_LIMIT,
    Replicates,
    format_metric,
    in_full,
    known_value,
)
from kindling.records.sweep_folder import KeyImportance
from kindling.reports import analysis
from kindling.reports.analysis import Effect, Grid, ends_without_outliers
from kindling.reports.charts import MOST_DRAWN, quantities, spread
from kindling.reports.collect import Part, Reported
from kindling.reports.dependence import Fitted, dependences
from kindling.system.files import write_durably

MOST_SETTINGS = 20  # rows of a picture
REACH, CONTENDERS = 3, 3  # see ends_of_contenders
LINES: Sequence[tuple[dict[str, Any], str]] = (  # of an effect
    ({"marker": "o", "ms": 5}, "best setting"),
    ({"ls": "--", "lw": 1.2}, "best quarter of the settings"),
    ({"ls": ":", "lw": 1.2}, "median setting"),
)
CURVES = (
    "Values on the validation set after each epoch. Epoch 0 is the model before training. The axes "
    "are chosen for the later epochs, so epoch 0 may lie outside the picture"
)


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
    """The least and the largest value with a colour of its own."""
    known = grid.best[~np.isnan(grid.best)].tolist()
    return ends_without_outliers(known, higher=higher_is_better(quantity))


def colours_in_words(grid: Grid, quantity: str) -> str:
    """The values that the darkest and the brightest colour of a heat map stand for."""
    ends = _colour_ends(grid, quantity)
    dark, bright = ends if higher_is_better(quantity) else ends[::-1]
    outside = "" if ends == (np.nanmin(grid.best), np.nanmax(grid.best)) else " or worse"
    return (
        f"dark is {format_metric(quantity, dark)}{outside}, "
        f"bright is {format_metric(quantity, bright)}"
    )


def heat_data(grid: Grid, quantity: str) -> dict[str, Any]:
    """What charts.js draws of a heat map, as primitives without NaN."""
    return {
        "x": {"name": grid.column_key, "labels": grid.columns},
        "y": {"name": grid.row_key, "labels": grid.rows},
        "best": np.where(np.isnan(grid.best), None, grid.best).tolist(),  # type: ignore[call-overload]
        "ends": _colour_ends(grid, quantity),
    }


def heat_map(grid: Grid, quantity: str) -> Figure:
    """The values of `quantity` over two keys, each written in its cell. Values that are far worse
    than most share the darkest colour."""
    rows, columns = grid.best.shape
    figure = Figure(figsize=(2 + 0.95 * columns, 1.2 + 0.5 * rows), layout="constrained")
    axis = figure.subplots()
    colours = mpl.colormaps["viridis" if higher_is_better(quantity) else "viridis_r"]
    image = axis.imshow(grid.best, cmap=colours, clim=_colour_ends(grid, quantity), aspect="auto")
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
    the key."""
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
        for values, (style, name) in zip(zip(*effect.levels, strict=True), LINES, strict=True):
            axis.plot(x, values, color=COLOURS[0], label=name, **style)
        if fit := (fits or {}).get(effect.key):
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
        _label(axis, quantity, xlabel=effect.key)
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


def in_words_of(fits: Mapping[str, Fitted], monitor: str, *, higher: bool) -> str:
    """Where each key is best and worst, and whether the intervals tell these apart."""
    texts = []
    for key, fit in fits.items():
        order = sorted(range(len(fit.at)), key=fit.values.__getitem__, reverse=higher)
        best, worst = order[0], order[-1]
        apart = fit.low[best] > fit.high[worst] if higher else fit.high[best] < fit.low[worst]
        good, bad = (
            f"{fit.at[place]:.3g}, with {format_metric(monitor, fit.values[place])}"
            for place in (best, worst)
        )
        doubt = "" if apart else ", which the intervals do not tell apart"
        texts.append(f"{key} is best near {good}, and worst near {bad}{doubt}")
    return "; ".join(texts)


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


def ends_of_contenders(samples: Sequence[Sample]) -> tuple[float, float] | None:
    """The ends of an axis that is filled by the settings within reach of the best, the first: those
    whose means differ from its mean by at most REACH times the median of the settings' deviations,
    and CONTENDERS in any case. None if these are all."""
    means = [sample.mean for sample in samples if sample.mean is not None]
    deviations = [statistics.stdev(each.values) for each in samples if len(each.values) > 1]
    reach = REACH * statistics.median(deviations) if deviations else 0.0
    near = [abs(mean - means[0]) <= reach or n < CONTENDERS for n, mean in enumerate(means)]
    if all(near):
        return None
    shown = [
        value
        for sample, chosen in zip(samples, near, strict=True)
        for value in (*sample.values, sample.mean)
        if chosen and value is not None
    ]
    margin = 0.3 * (max(shown) - min(shown)) or 0.01
    return min(shown) - margin, max(shown) + margin


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
    keys = [*shares][:MOST_SETTINGS]
    figure = Figure(figsize=(5.8, 0.8 + 0.3 * len(keys)), layout="constrained")
    axis = figure.subplots()
    axis.barh(keys, [shares[key].share for key in keys], color=COLOURS[0], alpha=0.7)
    for place, key in enumerate(keys):
        share, low, high = shares[key]
        ends = (share, share) if low is None or high is None else (low, high)
        axis.hlines(place, *ends, color=INK, lw=1.2)
        at = (max(share, *ends), place)
        axis.annotate(
            str(shares[key]), at, (3, 0), textcoords="offset points", va="center", color=INK
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


# --- which pictures a part has -------------------------------------------------------------------


def pictures(
    name: str, part: Part, trained: Sequence[Reported], data: dict[str, Any]
) -> Iterator[PagePicture]:
    """The pictures of a part. Their charts find in `data` what chart_data does not have."""

    def picture(
        kind: str, caption: str, chart: str | None, draw: Callable[..., Figure], *content: Any
    ) -> PagePicture:
        return PagePicture(f"{name}-{kind}", caption, partial(draw, *content), chart)

    if part.kind == "run":
        if trained:
            yield PagePicture(name, CURVES, partial(curves, trained), "curves")
        return
    monitor = part.ranked[0].monitor
    if part.kind == "search" and part.valued:
        caption = f"{monitor} of each trial in the order of the search, and the best so far"
        yield picture("history", caption, "history", history, part.entries)
    if part.importance:
        caption = (
            "Importance of each key: its share in the difference between good trials and all "
            "trials (PED-ANOVA), and its 95% interval"
        )
        yield picture("importance", caption, None, importance, part.importance)
    if grid := analysis.grid(part):
        data["heat"] = heat_data(grid, monitor)
        mean = "Mean " if part.repeated[1] else ""
        several = len(part.settings) > np.count_nonzero(~np.isnan(grid.best))
        caption = (
            f"{mean}{monitor} over {grid.row_key} and {grid.column_key}, the keys with the "
            f"strongest effects{', of the best setting in each cell' if several else ''}: "
            f"{colours_in_words(grid, monitor)}"
        )
        yield picture("heat-map", caption, "heat", heat_map, grid, monitor)
    if found := analysis.effects(part):
        caption = (
            "Effect of each key: a dot per trial, and for each value the best setting of all other "
            "keys, the best quarter of the settings, and their median"
        )
        scales = {effect.key: effect.scale for effect in found if len(effect.keys) == 1}
        if fits := dependences(part, scales):
            data["fits"] = {key: fit._asdict() for key, fit in fits.items()}
            caption += (
                "; red: what is fitted to all trials, with its 95% interval, where all other keys "
                f"are as in the best trial: {in_words_of(fits, monitor, higher=part.higher)}"
            )
        yield picture("effects", caption, "slices", effects, found, monitor, fits)
    keys, groups = part.repeated
    if samples := best_settings(groups, keys, monitor):
        drawn = samples, monitor, "a trial", MEAN, ends_of_contenders(samples)
        data["intervals"] = interval_data(*drawn)
        far = "; a triangle is a setting that is far worse" if drawn[-1] else ""
        caption = (
            f"{monitor} of the best settings: a dot per seed and fold, and the mean with its 95% "
            f"interval{far}"
        )
        yield picture("settings", caption, "intervals", intervals, *drawn)
    yield picture("curves", CURVES, "curves", curves, part.entries)
    timed = any(trial.seconds is not None for trial in part.entries)
    if timed and all(trial.stacked == 1 for trial in part.entries):  # a stack has equal shares
        yield picture("time", "Time per trial", None, times, part.ranked)
