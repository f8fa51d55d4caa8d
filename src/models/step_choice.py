"""Which of the five ways of a step a run takes, and why not a faster one."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from src.config.closed_form import not_stacked
from src.config.schema import Config
from src.models.closed_form import closed_form_of
from src.models.kernel_models import why_no_kernel
from src.models.native import why_not_native
from src.native.engine import OPTIMIZERS
from src.system.errors import InputError

NATIVE, KERNEL, CLOSED_FORM = "native", "kernel", "closed_form"
VMAP, AUTOGRAD = "vmap", "autograd"


@dataclass(frozen=True)
class StepChoice:
    """`kind` is native (CPUs), kernel (CUDA), closed_form, vmap (stacks) or autograd. `reason` says
    why it is not a faster one; it is empty for the fastest on the device, and for what
    `trainer.step` names."""

    kind: str
    reason: str = ""


def choose_step(
    configs: Sequence[Config],
    models: Sequence[nn.Module],
    accelerator: str = "cpu",
    world_size: int = 1,
) -> StepChoice:
    """The fastest way that the models, the configurations of their trials and the devices allow.
    Raises InputError if `trainer.step` names one that they do not allow."""
    config, model = configs[0], models[0]
    wanted = config.trainer.step
    if wanted in (VMAP, AUTOGRAD):
        return StepChoice(wanted)
    if closed_form_of(model) is None:
        reason = f"{type(model).__name__} has no closed form"
        return StepChoice(VMAP if len(models) > 1 else AUTOGRAD, reason)
    refused = next((f"{s}: the closed form {why}" for s, why in not_stacked(config).items()), "")
    if refused:
        return StepChoice(AUTOGRAD, refused)
    if wanted != CLOSED_FORM:
        return _fastest(configs, models, accelerator, world_size)
    return StepChoice(CLOSED_FORM)


def _fastest(
    configs: Sequence[Config], models: Sequence[nn.Module], accelerator: str, world_size: int
) -> StepChoice:
    """Of the steps of a model that has a closed form."""
    wanted = configs[0].trainer.step
    if wanted != NATIVE and accelerator != "cpu":
        reason = _why_no_kernel(configs, models, accelerator, world_size)
        return StepChoice(CLOSED_FORM if reason else KERNEL, reason)
    reason = _why_not_native(configs[0], models[0], accelerator, world_size)
    if not reason:
        return StepChoice(NATIVE)
    if wanted == NATIVE:
        raise InputError(f"trainer.step=native: {reason}; or type trainer.step=auto")
    return StepChoice(CLOSED_FORM, reason)


def _why_no_kernel(
    configs: Sequence[Config], models: Sequence[nn.Module], accelerator: str, world_size: int
) -> str:
    if accelerator != "cuda":
        return f"the kernel runs on CUDA GPUs, this run on {accelerator}"
    if world_size > 1:
        return f"the kernel does not exchange gradients, and there are {world_size} ranks"
    return why_no_kernel(configs, models)


def _why_not_native(config: Config, model: nn.Module, accelerator: str, world_size: int) -> str:
    if accelerator != "cpu":
        return f"the engine runs on CPUs, this run on {accelerator}"
    if world_size > 1:
        return f"the engine does not exchange gradients, and there are {world_size} ranks"
    if config.trainer.precision not in ("32", "64"):
        return f"the engine has no trainer.precision={config.trainer.precision}"
    if config.optimizer.name not in OPTIMIZERS:
        return f"the engine has no optimizer={config.optimizer.name}"
    return why_not_native(model)
