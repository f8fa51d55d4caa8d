"""How near the repetition of a run came to the run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

from src.runs.bundle import Bundle, packages
from src.runs.folder import HISTORY, Result, Row, Run
from src.runs.loading import Trained, open_trained
from src.runs.sweep_folder import shown_as

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


def compare(bundle: Bundle, original: Trained, repeated: Run) -> Comparison:
    """The run of a bundle, its model already opened, with its repetition.

    Raises InputError when the repetition has no model.
    """
    return Comparison(
        bundle.run,
        repeated,
        {n: (_metric(bundle.run.result, n), _metric(repeated.result, n)) for n in METRICS},
        _between_histories(bundle.run.history, repeated.history),
        _between_weights(original.model, open_trained(repeated.folder).model),
        _environment(bundle.run.result, repeated.result, bundle.packages),
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


def _metric(result: Result, name: str) -> float | None:
    values: Mapping[str, float | None] = {**result.get("best", {}), **result}  # type: ignore[dict-item]
    return values.get(name)


def _between_histories(rows: Sequence[Row], others: Sequence[Row]) -> float:
    if len(rows) != len(others):
        return math.inf
    return max(
        (
            _distance(row[name], other[name])
            for row, other in zip(rows, others, strict=True)
            for name in HISTORY
            if name != "seconds"
        ),
        default=0.0,
    )


def _distance(a: float | None, b: float | None) -> float:
    """Infinite where one of the two is no number."""
    if a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b)):
        return 0.0
    distance = math.inf if a is None or b is None else abs(a - b)
    return math.inf if math.isnan(distance) else distance


def _between_weights(model: nn.Module, other: nn.Module) -> float:
    a, b = model.state_dict(), other.state_dict()
    if a.keys() != b.keys():
        return math.inf
    distance = 0.0
    for name, value in b.items():
        if a[name].shape != value.shape:
            return math.inf
        if not torch.equal(a[name], value):
            differences = (a[name].double() - value.double()).abs()
            distance = max(distance, differences.nan_to_num(math.inf).max().item())
    return distance


def _environment(
    there: Result, here: Result, installed: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """What the results say of both, and packages that this one has in another version."""
    sections: list[tuple[str, Any, Any]] = [
        ("commit", there.get("commit"), here.get("commit")),
        *_items(there.get("hardware", {}), here.get("hardware", {})),
        *_items(there.get("versions", {}), here.get("versions", {})),
    ]
    told = {name for name, *_ in sections}
    own = packages()
    sections += [
        (name, version, own.get(name, "not installed"))
        for name, version in installed.items()
        if name not in told and name in own
    ]
    return [(name, str(a), str(b)) for name, a, b in sections if a != b]


def _items(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(name, a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])]
