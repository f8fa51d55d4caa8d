"""What the script of the page draws: curves, values and settings of runs as JSON, and its library.

The script, charts.js, replaces pictures by charts with Plotly (MIT license), which the page holds
compressed, so that one file works without a network.
"""

import base64
import gzip
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from src.config.schema import higher_is_better, is_fraction
from src.reports.analysis import MOST_LABELS, by_size, ends_without_outliers, labels, scale_of
from src.reports.collect import Entry
from src.reports.figures import quantities, spread
from src.runs.outcome import REPLICATED, UNKNOWN, in_words, known_value, short

MOST_SHOWN = 1000  # runs
MOST_POINTS = 60_000  # of all curves of one quantity
FEWEST_EPOCHS = 20  # of a curve
PRECISION = 5  # significant digits of a value


def library() -> str:
    """Plotly for browsers: gzip, as base64."""
    return base64.b64encode(gzip.compress(library_source(), 6, mtime=0)).decode()


def library_source() -> bytes:
    return files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()


def chart_data(
    entries: Sequence[Entry],
    keys: Sequence[str],
    names: Mapping[str, str],
    scales: Mapping[str, bool] | None = None,
) -> dict[str, Any]:
    """The content of the charts of comparable runs, as primitives without NaN. `keys` are those in
    which the runs differ, the most interesting first; `names` has what to call each run, by
    Entry.name; `scales` are those of a search. Of very many runs and epochs, some are left out,
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
        setting, everything = (
            tuple(entry.settings.get(key, UNKNOWN) for key in of) for of in (others, keys)
        )
        repeats = everything in seen  # a second run of a seed tells nothing about other seeds
        seen.add(everything)
        trials.append(
            {
                "name": names[entry.name],
                "settings": [short(entry.settings.get(key, UNKNOWN)) for key in keys],
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
        "keys": [_key(name, shown, (scales or {}).get(name)) for name in keys],
        "trials": trials,
    }


def _key(name: str, shown: Sequence[Entry], drawn: bool | None) -> dict[str, Any]:
    """The labels of a key in their order, the place of each run's label, the scale of an axis with
    the numbers of the labels, and, where a label is a range, the number of each run. Without labels
    if there are too many."""
    values = [entry.settings.get(name, UNKNOWN) for entry in shown]
    label_of = labels(values)
    places = {label: place for place, label in enumerate(dict.fromkeys(label_of.values()))}
    few, ranges = len(places) <= MOST_LABELS, len(places) < len(label_of)
    scale = scale_of(values, drawn)
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
