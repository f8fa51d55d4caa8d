"""hydra/sweeper=zip: Hydra's basic sweeper, but it knows KEY=zip(A,B,…), which its parser does not.

A command with zip(…) chooses this sweeper by itself.
"""

from dataclasses import dataclass
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper, BasicSweeperConf
from hydra.core.config_store import ConfigStore


@dataclass
class ZipSweeperConf(BasicSweeperConf):
    _target_: str = "hydra_plugins.zip_sweeper.ZipSweeper"


ConfigStore.instance().store(group="hydra/sweeper", name="zip", node=ZipSweeperConf)


class ZipSweeper(BasicSweeper):
    def sweep(self, arguments: list[str]) -> Any:
        self.typed = [*self._parse_config(), *arguments]
        self.params = {}
        return super().sweep([])  # so Hydra's parser has nothing to parse

    def split_arguments(  # type: ignore[override]
        self, _: Any, max_batch_size: int | None
    ) -> list[list[list[str]]]:
        """The overrides of each job, in batches."""
        from src.sweeps.zipped import jobs_of

        return [*self.split_overrides_to_chunks(jobs_of(self.typed), max_batch_size)]
