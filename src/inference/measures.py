"""Measures of a classifier beside accuracy: precision, recall, F1, top-k accuracy and AUROC.

The numbers are those of a monitored validation; src/training/tallies.py has their definitions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate
from torch import Tensor

from src.runs.outcome import format_metric
from src.system.errors import InputError
from src.training.tallies import among_best, areas, by_class, count_classes, probabilities

TOP_K = 5  # by default, if there are more classes


@dataclass(frozen=True)
class Measure:
    """A measure for each class, None where the class has none, and averages over the others: the
    plain mean, and the mean weighted by the classes' samples. None if no class has the measure."""

    per_class: tuple[float | None, ...]
    macro: float | None
    weighted: float | None

    def to_primitives(self) -> dict[str, Any]:
        return {
            "macro": self.macro,
            "weighted": self.weighted,
            "per_class": list(self.per_class),
        }


@dataclass(frozen=True)
class Measures:
    """The measures of a model on a test set; `samples` has the number of each class.

    As in scikit-learn, a class that has samples, but is never predicted, has precision 0; a class
    that is predicted, but has no samples, has recall 0. Only a class with neither has no precision,
    recall and F1.
    """

    samples: tuple[int, ...]
    precision: Measure
    recall: Measure
    f1: Measure
    auroc: Measure  # one class against the rest, by probability; None for a class without samples
    top_k: int | None  # None: not measured
    top_k_accuracy: float | None  # how often the label is among the k most probable classes

    def to_primitives(self) -> dict[str, Any]:
        measures = {name: getattr(self, name).to_primitives() for name in MEASURES}
        return measures | {"top_k": self.top_k, "top_k_accuracy": self.top_k_accuracy}


MEASURES = {"precision": "precision", "recall": "recall", "f1": "F1", "auroc": "AUROC"}


def measure(logits: Tensor, labels: Tensor, top_k: int | None = None) -> Measures:
    """The measures of logits (N, classes) for labels (N,). `top_k` is by default TOP_K, if there
    are more classes. Raises InputError if it is not between 1 and the number of classes."""
    classes = logits.shape[1]
    if top_k is not None and not 1 <= top_k <= classes:
        raise InputError(
            f"--top-k {top_k}: the model has {classes} classes; type a number from 1 to {classes}"
        )
    if top_k is None and classes > TOP_K:
        top_k = TOP_K
    stacked = logits.mT[None]
    counts = count_classes(stacked.argmax(1), labels, classes)[0]
    samples, accuracy = counts[0].double(), None
    if top_k is not None:
        accuracy = among_best(stacked, labels, top_k).double().mean().item()
    return Measures(
        samples=tuple(counts[0].tolist()),
        **{name: _averaged(values, samples) for name, values in by_class(counts).items()},
        auroc=_averaged(areas(probabilities(stacked), labels)[0], samples),
        top_k=top_k,
        top_k_accuracy=accuracy,
    )


def _averaged(values: Tensor, samples: Tensor) -> Measure:
    """A measure with values (classes,), NaN where a class has none."""
    known = ~values.isnan()
    per_class = tuple(None if math.isnan(value) else value for value in values.tolist())
    if not known.any():
        return Measure(per_class, None, None)
    values, weights = values[known], samples[known]
    weighted = (values * weights).sum() / weights.sum()
    return Measure(per_class, values.mean().item(), weighted.item())


def rows(measures: Measures, labels: Sequence[str]) -> list[list[str]]:
    """A table as texts: a row for each class, then the averages, in the order of HEADER."""
    columns = [getattr(measures, name) for name in MEASURES]
    table = [
        [
            label,
            *(format_metric("f1", column.per_class[number]) for column in columns),
            f"{samples:,}",
        ]
        for number, (label, samples) in enumerate(zip(labels, measures.samples, strict=True))
    ]
    total = f"{sum(measures.samples):,}"
    for average, name in (("macro", "macro average"), ("weighted", "weighted average")):
        shown = (format_metric("f1", getattr(column, average)) for column in columns)
        table.append([name, *shown, total])
    return table


HEADER = ["class", *MEASURES.values(), "samples"]


def describe(measures: Measures, labels: Sequence[str]) -> str:
    """The top-k accuracy, if it was measured, an empty line, and the table."""
    right = ["left", *["right"] * (len(HEADER) - 1)]
    table = tabulate(rows(measures, labels), HEADER, disable_numparse=True, colalign=right)
    if measures.top_k is None:
        return f"\n{table}"
    return (
        f"top-{measures.top_k} accuracy {format_metric('acc', measures.top_k_accuracy)}\n\n{table}"
    )
