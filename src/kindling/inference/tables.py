"""A model on a test set: what the evaluations of all tasks share, the measures of each class or
label, and tables of them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor

from kindling.config.measures import in_words
from kindling.config.written import printable
from kindling.records.outcome import format_metric, text_table
from kindling.tasks import measures

MEASURES = ("precision", "recall", "f1", "auroc")
IN_WORDS = "Precision, recall, F1 and AUROC"


@dataclass(frozen=True)
class ByClass:
    """A measure for each class, None where the class has none, and averages over the others: the
    plain mean, and the mean weighted by the classes' samples. None if no class has the measure."""

    macro: float | None
    weighted: float | None
    per_class: tuple[float | None, ...]


@dataclass(frozen=True)
class Measures:
    """The measures of a model on a test set; `samples` has the number of each class.

    As in scikit-learn, a class that has samples, but is never predicted, has precision 0; a class
    that is predicted, but has no samples, has recall 0. Only a class with neither has no precision,
    recall and F1. A label of a task of several labels counts as a class.
    """

    samples: tuple[int, ...]
    precision: ByClass
    recall: ByClass
    f1: ByClass
    auroc: ByClass  # one class against the rest, by probability; None for a class without samples
    top_k: int | None = None  # None: not measured
    top_k_accuracy: float | None = None  # how often the label is among the k most probable classes

    @classmethod
    def of(
        cls, counts: Tensor, areas: Tensor, top_k: int | None = None, accuracy: float | None = None
    ) -> Self:
        """Of the counts of `measures.by_class` and the areas (classes,) below the ROC curves."""
        by_name = {**measures.by_class(counts), "auroc": areas}
        found = {name: _by_class(each, counts[0].double()) for name, each in by_name.items()}
        return cls(tuple(counts[0].tolist()), **found, top_k=top_k, top_k_accuracy=accuracy)


def _by_class(measured: Tensor, samples: Tensor) -> ByClass:
    """A measure with values (classes,), NaN where a class has none."""
    known = ~measured.isnan()
    per_class = tuple(None if math.isnan(value) else value for value in measured.tolist())
    if not known.any():
        return ByClass(None, None, per_class)
    measured, weights = measured[known], samples[known]
    weighted = ((measured * weights).sum() / weights.sum()).item() if weights.any() else None
    return ByClass(measured.mean().item(), weighted, per_class)


@dataclass(frozen=True, kw_only=True)
class AnyEvaluation(ABC):
    """A model of any task on a test set. `score` is that of the task, as config/measures.py names
    it; subclasses have it."""

    checkpoint: Path
    data: str  # the name of the data set
    samples: int
    loss: float
    augmented_copies: int = 0  # of each sample, besides the sample; see `averaging`
    measured: ClassVar[str] = IN_WORDS  # what `table` has, in words
    says: ClassVar[str] = "probabilities"

    @abstractmethod
    def summary(self) -> str:
        """The measures of the whole test set, in a line or two."""

    @abstractmethod
    def table(self) -> list[list[str]]:
        """Texts: a header, and a row for each class, label or number."""

    def details(self) -> list[str]:
        """Texts that follow the table."""
        return []

    def describe(self) -> str:
        head = (
            f"{self.checkpoint} on {self.samples:,} test samples of {self.data}\n"
            f"{averaged_over(self.augmented_copies, self.says)}{self.summary()}"
        )
        header, *rows = self.table()
        table = text_table(header, rows, right=header[1:])
        return "\n\n".join([head, table, *self.details()])

    def to_primitives(self) -> dict[str, Any]:
        return {
            "checkpoint": str(self.checkpoint),
            "data": self.data,
            "augmented_copies": self.augmented_copies,
        }


# --- as texts ------------------------------------------------------------------------------------


def averaged_over(copies: int, says: str) -> str:
    """A line about what the model says; "" without copies."""
    line = f"{says} are means over each sample and {copies} augmented copies\n"
    return line if copies else ""


def table_of_measures(
    measured: Measures, labels: Sequence[str], what: str = "class"
) -> list[list[str]]:
    """Texts: a header, a row for each class, and the rows of both averages. `what` has a row."""
    columns = [
        [format_metric("f1", value) for value in (*each.per_class, each.macro, each.weighted)]
        for each in (getattr(measured, name) for name in MEASURES)
    ]
    names = [*map(printable, labels), "macro average", "weighted average"]
    counts = [*measured.samples, *[sum(measured.samples)] * 2]
    rows = zip(names, *columns, (f"{count:,}" for count in counts), strict=True)
    return [[what, *map(in_words, MEASURES), "samples"], *map(list, rows)]
