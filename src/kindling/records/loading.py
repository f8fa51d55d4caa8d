"""A trained model, opened again from a run folder or a checkpoint file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn

from kindling.config import registry
from kindling.config.faults import check
from kindling.config.schema import Config, Own
from kindling.config.written import written
from kindling.data.arrays import ArrayReading
from kindling.data.tables.columns import Columns
from kindling.data.targets import Targets, require_scaling
from kindling.models import construct_model
from kindling.models.committee import Adapter, Committee
from kindling.models.own import OwnModel, OwnModelError
from kindling.records import checkpoint
from kindling.records.checkpoint import CheckpointPart, require_format, wrong_fields
from kindling.records.folder import Member, Members, Size
from kindling.records.lookup import checkpoint_of, refuse_lightning_module
from kindling.system.errors import InputError, first_line, without_own_frames
from kindling.tasks.task import Task, build_task


class _Origin(CheckpointPart):
    """The "kindling" part of a checkpoint, as training/module.py writes it. A committee's
    is written by inference/committees/making.py and has the configuration of the first member."""

    config: dict[str, Any]
    extensions: dict[str, str] = Field(default={})
    members: Members | None = None
    data: str
    shape: Annotated[list[Size], Field(min_length=1)]
    labels: Annotated[list[str], Field(min_length=1)]
    digest: str | None
    columns: Columns | None
    arrays: ArrayReading | None = None  # runs from before this field have none
    targets: Targets | None = None  # of a regression


class _Weights(CheckpointPart):
    state_dict: dict[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """A model as a checkpoint holds it, and a description of its training data."""

    checkpoint: Path
    config: Config
    model: nn.Module
    data: str  # the data set that was used; it may be the fallback
    shape: tuple[int, ...]  # of one sample
    labels: tuple[str, ...]  # the names of the classes
    digest: str | None  # of the user's own files
    columns: Columns | None  # how a table's rows become features
    arrays: ArrayReading | None = None  # how arrays become features; None: they are features
    targets: Targets | None = None  # how numbers were standardised
    members: tuple["Trained", ...] = ()  # of a committee, whose `config` is that of the first
    copies: int = 0  # augmented, of each sample, over which predictions are averaged

    @property
    def folds(self) -> list[int]:
        """Of a committee of the folds of a cross-validation, these, in order; else none."""
        found = {fold for each in self.members if (fold := each.config.data.fold) is not None}
        return sorted(found) if len(found) > 1 else []

    @property
    def lessons(self) -> list[list[int]]:
        """Of a committee whose members learned from different rows, as those of folds, the numbers
        of the members that learned from the same; else none."""
        found = dict[Any, list[int]]()
        for number, each in enumerate(self.members):
            found.setdefault(lesson_of(each.config), []).append(number)
        return [*found.values()] if len(found) > 1 else []

    @property
    def classes(self) -> int:
        """The number of classes or labels."""
        return len(self.labels)

    @cached_property
    def task(self) -> Task:
        return build_task(self.config.task, self.classes)

    def answers(self, outputs: Tensor) -> Tensor:
        """What the model says, (N, outputs) in float64: probabilities, or numbers in their unit."""
        return self.restored(self.task.probabilities(outputs.double()))

    def restored(self, said: Tensor) -> Tensor:
        """Probabilities as they are; numbers in their unit."""
        return said if self.targets is None else self.targets.restored(said)


def lesson_of(config: Config) -> tuple[int | None, float | None]:
    """What tells the rows of one data set on which a model was trained: the number of its fold, or
    else the share of the validation set."""
    fold, fraction = config.data.fold, config.data.val_fraction
    return fold, fraction if fold is None else None


def open_trained(path: Path, own: Any = None) -> Trained:
    """Opens the best checkpoint of a run folder, or a checkpoint file. The model is in eval mode.
    `own` is the module of a run that a program gave, or makes it, as in `fit`; it stays as it is.
    Raises InputError for other paths and modules, and for checkpoints that are damaged or of
    another version."""
    file = checkpoint_of(path)
    content = checkpoint.read(file)
    saved = require_format(content.get("kindling"), file)
    name = (saved.get("config") or {}).get("model", {}).get("name")
    refuse_lightning_module(name, file)
    try:
        origin = _Origin.model_validate(saved)
        shape, labels = tuple(origin.shape), tuple(origin.labels)
        config = _with_model(check(origin.config), own, path, shape, len(labels))
        require_scaling(origin.targets, config.task.name, len(labels))
        state = _Weights.model_validate(content).state_dict
        weights = {name.removeprefix("model."): weight for name, weight in state.items()}
        if origin.members is None:
            model: nn.Module = rebuild(config, shape, len(labels), weights).eval()
        else:
            model, readings = rebuild_committee(
                origin.members, Reading(config, shape, origin.columns, origin.targets),
                len(labels), weights,
            )  # fmt: skip
    except OwnModelError:
        raise
    except (ValueError, RuntimeError, InputError) as error:
        if needed := registry.absent(saved.get("extensions")):
            raise InputError("\n  ".join([f"{file}: cannot be opened here", *needed])) from None
        reason = first_line(error)
        if isinstance(error, ValidationError):
            reason = f"missing or wrong: {wrong_fields(error)}"
        lacks = "does not fit the given model" if own else "is not a checkpoint of this project"
        raise InputError(f"{file}: {lacks} ({reason})") from None
    trained = Trained(
        file, config, model, origin.data, shape, labels, origin.digest, origin.columns,
        origin.arrays, origin.targets,
    )  # fmt: skip
    if not isinstance(model, Committee):
        return trained
    pairs = zip(model.members, readings, strict=True)
    members = tuple(replace(trained, model=each, **vars(reading)) for each, reading in pairs)
    return replace(trained, members=members)


def _with_model(
    config: Config, own: Any, path: Path, shape: tuple[int, ...], classes: int
) -> Config:
    """The configuration with the module that a program gives. Raises InputError if it needs one
    that is not given, or is of another class, and if it needs none."""
    section = config.model
    if not isinstance(section, Own):
        if own is not None:
            raise OwnModelError(f"{path}: its model is model={section.name}; leave out model=…")
        return config
    call = f"kindling.load({str(path)!r}, model={section.class_name})"
    if own is None:
        raise OwnModelError(
            f"{path}: its model was made in a Python program; there, call {call}, whose "
            "trained.model is the torch module. Commands take the models of extensions"
        )
    model = OwnModel(own)
    try:
        name = type(model.build(shape, config.task.outputs(classes))).__qualname__
    except InputError:
        raise
    except Exception as error:  # of the program's own code
        raise OwnModelError(
            f"{path}: model={model.name}: cannot be made for samples of shape {written([*shape])} "
            f"({type(error).__name__}: {first_line(error)})"
        ) from without_own_frames(error)
    if name != section.class_name:
        raise OwnModelError(f"{path}: was not trained with a model of class {name}; call {call}")
    return config.model_copy(update={"model": section.holding(model)})


@dataclass(frozen=True)
class Reading:
    """A configuration, and how its model reads samples and numbers: fields of Trained."""

    config: Config
    shape: tuple[int, ...]
    columns: Columns | None
    targets: Targets | None


def rebuild_committee(
    members: Sequence[Member], committee: Reading, classes: int, weights: dict[str, Tensor]
) -> tuple[Committee, list[Reading]]:
    """The committee in eval mode, whose weights are named `members.NUMBER.…`, and how the members
    read. Raises ValueError as `rebuild`, and InputError for a wrong configuration."""
    parts: dict[str, dict[str, Tensor]] = {f"members.{n}": {} for n in range(len(members))}
    for name, weight in weights.items():
        prefix, number, rest = (*name.split(".", 2), "", "")[:3]
        if f"{prefix}.{number}" not in parts:
            raise ValueError(f"{name[:80]} is a weight of no member")
        parts[f"{prefix}.{number}"][rest] = weight
    readings = [_reading(member, committee, classes) for member in members]
    models = [
        rebuild(reading.config, reading.shape, classes, own)
        for reading, own in zip(readings, parts.values(), strict=True)
    ]
    task, votes = build_task(readings[0].config.task, classes), [each.votes for each in members]
    adapters = [adapter_of(reading, committee, task) for reading in readings]
    return Committee(models, votes, task, adapters).eval(), readings


def _reading(member: Member, committee: Reading, classes: int) -> Reading:
    config, shape, columns = check(member.config), committee.shape, committee.columns
    if member.columns is not None:
        if columns is None or not all(place < len(columns.columns) for place in member.columns):
            raise ValueError("a member has columns that the committee lacks")
        own = [columns.columns[place] for place in member.columns]
        columns = columns.model_copy(update={"columns": own})
        shape = (columns.width,)
    targets = committee.targets
    if member.targets is not None:
        targets = Targets.model_validate(member.targets)
        require_scaling(targets, config.task.name, classes)
    return Reading(config, shape, columns, targets)


def adapter_of(member: "Reading | Trained", committee: "Reading | Trained", task: Task) -> Adapter:
    """What a member takes of the features of a committee, and how its outputs are converted."""
    places, own, all_ = None, member.columns, committee.columns
    if own is not None and all_ is not None and own != all_:
        places = torch.tensor(all_.features_at(all_.places_of(own.columns)))
    if member.targets is None or committee.targets is None or member.targets == committee.targets:
        return Adapter(places)
    one, zero = member.targets.restored(torch.tensor([[1.0], [0.0]]).expand(2, task.outputs))
    shift = committee.targets.exact(zero)
    return Adapter(places, committee.targets.exact(one) - shift, shift)


def rebuild(
    config: Config, shape: tuple[int, ...], classes: int, weights: dict[str, Tensor]
) -> nn.Module:
    """The configured model with these weights, for samples of `shape`.

    Raises ValueError when the weights do not fit the configuration. Shapes are compared before any
    memory is allocated for them, because a hostile file may ask for very large ones.
    """
    layers = len(config.model.sizes)
    if layers > len(weights):  # to build very many layers takes long, even without memory
        raise ValueError(f"it has {len(weights)} weights, the configuration {layers} hidden layers")
    with torch.device("cpu" if isinstance(config.model, Own) else "meta"):
        model = construct_model(config.model, shape, config.task.outputs(classes))
    state = model.state_dict()
    expected = {name: tuple(value.shape) for name, value in state.items()}
    given = {name: tuple(value.shape) for name, value in weights.items()}
    for name in {**expected, **given}:  # in this order, so that the first fault is always the same
        counter = name in state and not state[name].is_floating_point()
        if name in given and weights[name].is_floating_point() == counter:
            raise ValueError(f"{name} is of {weights[name].dtype}")
        if expected.get(name) != given.get(name):
            raise ValueError(
                f"{name} is {given.get(name, 'missing')}, the configuration says "
                f"{expected.get(name, 'that there is none')}"
            )
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(True)
