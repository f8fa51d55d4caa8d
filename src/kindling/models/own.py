"""A torch module of the user's own, which `kindling.fit(config, model=...)` gets."""

import copy
import inspect
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from kindling.config import schema
from kindling.system.errors import InputError, parsing

# What a checkpoint can hold; see records/checkpoint.py.
STORED = {
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
}  # fmt: skip


class OwnModel:
    """A module, of which each trial trains a copy, or a function or class that makes a module, anew
    for each trial: of (shape of a sample, outputs) if it has two parameters without a default, of
    nothing if it has none."""

    def __init__(self, given: Any) -> None:
        named = type(given) if isinstance(given, nn.Module) else getattr(given, "func", given)
        self.given, self.name = given, getattr(named, "__qualname__", type(given).__qualname__)
        self.class_name = self.name  # until a module was made
        self.takes = 0
        if isinstance(given, nn.Module):
            return
        if not callable(given):
            what = type(given).__name__
            raise InputError(f"model: is a {what}, must be a torch module, or a function of one")
        with parsing(f"model={self.name}: its parameters are not known"):
            known = inspect.signature(given).parameters.values()
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        self.takes = sum(each.default is each.empty and each.kind not in several for each in known)
        if self.takes not in (0, 2):
            raise InputError(
                f"model={self.name}: needs {self.takes} arguments, and is called as model() or as "
                f"model(shape, outputs); type model=lambda shape, outputs: {self.name}(…)"
            )

    def build(self, shape: Sequence[int], outputs: int) -> nn.Module:
        """Raises InputError for a module that cannot be trained or kept in a checkpoint."""
        made = self.given
        if not isinstance(made, nn.Module):
            made = made(tuple(shape), outputs) if self.takes else made()
        for fault in _faults(made):
            raise InputError(f"model={self.name}: {fault}")
        with parsing(f"model={self.name}: cannot be copied by copy.deepcopy"):
            module: nn.Module = copy.deepcopy(made)  # a function may return one module each time
        return module

    def __getstate__(self) -> dict[str, Any]:
        """Raises InputError for what another process could not import."""
        remedy = "; define it at the top of a file that can be imported"
        with parsing(f"model={self.name}: cannot go to another process", remedy):
            pickle.dumps(self.given)
        return vars(self)


def _faults(made: Any) -> Iterator[str]:
    kind = type(made)
    if not isinstance(made, nn.Module):
        yield f"returns a {kind.__name__}, must return a torch module"
        return
    if any(each.__name__ == "LightningModule" for each in kind.__mro__):
        yield (
            f"{kind.__qualname__} is a LightningModule, whose steps Kindling would not call; give "
            "the torch module in it that returns the logits"
        )
    tensors = [*made.parameters(), *made.buffers()]
    if any(map(is_lazy, tensors)):
        yield "has lazy parameters, whose sizes are not known yet; name the sizes, or call it once"
        return
    if not any(each.requires_grad for each in made.parameters()):
        yield "has no parameters that train"
    elsewhere = [each for each in tensors if each.device.type != "cpu"]
    if elsewhere:
        yield (
            f"is on {elsewhere[0].device}; hand it over on the CPU, by model.cpu(), and choose the "
            "device by trainer.accelerator"
        )
    # The check of vmap has another default for the time of the check.
    strange = {p.dtype for p in made.parameters()} - {torch.float32, torch.get_default_dtype()}
    if strange:
        yield f"has weights of {strange.pop()}; type model.float(), and choose trainer.precision"
    for name, value in made.state_dict().items():
        if not isinstance(value, Tensor) or value.dtype not in STORED:
            what = value.dtype if isinstance(value, Tensor) else type(value).__name__
            yield f"{name} in its state_dict is {what}, which a checkpoint does not hold"


def build(config: schema.Own, shape: Sequence[int], classes: int) -> nn.Module:
    model: OwnModel = config.held
    return model.build(shape, classes)
