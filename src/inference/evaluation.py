"""A trained model on a data set: loss, accuracy, and where it is wrong."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor
from torch.nn import functional as F

from src.config import compose as composition
from src.config import schema
from src.data.loader import CHUNK, Slices
from src.data.sources.catalogue import open_source
from src.data.sources.source import Source, Split, as_float
from src.models.stack import Stack, step_kind
from src.runs.loading import Trained, open_trained
from src.system.errors import InputError


@dataclass(frozen=True)
class Evaluation:
    """confusion[i, j]: samples of class i that were taken for class j, (classes, classes)."""

    checkpoint: Path
    data: str
    labels: tuple[str, ...]
    loss: float
    confusion: Tensor

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
        }


def evaluate_path(path: Path, data: str | None) -> Evaluation:
    """The model of a run folder or checkpoint on a test set, its own or that of `data`.

    Raises InputError when the path holds no model, and when the data do not fit it.
    """
    trained = open_trained(path)
    return evaluate(trained, source_of(trained, data))


def source_of(trained: Trained, data: str | None = None) -> Source:
    """The data set of that name, or the one that the model was really trained on: a run on MNIST
    may have fallen back to the digits.

    Raises InputError when the data cannot be had, and when they are files whose content is not
    what the model was trained on: its test samples may have been trained on.
    """
    section: schema.Data = trained.config.data
    if data is not None or section.name != trained.data:
        section = composition.compose(f"data={data or trained.data}").data
    source = open_source(section)
    if data is None and source.digest != trained.digest:
        raise InputError(
            f"{trained.checkpoint}: the content of its data has changed since it was trained; "
            "train a model on it, or put back what was there"
        )
    return source


def evaluate(trained: Trained, source: Source) -> Evaluation:
    """The model on the test set, in the precision of its training.

    Raises InputError when the data have another shape or other classes than the model.
    """
    if source.shape != trained.shape or source.classes != trained.classes:
        raise InputError(
            f"{trained.checkpoint}: takes features {trained.shape} of {trained.classes} classes, "
            f"but data={source.name} has {source.shape} of {source.classes}; it was trained on "
            f"data={trained.data}"
        )
    if source.labels != trained.labels:
        raise InputError(
            f"{trained.checkpoint}: tells {_listed(trained.labels)} apart, but data={source.name} "
            f"has {_listed(source.labels)}"
        )
    logits = predict(trained, source.test)
    labels = source.test.labels
    loss = F.cross_entropy(logits.double(), labels).item()
    pairs = labels * source.classes + logits.argmax(-1)
    counts = torch.bincount(pairs, minlength=source.classes**2)
    confusion = counts.view(source.classes, source.classes)
    return Evaluation(trained.checkpoint, source.name, source.labels, loss, confusion)


def _listed(labels: tuple[str, ...]) -> str:
    return f"{', '.join(labels[:5])}{', …' if labels[5:] else ''}"


def predict(trained: Trained, split: Split) -> Tensor:
    """Logits (N, classes), computed in the precision and by the products of the training."""
    model, dtype = trained.model, next(trained.model.parameters()).dtype
    mixed = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    lower = mixed.get(trained.config.trainer.precision)
    closed_form = step_kind(trained.config, model) == "closed_form"
    stack = Stack([model], [0]) if closed_form else None
    parts = []
    with torch.inference_mode(), torch.autocast("cpu", lower, enabled=bool(lower and not stack)):
        for batch in Slices(split, CHUNK):
            if stack is not None:
                parts.append(stack.logits(as_float(batch.features).to(lower or dtype))[0].mT)
            else:
                parts.append(model(as_float(batch.features).to(dtype)))
    return torch.cat(parts)


def describe(found: Evaluation) -> str:
    """Accuracy and loss, then a row per class: its accuracy and what it was taken for."""
    rows = [
        [label, "-" if accuracy is None else f"{accuracy:.2%}", *counts]
        for label, accuracy, counts in zip(
            found.labels, found.per_class, found.confusion.tolist(), strict=True
        )
    ]
    table = tabulate(rows, ["class", "accuracy", *(f"as {label}" for label in found.labels)])
    samples = int(found.confusion.sum())
    return (
        f"{found.checkpoint} on {samples} test samples of {found.data}\n"
        f"accuracy {found.accuracy:.2%}, loss {found.loss:.4f}\n\n{table}"
    )
