"""Which of the five ways of a step a run takes, and why not a faster one."""

from collections.abc import Sequence
from functools import partial

from torch import nn

from kindling.config.closed_form import not_stacked
from kindling.config.measures import LOSSES
from kindling.config.schema import Config
from kindling.models.closed_form import closed_form_of
from kindling.native.engine import OPTIMIZERS
from kindling.steps.autograd import AutogradLearner
from kindling.steps.base import AUTOGRAD, CLOSED_FORM, KERNEL, NATIVE, VMAP, Learner, StepChoice
from kindling.steps.closed_form import ClosedFormLearner
from kindling.steps.kernel import KernelLearner, why_no_kernel
from kindling.steps.native import NativeLearner, why_not_native
from kindling.steps.vmap import VmapLearner
from kindling.system.errors import InputError
from kindling.system.installation import as_command

LEARNERS: dict[str, type[Learner]] = {
    NATIVE: NativeLearner,
    KERNEL: KernelLearner,
    CLOSED_FORM: ClosedFormLearner,
    VMAP: VmapLearner,
    AUTOGRAD: AutogradLearner,
}


def choose_step(
    configs: Sequence[Config],
    models: Sequence[nn.Module],
    accelerator: str = "cpu",
    world_size: int = 1,
    *,
    weighted: bool = False,
    shared: bool = False,
) -> StepChoice:
    """The fastest way that the models, the configurations of their trials and the devices allow;
    `weighted`: whether samples have weights; `shared`: whether ranks share memory. Raises
    InputError if `trainer.step` names one that they do not allow, and for models that the engine
    alone can train together."""
    chosen = _fastest(configs, models, accelerator, world_size, weighted, shared)
    if chosen.kind != NATIVE and any(
        c.model.in_stacks != configs[0].model.in_stacks for c in configs
    ):
        raise InputError(
            f"the stack has models of different kinds, which only the engine trains: "
            f"{chosen.reason}; to have the engine, type {as_command('build')}"
        )
    return chosen


def _fastest(
    configs: Sequence[Config],
    models: Sequence[nn.Module],
    accelerator: str,
    world_size: int,
    weighted: bool,
    shared: bool,
) -> StepChoice:
    config, model = configs[0], models[0]
    wanted = config.trainer.step
    if wanted in (VMAP, AUTOGRAD):
        return StepChoice(wanted)
    reason = "" if closed_form_of(model) else f"{type(model).__name__} has no closed form"
    if config.task.loss not in LOSSES[config.task.name]:
        reason = f"the gradient of task.loss={config.task.loss} is not written out"
    if reason:
        return StepChoice(VMAP if len(models) > 1 else AUTOGRAD, reason)
    refused = next(
        (f"{s}: the closed form {why}" for s, why in not_stacked(config.read).items()), ""
    )
    if not all(parameter.requires_grad for parameter in model.parameters()):
        refused = refused or "the closed form trains all layers, and some are frozen"
    if refused:
        return StepChoice(AUTOGRAD, refused)
    if wanted == CLOSED_FORM:
        return StepChoice(CLOSED_FORM)
    trainer, several = config.trainer, f"and there are {world_size} ranks"
    if wanted != NATIVE and accelerator != "cpu":
        fastest, why_not = KERNEL, partial(why_no_kernel, configs, models)
        obstacles = {
            f"the kernel runs on CUDA GPUs, this run on {accelerator}": accelerator != "cuda",
            f"the kernel and CUDA graphs do not exchange gradients, {several}": world_size > 1,
            "the kernel knows no weights of samples": weighted,
        }
    else:
        fastest, why_not = NATIVE, partial(_why_none_native, models)
        obstacles = {
            f"the engine runs on CPUs, this run on {accelerator}": accelerator != "cpu",
            f"the engine needs memory that ranks share, and these {world_size} share none": (
                world_size > 1 and not shared
            ),
            f"the engine has no trainer.precision={trainer.precision}": (
                trainer.precision not in ("32", "64")
            ),
            f"the engine has no optimizer={config.optimizer.name}": (
                config.optimizer.name not in OPTIMIZERS
            ),
        }
    reason = next((reason for reason, holds in obstacles.items() if holds), "") or why_not()
    if reason and wanted == NATIVE:
        raise InputError(f"trainer.step=native: {reason}; or type trainer.step=auto")
    return StepChoice(CLOSED_FORM if reason else fastest, reason)


def _why_none_native(models: Sequence[nn.Module]) -> str:
    return next((reason for model in models if (reason := why_not_native(model))), "")
