"""What a model consists of: in a line, and layer by layer."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_summary.model_summary import ModelSummary
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from kindling.config.registry import is_lightning
from kindling.config.schema import Config
from kindling.data.sources.catalogue import describe
from kindling.models import build_model, construct_model, count_parameters


def in_a_line(name: str, model: nn.Module) -> str:
    """Such as `mlp 784-32-10, 25,450 parameters`; the sizes only if all weights are of linear
    layers or norms."""
    if any(map(is_lazy, model.parameters())):
        return f"{name}, lazy layers, whose sizes come with the first batch"
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    others = [
        part
        for part in model.modules()
        if not isinstance(part, nn.Linear | nn.BatchNorm1d | nn.LayerNorm)
        and any(True for _ in part.parameters(recurse=False))
    ]
    shown = ""
    if layers and not others:
        sizes = [layers[0].in_features, *(part.out_features for part in layers)]
        shown = " " + "-".join(map(str, sizes))
    return f"{name}{shown}, {count_parameters(model):,} parameters"


class _Summarised(LightningModule):
    def __init__(self, model: nn.Module, shape: Sequence[int]) -> None:
        super().__init__()
        self.model, self.example_input_array = model, torch.zeros(2, *shape)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.model(features)
        return logits


def summarise(config: Config) -> str:
    """Lightning's table of the layers for two samples: shapes, parameters, operations. Opens the
    data set for its shape. Raises InputError as `build_model`."""
    if is_lightning("model", config.model.name):
        of_ours = not is_lightning("data", config.data.name)
        of_data = describe(config.data, config.task) if of_ours else None
        shape, classes = (of_data.shape, of_data.classes) if of_data else (None, None)
        module: Any = construct_model(config.model, shape, classes)
        return f"{in_a_line(config.model.name, module)}\n\n{ModelSummary(module, max_depth=-1)}"
    found = describe(config.data, config.task)
    model = build_model(config.model, found.shape, config.task.outputs(found.classes))
    summary = ModelSummary(_Summarised(model, found.shape), max_depth=-1)
    return f"{in_a_line(config.model.name, model)}\n\n{summary}"
