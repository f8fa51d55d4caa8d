"""A torch module of the user's own, which `kindling.fit(config, model=...)` gets."""

import copy
import inspect
import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

import __main__
from kindling.config import schema
from kindling.system.errors import InputError, parsing

# What a checkpoint can hold; see records/checkpoint.py.
STORED = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


class OwnModelError(InputError):
    """A fault of the model that a program gave."""


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
            raise OwnModelError(f"model: is {self.name}, must be a module, or a function of one")
        with parsing(f"model={self.name}: its parameters are not known"):
            known = inspect.signature(given).parameters.values()
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        self.takes = sum(each.default is each.empty and each.kind not in several for each in known)
        if self.takes not in (0, 2):
            raise OwnModelError(
                f"model={self.name}: needs {self.takes} arguments, and is called as model() or as "
                f"model(shape, outputs); type model=lambda shape, outputs: {self.name}(…)"
            )

    def build(self, shape: Sequence[int], outputs: int) -> nn.Module:
        """Raises OwnModelError for a module that cannot be trained or kept in a checkpoint."""
        made = self.given
        if not isinstance(made, nn.Module):
            made = made(tuple(shape), outputs) if self.takes else made()
        if fault := _fault(made):
            raise OwnModelError(f"model={self.name}: {fault}")
        with parsing(f"model={self.name}: cannot be copied by copy.deepcopy"):
            module: nn.Module = copy.deepcopy(made)  # a function may return one module each time
        return module

    def __getstate__(self) -> dict[str, Any]:
        """Raises InputError for what another process could not import."""
        remedy = "; define it at the top of a file that can be imported"
        with parsing(f"model={self.name}: cannot go to another process", remedy):
            if b"__main__" in pickle.dumps(self.given) and not hasattr(__main__, "__file__"):
                raise ValueError("it is defined in a notebook")
        return vars(self)


def _fault(made: Any) -> str | None:
    if not isinstance(made, nn.Module):
        return f"returns {type(made).__name__}, must return a torch module"
    weights, state = [*made.parameters()], made.state_dict()
    tensors = [*weights, *made.buffers()]
    unstored = [
        name for name, value in state.items() if getattr(value, "dtype", None) not in STORED
    ]
    # The check of vmap has another default for the time of the check.
    floats = {torch.float32, torch.get_default_dtype()}
    faults = {
        "is a LightningModule; give the torch module in it that returns the logits": any(
            each.__name__ == "LightningModule" for each in type(made).__mro__
        ),
        "has lazy parameters; name their sizes, or call the model once": any(map(is_lazy, tensors)),
        "has no parameters that train": not any(each.requires_grad for each in weights),
        "is not on the CPU; type model.cpu(), and choose the device by trainer.accelerator": any(
            each.device.type != "cpu" for each in tensors
        ),
        "has complex parameters, which cannot be trained; use pairs of real ones": (
            any(each.is_complex() for each in weights)
        ),
        "has weights other than float32; type model.float(), and choose trainer.precision": any(
            each.dtype not in floats for each in weights
        ),
        f"has {unstored} in its state_dict, which a checkpoint cannot hold": unstored,
    }
    return next((fault for fault, holds in faults.items() if holds), None)


def build(config: schema.Own, shape: Sequence[int], classes: int) -> nn.Module:
    model: OwnModel = config.held
    return model.build(shape, classes)
