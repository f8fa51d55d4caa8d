"""hydra/launcher=fused: the trials of a sweep train together, as stacked networks.

Hydra finds launchers only in a folder of this name, and imports the folder at every start.
Therefore the imports that take long are in src.sweeps.launcher.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
    # machine, each with a GPU, or with a share of the cores.
    executor: str | None = None
    # How many processes; null: one for each GPU, without GPUs one for each core.
    slots: int | None = None


ConfigStore.instance().store(group="hydra/launcher", name="fused", node=FusedLauncherConf)


class FusedLauncher(Launcher):
    def __init__(
        self,
        max_trials: int | None,
        halving: int | None,
        executor: str | None,
        slots: int | None,
    ) -> None:
        self.max_trials, self.halving = max_trials, halving
        self.executor, self.slots = executor, slots

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from src.sweeps.launcher import launch_fused

        return launch_fused(
            job_overrides, initial_job_idx, self.config, self.context, self.task,
            max_trials=self.max_trials, halving=self.halving, executor=self.executor,
            slots=self.slots,
        )  # fmt: skip
