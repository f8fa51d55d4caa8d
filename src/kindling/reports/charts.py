"""What charts.js draws in place of the pictures, as JSON.

The script replaces pictures by charts with Plotly (MIT license), which the page holds compressed,
so that one file works without a network.
"""

import base64
import gzip
import secrets
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from markupsafe import Markup

from kindling.config.measures import higher_is_better, in_words, is_fraction, measure_of
from kindling.plots.style import COLOURS
from kindling.records.outcome import REPLICATED, known_value, short
from kindling.reports import analysis
from kindling.reports.analysis import by_size, ends_without_outliers
from kindling.reports.collect import Part, Reported
from kindling.system.extras import PLACE

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


def chart_data(
    part: Part, entries: Sequence[Reported], keys: Sequence[str], over: Sequence[str] = ()
) -> dict[str, Any]:
    """The content of the charts of a part, as primitives without NaN. `keys` are those in which the
    entries differ, the most interesting first. Of very many runs and epochs, some are left out,
    evenly by rank and by number. `over`: other columns of a history than the epoch, over which
    curves may be drawn."""
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
        along = [[row[name] for row in rows] for name in over]
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
                **({"over": [[*map(_rounded, of)] for of in along]} if along else {}),
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
        **({"over": over} if over else {}),
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
        "keys": [_key(part, name, shown) for name in keys],
        "entries": len(ranked),
        "trials": trials,
    }


def _key(part: Part, name: str, shown: Sequence[Reported]) -> dict[str, Any]:
    """The labels of a key in their order, the place of each run's label, the scale of an axis with
    the numbers of the labels, the levels of the settings with each label, and, where a label is a
    range, the number of each run. Without labels if there are too many."""
    values = [entry.setting(name) for entry in shown]
    label_of = analysis.labels(values)
    places = {label: place for place, label in enumerate(dict.fromkeys(label_of.values()))}
    few, ranges = len(places) <= analysis.MOST_LABELS, len(places) < len(label_of)
    scale = analysis.scale_of(values, part.scales.get(name))
    numbered = scale != "category" and not ranges
    return {
        "name": name,
        "repeated": name in REPLICATED,
        "labels": [*places] if few else [],
        "scale": scale,
        "at": [by_size(value)[1] for value in label_of] if numbered else [*places.values()],
        "of": [places[label_of[value]] for value in values] if few else [],
        "numbers": [by_size(value)[1] for value in values] if ranges else None,
        "levels": [
            level and [*map(_rounded, level)]
            for level in analysis.levels(
                part, [label_of.get(entry.setting(name)) for entry, _ in part.valued], places
            )
        ],
    }


def _rounded(value: float | None) -> float | None:
    known = known_value(value)
    return None if known is None else float(f"{known:.{PRECISION}g}")
