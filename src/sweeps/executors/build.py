"""Chooses an executor by its keys."""

from collections.abc import Sequence

from src.config.schema import Config, Execution
from src.sweeps.executors.base import Executor, InProcess


def build_executor(execution: Execution, configs: Sequence[Config], wait: bool = True) -> Executor:
    """The executor for trials with these configurations. `wait`: whether the executor of a cluster
    waits for its jobs; else its `run` ends the process with status 0."""
    match execution.executor:
        case None:
            return InProcess()
        case "local":
            from src.sweeps.executors.local import local

            return local(configs, execution.slots)
        case "slurm":
            from src.sweeps.executors.slurm import Slurm

            return Slurm(execution, configs, wait)
        case "ray":
            from src.sweeps.executors.ray import Ray

            return Ray(execution, configs, wait)
