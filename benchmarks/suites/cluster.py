"""What a large sweep on a cluster asks of the command that submits and watches the jobs.

The cluster is simulated: a job takes its time on a clock of its own, and writes what a trial's end
leaves in its folder. The rest is the code of `hydra.launcher.executor=slurm`.
"""

import json
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

from tabulate import tabulate

from benchmarks.environment import describe_environment, environment
from benchmarks.measure import quiet
from benchmarks.settings import Settings
from kindling.config.compose import compose
from kindling.config.schema import Execution
from kindling.records.config_files import new_files
from kindling.records.folder import Run
from kindling.records.groups import State
from kindling.records.sweep_folder import Sweep
from kindling.sweeps.executors import cluster
from kindling.sweeps.executors.cluster import Cluster
from kindling.sweeps.tasks import GroupTask, Parcel
from kindling.sweeps.trials import train_trials
from kindling.system.files import write_into_folder, write_together

GPUS = 100
TRIAL_SECONDS = 36.0  # of a GPU, for each trial
# Trials, and the largest number of them in a group.
CASES = ((1000, 100), (10_000, 100), (1000, 1), (10_000, 10))
NOTHING = dict.fromkeys(Execution.model_fields)


class Simulated(Cluster):
    """A cluster whose clock advances by POLL_SECONDS each time it is asked."""

    name = "a simulated cluster"

    def __init__(self) -> None:
        super().__init__(Execution.model_validate(NOTHING | {"slots": GPUS}), [])
        self.queued: list[tuple[str, GroupTask]] = []
        self.running: dict[str, tuple[float, GroupTask]] = {}
        self.clock, self.requests, self.submissions, self.seconds = 0.0, 0, 0, 0.0

    def capacity(self, gpus: int) -> int:  # noqa: ARG002
        return GPUS

    def submit(self, tasks: Sequence[GroupTask], gpus: int) -> list[str]:  # noqa: ARG002
        self.submissions += -(-len(tasks) // 1000)  # an array has at most so many jobs
        jobs = [f"{self.submissions}_{number}" for number in range(len(tasks))]
        for job, task in zip(jobs, tasks, strict=True):
            assert Parcel.of(task).packed
            self.queued.append((job, task))
        return jobs

    def states(self) -> Mapping[str, State]:
        self.requests += 1
        began = time.process_time()
        while self.queued and len(self.running) < GPUS:
            job, task = self.queued.pop(0)
            self.running[job] = self.clock + TRIAL_SECONDS * len(task.configs), task
        self.clock += SECONDS_BETWEEN
        for job, (end, task) in list(self.running.items()):
            if end <= self.clock:
                del self.running[job]
                _end(task)
        self.seconds += time.process_time() - began  # of the jobs, not of the command
        states: dict[str, State] = {job: "queued" for job, _ in self.queued}
        return states | dict.fromkeys(self.running, "running")

    def cancel_command(self, sweep: Path, jobs: Sequence[str]) -> str:  # noqa: ARG002
        return "true"


SECONDS_BETWEEN = cluster.POLL_SECONDS


def _end(task: GroupTask) -> None:
    """Writes the results of a group, as the job does."""
    for config, run in zip(task.configs, task.runs, strict=True):
        run.write_result(
            {
                "status": "finished", "config_hash": config.hash(), "monitor": "val/acc",
                "best": {"epoch": 1, "val/acc": config.seed % 1000 / 1000}, "epochs": 1, "steps": 1,
            }
        )  # fmt: skip


def run(_: Settings) -> tuple[str, str]:
    """Times the command for each of the CASES."""
    rows = [_case(trials, group) for trials, group in CASES]
    around = environment()
    table = tabulate(rows, "keys", floatfmt=".2f")
    note = f"simulated: {GPUS} GPUs, {TRIAL_SECONDS:.0f} s for each trial"
    line = json.dumps({"suite": "cluster", "rows": rows, **around})
    return f"{table}\n\n{note}\n{describe_environment(around)}", line


def _case(trials: int, group: int) -> dict[str, float]:
    base = compose("data=digits", "trainer.accelerator=cpu", "trainer.max_epochs=1")
    configs = [base.model_copy(update={"seed": seed}) for seed in range(trials)]
    with tempfile.TemporaryDirectory() as name, quiet():
        folder = Path(name)
        folders = [folder / str(number) for number in range(trials)]
        pairs = zip(configs, folders, strict=True)
        files = (new_files(Run(path), config.to_primitives()) for config, path in pairs)
        write_together(write_into_folder, files)
        engine, before = Simulated(), time.process_time()
        with patch.object(cluster, "POLL_SECONDS", 0.0):
            train_trials(configs, folders, Sweep(folder), group, executor=engine)
        seconds = time.process_time() - before - engine.seconds
        count = sum(path.is_file() for path in folder.rglob("*"))
    groups = trials // group
    return {
        "trials": trials,
        "groups": groups,
        "hours on the cluster": engine.clock / 3600,
        "requests": engine.requests,
        "submissions": engine.submissions,
        "seconds of the command": seconds,
        "ms a group": 1000 * seconds / groups,
        "ms a request": 1000 * seconds / engine.requests,
        "files a trial": count / trials,
        "MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }
