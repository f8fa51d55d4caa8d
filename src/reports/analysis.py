"""What a sweep's trials say about its keys."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from src.reports.collect import Entry, SweepEntries, short

K = TypeVar("K")

MOST_VALUES = 16  # of a key that a picture tells apart
RANGES = 6


@dataclass(frozen=True)
class Effect:
    """What a key does to the monitored value, all else as it came; one item per value of the key,
    in their order."""

    key: str
    labels: Sequence[str]
    values: Sequence[Sequence[float]]

    @property
    def means(self) -> list[float]:
        return [statistics.mean(values) for values in self.values]

    @property
    def deviations(self) -> list[float]:
        """Sample standard deviations, 0 for a single trial."""
        return [statistics.stdev(v) if len(v) > 1 else 0.0 for v in self.values]

    @property
    def span(self) -> float:
        return max(self.means) - min(self.means)


@dataclass(frozen=True)
class Grid:
    """Mean monitored values (rows, columns) over two keys, NaN where there is no trial."""

    row_key: str
    column_key: str
    rows: Sequence[str]
    columns: Sequence[str]
    means: np.ndarray


@dataclass(frozen=True)
class Point:
    """Trials that differ in their seed alone."""

    values: Sequence[str]  # of the keys, the seed left out
    trials: Sequence[Entry]


def effects(sweep: SweepEntries) -> list[Effect]:
    """Of every key with two values at least, the strongest first."""
    valued = [trial for trial in sweep.trials if trial.value is not None]
    found = []
    for key in sweep.keys:
        standing = _standing(valued, key)
        by_label = _grouped(valued, lambda t, key=key, s=standing: s[t.settings.get(key, "–")])  # type: ignore[misc]
        if len(by_label) > 1:
            labels = list(dict.fromkeys(standing.values()))
            values = [[t.value for t in by_label[label] if t.value is not None] for label in labels]
            found.append(Effect(key, labels, values))
    return sorted(found, key=lambda effect: -effect.span)


def grid(sweep: SweepEntries) -> Grid | None:
    """Over the two keys with the strongest effects; of a sweep with fewer, None.

    The seed is no key to choose by, unless there is no other.
    """
    keys = [effect.key for effect in effects(sweep)]
    keys.sort(key=lambda key: key == "seed")
    if len(keys) < 2:
        return None
    row_key, column_key = sorted(keys[:2], key=sweep.keys.index)
    valued = [trial for trial in sweep.trials if trial.value is not None]
    row_of, column_of = (_standing(valued, key) for key in (row_key, column_key))
    rows, columns = (list(dict.fromkeys(each.values())) for each in (row_of, column_of))
    means = np.full((len(rows), len(columns)), np.nan)
    cells = _grouped(
        valued,
        lambda t: (
            row_of[t.settings.get(row_key, "–")],
            column_of[t.settings.get(column_key, "–")],
        ),
    )
    for (row, column), trials in cells.items():
        values = [trial.value for trial in trials if trial.value is not None]
        means[rows.index(row), columns.index(column)] = statistics.mean(values)
    return Grid(row_key, column_key, rows, columns, means)


def over_seeds(sweep: SweepEntries) -> tuple[list[str], list[Point]]:
    """The keys without the seed, and the points that were trained with more than one, the best
    mean first."""
    keys = [key for key in sweep.keys if key != "seed"]
    valued = [trial for trial in sweep.trials if trial.value is not None]
    grouped = _grouped(valued, lambda trial: tuple(trial.settings.get(key, "–") for key in keys))
    points = [Point(values, trials) for values, trials in grouped.items() if len(trials) > 1]
    if "seed" not in sweep.keys:
        return keys, []

    def rank(point: Point) -> float:
        return statistics.mean(trial.rank[1] for trial in point.trials)

    return keys, sorted(points, key=rank)


def by_size(text: str) -> tuple[bool, float, str]:
    """Numbers by their value, before texts."""
    try:
        return False, float(text.strip("[]'\"")), text
    except ValueError:
        return True, 0.0, text


def _standing(trials: Sequence[Entry], key: str) -> dict[str, str]:
    """What stands in a picture for each value of a key, in their order: the value itself; of
    numbers that are too many or that a sampler drew, the range of values it is in, one of six that
    hold as many each."""
    values = sorted({trial.settings.get(key, "–") for trial in trials}, key=by_size)
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
