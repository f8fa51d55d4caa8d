"""How far the repetition of a run is from the original."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tabulate import tabulate
from torch import nn

from src.runs.bundle import Bundle, packages
from src.runs.folder import Result, Row, Run
from src.runs.loading import Trained, open_trained
from src.runs.outcome import all_metrics, format_metric, read_outcome

NEAR = 0.005  # the largest difference of test accuracies that still agree


@dataclass(frozen=True)
class Comparison:
    """A run and its repetition. Distances are the largest absolute differences."""

    original: Run
    repeated: Run
    metrics: dict[str, tuple[float | None, float | None]]  # name → original, repeated
    history: float  # distance of the histories without seconds; infinite where rows are missing
    weights: float  # distance of the best weights
    environment: list[tuple[str, str, str]]  # the differences: name, original, repeated

    @property
    def identical(self) -> bool:
        return self.history == 0 and self.weights == 0

    @property
    def agrees(self) -> bool:
        """Whether the runs are identical. In another environment, or for a trial of a stack (it is
        repeated alone), whether their test accuracies differ by at most NEAR."""
        original, repeated = self.metrics["test/acc"]
        near = original is not None and repeated is not None and abs(original - repeated) <= NEAR
        stacked = self.original.result.get("stacked") != 1
        return self.identical or (near and (stacked or bool(self.environment)))


def compare(bundle: Bundle, original: Trained, repeated: Run) -> Comparison:
    """Compares the run of a bundle with its repetition; `original` is the bundle's model. Raises
    InputError when the repetition has no model."""
    outcomes = [read_outcome(run) for run in (bundle.run, repeated)]
    return Comparison(
        bundle.run,
        repeated,
        {
            name: (outcomes[0].metric(name), outcomes[1].metric(name))
            for name in all_metrics(outcomes[0].monitor)
        },
        between_histories(bundle.run.history, repeated.history),
        between_weights(original.model, open_trained(repeated.folder).model),
        _environment(bundle.run.result, repeated.result, bundle.packages),
    )


def describe(comparison: Comparison) -> str:
    """Metrics and environments of both runs, and a verdict in one line."""
    runs, aligned = ("original", "repeated"), ("left", "right", "right")
    rows = [
        [name, *(format_metric(name, value) for value in values)]
        for name, values in comparison.metrics.items()
    ]
    parts = [tabulate(rows, ["", *runs], disable_numparse=True, colalign=aligned)]
    if comparison.environment:
        header = ["environment", *runs]
        parts.append(tabulate(comparison.environment, header, disable_numparse=True))
    else:
        parts.append("environment: the same")
    if comparison.identical:
        verdict = "identical: history and best weights are the same bit for bit"
    else:
        verdict = (
            f"{'close' if comparison.agrees else 'NOT reproduced'}: best weights differ by "
            f"{comparison.weights:.2g} at most, the history by {comparison.history:.2g}"
        )
    return "\n\n".join([*parts, verdict, f"folder: {comparison.repeated.folder}"])


def between_histories(rows: Sequence[Row], others: Sequence[Row]) -> float:
    """The largest difference of two values, infinite where rows are missing."""
    if len(rows) != len(others):
        return math.inf
    pairs = zip(rows, others, strict=True)
    distances = (
        _distance(row.get(name), other.get(name))
        for row, other in pairs
        for name in {**row, **other}
        if name != "seconds"
    )
    return max(distances, default=0.0)


def _distance(a: float | None, b: float | None) -> float:
    """The absolute difference; infinite if only one of the two is a number."""
    if a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b)):
        return 0.0
    distance = math.inf if a is None or b is None else abs(a - b)
    return math.inf if math.isnan(distance) else distance


def between_weights(model: nn.Module, other: nn.Module) -> float:
    """The largest difference of two weights, infinite for models of other shapes."""
    a, b = model.state_dict(), other.state_dict()
    if {name: a[name].shape for name in a} != {name: b[name].shape for name in b}:
        return math.inf
    unequal = (name for name in a if not torch.equal(a[name], b[name]))
    differences = ((a[name].double() - b[name].double()).abs() for name in unequal)
    return max((each.nan_to_num(math.inf).max().item() for each in differences), default=0.0)


def _environment(
    original: Result, repeated: Result, installed: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Differences of commit, hardware and versions, and of packages that are installed here too."""
    sections: list[tuple[str, Any, Any]] = [
        ("commit", original.get("commit"), repeated.get("commit")),
        *_items(original.get("hardware", {}), repeated.get("hardware", {})),
        *_items(original.get("versions", {}), repeated.get("versions", {})),
    ]
    named = {name for name, *_ in sections}
    here = packages()
    sections += [
        (name, version, here[name])
        for name, version in installed.items()
        if name not in named and name in here
    ]
    return [(name, str(a), str(b)) for name, a, b in sections if a != b]


def _items(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(name, a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])]
