"""The settings that steps of many models at once do not cover. Nothing here imports torch."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from src.config.written import written

NOT_COVERED = {  # key, value: the reason
    ("trainer.precision", "16-mixed"): "has no gradient scaling",
    ("trainer.strategy", "fsdp"): "needs whole weights",
    ("trainer.compile", True): "is not compiled by torch",
    ("model.gradient_checkpointing", True): "keeps its activations",
}
FAMILIES: list[str] = []  # the model.name of the models that have a closed form

S = TypeVar("S", bound=BaseModel)


def has_closed_form(section: type[S]) -> type[S]:
    """Marks the section of a model whose file in src/models/ has a closed form."""
    FAMILIES.extend(get_args(section.model_fields["name"].annotation))
    return section


def not_covered(config: BaseModel) -> dict[str, str]:
    """The settings that the closed form does not cover, as they are typed, with the reasons."""
    return not_covered_values(partial(_read, config))


def not_stacked(config: BaseModel) -> dict[str, str]:
    """The settings that no step of many models at once covers."""
    return not_stacked_values(partial(_read, config))


def not_vmapped(config: BaseModel) -> dict[str, str]:
    """The settings that steps by torch.func.vmap do not cover."""
    return not_vmapped_values(partial(_read, config))


def _read(config: BaseModel, key: str) -> Any:
    section, _, name = key.partition(".")
    value = getattr(config, section)
    return getattr(value, name, None) if name else value


def not_covered_values(read: Callable[[str], Any]) -> dict[str, str]:
    """As not_covered, for unchecked values. `read` returns the value of a key, or None."""
    reasons = not_stacked_values(read)
    if read("model.name") not in FAMILIES:
        reasons[f"model={read('model.name')}"] = f"supports only {' and '.join(FAMILIES)}"
    return reasons


def not_vmapped_values(read: Callable[[str], Any]) -> dict[str, str]:
    """As not_vmapped, for unchecked values."""
    reasons = not_stacked_values(read)
    if read("trainer.precision") == "bf16-mixed":  # torch's autocast sees no layer within vmap
        reasons["trainer.precision=bf16-mixed"] = "has no mixed precision"
    return reasons


def not_stacked_values(read: Callable[[str], Any]) -> dict[str, str]:
    """As not_stacked, for unchecked values."""
    reasons = {
        f"{key}={str(value).lower()}": reason
        for (key, value), reason in NOT_COVERED.items()
        if read(key) == value
    }
    if read("freeze"):
        reasons[f"freeze={written(read('freeze'))}"] = "trains all layers"
    return reasons
