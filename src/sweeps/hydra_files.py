"""Hydra's files of a job and of a sweep, written durably.

Hydra writes in place: after a kill, an empty file would keep a run or sweep from being resumed.
"""

import functools
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra.core.utils
from hydra._internal.core_plugins import basic_sweeper
from hydra.core.hydra_config import HydraConfig
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import OmegaConfDumper

from src.config.compose import Composer
from src.config.faults import remember_config
from src.config.schema import Config
from src.runs.config_files import DUMPER, new_files, yaml_text
from src.runs.folder import Run
from src.system.files import write_durably, write_into_folder

DIVIDED = 2  # levels of a configuration whose entries are converted one by one


def begin_job(folder: Path, values: Mapping[str, Any], hydra_section: Mapping[str, Any]) -> None:
    """Makes the run folder of a job."""
    write_into_folder(job_files(folder, values, hydra_section))


def job_files(
    folder: Path,
    values: Mapping[str, Any],
    hydra_section: Mapping[str, Any],
    checked: Config | None = None,
) -> dict[Path, str]:
    """The files to write into the run folder of a job, from plain values. `hydra_section` is
    Hydra's section of the job's configuration. `checked` is the configuration with these values, if
    it is known."""
    overrides = hydra_section["overrides"]["task"]
    text = _to_yaml(values)
    if checked is not None:
        remember_config(text.encode(), values, checked)
    return new_files(Run(folder), text, overrides, _to_yaml({"hydra": hydra_section}))


class _Dumper(DUMPER):  # type: ignore[misc]
    """Writes the same text as OmegaConf.to_yaml, but with libyaml."""


_Dumper.add_representer(str, OmegaConfDumper.str_representer)


def _to_yaml(values: Mapping[str, Any], *parents: str) -> str:
    """The text of a section within its parents, without the lines of the parents."""
    return "".join(_entry(name, each, parents) for name, each in values.items())


def _entry(name: str, value: Any, parents: tuple[str, ...]) -> str:
    if isinstance(value, Mapping) and value and len(parents) < DIVIDED:
        own = _text(pickle.dumps((name, {"": 0}, parents))).partition("\n")[0]
        return f"{own}\n{_to_yaml(value, *parents, name)}"
    return _text(pickle.dumps((name, value, parents)))


@functools.lru_cache(1024)  # the jobs of a sweep have most entries in common
def _text(pickled: bytes) -> str:
    name, value, parents = pickle.loads(pickled)
    section = {name: value}
    for parent in reversed(parents):
        section = {parent: section}
    return yaml_text(section, _Dumper).split("\n", len(parents))[-1]


def adapt_hydra() -> None:
    """Replaces the functions by which Hydra's jobs and its sweeper write their files, and the one
    by which its sweeper validates jobs."""
    hydra.core.utils._save_config = _save_config
    basic_sweeper.OmegaConf = _Durable  # type: ignore[attr-defined]
    setattr(basic_sweeper.BasicSweeper, "validate_batch_is_legal", _validate)  # noqa: B010


def _save_config(cfg: DictConfig, filename: str, output_dir: Path) -> None:
    """Hydra calls it for each of the three files, config.yaml first."""
    if filename == "config.yaml":
        values: Any = OmegaConf.to_container(cfg, enum_to_str=True)
        section: Any = OmegaConf.to_container(HydraConfig.get(), enum_to_str=True)
        begin_job(output_dir.parent, values, section)


class _Durable(OmegaConf):
    @staticmethod
    def save(config: Any, f: Any, resolve: bool = False) -> None:
        write_durably(Path(f), OmegaConf.to_yaml(config, resolve=resolve))


def _validate(sweeper: Sweeper, batch: Sequence[Sequence[str]]) -> None:
    """Like Hydra's method, which composes each job, but not for jobs that were checked already."""
    assert sweeper.hydra_context is not None
    loader = sweeper.hydra_context.config_loader
    if isinstance(loader, Composer):
        batch = [overrides for overrides in batch if loader.checked(overrides) is None]
    Sweeper.validate_batch_is_legal(sweeper, batch)
