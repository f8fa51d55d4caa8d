"""The executor that trains in this process, and what all executors have in common."""

import logging
from collections.abc import Callable, Sequence

from kindling.config.schema import Config
from kindling.sweeps.tasks import GroupTask, train_group
from kindling.sweeps.watching import Watch
from kindling.system.errors import InputError
from kindling.training.grouping import TrainingDevice, here
from kindling.training.result import mark_failed

log = logging.getLogger(__name__)

GROUP_KILLS = 3  # so often may a group's process be killed without an epoch of progress between


class Executor:
    """Trains the tasks of a sweep: one after the other in this process, and subclasses elsewhere.
    Failures of trials are in their folders."""

    slots = 1  # how many groups train at the same time
    makes_folders = False  # whether `run` makes the folders of trials itself, by `make`
    make: Callable[[Sequence[int]], None] | None = None  # of trials with these numbers

    def place(self, config: Config) -> TrainingDevice:
        """The device on which a group of such trials will train."""
        return here(config)

    def run(self, tasks: Sequence[GroupTask]) -> None:
        """Returns when nothing more can be trained. Raises Interrupted after a signal."""
        with Watch(tasks, trains_here=True) as watch:
            for task in tasks:
                watch.note(task, "running")
                train_group(task)
                watch.note(task, "ended")


class Attempts:
    """How often the process of a task was killed."""

    def __init__(self, task: GroupTask) -> None:
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
        mark_failed(self.task.runs, killed_too_often(epoch, remedy))
        return False


def killed_too_often(epoch: int, remedy: str) -> InputError:
    return InputError(
        f"the process was killed {GROUP_KILLS} times in epoch {epoch + 1}, perhaps for want of "
        f"memory; {remedy}"
    )
