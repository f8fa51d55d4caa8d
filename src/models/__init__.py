"""Models: plain torch modules from features (N, *shape) to logits (N, classes).

A new model is one class, a section in src/config.py, a YAML in conf/model and a case here.
"""

import math
from collections.abc import Sequence

from torch import nn

from src import config as schema
from src.models.logistic_regression import LogisticRegression
from src.models.mlp import Mlp


def build_model(config: schema.Model, shape: Sequence[int], classes: int) -> nn.Module:
    """A freshly initialised model, its weights drawn from torch's global random stream."""
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
