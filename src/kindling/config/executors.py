"""The executors of a sweep, without torch: an executor is one entry here, or one that an extension
registers."""

from collections.abc import Sequence
from typing import NamedTuple


class ExecutorEntry(NamedTuple):
    # Where a function (Execution, configurations) lies that returns an Executor of
    # sweeps/executors/base.py.
    build: str
    keys: Sequence[str]  # of Execution
    package: str | None = None  # that it needs, of an extra with the executor's name
    program: str | None = None  # that the machine must have
    # Whether its work outlives the command, and may have devices that this machine lacks.
    detached: bool = False


PLACE = "kindling.sweeps.executors"
EXECUTORS = {
    "local": ExecutorEntry(f"{PLACE}.local:local", ("slots",)),
    "slurm": ExecutorEntry(
        f"{PLACE}.slurm:Slurm",
        ("slots", "gpus", "cpus", "memory", "minutes", "partition", "account", "setup"),
        "submitit", "sbatch", detached=True,
    ),
    "ray": ExecutorEntry(
        f"{PLACE}.ray:Ray", ("slots", "gpus", "cpus", "memory", "address"), "ray", detached=True
    ),
}  # fmt: skip


def keys_of(executor: str | None) -> Sequence[str]:
    """The keys of Execution that an executor has; None is that of the command's own process."""
    return EXECUTORS[executor].keys if executor in EXECUTORS else ()


def detached() -> list[str]:
    return [name for name, entry in EXECUTORS.items() if entry.detached]
