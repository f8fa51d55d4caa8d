"""What all executors have in common, and the executor that trains in this process."""

import logging
from collections.abc import Sequence
from typing import Protocol

from src.config.schema import Config
from src.sweeps.tasks import Task, train_group
from src.sweeps.watching import Watch
from src.system.errors import InputError
from src.training.fit import mark_failed
from src.training.grouping import Place, here

log = logging.getLogger(__name__)

GROUP_KILLS = 3  # so often may a group's process be killed without an epoch of progress between


class Executor(Protocol):
    """Trains the tasks of a sweep. Failures of trials are in their folders."""

    slots: int  # how many groups train at the same time

    def place(self, config: Config) -> Place:
        """The device on which a group of such trials will train."""

    def run(self, tasks: Sequence[Task]) -> None:
        """Returns when nothing more can be trained. Raises Interrupted after a signal."""


class InProcess:
    """Trains one group after the other in this process."""

    slots = 1

    def place(self, config: Config) -> Place:
        return here(config)

    def run(self, tasks: Sequence[Task]) -> None:
        with Watch(tasks, logs_errors=False) as watch, watch.keep_showing():
            for task in tasks:
                watch.note(task, "running")
                train_group(task)
                watch.note(task, "ended")
                watch.show()


class Attempts:
    """How often the process of a task was killed."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.kills, self.epoch = 0, task.epoch

    def killed(self, remedy: str) -> bool:
        """Notes a kill. Whether the task may go on: after too many kills in the same epoch, its
        trials get the status `failed` instead. `remedy` is for their error."""
        epoch = self.task.epoch
        self.kills = self.kills + 1 if epoch == self.epoch else 1
        self.epoch = epoch
        if self.kills < GROUP_KILLS:
            log.warning(
                "%s: the process was killed; another goes on after epoch %d", self.task.name, epoch
            )
            return True
        fault = killed_too_often(self.kills, epoch, remedy)
        mark_failed(self.task.runs, fault)
        return False


def killed_too_often(kills: int, epoch: int, remedy: str) -> InputError:
    return InputError(
        f"the process was killed {kills} times in epoch {epoch + 1}, perhaps for want of memory; "
        f"{remedy}"
    )
