"""The effects of a sweep's keys on its monitored value."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from src.reports.collect import Entry, SweepEntries, short
from src.runs.outcome import UNKNOWN

K = TypeVar("K")

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
    """The effect of every key with two values or more, the strongest first."""
    trials = _with_value(sweep)
    found = []
    for key in sweep.keys:
        label_of = _labels(trials, key)
        groups = _grouped(trials, lambda t, key=key, of=label_of: of[_setting(t, key)])  # type: ignore[misc]
        if len(groups) > 1:
            labels = list(dict.fromkeys(label_of.values()))
            found.append(Effect(key, labels, [_values(groups[label]) for label in labels]))
    return sorted(found, key=lambda effect: -effect.span)


def grid(sweep: SweepEntries) -> Grid | None:
    """Means over the two keys with the strongest effects; None with fewer than two keys.

    `seed` is used only when there is no other key.
    """
    keys = [effect.key for effect in effects(sweep)]
    keys.sort(key=lambda key: key == "seed")
    if len(keys) < 2:
        return None
    row_key, column_key = sorted(keys[:2], key=sweep.keys.index)
    trials = _with_value(sweep)
    row_of, column_of = (_labels(trials, key) for key in (row_key, column_key))
    rows, columns = (list(dict.fromkeys(each.values())) for each in (row_of, column_of))
    means = np.full((len(rows), len(columns)), np.nan)
    cells = _grouped(
        trials, lambda t: (row_of[_setting(t, row_key)], column_of[_setting(t, column_key)])
    )
    for (row, column), group in cells.items():
        means[rows.index(row), columns.index(column)] = statistics.mean(_values(group))
    return Grid(row_key, column_key, rows, columns, means)


def by_size(text: str) -> tuple[bool, float, str]:
    """A sort key: numbers by value, before texts."""
    try:
        return False, float(text.strip("[]'\"")), text
    except ValueError:
        return True, 0.0, text


def _with_value(sweep: SweepEntries) -> list[Entry]:
    return [trial for trial in sweep.trials if trial.value is not None]


def _values(trials: Sequence[Entry]) -> list[float]:
    return [trial.value for trial in trials if trial.value is not None]


def _setting(trial: Entry, key: str) -> str:
    return trial.settings.get(key, UNKNOWN)


def _labels(trials: Sequence[Entry], key: str) -> dict[str, str]:
    """The label in a picture of each value of a key, sorted by value.

    A label is the value itself. Many numbers, or numbers that a sampler drew, are labelled by one
    of six ranges instead, each with as many values.
    """
    values = sorted({_setting(trial, key) for trial in trials}, key=by_size)
    typed = len(values) <= MOST_VALUES and all(short(value) == value for value in values)
    if typed or len(values) <= RANGES or any(by_size(value)[0] for value in values):
        return {value: short(value) for value in values}
    parts = np.array_split(np.array(values), RANGES)
    ends = [[f"{by_size(str(part[end]))[1]:.3g}" for end in (0, -1)] for part in parts]
    return {
        str(value): "–".join(dict.fromkeys(pair))
        for part, pair in zip(parts, ends, strict=True)
        for value in part
    }


def _grouped(entries: Sequence[Entry], key: Callable[[Entry], K]) -> dict[K, list[Entry]]:
    found: dict[K, list[Entry]] = {}
    for entry in entries:
        found.setdefault(key(entry), []).append(entry)
    return found
