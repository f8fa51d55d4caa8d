"""Models that the CUDA kernel trains (src/native/kernel.cu)."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import nn

from src.config.schema import Config
from src.models.closed_form import closed_form_of
from src.models.mlp import DenseClosedForm, architecture_of
from src.native import kernel
from src.native.kernel import Shape

LOWEST = (8, 0)  # the compute capability of the first GPUs with TF32


def why_no_kernel(configs: Sequence[Config], models: Sequence[nn.Module]) -> str:
    """Why the kernel does not train these trials on the current CUDA device, or an empty text."""
    first = configs[0]
    trainer, data = first.trainer, first.data
    if trainer.precision != "32":
        return f"the kernel has no trainer.precision={trainer.precision}"
    for key, usual in (
        ("accumulate_grad_batches", 1), ("gradient_clip_val", None), ("ema_decay", None),
        ("class_weights", None),
    ):  # fmt: skip
        if getattr(trainer, key) != usual:
            return f"the kernel has no trainer.{key}"
    if data.loader != "resident":
        return f"the kernel has no data.loader={data.loader}"
    reasons = chain.from_iterable(map(_reasons, configs, models))
    return next(reasons, "") or kernel.why_absent() or _why_not_here(first, models)


def _reasons(config: Config, model: nn.Module) -> list[str]:
    optimizer = config.optimizer
    if optimizer.name != "sgd":
        return [f"the kernel has no optimizer={optimizer.name}"]
    reasons = [
        f"the kernel has no optimizer.{key}"
        for key in ("momentum", "weight_decay")
        if getattr(optimizer, key)
    ]
    kind = closed_form_of(model)
    if kind is None or not issubclass(kind, DenseClosedForm):
        return [*reasons, f"the kernel does not know {type(model).__name__}"]
    architecture = architecture_of(model)
    has = {
        "dropout": any(architecture.dropouts) or architecture.input_dropout,
        "norm": architecture.norms,
        "noise": architecture.noise,
        "max_norm": architecture.max_norm,
    }
    return [*reasons, *(f"the kernel has no model.{key}" for key, value in has.items() if value)]


def _why_not_here(config: Config, models: Sequence[nn.Module]) -> str:
    if (capability := torch.cuda.get_device_capability()) < LOWEST:
        found = ".".join(map(str, capability))
        return f"the kernel needs compute capability 8.0, this GPU has {found}"
    limit = torch.cuda.get_device_properties().shared_memory_per_block_optin
    smoothing = config.trainer.label_smoothing
    widest = max(shape_of(model, config.data.batch, smoothing).shared_bytes for model in models)
    if widest <= limit:
        return ""
    return (
        f"the largest network takes {widest:,} bytes of the memory of a thread block with its "
        f"batch, and this GPU has {limit:,}"
    )


def shape_of(model: nn.Module, rows: int, smoothing: float) -> Shape:
    """The shape of a model's kernel for batches of bytes."""
    architecture = architecture_of(model)
    layers = architecture.layers
    units = (layers[0].in_features, *(layer.out_features for layer in layers))
    return Shape(units, rows, True, architecture.activation, smoothing)
