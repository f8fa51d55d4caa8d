"""A trained model on a test set. Of classes: loss, accuracy and mistakes, measures of each class,
and how well the probabilities agree with how often they are right. regression.py and multilabel.py
have the evaluations of the other tasks.

The numbers are those of a monitored validation; tasks/measures.py has their definitions. The
temperature scaling is that of Guo, Pleiss, Sun and Weinberger, On Calibration of Modern Neural
Networks, 2017.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

from kindling.config.measures import CLASSIFICATION, MULTILABEL, REGRESSION
from kindling.config.written import printable, same_classes
from kindling.data.sources.source import Source
from kindling.inference import multilabel, regression
from kindling.inference.logits import averaging, compute_logits
from kindling.inference.samples import held_out_parts, source_of
from kindling.inference.tables import AnyEvaluation, Measures, table_of_measures
from kindling.records.loading import Trained, open_trained
from kindling.records.outcome import format_metric, largest_class, text_table
from kindling.system.errors import InputError
from kindling.tasks import classification, measures

TOP_K = 5  # by default, if there are more classes
NOUNS = {CLASSIFICATION: "classes", REGRESSION: "numbers", MULTILABEL: "labels"}
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 100.0
CHANCES = 2000  # test sets that are drawn
BISECTIONS = 40  # leave 1e-11 of the temperature


@dataclass(frozen=True)
class Scores:
    """`ece`, expected calibration error: the mean distance, over samples, of the accuracy in a bin
    of confidence from the mean confidence in the bin. `brier`: the mean over samples of the squared
    distance of the probabilities from the true class, from 0 to 2. `loss`: mean cross entropy."""

    ece: float
    brier: float
    loss: float


@dataclass(frozen=True)
class Bins:
    """BINS equal bins of the highest probability of each sample; 0 for an empty bin."""

    counts: tuple[int, ...]
    confidence: tuple[float, ...]  # the mean highest probability
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """The calibration on the test set, as trained and with the fitted temperature."""

    temperature: float
    fitted_on: int  # validation samples
    before: Scores
    after: Scores
    bins: Bins  # as trained


@dataclass(frozen=True, kw_only=True)
class Evaluation(AnyEvaluation):
    """The loss, mean cross entropy, and the mistakes of a model on a test set."""

    labels: tuple[str, ...]  # the names of the classes
    logits: Tensor  # (N, classes)
    confusion: Tensor  # (classes, classes): [i, j] counts samples of class i predicted as j
    measures: Measures
    calibration: Calibration | None = None

    @property
    def score(self) -> float:
        return self.accuracy

    @property
    def accuracy(self) -> float:
        return int(self.confusion.trace()) / int(self.confusion.sum())

    @property
    def largest_class(self) -> float:
        """The accuracy of always answering the most frequent class."""
        counts = self.confusion.sum(1)
        return int(counts.max()) / int(counts.sum())

    @property
    def per_class(self) -> list[float | None]:
        """Accuracy within each class; None for a class without samples."""
        counts = self.confusion.sum(1).tolist()
        hits = self.confusion.diag().tolist()
        return [hit / count if count else None for hit, count in zip(hits, counts, strict=True)]

    def to_primitives(self) -> dict[str, Any]:
        measured = asdict(self.measures)
        del measured["samples"]
        found = super().to_primitives() | {
            "loss": self.loss,
            "accuracy": self.accuracy,
            "largest_class": self.largest_class,
            "labels": list(self.labels),
            "per_class_accuracy": self.per_class,
            "confusion": self.confusion.tolist(),
            **measured,
        }
        return found | ({"calibration": asdict(self.calibration)} if self.calibration else {})

    def summary(self) -> str:
        found = (
            f"accuracy {format_metric('acc', self.accuracy)} "
            f"({largest_class(self.largest_class)}), loss {format_metric('loss', self.loss)}"
        )
        if self.measures.top_k is not None:
            accuracy = format_metric("acc", self.measures.top_k_accuracy)
            found += f"\ntop-{self.measures.top_k} accuracy {accuracy}"
        return found

    def table(self) -> list[list[str]]:
        return table_of_measures(self.measures, self.labels)

    def details(self) -> list[str]:
        """A table with the accuracy and the predictions of each class, and the calibration, if
        there is one."""
        labels = [*map(printable, self.labels)]
        accuracies = [format_metric("acc", accuracy) for accuracy in self.per_class]
        rows = zip(labels, accuracies, *self.confusion.T.tolist(), strict=True)
        parts = [tabulate([*rows], ["class", "accuracy", *(f"as {label}" for label in labels)])]
        if (found := self.calibration) is not None:
            temperature = f"temperature {format_metric('temperature', found.temperature)}"
            before = "mean over copies" if self.augmented_copies else "as trained"
            scores = [
                [name, *(format_metric(key, value) for key, value in asdict(each).items())]
                for name, each in ((before, found.before), (temperature, found.after))
            ]
            fitted = f"the temperature was fitted on {found.fitted_on:,} validation samples"
            header = ["calibration", "ECE", "Brier", "loss"]
            parts.append(f"{text_table(header, scores, right=header[1:])}\n{fitted}")
        return parts


OTHERS: dict[str, Callable[[Trained, Source, Source | None], AnyEvaluation]] = {
    REGRESSION: regression.evaluate,
    MULTILABEL: multilabel.evaluate,
}


def evaluate_path(
    path: Path,
    data: str | None,
    top_k: int | None = None,
    copies: int = 0,
    *,
    calibrated: bool = False,
) -> Any:
    """Tests the model of a run folder or checkpoint file on the test set of `source_of(…, data)`.
    Logs the notes of the data. Raises InputError when the path holds no model, when the data do not
    fit the model, when `top_k` is not between 1 and the number of classes, for `copies` as
    `averaging`, and with `calibrated` as `calibrate`. Returns an AnyEvaluation."""
    trained = averaging(open_trained(path), copies)
    asked = [f"--top-k {top_k}"] * (top_k is not None) + ["--calibrate"] * calibrated
    if asked and trained.config.task.name != CLASSIFICATION:
        raise InputError(
            f"{asked[0]}: {trained.checkpoint} was trained with task={trained.config.task.name}, "
            f"and has no classes; leave {asked[0]} out"
        )
    source = source_of(trained, data)
    source.tell()
    own = data is None or (trained.digest is not None and source.digest == trained.digest)
    found = evaluate(trained, source, top_k, source if own else None)
    if not calibrated:
        return found
    trained_on = source if own else source_of(trained)
    calibration = calibrate(trained, trained_on, found.logits, source.test.labels)
    return replace(found, calibration=calibration)


def evaluate(
    trained: Trained, source: Source, top_k: int | None = None, trained_on: Source | None = None
) -> Any:
    """Tests the model on the test set of a source, in the precision of its training. `trained_on`
    is the data set of the training, by default opened again where the evaluation needs it. Raises
    InputError when the shape of samples or the classes differ from the model's, and for `top_k` as
    `measure`. Returns an AnyEvaluation."""
    noun = NOUNS[trained.config.task.name]
    if source.shape != trained.shape or source.classes != trained.classes:
        raise InputError(
            f"{trained.checkpoint}: takes features {trained.shape} of {trained.classes} {noun}, "
            f"but data={source.name} has {source.shape} of {source.classes}; it was trained on "
            f"data={trained.data}"
        )
    if not same_classes(trained.labels, source.labels):
        raise InputError(
            f"{trained.checkpoint}: its {noun} are {_listed(trained.labels)}, but "
            f"data={source.name} has {_listed(source.labels)}"
        )
    if own := OTHERS.get(trained.config.task.name):
        return own(trained, source, trained_on)
    logits = compute_logits(trained, source.test)
    labels = source.test.labels
    decided = classification.decide(logits)
    return Evaluation(
        checkpoint=trained.checkpoint,
        data=source.name,
        samples=len(labels),
        labels=trained.labels,
        loss=classification.loss(logits.double(), labels).item(),
        logits=logits,
        confusion=classification.confusion(decided, labels, source.classes),
        measures=measure(logits, labels, top_k),
        augmented_copies=trained.copies,
    )


def _listed(labels: tuple[str, ...]) -> str:
    return f"{', '.join(labels[:5])}{', …' if labels[5:] else ''}"


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
    counts = measures.count_classes(stacked.argmax(1), labels, classes)[0]
    areas = measures.areas(measures.probabilities(stacked), labels)[0]
    accuracy = None
    if top_k is not None:
        accuracy = measures.among_best(stacked, labels, top_k).double().mean().item()
    return Measures.of(counts, areas, top_k, accuracy)


def calibrate(trained: Trained, source: Source, logits: Tensor, labels: Tensor) -> Calibration:
    """Fits a temperature on the validation set of a model, and scores the model by its logits
    (N, classes) on test samples; `source` is the data set of its training. Raises InputError if the
    model has no validation set of its own, because on training samples the temperature would be
    too low."""
    if not trained.config.data.holds_out_validation:
        raise InputError(
            f"{trained.checkpoint}: was trained with data.val_fraction=null, without a validation "
            "set of its own; train with data.val_fraction=0.1 to calibrate"
        )
    parts = held_out_parts(trained, source)
    fitted = torch.cat([compute_logits(model, split) for model, split in parts]).double()
    tested = logits.double()
    if not (fitted.isfinite().all() and tested.isfinite().all()):
        raise InputError(f"{trained.checkpoint}: its logits are not finite; name another run")
    temperature = fit_temperature(fitted, torch.cat([split.labels for _, split in parts]))
    return Calibration(
        temperature,
        len(fitted),
        score(tested, labels),
        score(tested / temperature, labels),
        bins(tested, labels),
    )


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature by which logits (N, classes) are divided for the least mean cross entropy, at
    least 0.01 and at most 100; 1 where all are as good. The loss is a convex function of the
    inverse, so the logarithm is bisected for the place where the slope changes its sign."""
    exact = logits.double()
    right = exact.gather(1, labels[:, None]).mean()
    low, high = math.log(LEAST_TEMPERATURE), math.log(MOST_TEMPERATURE)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        shares = torch.softmax(exact / math.exp(middle), 1)
        slope = float((shares * exact).sum(1).mean() - right)  # by the inverse
        if slope == 0:
            break
        low, high = (middle, high) if slope > 0 else (low, middle)
    return math.exp((low + high) / 2)


def score(logits: Tensor, labels: Tensor) -> Scores:
    """The scores of the probabilities of logits (N, classes)."""
    tallies = {name: measures.tally(name, logits.mT[None], labels) for name in ("ece", "brier")}
    values = {name: measures.values(name, found, len(labels))[0] for name, found in tallies.items()}
    return Scores(**values, loss=classification.loss(logits.double(), labels).item())


def ece_by_chance(logits: Tensor) -> float:
    """The expected calibration error that a perfectly calibrated model with these probabilities
    exceeds in 5% of all test sets of this size: of few samples, it is far from 0."""
    confidence = torch.softmax(logits.double(), 1).amax(1)
    number = (confidence * measures.BINS).ceil().long().clamp(1, measures.BINS) - 1
    # The hits in a bin less the sum of its confidences are about normally distributed.
    variances = torch.zeros(measures.BINS, dtype=torch.float64)
    variances.index_add_(0, number, confidence * (1 - confidence))
    stream = torch.Generator().manual_seed(0)
    drawn = torch.randn(CHANCES, measures.BINS, dtype=torch.float64, generator=stream)
    errors = (drawn * variances.sqrt()).abs().sum(1) / len(confidence)
    return float(errors.quantile(0.95))


def bins(logits: Tensor, labels: Tensor) -> Bins:
    """The samples by their highest probability, as `calibration_tally` divides them."""
    counts, hits, sums = measures.calibration_tally(logits.mT[None], labels)[0]
    filled = counts.clamp(min=1)
    columns = (counts, sums * measures.UNIT / filled, hits / filled)
    return Bins(*(tuple(each.tolist()) for each in columns))
