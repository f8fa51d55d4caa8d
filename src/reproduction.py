"""A run repeated from its bundle, and how near it came."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from src import checkpoint
from src.bundle import Bundle, packages
from src.errors import InputError
from src.run import HISTORY, Run
from src.sweep import shown_as
from src.training.fit import fit

NEAR = 0.005  # of the test accuracy
METRICS = ("val/acc", "val/loss", "test/acc", "test/loss")


@dataclass(frozen=True)
class Comparison:
    """A run and its repetition; distances are the largest absolute differences."""

    original: Run
    repeated: Run
    metrics: dict[str, tuple[float | None, float | None]]  # there, here
    history: float  # of any number of the history but its seconds; infinite where rows are missing
    weights: float  # of the best weights
    environment: list[tuple[str, str, str]]  # what differs: name, there, here

    @property
    def identical(self) -> bool:
        return self.history == 0 and self.weights == 0

    @property
    def agrees(self) -> bool:
        """Identical; or, in another environment, or a trial of a stack repeated alone, a test
        accuracy within half a percent."""
        there, here = self.metrics["test/acc"]
        near = there is not None and here is not None and abs(there - here) <= NEAR
        stacked = self.original.result.get("stacked") != 1
        return self.identical or (near and (stacked or bool(self.environment)))


def reproduce(bundle: Bundle, folder: Path) -> Comparison:
    """Trains the configuration of a bundle anew into a new folder, and compares.

    Raises InputError when the folder holds anything, and for data or devices that are not here.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is there already; type --output FOLDER")
    original, repeated = bundle.run, fit(bundle.config, folder)
    return Comparison(
        original,
        repeated,
        {n: (_metric(original.result, n), _metric(repeated.result, n)) for n in METRICS},
        _between_histories(original, repeated),
        _between_weights(original, repeated),
        _environment(original.result, repeated.result, bundle.packages),
    )


def describe(found: Comparison) -> str:
    """What differs, and a verdict in one line."""
    rows = [
        [name, *(shown_as(name, value) for value in values)]
        for name, values in found.metrics.items()
    ]
    aligned = ("left", "right", "right")
    parts = [tabulate(rows, ["", "there", "here"], disable_numparse=True, colalign=aligned)]
    if found.environment:
        parts.append(
            tabulate(found.environment, ["environment", "there", "here"], disable_numparse=True)
        )
    else:
        parts.append("environment: the same")
    if found.identical:
        verdict = "identical: history and best weights are the same bit for bit"
    else:
        verdict = (
            f"{'close' if found.agrees else 'NOT reproduced'}: best weights differ by "
            f"{found.weights:.2g} at most, the history by {found.history:.2g}"
        )
    return "\n\n".join([*parts, verdict, f"folder: {found.repeated.folder}"])


def _metric(result: Mapping[str, Any], name: str) -> float | None:
    best = result.get("best")
    value = result.get(name, best.get(name) if isinstance(best, Mapping) else None)
    return float(value) if isinstance(value, int | float) else None


def _between_histories(original: Run, repeated: Run) -> float:
    rows, others = original.history, repeated.history
    if len(rows) != len(others):
        return math.inf
    distance = 0.0
    for row, other in zip(rows, others, strict=True):
        for name in HISTORY:
            a, b = row[name], other[name]
            if name == "seconds" or a == b:
                continue
            distance = max(distance, math.inf if a is None or b is None else abs(a - b))
    return distance


def _between_weights(original: Run, repeated: Run) -> float:
    a, b = (checkpoint.read(run.best_checkpoint)["state_dict"] for run in (original, repeated))
    if not isinstance(a, dict) or a.keys() != b.keys():
        return math.inf
    distance = 0.0
    for name, value in b.items():
        other = a[name]
        if not isinstance(other, torch.Tensor) or other.shape != value.shape:
            return math.inf
        distance = max(distance, (other.double() - value.double()).abs().max().item())
    return distance


def _environment(
    there: Mapping[str, Any], here: Mapping[str, Any], installed: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """What the results say of both, and packages that this one has in another version."""
    sections: list[tuple[str, Any, Any]] = [
        ("commit", there.get("commit"), here.get("commit")),
        *_items("hardware", there, here),
        *_items("versions", there, here),
    ]
    told = {name for name, *_ in sections}
    own = packages()
    sections += [
        (name, version, own.get(name, "not installed"))
        for name, version in installed.items()
        if name not in told and name in own
    ]
    return [(name, str(a), str(b)) for name, a, b in sections if a != b]


def _items(
    section: str, there: Mapping[str, Any], here: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    a, b = there.get(section), here.get(section)
    if not isinstance(a, Mapping) or not isinstance(b, Mapping):
        return [(section, a, b)]
    return [(str(name), a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])]
