"""hydra/launcher=fused: the trials of a sweep train as stacked networks.

Hydra finds launchers in a folder of this name only, and imports it at every start: what is heavy
waits in src.sweeps.launcher.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from src.config.compose import SweepLoader


@dataclass
class FusedLauncherConf:
    _target_: str = "hydra_plugins.fused_launcher.FusedLauncher"
    # Most trials of one stack; null: as many as half of the free memory holds.
    max_trials: int | None = None
    # Successive halving: after 1, N, N², … epochs the best of a stack go on that do at most 1/N of
    # its arithmetic; null: all.
    halving: int | None = None


ConfigStore.instance().store(group="hydra/launcher", name="fused", node=FusedLauncherConf)


class FusedLauncher(Launcher):
    def __init__(self, max_trials: int | None, halving: int | None) -> None:
        self.max_trials, self.halving = max_trials, halving

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config
        # The sweeper holds the same context, and composes every point to see whether it can.
        hydra_context.config_loader = SweepLoader(hydra_context.config_loader)  # type: ignore[assignment]

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from src.sweeps.launcher import launch_fused

        return launch_fused(
            self.hydra_context,
            self.task_function,
            self.config,
            job_overrides,
            initial_job_idx,
            max_trials=self.max_trials,
            halving=self.halving,
        )
