"""A trained model of several labels in use: which labels a sample has, and how often that is
right. tasks/measures.py has the definitions."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kindling.data.sources.source import Source
from kindling.inference.logits import answer
from kindling.inference.samples import as_split
from kindling.inference.tables import MEASURES, AnyEvaluation, Measures, table_of_measures
from kindling.records.loading import Trained
from kindling.records.outcome import format_metric
from kindling.tasks import measures


@dataclass(frozen=True, kw_only=True)
class LabelsEvaluation(AnyEvaluation):
    """A model of several labels on a test set."""

    labels: tuple[str, ...]
    score: float  # the share of labels that are right, over all samples
    exact_match: float  # the share of samples with no wrong label
    baseline: float  # the score of always answering, for each label, the more frequent of 0 and 1
    measures: Measures

    def to_primitives(self) -> dict[str, Any]:
        measured = asdict(self.measures)
        return super().to_primitives() | {
            "samples": self.samples,
            "loss": self.loss,
            "accuracy": self.score,
            "exact_match": self.exact_match,
            "most_frequent_accuracy": self.baseline,
            "labels": list(self.labels),
            "samples_with_label": measured["samples"],
            **{
                name: {"macro": found["macro"], "per_label": found["per_class"]}
                for name, found in measured.items()
                if name in MEASURES
            },
        }

    def summary(self) -> str:
        return (
            f"accuracy of labels {format_metric('acc', self.score)} "
            f"(always the most frequent: {format_metric('acc', self.baseline)}), "
            f"all labels right {format_metric('acc', self.exact_match)}, "
            f"loss {format_metric('loss', self.loss)}"
        )

    def table(self) -> list[list[str]]:
        """Texts: a header, a row for each label, and the rows of both averages."""
        return table_of_measures(self.measures, self.labels, "label")


def evaluate(trained: Trained, source: Source, _trained_on: Source | None) -> LabelsEvaluation:
    """The evaluation on the test set of a source. Raises InputError for outputs that are not
    finite."""
    labels, outputs = source.test.labels, answer(trained, source.test).outputs
    predicted = outputs > 0
    right = predicted == (labels > 0)
    counts = measures.count_labels(predicted[None], labels)[0]
    areas = measures.label_areas(outputs[None], labels)[0]
    shares = labels.double().mean(0)
    return LabelsEvaluation(
        checkpoint=trained.checkpoint,
        data=source.name,
        samples=len(labels),
        labels=source.labels,
        loss=trained.task.loss(outputs, labels).item(),
        score=right.double().mean().item(),
        exact_match=right.all(1).double().mean().item(),
        baseline=shares.maximum(1 - shares).mean().item(),
        measures=Measures.of(counts, areas),
        augmented_copies=trained.copies,
    )


# --- predictions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelGuess:
    """The probability of each label; of a committee also the standard deviation of what its members
    say."""

    probabilities: Sequence[float]
    spreads: Sequence[float] | None = None
    unlikeness: ClassVar = None

    @property
    def values(self) -> list[int]:
        found: list[int] = decide(np.array(self.probabilities)).tolist()
        return found

    def columns(self, labels: Sequence[str]) -> list[tuple[str, str]]:
        """The columns of a table for people: names and texts."""
        said = zip(labels, self.probabilities, self.values, strict=True)
        named = [f"{name} {format_metric('acc', share)}" for name, share, has in said if has]
        return [("labels", ", ".join(named) or "none")]

    def cells(self, labels: Sequence[str]) -> dict[str, object]:
        """The columns of a CSV."""
        found: dict[str, object] = {}
        for place, name in enumerate(labels):
            found[f"predicted_{name}"] = self.values[place]
            found[f"probability_{name}"] = f"{self.probabilities[place]:.6f}"
            if self.spreads:
                found[f"spread_{name}"] = f"{self.spreads[place]:.6f}"
        return found

    @staticmethod
    def truth(true: Sequence[float], labels: Sequence[str]) -> str:
        return ", ".join(name for name, has in zip(labels, true, strict=True) if has) or "none"

    @staticmethod
    def summary(said: Sequence[Any], true: Sequence[Sequence[float]], _: Sequence[str]) -> str:
        """How well the labels of a file were predicted."""
        right = np.array([each.values for each in said]) == np.array(true)
        return (
            f"accuracy of labels {format_metric('acc', right.mean())}, "
            f"all labels right {format_metric('acc', right.all(1).mean())}"
        )


def guesses(trained: Trained, features: NDArray[Any], _aid: None = None) -> list[LabelGuess]:
    """For features (N, *shape) that fit the model. Raises InputError as `answer`."""
    found = answer(trained, as_split(trained, features))
    spreads = [None] * len(features) if found.spread is None else found.spread.tolist()
    pairs = zip(found.values.tolist(), spreads, strict=True)
    return [LabelGuess(values, spread) for values, spread in pairs]


def decide(probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
    """1 for a probability above one half, as in training."""
    return (probabilities > 0.5).astype(np.int64)
