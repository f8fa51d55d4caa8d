"""Models: plain torch modules from features (N, *shape) to logits (N, classes).

A new family of models is one file here, a section in config/schema.py and a YAML in conf/model,
all of the same name, or lies in an extension (config/registry.py). The file has
`build(config, shape, classes)`, which returns a model, and may have `cost(config, shape, classes)`,
which returns the memory that a model takes (models/closed_form.py). Models with a closed form train
without autograd. In stacks, other models train by torch.func.vmap (steps/vmap.py).
"""

import importlib
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from kindling.config import registry, schema
from kindling.config.written import written
from kindling.models.closed_form import MemoryCost
from kindling.system.errors import InputError, first_line, without_own_frames
from kindling.system.resources import out_of_memory

WRONG_SHAPE = (RuntimeError, ValueError, IndexError)  # torch's errors


def build_model(config: schema.Model, shape: Sequence[int], classes: int) -> nn.Module:
    """A model with weights from torch's global random stream. Raises InputError if it cannot take
    two samples of zeros, or does not return logits (2, classes)."""
    own = config.held if isinstance(config, schema.Own) else None
    name = own.name if own else config.name
    where = registry.location("model", config.name)
    model = None
    try:
        model = construct_model(config, shape, classes)
        if not isinstance(model, nn.Module):
            raise InputError(
                f"model={name}: its function returned a {type(model).__name__}, must return a "
                "torch module"
            )
        model.eval()
        if hasattr(model, "training_step"):
            raise InputError(
                f"model={config.name}: is a LightningModule; in the extension, register it by "
                "register_lightning_module"
            )
        floats = {torch.float32, torch.get_default_dtype()}
        if kinds := {each.dtype for each in model.parameters()} - floats:
            raise InputError(
                f"model={name}: has weights of {', '.join(map(str, kinds))}, must be float32; type "
                "model.float(), and choose trainer.precision"
            )
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            logits = model(torch.zeros(2, *shape))
    except Exception as error:
        ours = not own and where is None
        foreign = ours and not isinstance(error, WRONG_SHAPE)
        if foreign or isinstance(error, InputError) or out_of_memory(error):
            raise
        fault, why = "cannot take", first_line(error)
        remedy = "type model=logistic_regression or model=mlp, which take any shape"
        if not ours:  # its code may raise anything
            place = registry.place_of(error, where) if where else ""
            why, remedy = f"{place}{type(error).__name__}: {why}", "correct its forward"
            if model is None:
                fault, remedy = f"{where or 'its function'} fails for", "correct it"
        raise InputError(
            f"model={name}: {fault} samples of shape {written(list(shape))} ({why}); {remedy}, or "
            "choose other data"
        ) from without_own_frames(error)
    if not isinstance(logits, Tensor) or logits.is_complex():
        kind = "complex numbers" if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"model={name}: its forward returns {kind}, must return a tensor (2, {classes}) of "
            "real numbers, the outputs alone, for 2 samples"
        )
    if (given := tuple(logits.shape)) != (2, classes):
        raise InputError(
            f"model={name}: gives {given} for 2 samples, must give (2, {classes}); make its last "
            f"layer of {classes} outputs"
        )
    if not logits.requires_grad and any(each.requires_grad for each in model.parameters()):
        raise InputError(
            f"model={name}: no gradient reaches its weights; leave torch.no_grad and detach out of "
            "its forward"
        )
    return model.train()


def construct_model(
    config: schema.Model, shape: Sequence[int] | None, classes: int | None
) -> nn.Module:
    """As build_model, but does not try the model. On the meta device it allocates no weights. A
    LightningModule with data of its own gets no shape and no number of classes."""
    return _function("model", config)(config, shape, classes)  # type: ignore[no-any-return]


def model_cost(config: schema.Model, shape: Sequence[int], classes: int) -> MemoryCost:
    """The memory that a model takes. Of a family without `cost`, a model is built and tried."""
    if cost := _function("cost", config):
        return cost(config, shape, classes)  # type: ignore[no-any-return]
    tried, inputs = try_model(config, tuple(shape), classes), math.prod(shape)
    # A layer's output, its gradient, and as much again for what a layer keeps, such as places of
    # maxima.
    trained = 3 * tried.outputs + 2 * inputs
    return MemoryCost(tried.weights, tried.outputs + inputs, trained)


def _function(kind: str, config: schema.Model) -> Any:
    """The function of a family that builds a model, or that tells its cost; None for no cost."""
    if registry.location("model", config.name) is None:
        family = importlib.import_module(f"{__name__}.{config.name}")
        return getattr(family, {"model": "build"}.get(kind, kind), None)
    return registry.resolve(kind, config.name) if registry.location(kind, config.name) else None


class ForwardPass(NamedTuple):
    """Counts of a model, and of its forward pass of a sample."""

    weights: int  # parameters and running statistics
    operations: int  # multiplications and additions, in layers whose weights are matrices or more
    outputs: int  # numbers that layers return


T = TypeVar("T")
Asked = Callable[[schema.Model, tuple[int, ...], int], T]


def remembered(ask: Asked[T]) -> Asked[T]:
    """As lru_cache; of a model of the user's own, as long as the user's model lives."""
    kept, own = lru_cache(ask), WeakKeyDictionary[Any, dict[Any, T]]()

    @wraps(ask)
    def answer(config: schema.Model, shape: tuple[int, ...], classes: int) -> T:
        if not isinstance(config, schema.Own):
            return kept(config, shape, classes)
        answers, key = own.setdefault(config.held, {}), (shape, classes)
        if key not in answers:
            answers[key] = ask(config, shape, classes)
        return answers[key]

    return answer


@remembered
def try_model(config: schema.Model, shape: tuple[int, ...], classes: int) -> ForwardPass:
    """Builds a model and evaluates it. Draws no random numbers."""
    with torch.random.fork_rng(devices=[]):
        return forward_pass(build_model(config, shape, classes), shape)


def forward_pass(model: nn.Module, shape: Sequence[int]) -> ForwardPass:
    """Evaluates a model on two samples of zeros, and counts. torch's FlopCounterMode counts all
    operations, but takes six seconds to begin."""
    operations, outputs = 0, 0

    def count(layer: nn.Module, _: Any, output: Any) -> None:
        nonlocal operations, outputs
        numbers = output.numel() // 2 if isinstance(output, Tensor) else 0
        weight = getattr(layer, "weight", None)
        outputs += numbers
        if isinstance(weight, Tensor) and weight.dim() > 1:
            operations += 2 * numbers * weight[0].numel()

    layers = [layer for layer in model.modules() if not any(True for _ in layer.children())]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    was_training = model.training
    like = next(model.parameters())
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        model.eval()(torch.zeros(2, *shape, dtype=like.dtype, device=like.device))
    model.train(was_training)
    for hook in hooks:
        hook.remove()
    weights = sum(tensor.numel() for tensor in model.state_dict().values())
    return ForwardPass(weights, operations, outputs)


def count_parameters(model: nn.Module) -> int:
    """Lazy ones, which have no size before the first batch, are not counted."""
    return sum(each.numel() for each in model.parameters() if not is_lazy(each))
