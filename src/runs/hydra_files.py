"""Hydra's own files of a run and of a sweep, whole at every instant; and its errors, told as ours.
No torch here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra._internal.utils
import hydra.core.utils
from hydra._internal.core_plugins import basic_sweeper
from omegaconf import OmegaConf

from src.system.errors import exit_on_error
from src.system.files import write_durably

_hydra_run_and_report = hydra._internal.utils.run_and_report


def keep_whole() -> None:
    """Lets Hydra write its files as this project writes its own, and end as its commands do.

    It writes them in place, and anew whenever a sweep goes on: a process that was killed in between
    left an empty config.yaml or multirun.yaml, and nothing could go on from it.
    """
    hydra.core.utils._save_config = _save_config
    hydra._internal.utils.run_and_report = _run_and_report
    basic_sweeper.OmegaConf = _Whole  # type: ignore[attr-defined]


def _run_and_report(func: Callable[[], Any]) -> Any:
    """Hydra prints a traceback of every Exception that leaves a job, a sweep, or its own code."""

    def in_door() -> Any:
        with exit_on_error():
            return func()

    return _hydra_run_and_report(in_door)


def _save_config(cfg: Any, filename: str, output_dir: Path) -> None:
    output_dir.mkdir(parents=True, exist_ok=True)
    write_durably(output_dir / filename, OmegaConf.to_yaml(cfg))


class _Whole(OmegaConf):
    @staticmethod
    def save(config: Any, f: Any, resolve: bool = False) -> None:
        write_durably(Path(f), OmegaConf.to_yaml(config, resolve=resolve))
