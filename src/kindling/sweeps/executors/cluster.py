"""What the executors of clusters have in common: they submit, watch, and send again."""

import json
import logging
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from kindling.config.schema import Config, Execution
from kindling.records.folder import resume_command
from kindling.records.groups import State
from kindling.steps.kernel import MOST_BLOCK_MEMORY
from kindling.sweeps.executors.base import Attempts, Executor
from kindling.sweeps.tasks import GroupTask
from kindling.sweeps.watching import Watch
from kindling.system.errors import InputError, Interrupted, parsing
from kindling.system.files import read_bounded, require_contained, write_durably
from kindling.system.signals import handled
from kindling.system.units import MIB
from kindling.training.grouping import TrainingDevice
from kindling.training.result import shown

log = logging.getLogger(__name__)

POLL_SECONDS = 10.0  # the scheduler is asked at most so often
# The machine that submits has other memory than those that train. Without hydra.launcher.memory, or
# with GPUs, a group is planned for a machine of this size.
MEMORY, GPU_MEMORY = 4, 16  # GB
GB = 10**9

REMEDY = (
    "read its output in the folder .stacks/jobs of the sweep; if there is none, the machines of "
    "the cluster do not see the folder"
)
_IDENTIFIERS = TypeAdapter(dict[str, str])


class Cluster(Executor, ABC):
    """Trains each group as a job of a cluster.

    This process only submits and watches. It may end at any moment: jobs and folders have
    everything, and `resume=FOLDER` submits what is missing and watches the rest.
    """

    name: str

    def __init__(self, execution: Execution, configs: Sequence[Config]) -> None:
        self.execution = execution
        self.silent = False  # whether the scheduler did not answer the last question
        self.slots = execution.slots or self.capacity(max(map(self.gpus, configs), default=0))

    @abstractmethod
    def capacity(self, gpus: int) -> int:
        """How many groups with so many GPUs the whole cluster can train at the same time."""

    @abstractmethod
    def submit(self, tasks: Sequence[GroupTask], gpus: int) -> list[str]:
        """Submits a job for each task, with so many GPUs on each node; returns the identifiers of
        the jobs. The tasks have the same `devices` and `num_nodes`. Raises InputError with the
        scheduler's own words."""

    @abstractmethod
    def states(self) -> Mapping[str, State]:
        """The states of all jobs that are queued, that run, or that were cancelled not long ago.
        Raises InputError when the scheduler does not answer."""

    @abstractmethod
    def cancel_command(self, sweep: Path, jobs: Sequence[str]) -> str:
        """What to type to cancel these jobs of a sweep."""

    def resume_command(self, sweep: Path) -> str:
        """What to type to come back."""
        return resume_command(shown(sweep))

    def remedy(self, job: str) -> str:  # noqa: ARG002
        """What to do when this job was killed too often."""
        return REMEDY

    def gpus(self, config: Config) -> int:
        if self.execution.gpus is not None:
            return self.execution.gpus
        devices = config.trainer.devices
        if config.trainer.accelerator != "cuda":
            return 0
        return 1 if devices == "auto" else devices

    def place(self, config: Config) -> TrainingDevice:
        gpus = self.gpus(config)
        return TrainingDevice(
            GB * (GPU_MEMORY if gpus else self.execution.memory or MEMORY), not gpus,
            MOST_BLOCK_MEMORY if gpus == 1 else 0,
        )  # fmt: skip

    def run(self, tasks: Sequence[GroupTask]) -> None:
        """If the command need not wait for the jobs, ends the process with status 0."""
        remaining = [task for task in tasks if not task.ended]
        if not remaining:
            return
        jobs = SubmittedJobs(remaining[0].jobs_folder / "jobs.json")
        states = self.states()
        missing = [t for t in remaining if states.get(jobs.of(t)) not in ("queued", "running")]
        self._send(missing, jobs)
        log.info(
            "%d groups: %d submitted to %s, %d submitted before",
            len(remaining), len(missing), self.name, len(remaining) - len(missing),
        )  # fmt: skip
        sweep = remaining[0].sweep
        again = self.resume_command(sweep)
        cancel = self.cancel_command(sweep, [jobs.of(task) for task in remaining])
        told = f"to come back, type\n  {again}\nto cancel them, type\n  {cancel}"
        go_on = f"the jobs go on without this process; {told}"
        if not getattr(self.execution, "wait", True):  # a search always waits
            log.info("%s", go_on)
            raise SystemExit(0)
        with handled(rank=False):
            try:
                with Watch(tasks) as watch:
                    for task in tasks:
                        watch.note(task, "ended")
                    for task in remaining:
                        running = states.get(jobs.of(task)) == "running"
                        watch.note(task, "running" if running else "queued")
                    self._watch(remaining, jobs, watch)
            except Interrupted as interrupted:
                unknown = f"{self.name} does not answer, and its jobs may go on; {told}"
                raise Interrupted(interrupted.number, unknown if self.silent else go_on) from None
        cancelled = [task.name for task in remaining if not task.settled]
        if cancelled:
            raise Interrupted(
                signal.SIGTERM, f"{'; '.join(cancelled)}: cancelled; to go on, type\n  {again}"
            )

    def _send(self, tasks: Sequence[GroupTask], jobs: "SubmittedJobs") -> None:
        by_size: dict[tuple[int, int, int | str], list[GroupTask]] = {}
        for task in tasks:
            trainer = task.configs[0].trainer
            size = self.gpus(task.configs[0]), trainer.num_nodes, trainer.devices
            by_size.setdefault(size, []).append(task)
        for (gpus, *_), alike in by_size.items():
            jobs.note(alike, self.submit(alike, gpus))

    def _watch(self, tasks: Sequence[GroupTask], jobs: "SubmittedJobs", watch: Watch) -> None:
        """Returns when no job is queued or runs any more. A job that ended without a word was
        killed: its task is submitted again."""
        left = list(map(Attempts, tasks))
        while left:
            time.sleep(POLL_SECONDS)
            try:
                states = self.states()
                self.silent = False
            except InputError as error:  # the scheduler may be restarting
                if not self.silent:
                    log.warning("%s; asking again every %.0f s", error, POLL_SECONDS)
                self.silent = True
                continue
            again = []
            for attempts in left.copy():
                task, job = attempts.task, jobs.of(attempts.task)
                state: State = states.get(job, "ended")
                if state == "ended" and not task.settled and attempts.killed(self.remedy(job)):
                    state = "queued"
                    again.append(task)
                if state not in ("queued", "running"):
                    left.remove(attempts)
                watch.note(task, state)
            self._send(again, jobs)


class SubmittedJobs:
    """The identifier of the last job of each task, in a file. A sweep that is resumed reads it."""

    def __init__(self, file: Path) -> None:
        require_contained(file.parent.parent)
        self.file = file
        self._by_task: dict[str, str] = {}
        if file.exists():
            remedy = "; remove it: new jobs are submitted, and wait for those that train already"
            with parsing(f"{file}: cannot be read", remedy):
                content = read_bounded(file, 4 * MIB)
                self._by_task = _IDENTIFIERS.validate_json(content, strict=True)

    def of(self, task: GroupTask) -> str:
        """The job of a task, or ""."""
        return self._by_task.get(task.state_folder.name, "")

    def note(self, tasks: Sequence[GroupTask], jobs: Sequence[str]) -> None:
        names = [task.state_folder.name for task in tasks]
        self._by_task |= dict(zip(names, jobs, strict=True))
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self.file, json.dumps(self._by_task))
