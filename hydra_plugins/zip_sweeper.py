"""hydra/sweeper=zip: of a command with KEY=zip(A,B,…), which Hydra's parser cannot read.

Such a command chooses this sweeper by itself. Its record says so; its trials are trained without
the sweeper, except with a launcher of others or with callbacks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


@dataclass
class ZipSweeperConf:
    _target_: str = "hydra_plugins.zip_sweeper.ZipSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


ConfigStore.instance().store(group="hydra/sweeper", name="zip", node=ZipSweeperConf)


class ZipSweeper(Sweeper):
    def __init__(self, max_batch_size: int | None, params: dict[str, str] | None) -> None:
        self.size, self.params = max_batch_size, params

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:  # noqa: ARG002
        from kindling.sweeps.jobs import zip_jobs

        jobs = zip_jobs(self.params or {})
        size, returned = self.size or len(jobs), list[Sequence[JobReturn]]()
        for at in range(0, len(jobs), size):
            returned.append(self.launcher.launch(jobs[at : at + size], initial_job_idx=at))
        return returned
