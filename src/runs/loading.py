"""A trained model, opened again from a run folder or a checkpoint file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from src.config import schema
from src.config.schema import Config
from src.data.tables import Columns
from src.models import construct_model
from src.runs import checkpoint
from src.runs.checkpoint import FORMAT
from src.runs.folder import Size, checkpoint_of
from src.system.errors import InputError, first_line


class Part(BaseModel):
    """A part of a checkpoint's content; what no reader asks for is left out."""

    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True, extra="ignore")


class _Origin(Part):
    """What a checkpoint says of its data, as src/training/classifier.py writes it."""

    config: dict[str, Any]
    data: str
    shape: Annotated[list[Size], Field(min_length=1)]
    labels: Annotated[list[str], Field(min_length=1)]
    digest: str | None
    columns: Columns | None


class _Weights(Part):
    state_dict: dict[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """A model as a checkpoint holds it, with what it was trained on."""

    checkpoint: Path
    config: Config
    model: nn.Module
    data: str  # the data set really used
    shape: tuple[int, ...]
    labels: tuple[str, ...]  # of the classes
    digest: str | None  # of the content of the user's own files
    columns: Columns | None  # of a table

    @property
    def classes(self) -> int:
        return len(self.labels)


def open_trained(path: Path) -> Trained:
    """The model of a run folder (its best checkpoint) or of a checkpoint file, in eval mode.

    Raises InputError when the path is neither, and when the checkpoint is damaged, another
    program's, or of another version.
    """
    file = checkpoint_of(path)
    content = checkpoint.read(file)
    saved = require_format(content.get("kindling"), file)
    try:
        origin = _Origin.model_validate(saved)
        config = schema.check(origin.config)
        state = _Weights.model_validate(content).state_dict
        weights = {name.removeprefix("model."): weight for name, weight in state.items()}
        model = rebuild(config, tuple(origin.shape), len(origin.labels), weights)
    except ValidationError as error:
        raise InputError(
            f"{file}: is not a checkpoint of this project (missing or wrong: {wrong_fields(error)})"
        ) from None
    except (ValueError, RuntimeError, InputError) as error:
        raise InputError(
            f"{file}: is not a checkpoint of this project ({first_line(error)})"
        ) from None
    return Trained(
        file,
        config,
        model.eval(),
        origin.data,
        tuple(origin.shape),
        tuple(origin.labels),
        origin.digest,
        origin.columns,
    )


def wrong_fields(error: ValidationError) -> str:
    """The first five, and what is wrong with all of them together."""
    fields = dict.fromkeys(
        (".".join(map(str, fault["loc"])) or fault["msg"])[:100]
        for fault in error.errors(include_url=False, include_input=False)
    )
    return ", ".join([*fields][:5])


def require_format(saved: Any, file: Path) -> dict[str, Any]:
    """What a checkpoint says of its origin: its configuration and its data.

    Raises InputError when another version of the project wrote it.
    """
    found = saved.get("format") if isinstance(saved, dict) else None
    if found != FORMAT:
        raise InputError(
            f"{file}: is no checkpoint that this version of the project reads: its field "
            f"kindling.format is {found}, expected {FORMAT}"
        )
    assert isinstance(saved, dict)
    return saved


def rebuild(
    config: Config, shape: tuple[int, ...], classes: int, weights: dict[str, Tensor]
) -> nn.Module:
    """The model with its weights. Shapes are compared before anything of their size is made.

    Raises ValueError when the weights are not those of the configuration.
    """
    layers = len(getattr(config.model, "hidden_sizes", ()))
    if layers > len(weights):  # each would be made, if without memory
        raise ValueError(f"it has {len(weights)} weights, the configuration {layers} hidden layers")
    with torch.device("meta"):
        model = construct_model(config.model, shape, classes)
    state = model.state_dict()
    expected = {name: tuple(value.shape) for name, value in state.items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    for name in expected.keys() | found.keys():
        counts = name in state and not state[name].is_floating_point()
        if name in found and weights[name].is_floating_point() == counts:
            raise ValueError(f"{name} is of {weights[name].dtype}")
        if expected.get(name) != found.get(name):
            raise ValueError(
                f"{name} is {found.get(name, 'missing')}, the configuration says "
                f"{expected.get(name, 'that there is none')}"
            )
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(True)
