"""The effects of a sweep's keys on its monitored value."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from kindling.records.outcome import LARGEST, REPLICATED, short
from kindling.reports.collect import Part, seeds_last

MOST_LABELS = 64  # a picture of more texts cannot be read
MOST_VALUES = 16  # of a key that are shown one by one
RANGES = 6
EVEN = 0.2  # of the mean distance of numbers on an axis: if two are closer, their texts overlap
WIDE = 30  # the largest over the least of numbers that were drawn on a logarithmic scale
FAR = 4  # times the distance of the best value from the median: worse values are outliers

Scale = Literal["log", "linear", "category"]  # of an axis; categories are side by side


class Levels(NamedTuple):
    """Of the values of some settings: the best, the end of the best quarter, and the median."""

    best: float
    quarter: float
    median: float

    @classmethod
    def of(cls, values: Sequence[float], *, higher: bool) -> "Levels":
        """`higher`: whether higher values are better."""
        best, share = (max(values), 0.75) if higher else (min(values), 0.25)
        return cls(best, float(np.quantile(values, share)), statistics.median(values))


@dataclass(frozen=True)
class Effect:
    """The monitored values of all trials, grouped by the value of one key, in the key's order, or
    by the values of keys that change together."""

    keys: Sequence[str]
    labels: Sequence[str]
    values: Sequence[Sequence[float]]
    scale: Scale
    numbers: Sequence[Sequence[float]]  # where the values are on the axis
    levels: Sequence[Levels]  # of the settings with each value: over all other keys

    @property
    def key(self) -> str:
        return ", ".join(self.keys)

    @property
    def span(self) -> float:
        """What the key changes where all others are chosen well. A mean over the others would tell
        how the bad choices of others are distributed."""
        best = [level.best for level in self.levels]
        return max(best) - min(best)


@dataclass(frozen=True)
class Grid:
    """The best monitored values (rows, columns) over two keys; NaN where there is no trial."""

    row_key: str
    column_key: str
    rows: Sequence[str]
    columns: Sequence[str]
    best: np.ndarray


def ends_without_outliers(values: Iterable[float], *, higher: bool) -> tuple[float, float]:
    """The least and the largest of some values, of which there is at least one, without those that
    are far worse than most: beside a trial that failed to learn, the others look alike. `higher`:
    whether higher values are better."""
    known = sorted(values)
    median, best = statistics.median(known), known[-1 if higher else 0]
    limit = median + FAR * (median - best)
    inside = [value for value in known if best == median or (value >= limit) == higher]
    return min([*inside, best]), max([*inside, best])


def effects(part: Part) -> list[Effect]:
    """The effect of every key with two to MOST_LABELS values, the strongest first. Keys that change
    together have one effect; seeds and folds, which nobody chooses, have none, and neither have
    those of a confirmation, whose few settings were chosen by their values."""
    found = []
    for keys in _together(part) if part.kind in ("sweep", "search") else ():
        named, ordered = _labelled(part, keys)
        if not 1 < len(ordered) <= MOST_LABELS:
            continue
        texts = [entry.setting(keys[0]) for entry, _ in part.valued]
        scale = scale_of(texts, part.scales.get(keys[0])) if len(keys) == 1 else "category"
        groups: dict[str, list[tuple[float, float]]] = {label: [] for label in ordered}
        for label, text, (_, value) in zip(named, texts, part.valued, strict=True):
            at = ordered.index(label) if scale == "category" else by_size(text)[1]
            groups[label].append((value, at))
        values, numbers = (
            [[pair[part] for pair in group] for group in groups.values()] for part in (0, 1)
        )
        known = [level for level in levels(part, named, ordered) if level]  # each has a trial
        found.append(Effect(keys, ordered, values, scale, numbers, known))
    return sorted(found, key=lambda effect: -effect.span)


def levels(part: Part, named: Sequence[str | None], ordered: Iterable[str]) -> list[Levels | None]:
    """Of the settings with each label; None where there are none. `named` has the label of each
    trial in `part.valued`."""
    means: dict[str | None, list[float]] = {label: [] for label in ordered}
    for place, mean in part.settings:
        if named[place] in means:
            means[named[place]].append(mean)
    return [Levels.of(each, higher=part.higher) if each else None for each in means.values()]


def by_strength(part: Part) -> list[str]:
    """The keys of a sweep, the strongest first; seeds and folds are last."""
    strong = [key for effect in effects(part) for key in effect.keys]
    return seeds_last([*strong, *part.keys])


def scale_of(values: Iterable[str], drawn: bool | None = None) -> Scale:
    """The axis for the values of a key. `drawn`: whether a search drew them on a logarithmic scale;
    None for other values, which get the scale on which they are more even. Texts are categories,
    and so are numbers that would overlap on both scales."""
    parsed = [by_size(value) for value in set(values)]
    numbers = np.unique([number for _, number, _ in parsed])
    usable = np.isfinite(numbers).all() and np.abs(numbers).max() < LARGEST
    if not usable or len(numbers) < len(parsed) or any(is_text for is_text, _, _ in parsed):
        return "category"
    least, middle, most = (float(np.quantile(numbers, share)) for share in (0, 0.5, 1))
    if drawn is not None:
        return "log" if drawn and least > 0 else "linear"
    if len(set(labels(text for _, _, text in parsed).values())) < len(parsed):  # ranges
        return "log" if 0 < WIDE * least < most and middle < most / 4 else "linear"
    if len(numbers) < 3:
        return "log" if 0 < 10 * least <= most else "linear"
    evenness: dict[Scale, float] = {"linear": _evenness(numbers)}
    if least > 0:
        evenness["log"] = _evenness(np.log(numbers))
    best = max(evenness, key=lambda scale: evenness[scale])
    return best if evenness[best] >= EVEN else "category"


def _evenness(numbers: np.ndarray) -> float:
    """The least distance of sorted numbers over their mean distance."""
    return float(np.diff(numbers).min() / np.diff(numbers).mean())


def grid(part: Part) -> Grid | None:
    """The best setting for each pair of values of the two keys with the strongest effects. None if
    fewer than two have any."""
    found = effects(part)
    if len(found) < 2:
        return None
    down, across = sorted(found[:2], key=lambda effect: part.keys.index(effect.keys[0]))
    named = [_labelled(part, effect.keys)[0] for effect in (down, across)]
    best = np.full((len(down.labels), len(across.labels)), math.nan)
    for place, mean in part.settings:
        row, column = (labels[place] for labels in named)
        cell = down.labels.index(row), across.labels.index(column)
        best[cell] = (np.fmax if part.higher else np.fmin)(best[cell], mean)
    return Grid(down.key, across.key, down.labels, across.labels, best)


def _together(part: Part) -> list[list[str]]:
    """The keys of a sweep without seeds and folds. Keys are together if each value of one belongs
    to one value of the other, as with zip(…). Numbers that a sampler drew are all different, and
    are not together."""
    drawn = part.kind == "search"
    found: dict[Any, list[str]] = {}
    for key in part.keys:
        if key in REPLICATED:
            continue
        values = [entry.setting(key) for entry, _ in part.valued]
        # Equal for two keys if their values change at the same trials.
        first = {value: place for place, value in reversed([*enumerate(values)])}
        changes = tuple(first[value] for value in values)
        paired = len(first) > 1 and (len(first) < len(values) or not drawn)
        typed = all(short(value) == value for value in first)
        found.setdefault(changes if paired and typed else key, []).append(key)
    return [*found.values()]


def by_size(text: str) -> tuple[bool, float, str]:
    """A sort key: numbers by value, before texts."""
    try:
        return False, float(text.strip("[]'\"")), text
    except ValueError:
        return True, 0.0, text


def _labelled(part: Part, keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """The label in a picture of each trial with a value, by its values of keys that change
    together; and all labels, sorted by the first key. Ranges are those of the first key."""
    points = [[entry.setting(key) for key in keys] for entry, _ in part.valued]
    label_of = labels(first for first, *_ in points)
    ranges = len({*label_of.values()}) < len(label_of)
    named = [
        label_of[first] if ranges else ", ".join((label_of[first], *others))
        for first, *others in points
    ]
    by_values = sorted(range(len(points)), key=lambda place: [*map(by_size, points[place])])
    return named, [*dict.fromkeys(named[place] for place in by_values)]


def labels(settings: Iterable[str]) -> dict[str, str]:
    """The label in a picture of each value of a key, sorted by value.

    Many numbers, or numbers that a sampler drew, are labelled by one of six ranges with as many
    values each; other values label themselves.
    """
    values = sorted(set(settings), key=by_size)
    typed = len(values) <= MOST_VALUES and all(short(value) == value for value in values)
    if typed or len(values) <= RANGES or any(by_size(value)[0] for value in values):
        return {value: short(value) for value in values}
    parts = np.array_split(np.array(values), RANGES)
    ends = [[_rounded(by_size(str(part[end]))[1]) for end in (0, -1)] for part in parts]
    return {
        str(value): "–".join(dict.fromkeys(pair))
        for part, pair in zip(parts, ends, strict=True)
        for value in part
    }


def _rounded(number: float) -> str:
    """Three significant digits; a whole number, such as a seed, with all of its first six."""
    whole = number.is_integer() and abs(number) < 10**6
    return f"{number:.0f}" if whole else f"{number:.3g}"
