"""What a checkpoint must hold for a run to go on from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from src import config as schema
from src.errors import InputError
from src.trained import require_format


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True, extra="ignore")


class _History(_Part):
    seconds: float
    ended: list[int]
    rows: list[list[list[float | int | None]]]


class _Best(_Part):
    value: float
    epoch: int
    step: int
    weights: dict[str, Tensor]


class _Kept(_Part):
    best: list[_Best | None]


class _Callbacks(_Part):
    History: _History
    Checkpoints: _Kept


class _Position(_Part):
    epoch: Annotated[int, Field(ge=0)]
    batch: Annotated[int, Field(ge=0)]


class _Random(_Part):
    python: Annotated[list[int | Tensor | float | None], Field(min_length=3, max_length=3)]
    numpy: Annotated[list[Tensor | int | float], Field(min_length=4, max_length=4)]
    torch: Tensor
    cuda: list[Tensor]
    mps: Tensor | None


class _Rank(_Part):
    random: _Random
    metrics: tuple[Tensor, Tensor, int] | None
    gradients: list[Tensor]


class _State(_Part):
    """What this project adds to Lightning's content, and what of that it reads itself."""

    state_dict: dict[str, Tensor]
    optimizer_states: list[dict[str, Any]]
    loops: dict[str, Any]
    callbacks: _Callbacks
    diverged: dict[int, int]
    stopped: dict[int, str]
    stacked: Annotated[list[int], Field(min_length=1)]
    threads: Annotated[int, Field(gt=0, le=4096)]
    average: list[dict[str, Tensor]]
    position: _Position
    ranks: list[_Rank]


def check(
    content: dict[str, Any], path: Path, origins: Sequence[dict[str, Any]], world_size: int
) -> None:
    """Raises InputError unless the checkpoint is of these trials, on this many ranks.

    `origins` are what the trials would write of themselves; trainer.max_epochs may have grown.
    """
    saved = content.get("kindling")
    parts = saved if isinstance(saved, list) else [saved]
    try:
        _State.model_validate(content)
    except ValidationError as error:
        fields = dict.fromkeys(".".join(map(str, fault["loc"])) for fault in error.errors())
        raise InputError(
            f"{path}: holds no state to go on from; missing or wrong: {', '.join([*fields][:5])}"
        ) from None
    if len(parts) != len(origins):
        raise InputError(f"{path}: is of {len(parts)} trials, not of {len(origins)}")
    for part, origin in zip(parts, origins, strict=True):
        found = schema.differences(require_format(part, path), origin)
        if found:
            raise InputError("\n  ".join([f"{path}: is of another run", *found]))
    if len(content["ranks"]) != world_size:
        raise InputError(
            f"{path}: was written on {len(content['ranks'])} devices, to go on with {world_size} "
            f"cannot give the same result; type trainer.devices={len(content['ranks'])}"
        )
