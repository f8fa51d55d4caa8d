"""How runs differ in their settings, metrics, environment and weights, and how far the repetition
of a run is from the original."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from kindling.config.schema import Own
from kindling.config.written import flat, printable
from kindling.records.bundle import Bundle, packages
from kindling.records.folder import Result, Run, is_sweep
from kindling.records.folder import Row as Epoch
from kindling.records.labels import read_labels
from kindling.records.loading import Trained, open_trained
from kindling.records.lookup import checkpoint_of
from kindling.records.outcome import (
    UNKNOWN,
    Outcome,
    all_metrics,
    differing,
    format_metric,
    read_outcome,
    text_table,
)
from kindling.system.errors import InputError

Row = tuple[str, ...]  # of a table: a name, and a value of each run
NEAR = 0.005  # the largest difference of test accuracies that still agree


def side_by_side(folders: Sequence[Path]) -> str:
    """Tables with a column for each run, and the distances of histories and weights from those of
    the first run. Raises InputError for a folder that holds no run."""
    runs = [Run(folder) for folder in folders]
    columns = [_called(folder) for folder in folders]
    settings = [dict(flat(run.config.identity_values())) for run in runs]
    facts = [_facts(run.result, "commit", "step", "stacked") for run in runs]
    parts = [
        text_table(["setting", *columns], _differences(settings)) or "settings: the same",
        text_table(["", *columns], _metrics([read_outcome(run) for run in runs]), right=columns),
        text_table(["environment", *columns], _differences(facts)),
        *(
            f"{columns[0]} and {called}: {_distances(runs[0], run)}"
            for called, run in zip(columns[1:], runs[1:], strict=True)
        ),
    ]
    return "\n\n".join(filter(None, parts))


def _called(folder: Path) -> str:
    """The name that a run was given, else its path. A trial has the name of its sweep."""
    name = None if is_sweep(folder.parent) else read_labels(folder).name
    return printable(name or str(folder))


def _differences(facts: Sequence[Mapping[str, str]]) -> list[Row]:
    return [(key, *(each.get(key, UNKNOWN) for each in facts)) for key in differing(facts)]


def _metrics(outcomes: Sequence[Outcome]) -> list[Row]:
    pairs = dict.fromkeys((each.monitor, each.score) for each in outcomes)
    names = dict.fromkeys(name for pair in pairs for name in all_metrics(*pair))
    values: Mapping[str, Sequence[float | None]] = {
        **{name: [each.metric(name) for each in outcomes] for name in names},
        "epochs": [each.epochs for each in outcomes],
        "parameters": [each.result.get("parameters") for each in outcomes],
        "seconds": [each.seconds for each in outcomes],
    }
    return [("status", *(each.status for each in outcomes)), *_formatted(values)]


def _formatted(values: Mapping[str, Sequence[float | None]]) -> list[Row]:
    return [(name, *(format_metric(name, each) for each in row)) for name, row in values.items()]


def _facts(result: Result, *keys: str) -> dict[str, str]:
    """Where a run was trained, and these fields of its result."""
    own = {key: result.get(key) for key in keys}
    found: dict[str, Any] = {**own, **result.get("hardware", {}), **result.get("versions", {})}
    return {key: str(value) for key, value in found.items() if value is not None}


def _distances(first: Run, other: Run) -> str:
    rows = [run.history if run.history_file.exists() else [] for run in (first, other)]
    history = between_histories(*rows)
    histories = _told("histories", history, "epochs")
    try:
        for run in (first, other):
            checkpoint_of(run.folder)
    except InputError:
        weights = "one has no weights"
    else:
        if any(isinstance(run.config.model, Own) for run in (first, other)):
            told = "the weights are not compared, because a model is in the memory of a program"
            return f"{told}; {histories}"
        distance = between_weights(*(open_trained(run.folder).model for run in (first, other)))
        if distance == history == 0:
            return "identical, history and best weights, bit for bit"
        weights = _told("best weights", distance, "shapes")
    return f"{weights}; {histories}"


def _told(what: str, distance: float, parts: str) -> str:
    if math.isinf(distance):
        return f"the {what} have other {parts}"
    return f"the {what} differ by at most {distance:.2g}"


# --- a run and its repetition ------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """A run and its repetition. Distances are the largest absolute differences."""

    original: Run
    repeated: Run
    metrics: dict[str, tuple[float | None, float | None]]  # name → original, repeated
    history: float  # distance of the histories without seconds; infinite where rows are missing
    weights: float  # distance of the best weights
    environment: list[Row]  # the differences: name, original, repeated
    score: str  # of the task

    @property
    def identical(self) -> bool:
        return self.history == 0 and self.weights == 0

    @property
    def agrees(self) -> bool:
        """Whether the runs are identical. In another environment, or for a trial of a stack (it is
        repeated alone), whether their scores in the test differ by at most NEAR."""
        original, repeated = self.metrics[f"test/{self.score}"]
        near = original is not None and repeated is not None and abs(original - repeated) <= NEAR
        stacked = self.original.result.get("stacked") != 1
        return self.identical or (near and (stacked or bool(self.environment)))


def compare(bundle: Bundle, original: Trained, repeated: Run) -> Comparison:
    """Compares the run of a bundle with its repetition; `original` is the bundle's model. Raises
    InputError when the repetition has no model."""
    runs = (bundle.run, repeated)
    there, here = (read_outcome(run) for run in runs)
    facts = [_facts(run.result, "commit") for run in runs]
    known, installed = {*facts[0], *facts[1]}, packages()
    for name, version in bundle.packages.items():  # those that are installed here too
        if name not in known and name in installed:
            facts[0][name], facts[1][name] = version, installed[name]
    return Comparison(
        *runs,
        {
            name: (there.metric(name), here.metric(name))
            for name in all_metrics(there.monitor, there.score)
        },
        between_histories(bundle.run.history, repeated.history),
        between_weights(original.model, open_trained(repeated.folder).model),
        _differences(facts),
        there.score,
    )


def describe_comparison(comparison: Comparison) -> str:
    """Metrics and environments of both runs, and a verdict in one line."""
    runs = ("original", "repeated")
    if comparison.identical:
        verdict = "identical: history and best weights are the same bit for bit"
    else:
        verdict = (
            f"{'close' if comparison.agrees else 'NOT reproduced'}: best weights differ by "
            f"{comparison.weights:.2g} at most, the history by {comparison.history:.2g}"
        )
    parts = [
        text_table(["", *runs], _formatted(comparison.metrics), right=runs),
        text_table(["environment", *runs], comparison.environment) or "environment: the same",
        verdict,
        f"folder: {comparison.repeated.folder}",
    ]
    return "\n\n".join(parts)


# --- distances ---------------------------------------------------------------------------------


def between_histories(rows: Sequence[Epoch], others: Sequence[Epoch]) -> float:
    """The largest difference of two values, infinite where rows are missing."""
    if len(rows) != len(others):
        return math.inf
    # Callbacks of one run may have logged more.
    names = [name for name in rows[0] if name in others[0] and name != "seconds"] if rows else []
    a, b = (
        np.array([[row[name] for name in names] for row in each], float)  # NaN for None
        for each in (rows, others)
    )
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):  # infinity - infinity
        return float(np.nan_to_num(np.abs(a - b), nan=math.inf).max(initial=0, where=~same))


def between_weights(model: nn.Module, other: nn.Module) -> float:
    """The largest difference of two weights, infinite for models of other shapes."""
    a, b = model.state_dict(), other.state_dict()
    if {name: a[name].shape for name in a} != {name: b[name].shape for name in b}:
        return math.inf
    unequal = (name for name in a if not torch.equal(a[name], b[name]))
    differences = ((a[name].double() - b[name].double()).abs() for name in unequal)
    return max((each.nan_to_num(math.inf).max().item() for each in differences), default=0.0)
