"""Which pictures a page has of runs and sweeps. A new one is a function of figures.py that draws
it, and a few lines of `pictures`. Nothing here imports Matplotlib."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kindling.config.measures import higher_is_better
from kindling.plots.samples import MEAN, Sample, interval_data
from kindling.records.outcome import Replicates, format_metric, in_full
from kindling.reports import analysis
from kindling.reports.analysis import Grid, ends_without_outliers
from kindling.reports.charts import spread
from kindling.reports.collect import Part, Reported
from kindling.reports.dependence import Fitted, dependences

FIGURES = "kindling.reports.figures:"  # the module of the functions that draw
INTERVALS = "kindling.plots.pictures:intervals"
MOST_SETTINGS = 20  # rows of a picture
REACH, CONTENDERS = 3, 3  # see ends_of_contenders
CURVES = (
    "Values on the validation set after each epoch. Epoch 0 is the model before training. The axes "
    "fit the later epochs; epoch 0, and values far from all others, may lie outside the picture"
)


@dataclass(frozen=True)
class PagePicture:
    """A figure with its file name, its caption, and the chart of charts.js that replaces it. The
    function `drawing`, MODULE:NAME, makes the figure of `content`, perhaps in another process."""

    name: str
    caption: str
    drawing: str
    content: Sequence[Any]
    chart: str | None = None


def colour_ends(grid: Grid, quantity: str) -> tuple[float, float]:
    """The least and the largest value with a colour of its own."""
    known = grid.best[~np.isnan(grid.best)].tolist()
    return ends_without_outliers(known, higher=higher_is_better(quantity))


def colours_in_words(grid: Grid, quantity: str) -> str:
    """The values that the darkest and the brightest colour of a heat map stand for."""
    ends = colour_ends(grid, quantity)
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
        "ends": colour_ends(grid, quantity),
    }


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


def pictures(
    name: str, part: Part, trained: Sequence[Reported], data: dict[str, Any]
) -> Iterator[PagePicture]:
    """The pictures of a part. Their charts find in `data` what chart_data does not have."""

    def picture(
        kind: str, caption: str, chart: str | None, drawing: str, *content: Any
    ) -> PagePicture:
        return PagePicture(f"{name}-{kind}", caption, FIGURES + drawing, content, chart)

    if part.kind == "run":
        if trained:
            yield PagePicture(name, CURVES, f"{FIGURES}curves", (trained,), "curves")
        return
    monitor = part.ranked[0].monitor
    if part.kind == "search" and part.valued:
        caption = f"{monitor} of each trial in the order of the search, and the best so far"
        yield picture("history", caption, "history", "history", part.entries)
    if part.importance:
        caption = (
            "Importance of each key: which share of the differences between trials it explains "
            "alone, and its 95% interval"
        )
        yield picture("importance", caption, None, "importance", part.importance)
    if grid := analysis.grid(part):
        ends = colour_ends(grid, monitor)
        data["heat"] = heat_data(grid, monitor)
        mean = "Mean " if part.repeated[1] else ""
        several = len(part.settings) > np.count_nonzero(~np.isnan(grid.best))
        caption = (
            f"{mean}{monitor} over {grid.row_key} and {grid.column_key}, the keys with the "
            f"strongest effects{', of the best setting in each cell' if several else ''}: "
            f"{colours_in_words(grid, monitor)}"
        )
        yield picture("heat-map", caption, "heat", "heat_map", grid, monitor, ends)
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
        yield picture("effects", caption, "slices", "effects", found, monitor, fits)
    keys, groups = part.repeated
    if samples := best_settings(groups, keys, monitor):
        drawn = samples, monitor, "a trial", MEAN, ends_of_contenders(samples)
        data["intervals"] = interval_data(*drawn)
        far = "; a triangle is a setting that is far worse" if drawn[-1] else ""
        caption = (
            f"{monitor} of the best settings: a dot per seed and fold, and the mean with its 95% "
            f"interval{far}"
        )
        yield PagePicture(f"{name}-settings", caption, INTERVALS, drawn, "intervals")
    yield picture("curves", CURVES, "curves", "curves", part.entries)
    timed = any(trial.seconds is not None for trial in part.entries)
    if timed and all(trial.stacked == 1 for trial in part.entries):  # a stack has equal shares
        yield picture("time", "Time per trial", None, "times", part.ranked)
