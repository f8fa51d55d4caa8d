"""The effects of a sweep's keys on its monitored value."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from src.reports.collect import SweepEntries
from src.runs.folder import is_search
from src.runs.outcome import LARGEST, REPLICATED, UNKNOWN, short

MOST_LABELS = 64  # a picture of more texts cannot be read
MOST_VALUES = 16  # of a key that are shown one by one
RANGES = 6
EVEN = 0.2  # of the mean distance of numbers on an axis: if two are closer, their texts overlap
WIDE = 30  # the largest over the least of numbers that were drawn on a logarithmic scale
FAR = 4  # times the distance of the best value from the median: worse values are outliers


Scale = Literal["log", "linear", "category"]  # of an axis; categories are side by side


@dataclass(frozen=True)
class Effect:
    """The monitored values of all trials, grouped by the value of one key, in the key's order, or
    by the values of keys that change together."""

    key: str  # or several, separated by commas
    labels: Sequence[str]
    values: Sequence[Sequence[float]]
    scale: Scale
    numbers: Sequence[Sequence[float]]  # where the values are on the axis

    @property
    def means(self) -> list[float]:
        return [statistics.mean(values) for values in self.values]

    @property
    def deviations(self) -> list[float]:
        """Sample standard deviations; 0 for a single trial."""
        return [statistics.stdev(v) if len(v) > 1 else 0.0 for v in self.values]

    @property
    def span(self) -> float:
        return max(self.means) - min(self.means)


@dataclass(frozen=True)
class Grid:
    """Mean monitored values (rows, columns) over two keys; NaN where there is no trial."""

    row_key: str
    column_key: str
    rows: Sequence[str]
    columns: Sequence[str]
    means: np.ndarray


def ends_without_outliers(values: Iterable[float], *, higher: bool) -> tuple[float, float]:
    """The least and the largest of some values, of which there is at least one, without those that
    are far worse than most: beside a trial that failed to learn, the others look alike. `higher`:
    whether higher values are better."""
    known = sorted(values)
    median, best = statistics.median(known), known[-1 if higher else 0]
    limit = median + FAR * (median - best)
    inside = [value for value in known if best == median or (value >= limit) == higher]
    return min([*inside, best]), max([*inside, best])


Keys = tuple[str, ...]  # a key, or several that change together


def effects(sweep: SweepEntries) -> list[Effect]:
    """The effect of every key with two to MOST_LABELS values, the strongest first. Keys that change
    together have one effect; seeds and folds, which nobody chooses, have none."""
    return [effect for _, effect in _effects_by_keys(sweep)]


def by_strength(sweep: SweepEntries) -> list[str]:
    """The keys of a sweep, the strongest first; seeds and folds are last."""
    strong = [key for keys, _ in _effects_by_keys(sweep) for key in keys]
    return sorted(dict.fromkeys([*strong, *sweep.keys]), key=lambda key: key in REPLICATED)


def _effects_by_keys(sweep: SweepEntries) -> list[tuple[Keys, Effect]]:
    found = []
    for keys in _together(sweep):
        (labels,), values = _values_by(sweep, [keys])
        if 1 < len(labels) <= MOST_LABELS:
            of_labels = [values[label,] for label in labels]
            effect = Effect(", ".join(keys), labels, of_labels, *_on_axis(sweep, keys, labels))
            found.append((keys, effect))
    return sorted(found, key=lambda pair: -pair[1].span)


def _on_axis(
    sweep: SweepEntries, keys: Keys, names: Sequence[str]
) -> tuple[Scale, list[list[float]]]:
    """The scale of an effect, and the numbers of the trials of each label; categories are
    numbered."""
    trials = [trial for trial in sweep.trials if trial.value is not None]
    texts = [trial.settings.get(keys[0], UNKNOWN) for trial in trials]
    scale = scale_of(texts, sweep.scales.get(keys[0])) if len(keys) == 1 else "category"
    if scale == "category":
        return scale, [[float(place)] for place in range(len(names))]
    label_of = labels(texts)
    return scale, [[by_size(text)[1] for text in texts if label_of[text] == name] for name in names]


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


def grid(sweep: SweepEntries) -> Grid | None:
    """Means over the two keys with the strongest effects. None if fewer than two have any."""
    found = [keys for keys, _ in _effects_by_keys(sweep)]
    if len(found) < 2:
        return None
    row_keys, column_keys = sorted(found[:2], key=lambda keys: sweep.keys.index(keys[0]))
    (rows, columns), values = _values_by(sweep, [row_keys, column_keys])
    means = np.full((len(rows), len(columns)), np.nan)
    for (row, column), group in values.items():
        means[rows.index(row), columns.index(column)] = statistics.mean(group)
    return Grid(", ".join(row_keys), ", ".join(column_keys), rows, columns, means)


def _together(sweep: SweepEntries) -> list[Keys]:
    """The keys of a sweep without seeds and folds. Keys are together if each value of one belongs
    to one value of the other, as with zip(…). Numbers that a sampler drew are all different, and
    are not together."""
    known = [trial.settings for trial in sweep.trials if trial.value is not None]
    drawn = is_search(sweep.folder)
    found: dict[Any, list[str]] = {}
    for key in sweep.keys:
        if key in REPLICATED:
            continue
        values = [settings.get(key, UNKNOWN) for settings in known]
        # Equal for two keys if their values change at the same trials.
        first = {value: place for place, value in reversed([*enumerate(values)])}
        changes = tuple(first[value] for value in values)
        paired = len(first) > 1 and (len(first) < len(known) or not drawn)
        typed = all(short(value) == value for value in first)
        found.setdefault(changes if paired and typed else key, []).append(key)
    return [tuple(keys) for keys in found.values()]


def by_size(text: str) -> tuple[bool, float, str]:
    """A sort key: numbers by value, before texts."""
    try:
        return False, float(text.strip("[]'\"")), text
    except ValueError:
        return True, 0.0, text


def _values_by(
    sweep: SweepEntries, axes: Sequence[Keys]
) -> tuple[list[list[str]], dict[tuple[str, ...], list[float]]]:
    """The labels of each axis in order, and the values of the trials by their labels."""
    found: dict[tuple[str, ...], list[float]] = {}
    known = [(trial, trial.value) for trial in sweep.trials if trial.value is not None]
    points = [
        tuple(tuple(trial.settings.get(key, UNKNOWN) for key in keys) for keys in axes)
        for trial, _ in known
    ]
    label_of = [_labels_together([point[at] for point in points]) for at in range(len(axes))]
    for point, (_, value) in zip(points, known, strict=True):
        labels = tuple(of[settings] for of, settings in zip(label_of, point, strict=True))
        found.setdefault(labels, []).append(value)
    return [list(dict.fromkeys(of.values())) for of in label_of], found


def _labels_together(settings: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """The label in a picture of the values of keys that change together, sorted by the first key.
    Ranges are those of the first key."""
    label_of = labels(values[0] for values in settings)
    if len(set(label_of.values())) < len(label_of):  # ranges
        return {values: label_of[values[0]] for values in sorted(set(settings), key=_by_sizes)}
    return {
        values: ", ".join((label_of[values[0]], *values[1:]))
        for values in sorted(set(settings), key=_by_sizes)
    }


def _by_sizes(values: Sequence[str]) -> list[tuple[bool, float, str]]:
    return [by_size(value) for value in values]


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
