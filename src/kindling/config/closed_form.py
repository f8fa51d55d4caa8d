"""The settings that steps of many models at once do not cover. Nothing here imports torch."""

from collections.abc import Callable
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from kindling.config import registry
from kindling.config.measures import CLASSIFICATION, LOSSES
from kindling.config.written import written

NOT_COVERED = {  # key, value: the reason
    ("trainer.precision", "16-mixed"): "has no gradient scaling",
    ("trainer.strategy", "fsdp"): "needs whole weights",
    ("trainer.compile", True): "is not compiled by torch",
    ("model.gradient_checkpointing", True): "keeps its activations",
    ("trainer.detect_anomaly", True): "has no operations of autograd",
    ("trainer.gradient_clip_algorithm", "value"): "clips norms",
}
FAMILIES: list[str] = []  # the model.name of the models that have a closed form

S = TypeVar("S", bound=BaseModel)


def has_closed_form(section: type[S]) -> type[S]:
    """Marks the section of a model whose file in models/ has a closed form."""
    FAMILIES.extend(get_args(section.model_fields["name"].annotation))
    return section


Read = Callable[[str], Any]  # the value of a dotted key, checked or not; None for other keys


def not_covered(read: Read) -> dict[str, str]:
    """The settings that the closed form does not cover, as they are typed, with the reasons."""
    reasons = not_stacked(read)
    if read("model.name") not in FAMILIES:
        reasons[f"model={read('model.name')}"] = f"supports only {' and '.join(FAMILIES)}"
    losses = LOSSES.get(read("task.name"), LOSSES[CLASSIFICATION])
    if read("task.loss") not in (None, *losses):
        reasons[f"task.loss={read('task.loss')}"] = f"supports only {' and '.join(losses)}"
    return reasons


def needed_by_ranks(read: Read) -> list[str]:
    """The modules that ranks need beyond those of all runs, guessed without torch: its wrapper of
    modules and its shards import its compiler, which takes two seconds."""
    sharded = read("trainer.strategy") == "fsdp"
    wrapped = registry.is_lightning("model", read("model.name"))
    return ["torch._dynamo"] if sharded or wrapped else []


def not_vmapped(read: Read) -> dict[str, str]:
    """The settings that steps by torch.func.vmap do not cover."""
    reasons = not_stacked(read)
    if read("trainer.precision") == "bf16-mixed":  # torch's autocast sees no layer within vmap
        reasons["trainer.precision=bf16-mixed"] = "has no mixed precision"
    return reasons


def not_stacked(read: Read) -> dict[str, str]:
    """The settings that no step of many models at once covers."""
    reasons = {
        f"{key}={str(value).lower()}": reason
        for (key, value), reason in NOT_COVERED.items()
        if read(key) == value
    }
    if read("freeze"):
        reasons[f"freeze={written(read('freeze'))}"] = "trains all layers"
    return reasons
