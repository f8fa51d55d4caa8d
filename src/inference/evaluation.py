"""A trained model on a test set: loss, accuracy, and confusion matrix."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor
from torch.nn import functional as F

from src.config import schema
from src.data.augmentation import Augmentation
from src.data.folders import digest_of
from src.data.loader import CHUNK, Block, Slices
from src.data.sources.catalogue import open_source
from src.data.sources.folds import training_and_validation
from src.data.sources.source import Source, Split, as_float
from src.inference.copies import require_augmentation, told
from src.inference.inputs import require_labelled
from src.inference.labelled import labelled_source
from src.inference.measures import Measures, measure
from src.inference.measures import describe as describe_measures
from src.models.committee import Committee
from src.models.native import NativeModel
from src.models.stack import Stack
from src.models.step_choice import CLOSED_FORM, NATIVE, choose_step
from src.runs.loading import Trained, open_trained
from src.runs.outcome import format_metric
from src.system.errors import InputError
from src.system.terminal import progress

Forward = Callable[[Tensor], Tensor]  # features (N, *shape) to logits (N, classes)
COPIES_SEED = 0  # the same copies for all models with the same augmentation


@dataclass(frozen=True)
class Evaluation:
    """The loss and the mistakes of a model on a test set."""

    checkpoint: Path
    data: str  # the name of the data set
    labels: tuple[str, ...]  # the names of the classes
    loss: float  # mean cross entropy
    confusion: Tensor  # (classes, classes): [i, j] counts samples of class i predicted as j
    measures: Measures
    augmented_copies: int = 0  # of each sample, besides the sample; see `compute_logits`

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
            "augmented_copies": self.augmented_copies,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "labels": list(self.labels),
            "per_class_accuracy": self.per_class,
            "confusion": self.confusion.tolist(),
            **self.measures.to_primitives(),
        }


def evaluate_path(
    path: Path, data: str | None, top_k: int | None = None, copies: int = 0
) -> Evaluation:
    """Tests the model of a run folder or checkpoint file on the test set of `source_of(…, data)`.
    Raises InputError when the path holds no model, when the data do not fit the model, when `top_k`
    is not between 1 and the number of classes, and for `copies` as `compute_logits`."""
    trained = open_trained(path)
    return evaluate(trained, source_of(trained, data), top_k, copies)


def source_of(trained: Trained, data: str | None = None) -> Source:
    """Opens the data set or the user's own samples that `data` names; by default the data set that
    the model was trained on, which is the fallback if the configured data set was not available for
    the training. Of the very file or folder that the model was trained on, `test` is the part that
    was held out.

    Raises InputError when the data cannot be loaded, and when the user's own files have changed
    since the training: test samples could then be former training samples.
    """
    section: schema.Data = trained.config.data
    own = None if data is None else require_labelled(data)
    if own is not None and (trained.digest is None or digest_of(own) != trained.digest):
        return labelled_source(trained, own)
    if own is not None:  # what the model was trained on, perhaps at another place
        section = section.model_copy(update={"path": str(own)})
    elif data is not None or section.name != trained.data:
        from src.config.compose import compose  # imports Hydra, which is seldom needed here

        section = compose(f"data={data or trained.data}").data
    path = getattr(section, "path", None)
    if path is not None and not Path(path).exists():
        raise InputError(
            f"{trained.checkpoint}: was trained on data.path={path}, which is not "
            f"{'there' if Path(path).is_absolute() else f'in {Path.cwd()}'}; put it back; "
            "python -m src.evaluate also takes it from another place, by --data PATH"
        )
    source = open_source(section)
    if own is not None:
        return replace(source, name=f"the held-out part of {own}")
    if data is not None:
        return _in_classes_of(trained, source)
    if source.digest != trained.digest:
        raise InputError(
            f"{trained.checkpoint}: the content of its data has changed since it was trained; "
            "train a new model, or restore the former content"
        )
    return source


def _in_classes_of(trained: Trained, source: Source) -> Source:
    """The source with the classes of the model, if the model knows all classes of the source."""
    labels = trained.labels
    if source.shape != trained.shape or not set(source.labels) <= set(labels):
        return source
    places = torch.tensor([labels.index(label) for label in source.labels])
    train, test = (
        replace(split, labels=places[split.labels]) for split in (source.train, source.test)
    )
    return replace(source, train=train, test=test, labels=labels)


def evaluate(
    trained: Trained, source: Source, top_k: int | None = None, copies: int = 0
) -> Evaluation:
    """Tests the model on the test set of a source, in the precision of its training. Raises
    InputError when the shape of samples or the classes differ from the model's, for `top_k` as
    `measure`, and for `copies` as `compute_logits`."""
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
    logits = compute_logits(trained, source.test, copies)
    labels = source.test.labels
    loss = F.cross_entropy(logits.double(), labels).item()
    pairs = labels * source.classes + logits.argmax(-1)
    counts = torch.bincount(pairs, minlength=source.classes**2)
    confusion = counts.view(source.classes, source.classes)
    measures = measure(logits, labels, top_k)
    return Evaluation(
        trained.checkpoint, source.name, source.labels, loss, confusion, measures, copies
    )


def _listed(labels: tuple[str, ...]) -> str:
    return f"{', '.join(labels[:5])}{', …' if labels[5:] else ''}"


def validation_of(trained: Trained, source: Source) -> Split:
    """The validation set of the training of a model, drawn from its data set."""
    section = trained.config.data
    return training_and_validation(source.train, section, source.labels)[1]


def compute_logits(trained: Trained, split: Split, copies: int = 0) -> Tensor:
    """Logits (N, classes), in the precision of the training and by the same products. Those of a
    committee are the logarithm, in float64, of the mean of its members' probabilities.

    With `copies`, the logits are the logarithm, in float64, of the mean of the probabilities of
    each sample and of that many augmented copies of the sample. Copy i of all samples is deformed
    in the same way, which depends only on i and on the augmentation that the model was trained
    with: a sample has the same copies in any company. Raises InputError as `require_copies`.
    """
    if isinstance(trained.model, Committee):
        return consult(trained, split, copies).logits
    forward = _forward(trained)
    if copies:
        forward = _averaged(trained, forward, copies)
    chunks = Slices(split, CHUNK)
    numbers = progress(range(len(chunks)), "batches")
    return torch.cat([forward(chunks[number].features) for number in numbers])


def require_copies(trained: Trained, copies: int) -> None:
    """Raises InputError unless the model, or each member of a committee, can have this number of
    augmented copies. 0 copies are always possible."""
    if not copies:
        return
    if not trained.members:
        require_augmentation(trained.config, trained.shape, str(trained.checkpoint), copies)
    for number, member in enumerate(trained.members, 1):
        name = f"member {number} of {trained.checkpoint}"
        require_augmentation(member.config, member.shape, name, copies)


def _forward(trained: Trained) -> Forward:
    """The logits of a model that is not a committee."""
    config, model = trained.config, trained.model
    choice, dtype = choose_step([config], [model]), next(model.parameters()).dtype
    if choice.kind == NATIVE:  # a copy, because the engine moves the weights
        return NativeModel(copy.deepcopy(model)).logits
    mixed = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    autocast_dtype = mixed.get(config.trainer.precision)
    stack = Stack([model], [0]) if choice.kind == CLOSED_FORM else None
    autocasts = bool(autocast_dtype and not stack)

    def logits(features: Tensor) -> Tensor:
        features = as_float(features)
        with torch.inference_mode(), torch.autocast("cpu", autocast_dtype, enabled=autocasts):
            if stack is not None:
                return stack.logits(features.to(autocast_dtype or dtype))[0].mT
            found: Tensor = model(features.to(dtype))
            return found

    return logits


def _averaged(trained: Trained, forward: Forward, copies: int) -> Forward:
    """The logarithm of the mean probabilities of samples and their augmented copies. Only one copy
    of a chunk of samples is in memory at a time."""
    require_copies(trained, copies)
    augmentation = Augmentation(trained.config.augmentation, trained.shape, [COPIES_SEED], 1)
    _, height, width = trained.shape

    def logits(features: Tensor) -> Tensor:
        total = forward(features).double().log_softmax(-1)
        for number in progress(range(copies), "augmented copies"):
            changed = as_float(features).clone(memory_format=torch.contiguous_format)
            # One picture with the channels of all: the same deformation for each sample.
            joined = changed.view(1, 1, 1, -1, height, width)
            augmentation(Block(joined, torch.zeros(1, 1, 1)), epoch=0, first=number)
            total = total.logaddexp(forward(changed).double().log_softmax(-1))
        return total - math.log(copies + 1)

    return logits


def log_probabilities(trained: Trained, split: Split, copies: int = 0) -> Tensor:
    """The logarithm of the probabilities, (N, classes) in float64; `copies` as `compute_logits`."""
    return compute_logits(trained, split, copies).double().log_softmax(-1)


@dataclass(frozen=True)
class Opinions:
    """What a committee says of N samples, in float64."""

    logits: Tensor  # (N, classes): the logarithm of the mean of the members' probabilities
    tally: Tensor  # (N, classes): the share of votes whose members predict the class
    disagreement: Tensor  # (N,), in bits; see `consult`


def consult(trained: Trained, split: Split, copies: int = 0) -> Opinions:
    """The opinions of a committee, each member in its own precision and by its own products. With
    `copies`, each member's probabilities are its mean over copies by its own augmentation.

    The disagreement is the mutual information of the class and the member: the entropy of the mean
    probabilities less the mean entropy of the members. 0 if all members give the same
    probabilities; at most log2 of the number of members or of classes, whichever is smaller. This
    is the part of the uncertainty that more training data could remove (Gal, Uncertainty in Deep
    Learning, 2016; Depeweg et al., Decomposition of Uncertainty in Bayesian Deep Learning, 2018).
    """
    model = trained.model
    assert isinstance(model, Committee)
    require_copies(trained, copies)
    mean = torch.full((len(split), trained.classes), -torch.inf, dtype=torch.float64)
    tally = torch.zeros_like(mean)
    entropy = torch.zeros(len(split), dtype=torch.float64)
    for member, votes in progress(list(zip(trained.members, model.votes, strict=True)), "members"):
        share = votes / sum(model.votes)
        found = log_probabilities(member, split, copies)
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
        [label, format_metric("acc", accuracy), *counts]
        for label, accuracy, counts in zip(
            evaluation.labels, evaluation.per_class, evaluation.confusion.tolist(), strict=True
        )
    ]
    table = tabulate(rows, ["class", "accuracy", *(f"as {label}" for label in evaluation.labels)])
    samples = int(evaluation.confusion.sum())
    copies = evaluation.augmented_copies
    averaged = f"{told(copies)}\n" if copies else ""
    return (
        f"{evaluation.checkpoint} on {samples:,} test samples of {evaluation.data}\n"
        f"{averaged}accuracy {format_metric('acc', evaluation.accuracy)}, "
        f"loss {format_metric('loss', evaluation.loss)}\n"
        f"{describe_measures(evaluation.measures, evaluation.labels)}\n\n{table}"
    )
