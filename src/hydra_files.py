"""Hydra's own files of a run and of a sweep, whole at every instant. No torch here."""

from pathlib import Path
from typing import Any

import hydra.core.utils
from hydra._internal.core_plugins import basic_sweeper
from omegaconf import OmegaConf

from src.files import write_durably


def keep_whole() -> None:
    """Lets Hydra write its files as this project writes its own.

    It writes them in place, and anew whenever a sweep goes on: a process that was killed in between
    left an empty config.yaml or multirun.yaml, and nothing could go on from it.
    """
    hydra.core.utils._save_config = _save_config
    basic_sweeper.OmegaConf = _Whole  # type: ignore[attr-defined]


def _save_config(cfg: Any, filename: str, output_dir: Path) -> None:
    output_dir.mkdir(parents=True, exist_ok=True)
    write_durably(output_dir / filename, OmegaConf.to_yaml(cfg))


class _Whole(OmegaConf):
    @staticmethod
    def save(config: Any, f: Any, resolve: bool = False) -> None:
        write_durably(Path(f), OmegaConf.to_yaml(config, resolve=resolve))
