"""How far a run or a stack is: progress.json, which lies beside its checkpoints while it trains.

The process that trains writes the file; sweeps and live reports read it. Nothing here imports
torch. The file may be hostile: its size and each of its values are limited.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from src.config.schema import MAX_EPOCHS, Monitor
from src.runs.folder import Number, Seconds
from src.system.errors import InputError, parsing
from src.system.files import MIB, read_bounded, replace_quickly, temporary_path

NAME = "progress.json"
SILENT_SECONDS = 180.0  # after so long without news, a process may have died
SILENT_EPOCHS = 3.0  # but longer epochs bring news less often

Name = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9_.:-]*$")]
Epoch = Annotated[int, Field(ge=0, le=MAX_EPOCHS)]


class GroupProgress(BaseModel):
    """How far a run, or the trials of a stack, are."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    host: Name
    process: Annotated[int, Field(gt=0, lt=2**63)]
    device: Name  # cpu, mps or cuda:N
    trials: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=100_000)]
    training: Annotated[int, Field(ge=0, le=100_000)]  # trials that have not stopped or diverged
    epoch: Epoch  # the last complete one
    epochs: Epoch
    monitor: Monitor
    best: Number | None  # of all trials and epochs so far
    seconds: Seconds  # of training, with those before a resume
    epoch_seconds: Seconds | None  # the mean of the latest epochs; None before the first one
    written: Seconds  # since 1970

    @property
    def age(self) -> float:
        """Seconds since the file was written; 0 if the clock of its machine is ahead."""
        return max(0.0, time.time() - self.written)

    @property
    def silent(self) -> bool:
        """Whether there should have been news since."""
        return self.age > max(SILENT_SECONDS, SILENT_EPOCHS * (self.epoch_seconds or 0.0))

    @property
    def seconds_left(self) -> float | None:
        """An estimate until the last epoch; None before the first epoch has ended."""
        if self.epoch_seconds is None:
            return None
        return max(0.0, (self.epochs - self.epoch) * self.epoch_seconds - self.age)


def trial_numbers(folders: Sequence[Path]) -> list[int]:
    """The numbers of trials; empty for a run that is not a trial."""
    names = [folder.name for folder in folders]
    return [int(name) for name in names] if all(map(_is_number, names)) else []


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 10


def write_progress(folder: Path, progress: GroupProgress) -> None:
    """Raises OSError or InputError when the file cannot be replaced."""
    replace_quickly(folder / NAME, progress.model_dump_json())


def read_progress(folder: Path) -> GroupProgress | None:
    """The progress of the run or stack with its checkpoints in this folder; None without a file.
    Raises InputError for any other file than `write_progress` writes."""
    file = folder / NAME
    if not file.exists():
        return None
    try:
        content = read_bounded(file, MIB)
    except InputError:
        if not file.exists():  # the group has just ended
            return None
        raise
    with parsing(f"{file}: is not the progress of a run"):
        return GroupProgress.model_validate_json(content)


def remove_progress(folder: Path) -> None:
    """Also removes what a killed process has left of a file."""
    for path in (folder / NAME, temporary_path(folder / NAME)):
        with suppress(OSError):  # the result of the run matters more
            path.unlink(missing_ok=True)
