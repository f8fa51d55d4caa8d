"""Models: plain torch modules from features (N, *shape) to logits (N, classes).

A new model is one class, a section in src/config/schema.py, a YAML in conf/model and a case here.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn

from src.config import schema
from src.models.logistic_regression import LogisticRegression
from src.models.mlp import Mlp
from src.system.errors import InputError, first_line
from src.system.resources import out_of_memory


def build_model(config: schema.Model, shape: Sequence[int], classes: int) -> nn.Module:
    """A freshly initialised model, its weights drawn from torch's global random stream.

    The model is tried on two samples of zeros. Raises InputError where it cannot take them, such
    as a model of pictures and a table, or gives no logits (2, classes).
    """
    try:
        model = construct_model(config, shape, classes).eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            logits = model(torch.zeros(2, *shape))
    except (RuntimeError, ValueError, IndexError) as error:  # what torch says of wrong shapes
        if out_of_memory(error):
            raise
        raise InputError(
            f"model={config.name}: cannot take samples of shape {schema.written(list(shape))} "
            f"({first_line(error)}); type "
            f"{' or '.join(f'model={name}' for name in schema.WRITTEN_OUT)}, which take any shape, "
            "or choose other data"
        ) from error
    if logits.shape != (2, classes):
        raise InputError(
            f"model={config.name}: gives {tuple(logits.shape)} for 2 samples of {classes} classes, "
            f"must give logits (2, {classes})"
        )
    return model.train()


def construct_model(config: schema.Model, shape: Sequence[int], classes: int) -> nn.Module:
    """As build_model, but untried: on the meta device it makes the shapes of the weights alone."""
    inputs = math.prod(shape)
    match config:
        case schema.LogisticRegression():
            return LogisticRegression(inputs, classes)
        case schema.Mlp():
            return Mlp(
                inputs,
                config.hidden_sizes,
                classes,
                config.activation,
                config.dropout,
                input_dropout=config.input_dropout,
                norm=config.norm,
                max_norm=config.max_norm,
                gradient_checkpointing=config.gradient_checkpointing,
            )


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
