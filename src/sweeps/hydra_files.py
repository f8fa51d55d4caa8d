"""Hydra's files of a job and of a sweep, written durably.

Hydra writes in place: after a kill, an empty file would keep a run or sweep from being resumed.
"""

from pathlib import Path
from typing import Any, cast

import hydra.core.utils
from hydra._internal.core_plugins import basic_sweeper
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from src.runs.config_files import create_run_folder
from src.runs.folder import Run
from src.system.files import write_durably


def begin_job(folder: Path, config: DictConfig, hydra_section: DictConfig) -> None:
    """Makes the run folder of a job. `hydra_section` is Hydra's section of its configuration."""
    overrides = [str(text) for text in hydra_section.overrides.task]
    values = {"hydra": OmegaConf.to_container(hydra_section, enum_to_str=True)}
    create_run_folder(Run(folder), OmegaConf.to_yaml(config), overrides, values)


def write_durably_for_hydra() -> None:
    """Replaces the functions by which Hydra's jobs and its sweeper write their files."""
    hydra.core.utils._save_config = _save_config
    basic_sweeper.OmegaConf = _Durable  # type: ignore[attr-defined]


def _save_config(cfg: DictConfig, filename: str, output_dir: Path) -> None:
    """Hydra calls it for each of the three files, config.yaml first."""
    if filename == "config.yaml":
        begin_job(output_dir.parent, cfg, cast(DictConfig, HydraConfig.get()))


class _Durable(OmegaConf):
    @staticmethod
    def save(config: Any, f: Any, resolve: bool = False) -> None:
        write_durably(Path(f), OmegaConf.to_yaml(config, resolve=resolve))
