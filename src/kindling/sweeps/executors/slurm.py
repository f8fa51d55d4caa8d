"""Trains groups as jobs of a Slurm cluster, with submitit.

submitit writes pickles into the folder of the jobs, and the jobs read them. This process reads
none: whoever can write there could run code here.
"""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import submitit
from submitit.core.utils import DelayedSubmission, FailedJobError

from kindling.records.groups import State
from kindling.sweeps.executors.cluster import Cluster
from kindling.sweeps.tasks import GroupTask, Parcel
from kindling.system.errors import InputError, Interrupted

MINUTES = 60  # the time limit; a job that reaches the limit is queued again, and goes on
SIGNAL_SECONDS = 90  # so long before the limit comes SIGUSR2
UNLIMITED = 10**6  # so often may a job reach its time limit
STATES: Mapping[str, State] = {
    "PENDING": "queued", "REQUEUED": "queued", "REQUEUE_HOLD": "queued", "SUSPENDED": "queued",
    "CONFIGURING": "queued", "REQUEUE_FED": "queued", "SPECIAL_EXIT": "queued",
    "RUNNING": "running", "COMPLETING": "running", "STOPPED": "running", "SIGNALING": "running",
    "RESIZING": "running", "STAGE_OUT": "running",
    "CANCELLED": "cancelled",
}  # fmt: skip


class Slurm(Cluster):
    name = "Slurm"

    def capacity(self, gpus: int) -> int:
        partition = self.execution.partition
        chosen = ["-p", partition] if partition else []
        lines = _ask("sinfo", "-h", "-o", "%D|%c|%G", *chosen).splitlines()
        if partition and not lines:
            known = ", ".join(_ask("sinfo", "-h", "-o", "%R").split())
            raise InputError(
                f"partition={partition}: the cluster has no such partition, but {known}; go on by "
                "resume=FOLDER hydra.launcher.partition=NAME"
            )
        count = 0
        for line in lines:
            nodes, cores, resources = line.split("|")
            if gpus:
                # Such as gpu:h100:8(S:0-1) or gpu:8.
                kinds = [kind.partition("(")[0] for kind in resources.split(",")]
                own = sum(int(kind.rpartition(":")[2]) for kind in kinds if kind[:3] == "gpu")
                count += int(nodes) * (own // gpus)
            else:
                # "8+": nodes with 8 and with more cores.
                count += int(nodes) * (int(cores.rstrip("+")) // (self.execution.cpus or 1))
        return max(1, count)

    def submit(self, tasks: Sequence[GroupTask], gpus: int) -> list[str]:
        given, trainer = self.execution, tasks[0].configs[0].trainer
        minutes = given.minutes or MINUTES
        executor = submitit.AutoExecutor(
            tasks[0].jobs_folder / "%j", cluster="slurm", slurm_max_num_timeout=UNLIMITED
        )
        chosen = {
            "gpus_per_node": gpus or None,
            "mem_gb": given.memory,
            "slurm_partition": given.partition,
            "slurm_account": given.account,
            "slurm_setup": given.setup,
        }
        executor.update_parameters(
            name="kindling",
            timeout_min=minutes,
            nodes=trainer.num_nodes,
            # On several nodes srun starts the ranks; on one node the run does it.
            tasks_per_node=trainer.devices if trainer.num_nodes > 1 else 1,
            cpus_per_task=given.cpus or 1,
            slurm_signal_delay_s=min(SIGNAL_SECONDS, 15 * minutes),
            slurm_additional_parameters={"requeue": True},
            slurm_array_parallelism=self.slots,
            **{key: value for key, value in chosen.items() if value is not None},
        )
        most, jobs = _largest_array(), []
        for first in range(0, len(tasks), most):
            try:
                with executor.batch():
                    sent = [
                        executor.submit(SlurmCall(Parcel.of(task)))
                        for task in tasks[first : first + most]
                    ]
            except FailedJobError as error:
                said = " ".join(str(error).split("\n", 1)[-1].split()) or str(error)
                raise InputError(
                    f"Slurm refuses the jobs: {said}; go on by resume=FOLDER with another value of "
                    "the key hydra.launcher.KEY that this is about"
                ) from None
            jobs += [str(job.job_id) for job in sent]
        return jobs

    def states(self) -> Mapping[str, State]:
        rows = _ask("squeue", "--me", "-h", "-r", "-t", "all", "-o", "%i %T").splitlines()
        known = dict(row.split() for row in rows)
        return {job: STATES[state] for job, state in known.items() if state in STATES}

    def cancel_command(self, sweep: Path, jobs: Sequence[str]) -> str:  # noqa: ARG002
        arrays = dict.fromkeys(job.partition("_")[0] for job in jobs)
        return f"scancel {' '.join(arrays)}"


@dataclass(frozen=True)
class SlurmCall:
    """What a job of Slurm calls. submitit's handler of SIGUSR2 queues the job again."""

    parcel: Parcel

    def __call__(self) -> None:
        try:
            self.parcel.train()
        except Interrupted as interrupted:
            if interrupted.number == signal.SIGUSR2:
                signal.raise_signal(signal.SIGUSR2)  # training has given the handler back
            raise SystemExit(128 + interrupted.number) from None

    def checkpoint(self) -> DelayedSubmission:
        """submitit pickles the result for the job that is queued again."""
        return DelayedSubmission(self)


def _ask(*command: str) -> str:
    """What a command of Slurm prints. Raises InputError when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{command[0]} does not answer: {error}") from None
    if done.returncode:
        raise InputError(f"{command[0]} does not answer: {' '.join(done.stderr.split())}")
    return done.stdout


def _largest_array() -> int:
    """The largest number of jobs in an array of this cluster."""
    for line in _ask("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "MaxArraySize":
            with suppress(ValueError):
                return max(1, int(value) - 1)  # the largest index is one less
    return 1000
