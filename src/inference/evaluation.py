"""A trained model on a test set: loss, accuracy, and confusion matrix."""

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor
from torch.nn import functional as F

from src.config import schema
from src.data.loader import CHUNK, Slices
from src.data.sources.catalogue import open_source
from src.data.sources.folds import training_and_validation
from src.data.sources.source import Source, Split, as_float
from src.inference.measures import Measures, measure
from src.inference.measures import describe as describe_measures
from src.models.committee import Committee
from src.models.native import NativeModel
from src.models.stack import Stack
from src.models.step_choice import CLOSED_FORM, NATIVE, choose_step
from src.runs.loading import Trained, open_trained
from src.system.errors import InputError


@dataclass(frozen=True)
class Evaluation:
    """The loss and the mistakes of a model on a test set."""

    checkpoint: Path
    data: str  # the name of the data set
    labels: tuple[str, ...]  # the names of the classes
    loss: float  # mean cross entropy
    confusion: Tensor  # (classes, classes): [i, j] counts samples of class i predicted as j
    measures: Measures

    @property
    def accuracy(self) -> float:
        return int(self.confusion.trace()) / int(self.confusion.sum())

    @property
    def per_class(self) -> list[float | None]:
        """Accuracy within each class; None for a class without samples."""
        counts = self.confusion.sum(1).tolist()
        hits = self.confusion.diag().tolist()
        return [hit / count if count else None for hit, count in zip(hits, counts, strict=True)]

    def to_primitives(self) -> dict[str, Any]:
        return {
            "checkpoint": str(self.checkpoint),
            "data": self.data,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "labels": list(self.labels),
            "per_class_accuracy": self.per_class,
            "confusion": self.confusion.tolist(),
            **self.measures.to_primitives(),
        }


def evaluate_path(path: Path, data: str | None, top_k: int | None = None) -> Evaluation:
    """Tests the model of a run folder or checkpoint file on the test set of `source_of(…, data)`.
    Raises InputError when the path holds no model, when the data do not fit the model, and when
    `top_k` is not between 1 and the number of classes."""
    trained = open_trained(path)
    return evaluate(trained, source_of(trained, data), top_k)


def source_of(trained: Trained, data: str | None = None) -> Source:
    """Opens the data set `data`; by default the data set that the model was trained on, which is
    the fallback if the configured data set was not available for the training.

    Raises InputError when the data cannot be loaded, and when the user's own files have changed
    since the training: test samples could then be former training samples.
    """
    section: schema.Data = trained.config.data
    if data is not None or section.name != trained.data:
        from src.config.compose import compose  # imports Hydra, which is seldom needed here

        section = compose(f"data={data or trained.data}").data
    source = open_source(section)
    if data is None and source.digest != trained.digest:
        raise InputError(
            f"{trained.checkpoint}: the content of its data has changed since it was trained; "
            "train a new model, or restore the former content"
        )
    return source


def evaluate(trained: Trained, source: Source, top_k: int | None = None) -> Evaluation:
    """Tests the model on the test set of a source, in the precision of its training. Raises
    InputError when the shape of samples or the classes differ from the model's, and for `top_k` as
    `measure`."""
    if source.shape != trained.shape or source.classes != trained.classes:
        raise InputError(
            f"{trained.checkpoint}: takes features {trained.shape} of {trained.classes} classes, "
            f"but data={source.name} has {source.shape} of {source.classes}; it was trained on "
            f"data={trained.data}"
        )
    if source.labels != trained.labels:
        raise InputError(
            f"{trained.checkpoint}: its classes are {_listed(trained.labels)}, but "
            f"data={source.name} has {_listed(source.labels)}"
        )
    logits = compute_logits(trained, source.test)
    labels = source.test.labels
    loss = F.cross_entropy(logits.double(), labels).item()
    pairs = labels * source.classes + logits.argmax(-1)
    counts = torch.bincount(pairs, minlength=source.classes**2)
    confusion = counts.view(source.classes, source.classes)
    measures = measure(logits, labels, top_k)
    return Evaluation(trained.checkpoint, source.name, source.labels, loss, confusion, measures)


def _listed(labels: tuple[str, ...]) -> str:
    return f"{', '.join(labels[:5])}{', …' if labels[5:] else ''}"


def validation_of(trained: Trained, source: Source) -> Split:
    """The validation set of the training of a model, drawn from its data set."""
    section = trained.config.data
    return training_and_validation(source.train, section, source.labels)[1]


def compute_logits(trained: Trained, split: Split) -> Tensor:
    """Logits (N, classes), in the precision of the training and by the same products. Those of a
    committee are the logarithm, in float64, of the mean of its members' probabilities."""
    config, model = trained.config, trained.model
    if isinstance(model, Committee):
        return consult(trained, split).logits
    choice, dtype = choose_step(config, model), next(model.parameters()).dtype
    if choice.kind == NATIVE:  # a copy, because the engine moves the weights
        native = NativeModel(copy.deepcopy(model))
        return torch.cat([native.logits(batch.features) for batch in Slices(split, CHUNK)])
    mixed = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    autocast_dtype = mixed.get(config.trainer.precision)
    stack = Stack([model], [0]) if choice.kind == CLOSED_FORM else None
    logits = []
    autocast = torch.autocast("cpu", autocast_dtype, enabled=bool(autocast_dtype and not stack))
    with torch.inference_mode(), autocast:
        for batch in Slices(split, CHUNK):
            features = as_float(batch.features)
            if stack is not None:
                logits.append(stack.logits(features.to(autocast_dtype or dtype))[0].mT)
            else:
                logits.append(model(features.to(dtype)))
    return torch.cat(logits)


def log_probabilities(trained: Trained, split: Split) -> Tensor:
    """The logarithm of the probabilities, (N, classes) in float64."""
    return compute_logits(trained, split).double().log_softmax(-1)


@dataclass(frozen=True)
class Opinions:
    """What a committee says of N samples, in float64."""

    logits: Tensor  # (N, classes): the logarithm of the mean of the members' probabilities
    tally: Tensor  # (N, classes): the share of votes whose members predict the class
    disagreement: Tensor  # (N,), in bits; see `consult`


def consult(trained: Trained, split: Split) -> Opinions:
    """The opinions of a committee, each member in its own precision and by its own products.

    The disagreement is the mutual information of the class and the member: the entropy of the mean
    probabilities less the mean entropy of the members. 0 if all members give the same
    probabilities; at most log2 of the number of members or of classes, whichever is smaller. This
    is the part of the uncertainty that more training data could remove (Gal, Uncertainty in Deep
    Learning, 2016; Depeweg et al., Decomposition of Uncertainty in Bayesian Deep Learning, 2018).
    """
    model = trained.model
    assert isinstance(model, Committee)
    mean = torch.full((len(split), trained.classes), -torch.inf, dtype=torch.float64)
    tally = torch.zeros_like(mean)
    entropy = torch.zeros(len(split), dtype=torch.float64)
    for member, votes in zip(trained.members, model.votes, strict=True):
        share = votes / sum(model.votes)
        found = log_probabilities(member, split)
        mean = mean.logaddexp(found + math.log(share))
        tally.scatter_add_(1, found.max(-1, keepdim=True).indices, torch.full_like(found, share))
        entropy += share * _bits(found)
    return Opinions(mean, tally, (_bits(mean) - entropy).clamp(min=0))


def _bits(log_probabilities: Tensor) -> Tensor:
    """The entropy (N,) in bits; a probability of 0 adds 0."""
    nats: Tensor = torch.special.entr(log_probabilities.exp()).sum(-1)
    return nats / math.log(2)


def describe(evaluation: Evaluation) -> str:
    """Accuracy and loss, the measures of each class, and a table with the accuracy and the
    predictions of each class."""
    rows = [
        [label, "-" if accuracy is None else f"{accuracy:.2%}", *counts]
        for label, accuracy, counts in zip(
            evaluation.labels, evaluation.per_class, evaluation.confusion.tolist(), strict=True
        )
    ]
    table = tabulate(rows, ["class", "accuracy", *(f"as {label}" for label in evaluation.labels)])
    samples = int(evaluation.confusion.sum())
    return (
        f"{evaluation.checkpoint} on {samples} test samples of {evaluation.data}\n"
        f"accuracy {evaluation.accuracy:.2%}, loss {evaluation.loss:.4f}\n"
        f"{describe_measures(evaluation.measures, evaluation.labels)}\n\n{table}"
    )
