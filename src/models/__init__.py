"""Models: plain torch modules from features (N, *shape) to logits (N, classes).

A new family of models is one file here, a section in src/config/schema.py and a YAML in conf/model,
all of the same name. The file has `build(config, shape, classes)`, which returns a model, and may
have `cost(config, shape, classes)`, which returns the memory that a model takes
(src/models/closed_form.py). Models with a closed form train without autograd, and in stacks.
"""

import importlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from src.config import schema
from src.config.written import written
from src.models.closed_form import MemoryCost
from src.system.errors import InputError, first_line
from src.system.resources import out_of_memory


def build_model(config: schema.Model, shape: Sequence[int], classes: int) -> nn.Module:
    """A model with weights from torch's global random stream. Raises InputError if it cannot take
    two samples of zeros, or does not return logits (2, classes)."""
    try:
        model = construct_model(config, shape, classes).eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            logits = model(torch.zeros(2, *shape))
    except (RuntimeError, ValueError, IndexError) as error:  # torch's errors for wrong shapes
        if out_of_memory(error):
            raise
        raise InputError(
            f"model={config.name}: cannot take samples of shape {written(list(shape))} "
            f"({first_line(error)}); type model=logistic_regression or model=mlp, which take any "
            "shape, or choose other data"
        ) from error
    if logits.shape != (2, classes):
        raise InputError(
            f"model={config.name}: gives {tuple(logits.shape)} for 2 samples of {classes} classes, "
            f"must give logits (2, {classes})"
        )
    return model.train()


def construct_model(config: schema.Model, shape: Sequence[int], classes: int) -> nn.Module:
    """As build_model, but does not try the model. On the meta device it allocates no weights."""
    model: nn.Module = _family(config).build(config, shape, classes)
    return model


def model_cost(config: schema.Model, shape: Sequence[int], classes: int) -> MemoryCost:
    """The memory that a model takes. A family without `cost` is counted as one linear layer."""
    family = _family(config)
    if hasattr(family, "cost"):
        cost: MemoryCost = family.cost(config, shape, classes)
        return cost
    inputs = math.prod(shape)
    return MemoryCost((inputs + 1) * classes, 2 * classes, 2 * (classes + inputs))


def _family(config: schema.Model) -> Any:
    """The module of a model's family. The schema has checked the name."""
    return importlib.import_module(f"{__name__}.{config.name}")


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
