"""Logits of trained models, alone or as a committee, also averaged over augmented copies."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from kindling.config.measures import CLASSIFICATION
from kindling.data.augmentation import Augmentation
from kindling.data.loader import CHUNK, Block, Slices
from kindling.data.sources.source import Split, as_float
from kindling.inference.inputs import require_augmentation
from kindling.models.committee import Committee
from kindling.records.loading import Trained
from kindling.steps.base import AUTOGRAD, CLOSED_FORM, NATIVE
from kindling.steps.choice import LEARNERS, choose_step
from kindling.steps.lanes import Lanes, available
from kindling.steps.native import NativeLearner
from kindling.system.errors import InputError
from kindling.system.terminal import progress
from kindling.tasks import classification

Forward = Callable[[Tensor], Tensor]  # features (N, *shape) to logits (N, classes)
# Samples of a call of the engine, and its parts that pay for threads; samples of a part, as far as
# the values of all layers (numbers) stay in the cache.
MANY, SHARED, MOST_AT_ONCE, IN_CACHE = 64 * CHUNK, 8, 4 * CHUNK, 2**18
COPIES_SEED = 0  # the same copies for all models with the same augmentation


def averaging(trained: Trained, copies: int) -> Trained:
    """The model, whose probabilities are means over each sample and `copies` augmented copies of
    the sample. Copy i of all samples is deformed in the same way, which depends only on i and on
    the augmentation that the model was trained with: a sample has the same copies in any company.
    Raises InputError unless the model, or each member of a committee, can have so many copies; 0
    are always possible."""
    if copies == trained.copies == 0:
        return trained
    for number, model in enumerate(trained.members or (trained,), 1) if copies else ():
        member = f"member {number} of " if trained.members else ""
        name, pictures = f"{member}{trained.checkpoint}", len(model.shape) == 3
        require_augmentation(copies, name, model.config, pictures=pictures)
    members = tuple(replace(member, copies=copies) for member in trained.members)
    return replace(trained, members=members, copies=copies)


def compute_logits(trained: Trained, split: Split) -> Tensor:
    """Logits (N, classes), in the precision of the training and by the same products. Those of a
    committee, and of a model that averages over copies, are the logarithm, in float64, of the mean
    probabilities. Of other tasks, the outputs (N, outputs); of several, those of the mean."""
    if isinstance(trained.model, Committee):
        if trained.config.task.name == CLASSIFICATION:
            return consult(trained, split).logits
        return trained.task.mean(opinions(trained, split), trained.model.votes)
    forward = _averaged(trained) if trained.copies else _forward(trained)
    size = MANY if isinstance(forward, _Engine) else CHUNK
    if len(split) <= size:
        return forward(split.features)
    chunks = Slices(split, size)
    numbers = progress(range(len(chunks)), "batches")
    return torch.cat([forward(chunks[number].features) for number in numbers])


def _forward(trained: Trained) -> Forward:
    """The logits of a model that is not a committee, by the products of its training."""
    config, model = trained.config, trained.model
    known = _engines.get(model)
    if known is not None and known.config is config and known.takes(model):
        return known
    kind = choose_step([config], [model]).kind
    if kind == NATIVE:
        _engines[model] = _Engine(trained)
        return _engines[model]
    kind = kind if kind == CLOSED_FORM else AUTOGRAD
    learner = LEARNERS[kind]([config], [model], [0], Lanes(), trained.task)
    mixed = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(config.trainer.precision)

    def logits(features: Tensor) -> Tensor:
        autocasts = kind == AUTOGRAD and mixed is not None
        with torch.no_grad(), torch.autocast("cpu", mixed, enabled=autocasts):
            return learner.logits(features)

    return logits


class _Engine:
    """Computes the logits of a model by the engine. The engine moves weights, so it works on a copy
    of the model, which is made once for many calls. All threads share many samples."""

    def __init__(self, trained: Trained) -> None:
        self.config, self.copy = trained.config, copy.deepcopy(trained.model)
        (self.native,) = NativeLearner(
            [trained.config], [self.copy], [0], Lanes(), trained.task
        ).native
        self.tensors, self.form = _form(self.copy)
        values = sum(self.native.network.widths)
        self.chunk = max(CHUNK, min(MOST_AT_ONCE, IN_CACHE // values))

    def takes(self, model: nn.Module) -> bool:
        """Takes the weights that the model has now. False if a layer of the model is another."""
        tensors, form = _form(model)
        if form != self.form:
            return False
        with torch.no_grad():
            for own, value in zip(self.tensors, tensors, strict=True):
                own.copy_(value)
        return True

    def __call__(self, features: Tensor) -> Tensor:
        if len(features) <= CHUNK:
            return self.native.logits(features)
        size = self.chunk if len(features) >= SHARED * self.chunk else CHUNK
        found = self.native.new_logits(len(features))
        parts, places = torch.split(features, size), torch.split(found, size)
        lanes = Lanes(available() if len(parts) >= SHARED else 1)
        with lanes.running():

            def compute(number: int) -> None:
                self.native.logits(parts[number], places[number])

            lanes.deal(compute, range(len(parts)))
        return found


def _form(model: nn.Module) -> tuple[list[Tensor], list[Any]]:
    """The values of `state_dict`; and what the engine has learned of a model beside
    them, the types of all modules and the shapes. By its own walk, which takes a third of the time:
    one row is predicted in microseconds."""
    tensors, form, waiting = list[Tensor](), list[Any](), [model]
    while waiting:
        module = waiting.pop()
        form.append(type(module))
        for held in (module._parameters, module._buffers):
            if held:
                tensors += [tensor for tensor in held.values() if tensor is not None]
        if module._modules:
            waiting += [child for child in module._modules.values() if child is not None]
    return tensors, form + [tensor.shape for tensor in tensors]


_engines = WeakKeyDictionary[nn.Module, _Engine]()


def _averaged(trained: Trained) -> Forward:
    """The outputs of the mean over samples and their augmented copies. Only one copy of a chunk of
    samples is in memory at a time."""
    forward, copies = _forward(trained), trained.copies
    augmentation = Augmentation(trained.config.augmentation, trained.shape, [COPIES_SEED], 1)
    _, height, width = trained.shape

    def logits(features: Tensor) -> Tensor:
        task, found = trained.task, [trained.task.opinions(forward(features).double())]
        for number in progress(range(copies), "augmented copies"):
            changed = as_float(features).clone(memory_format=torch.contiguous_format)
            # One picture with the channels of all: the same deformation for each sample. An
            # augmentation of an extension gets the samples one by one, with the same numbers.
            for part in changed[:, None] if augmentation.own else (changed,):
                joined = part.view(1, 1, 1, -1, height, width)
                augmentation(Block(joined, torch.zeros(1, 1, 1)), epoch=0, first=number)
            found.append(task.opinions(forward(changed).double()))
        return task.mean(torch.stack(found, 1), [1] * len(found))

    return logits


def opinions(trained: Trained, split: Split) -> Tensor:
    """What each member of a committee says of N samples, (N, members, outputs) in float64."""
    numbers = progress(range(len(trained.members)), "members")
    return torch.stack([trained.task.opinions(_said(trained, n, split)) for n in numbers], 1)


def _said(committee: Trained, number: int, split: Split) -> Tensor:
    """The outputs of a member, (N, outputs) in float64, as those of its committee."""
    model, member = committee.model, committee.members[number]
    assert isinstance(model, Committee)
    own = replace(split, features=model.taken(number, split.features))
    return model.converted(number, compute_logits(member, own).double())


@dataclass(frozen=True)
class Answers:
    """What a model says of N samples, in float64: its outputs (N, outputs). And of each class,
    label or number, (N, labels), as `Trained.answers` has them: the prediction; the lowest and the
    highest of its quantiles, without quantiles the prediction too; for a committee the standard
    deviation of what its members say."""

    outputs: Tensor
    values: Tensor
    ends: tuple[Tensor, Tensor]
    spread: Tensor | None


def answer(trained: Trained, split: Split) -> Answers:
    """Raises InputError when an output is not finite."""
    spread, task = None, trained.task
    if isinstance(trained.model, Committee):
        said, votes = opinions(trained, split), trained.model.votes
        outputs, values = task.mean(said, votes), trained.answers(said)
        shares = values.new_tensor(votes)[:, None] / sum(votes)
        middle = (shares * values).sum(1, keepdim=True)
        spread = task.predicted((shares * (values - middle).square()).sum(1).sqrt())
    else:
        outputs = compute_logits(trained, split).double()
    if not outputs.isfinite().all():
        raise InputError(f"{trained.checkpoint}: its outputs are not finite; name another run")
    values = trained.answers(outputs)
    each = values.shape[1] // trained.classes
    by_label = values.reshape(len(values), trained.classes, each)
    ends = by_label.amin(-1), by_label.amax(-1)
    return Answers(outputs, task.predicted(values), ends, spread)


@dataclass(frozen=True)
class Opinions:
    """What a committee says of N samples, in float64."""

    logits: Tensor  # (N, classes): the logarithm of the mean of the members' probabilities
    tally: Tensor  # (N, classes): the share of votes whose members predict the class
    disagreement: Tensor  # (N,), in bits; see `consult`


def consult(trained: Trained, split: Split) -> Opinions:
    """The opinions of a committee, each member in its own precision and by its own products, and if
    it averages over copies, by its own augmentation.

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
    for number, votes in progress(list(enumerate(model.votes)), "members"):
        share = votes / sum(model.votes)
        found = classification.log_probabilities(_said(trained, number, split))
        mean = mean.logaddexp(found + math.log(share))
        tally.scatter_add_(1, found.max(-1, keepdim=True).indices, torch.full_like(found, share))
        entropy += share * _bits(found)
    return Opinions(mean, tally, (_bits(mean) - entropy).clamp(min=0))


def _bits(log_probabilities: Tensor) -> Tensor:
    """The entropy (N,) in bits; a probability of 0 adds 0."""
    nats: Tensor = torch.special.entr(log_probabilities.exp()).sum(-1)
    return nats / math.log(2)
