"""A group of trials as a task, for any process on any machine that sees the folder of the sweep."""

import functools
import logging
import math
import pickle
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from kindling.config.faults import remember, remembered
from kindling.config.schema import Config
from kindling.records.folder import Run, resume_command
from kindling.records.sweep_folder import Sweep
from kindling.system import machine
from kindling.system.errors import InputError, Interrupted, told_of
from kindling.system.process import log_to
from kindling.system.resources import versions
from kindling.training.fit import LOCK_PATIENCE, fit_stack
from kindling.training.result import mark_failed

log = logging.getLogger(__name__)


class _OfTrials:
    folders: tuple[Path, ...]

    @property
    def runs(self) -> list[Run]:
        return [Run(folder) for folder in self.folders]

    @property
    def epoch(self) -> int:
        """The last epoch in the history of the first trial that has not ended, or of the last."""
        runs = self.runs
        run = next((run for run in runs if not run.ended), runs[-1])
        rows = run.history if run.history_file.exists() else []
        return int(rows[-1]["epoch"] or 0) if rows else 0


@dataclass(frozen=True)
class GroupTask(_OfTrials):
    """Trains the trials of `sweep` with these numbers, configurations and folders as one stack.
    All paths are absolute. Everything else that a process needs lies in the folders; what is
    `remembered` of them need not be parsed again."""

    sweep: Path
    trials: tuple[int, ...]
    configs: tuple[Config, ...]
    folders: tuple[Path, ...]
    state_folder: Path
    halving: int | None = None
    remembered: Mapping[bytes, Config] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        return numbered(self.trials)

    @property
    def jobs_folder(self) -> Path:
        """Where the executor of a cluster keeps what it needs, until all trials have ended."""
        return self.state_folder.with_name("jobs")

    @property
    def ended(self) -> bool:
        return all(run.ended for run in self.runs)

    def with_memory(self) -> "GroupTask":
        """As it is sent to another process: with what this one remembers of the folders."""
        return replace(self, remembered=remembered(self.configs))

    @property
    def settled(self) -> bool:
        """Whether each trial has ended or failed."""
        return all(run.ended or run.result.get("status") == "failed" for run in self.runs)


def train_group(task: GroupTask, patience: float = LOCK_PATIENCE) -> None:
    """Trains what a task has not trained yet, and updates the files of the sweep.

    If the group fails, its trials get the status `failed`, and the log says why. While another
    process trains the group, waits for up to `patience` seconds. Raises Interrupted after a signal.
    """
    remember(task.remembered)
    try:
        fit_stack(task.configs, task.folders, task.state_folder, task.halving, patience=patience)
    except InputError as error:
        log.error("error: %s: %s", task.name, error)
    except Exception as error:
        log.error("%s failed", task.name, exc_info=told_of(error))
    finally:
        Sweep(task.sweep).update(task.configs[0].checkpoint.keep)


@dataclass(frozen=True)
class Parcel(_OfTrials):
    """A task on its way to another process, perhaps on another machine, and the code that sent it.

    The task is packed, because another version of the code could not even unpack it.
    """

    packed: bytes
    folders: tuple[Path, ...]
    code: Mapping[str, str | None]

    @classmethod
    def of(cls, task: GroupTask) -> "Parcel":
        return cls(pickle.dumps(task.with_memory()), task.folders, code())

    def train(self) -> None:
        """As train_group, but waits for ever for another process that trains the group. If this
        machine has other code, the trials get the status `failed` instead."""
        log_to(sys.stdout, form="%(asctime)s %(message)s")
        here = code()
        differing = [
            f"{name} {here.get(name) or 'none'} instead of {self.code.get(name) or 'none'}"
            for name in dict.fromkeys([*self.code, *here])
            if here.get(name) != self.code.get(name)
        ]
        if differing:
            fault = InputError(
                f"{socket.gethostname()} has {', '.join(differing)}; bring its code and packages "
                "to the state of the machine that started the sweep, and resume the sweep"
            )
            log.error("error: %s", fault)
            mark_failed(self.runs, fault)
        else:
            train_group(pickle.loads(self.packed), patience=math.inf)


@functools.cache
def code() -> Mapping[str, str | None]:
    """The commit of this code and the versions of its packages, when this process asked first."""
    return {"commit": machine.commit(), **versions()}


def numbered(trials: Sequence[int]) -> str:
    return f"{'trials' if len(trials) > 1 else 'trial'} {', '.join(map(str, trials))}"


@contextmanager
def told_how_to_go_on(folder: Path) -> Iterator[None]:
    """Adds the command that resumes a sweep or search to an interruption without words."""
    try:
        yield
    except Interrupted as interrupted:
        command = f"stopped; to go on, type\n  {resume_command(folder)}"
        raise Interrupted(interrupted.number, str(interrupted) or command) from None
