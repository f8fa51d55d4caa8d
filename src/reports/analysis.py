"""The effects of a sweep's keys on its monitored value."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from src.reports.collect import SweepEntries, short
from src.runs.outcome import UNKNOWN

MOST_LABELS = 64  # a picture of more texts cannot be read
MOST_VALUES = 16  # of a key that are shown one by one
RANGES = 6


@dataclass(frozen=True)
class Effect:
    """The monitored values of all trials, grouped by the value of one key, in the key's order."""

    key: str
    labels: Sequence[str]
    values: Sequence[Sequence[float]]

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


def effects(sweep: SweepEntries) -> list[Effect]:
    """The effect of every key with two to MOST_LABELS values, the strongest first."""
    found = []
    for key in sweep.keys:
        (labels,), values = _values_by(sweep, [key])
        if 1 < len(labels) <= MOST_LABELS:
            found.append(Effect(key, labels, [values[label,] for label in labels]))
    return sorted(found, key=lambda effect: -effect.span)


def grid(sweep: SweepEntries) -> Grid | None:
    """Means over the two strongest keys, `seed` last. None if there are fewer than two keys."""
    keys = [effect.key for effect in effects(sweep)]
    keys.sort(key=lambda key: key == "seed")
    if len(keys) < 2:
        return None
    row_key, column_key = sorted(keys[:2], key=sweep.keys.index)
    (rows, columns), values = _values_by(sweep, [row_key, column_key])
    means = np.full((len(rows), len(columns)), np.nan)
    for (row, column), group in values.items():
        means[rows.index(row), columns.index(column)] = statistics.mean(group)
    return Grid(row_key, column_key, rows, columns, means)


def by_size(text: str) -> tuple[bool, float, str]:
    """A sort key: numbers by value, before texts."""
    try:
        return False, float(text.strip("[]'\"")), text
    except ValueError:
        return True, 0.0, text


def _values_by(
    sweep: SweepEntries, keys: Sequence[str]
) -> tuple[list[list[str]], dict[tuple[str, ...], list[float]]]:
    """The labels of each key in order, and the values of the trials by their labels."""
    found: dict[tuple[str, ...], list[float]] = {}
    known = [(trial, trial.value) for trial in sweep.trials if trial.value is not None]
    points = [tuple(trial.settings.get(key, UNKNOWN) for key in keys) for trial, _ in known]
    label_of = [_labels(point[at] for point in points) for at in range(len(keys))]
    for point, (_, value) in zip(points, known, strict=True):
        labels = tuple(of[setting] for of, setting in zip(label_of, point, strict=True))
        found.setdefault(labels, []).append(value)
    return [list(dict.fromkeys(of.values())) for of in label_of], found


def _labels(settings: Iterable[str]) -> dict[str, str]:
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
