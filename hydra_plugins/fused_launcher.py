"""hydra/launcher=fused: the trials of a sweep train together, as stacked networks.

Hydra finds launchers only in a folder of this name, and imports the folder at every start.
Therefore the imports that take long are in kindling.sweeps.jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class FusedLauncherConf:
    _target_: str = "hydra_plugins.fused_launcher.FusedLauncher"
    # The largest number of trials in a stack; null: as many as fit into half of the free memory.
    max_trials: int | None = None
    # Successive halving: after 1, N, N², … epochs only the best trials of a stack continue, those
    # that do at most 1/N of its arithmetic; null: all trials train to their end.
    halving: int | None = None
    # Where stacks train. null: here, one after the other; local: side by side in processes of this
    # machine, each with a GPU, or with a share of the cores; slurm: as jobs of a Slurm cluster;
    # ray: as actors of a Ray cluster.
    executor: str | None = None
    # How many stacks train at the same time; null: local: one for each GPU, without GPUs one for
    # each core; slurm and ray: as many as the cluster has places.
    slots: int | None = None
    # What each stack gets from slurm and ray. gpus: null: trainer.devices with
    # trainer.accelerator=cuda, else none; cores; memory in GB.
    gpus: int | None = None
    cpus: int | None = None
    memory: int | None = None
    # Of slurm: the time limit of a job; a job that reaches the limit goes on as another job. The
    # names of a partition and of an account; shell commands before each job.
    minutes: int | None = None
    partition: str | None = None
    account: str | None = None
    setup: list[str] | None = None
    # Of ray: HOST:PORT of a cluster; null: RAY_ADDRESS, else a new one on this machine.
    address: str | None = None
    # Of slurm and ray. false: submit everything and end; resume=FOLDER comes back to the sweep.
    wait: bool = True


ConfigStore.instance().store(group="hydra/launcher", name="fused", node=FusedLauncherConf)


class FusedLauncher(Launcher):
    def __init__(self, **_: Any) -> None:
        """launch_fused reads and checks the settings."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from kindling.sweeps.jobs import launch_fused

        return launch_fused(job_overrides, initial_job_idx, self.config, self.context, self.task)
