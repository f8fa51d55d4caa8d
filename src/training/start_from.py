"""Fine-tuning: weights of another run to begin with, and layers that keep theirs."""

from collections.abc import Sequence

import torch
from torch import nn

from src.config.schema import Config
from src.config.written import counted
from src.models.summary import in_a_line
from src.runs.loading import open_trained
from src.runs.lookup import MODEL, find
from src.runs.weights import checkpoint_of
from src.system.errors import InputError

SHOWN = 5  # names in a line


def load_weights(model: nn.Module, config: Config) -> str:
    """Copies the best weights of the run `start_from`, for layers whose names and shapes are those
    of the model, and returns a line about it. Raises InputError if there is no such run, for a
    committee, and if none of its layers fits."""
    assert config.start_from is not None
    folder = find(config.start_from, MODEL)
    trained = open_trained(folder)
    if trained.members:
        raise InputError(f"start_from={folder}: is a committee; name one of its members")
    theirs, own = trained.model.state_dict(), model.state_dict()
    other = {
        _layer(name)
        for name, value in own.items()
        if name not in theirs or theirs[name].shape != value.shape
    }
    fits = [name for name in own if _layer(name) not in other]  # a layer comes whole or not at all
    weights = {name for name, _ in model.named_parameters()}
    if not weights & {*fits}:
        line = in_a_line(trained.config.model.name, trained.model)
        raise InputError(
            f"start_from={folder}: none of its weights fits, because it is {line}, and this model "
            f"{in_a_line(config.model.name, model)}; choose the same sizes"
        )
    with torch.no_grad():
        for name in fits:
            own[name].copy_(theirs[name])
    layers = list(dict.fromkeys(map(_layer, own)))
    new = [layer for layer in layers if layer in other]
    told = f"; new: {_shortened(new)}" if new else ""
    known = len(layers) - len(new)
    return f"weights of {checkpoint_of(folder)}: {known} of {counted(len(layers), 'layer')}{told}"


def _layer(name: str) -> str:
    """The layer of a tensor."""
    return name.rpartition(".")[0]


def freeze(model: nn.Module, names: Sequence[str]) -> None:
    """Excludes layers from the training, by their names or those of layers around them. Running
    statistics of norms go on. Raises InputError for a name that has no weights, and if nothing
    would train."""
    for name in names:
        inside = [p for key, p in model.named_parameters() if f"{key}.".startswith(f"{name}.")]
        if not inside:
            known = dict.fromkeys(_layer(key) for key, _ in model.named_parameters())
            raise InputError(
                f"freeze={name}: no layer with weights has this name; the layers are "
                f"{_shortened([*known])}"
            )
        for parameter in inside:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(f"freeze={','.join(names)}: leaves nothing to train; leave out a layer")


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
