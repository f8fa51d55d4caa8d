"""A group of trials as a task, for any process on any machine that sees the folder of the sweep."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from src.config.schema import Config
from src.runs.folder import Run
from src.runs.sweep_folder import Sweep
from src.system.errors import InputError
from src.training.fit import LOCK_PATIENCE, fit_stack

log = logging.getLogger(__name__)


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
    def runs(self) -> list[Run]:
        return [Run(folder) for folder in self.folders]

    @property
    def ended(self) -> bool:
        return all(run.ended for run in self.runs)

    @property
    def epoch(self) -> int:
        """The last epoch in the history of the first trial that has not ended, or of the last."""
        runs = self.runs
        run = next((run for run in runs if not run.ended), runs[-1])
        rows = run.history if run.history_file.exists() else []
        return int(rows[-1]["epoch"] or 0) if rows else 0


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


def digest(configs: Sequence[Config]) -> str:
    """12 hex digits over the configurations."""
    joined = "".join(config.hash() for config in configs)
    return hashlib.sha256(joined.encode()).hexdigest()[:12]


def numbered(trials: Sequence[int]) -> str:
    return f"{'trials' if len(trials) > 1 else 'trial'} {', '.join(map(str, trials))}"
