"""A group of trials as a task, for any process on any machine that sees the folder of the sweep."""

import functools
import logging
import math
import pickle
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from src.config.schema import Config
from src.runs.folder import Run
from src.runs.sweep_folder import Sweep
from src.system import machine
from src.system.errors import InputError
from src.system.process import log_to
from src.system.resources import versions
from src.training.fit import LOCK_PATIENCE, fit_stack, mark_failed

log = logging.getLogger(__name__)

JOBS = "jobs"  # a folder beside the states of the stacks


@dataclass(frozen=True)
class Task:
    """Trains the trials of `sweep` with these numbers, configurations and folders as one stack.
    All paths are absolute. Everything else that a process needs lies in the folders."""

    sweep: Path
    trials: tuple[int, ...]
    configs: tuple[Config, ...]
    folders: tuple[Path, ...]
    state_folder: Path
    halving: int | None = None

    @property
    def name(self) -> str:
        return numbered(self.trials)

    @property
    def jobs_folder(self) -> Path:
        """Where the executor of a cluster keeps what it needs, until all trials have ended."""
        return self.state_folder.parent / JOBS

    @property
    def runs(self) -> list[Run]:
        return [Run(folder) for folder in self.folders]

    @property
    def ended(self) -> bool:
        return all(run.ended for run in self.runs)

    @property
    def settled(self) -> bool:
        """Whether each trial has ended or failed."""
        return all(run.ended or run.result.get("status") == "failed" for run in self.runs)

    @property
    def epoch(self) -> int:
        """The last epoch in the history of the first trial that has not ended, or of the last."""
        return _epoch(self.runs)


def train_group(task: Task, patience: float = LOCK_PATIENCE) -> None:
    """Trains what a task has not trained yet, and updates the files of the sweep.

    If the group fails, its trials get the status `failed`, and the log says why. While another
    process trains the group, waits for up to `patience` seconds. Raises Interrupted after a signal.
    """
    try:
        fit_stack(task.configs, task.folders, task.state_folder, task.halving, patience=patience)
    except InputError as error:
        log.error("error: %s: %s", task.name, error)
    except Exception:
        log.exception("%s failed", task.name)
    finally:
        Sweep(task.sweep).update(task.configs[0].checkpoint.keep)


@dataclass(frozen=True)
class Parcel:
    """A task on its way to another process, perhaps on another machine, and the code that sent it.

    The task is packed, because another version of the code could not even unpack it.
    """

    packed: bytes
    folders: tuple[Path, ...]
    code: Mapping[str, str | None]

    @property
    def runs(self) -> list[Run]:
        return [Run(folder) for folder in self.folders]

    @property
    def epoch(self) -> int:
        """As Task.epoch."""
        return _epoch(self.runs)

    @classmethod
    def of(cls, task: Task) -> "Parcel":
        return cls(pickle.dumps(task), task.folders, code())

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


def _epoch(runs: Sequence[Run]) -> int:
    run = next((run for run in runs if not run.ended), runs[-1])
    rows = run.history if run.history_file.exists() else []
    return int(rows[-1]["epoch"] or 0) if rows else 0


@functools.cache
def code() -> Mapping[str, str | None]:
    """The commit of this code and the versions of its packages, when this process asked first."""
    return {"commit": machine.commit(), **versions()}


def numbered(trials: Sequence[int]) -> str:
    return f"{'trials' if len(trials) > 1 else 'trial'} {', '.join(map(str, trials))}"
