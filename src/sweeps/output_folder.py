"""The folder into which a command writes: where it is, and whether it may be used."""

import functools
import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from src.config.compose import MAIN, NUMBERED, Composer
from src.config.faults import find_launcher_faults
from src.config.overrides import is_hydras, parse, quoted
from src.config.schema import CONF
from src.config.written import written
from src.system.errors import InputError
from src.system.files import require_contained
from src.system.launch import launch_info

MOST_JOBS = 256  # processes of the joblib launcher; -1: one for each core
# Files that show that a folder is in use by a run, a sweep or a search.
RECORDS = (
    "history.csv", "result.json", "results.csv", "multirun.yaml", "search.yaml", "confirm.yaml",
    ".hydra/config.yaml",
)  # fmt: skip


def last_value(overrides: Sequence[Override], key: str) -> Any:
    """The last value that a command line gives to a key, or None."""
    values = [each.value() for each in overrides if each.key_or_group == key]
    return values[-1] if values else None


def with_folder(texts: Sequence[str], key: str, folder: Path) -> list[str]:
    """The overrides, with a key of Hydra set to a path of any characters except `${`."""
    if "${" in str(folder):
        raise InputError(f"{folder}: Hydra would replace the part after ${{; rename the folder")
    plain = parse(f"{key}={folder}", [])
    readable = plain is not None and plain.value() == str(folder)
    fixed = f"{key}={folder if readable else quoted(str(folder))}"
    return [*(text for text in texts if text != fixed), fixed]


def named_folder(
    composer: Composer, overrides: Sequence[Override], arguments: Namespace
) -> Path | None:
    """The folder that the command line names, or None. Raises InputError when the folder is in use
    and not to be resumed, and when `resume=auto` has no folder."""
    sweep, resume = arguments.multirun, last_value(overrides, "resume") == "auto"
    key, folder = "hydra.sweep.dir" if sweep else "hydra.run.dir", None
    if arguments.config_dir or any(is_hydras(each.key_or_group) for each in overrides):
        folder = _composed_folder(composer, overrides, sweep, resume)
    if folder is None and resume:
        raise InputError(
            f"resume=auto needs a folder that is always the same; type {key}=FOLDER too"
        )
    if folder is None or launch_info().rank:  # rank 0 checks the folder before it writes there
        return folder
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{key}={folder}: is not a folder; name another one")
    foreign = ".hydra/config.yaml" if sweep else "multirun.yaml"  # a run is not a sweep
    for name in (foreign,) if resume else RECORDS:
        if (folder / name).exists():
            raise InputError(
                f"{key}={folder}: holds a {'sweep' if sweep else 'run'} already ({name}), which "
                f"would be overwritten; name another folder, or type resume={folder} to resume it"
            )
    require_contained(folder)
    return folder


def _composed_folder(
    composer: Composer, overrides: Sequence[Override], sweep: bool, resume: bool
) -> Path | None:
    """hydra.run.dir or hydra.sweep.dir as Hydra composes it; None for the default, and for a path
    with the time in it, which cannot be resumed. Raises InputError as `_require_usual`."""
    texts = [each.input_line or "" for each in overrides if not each.is_sweep_override()]
    section = "sweep" if sweep else "run"
    try:
        composed = composer.load_configuration(MAIN, texts, RunMode.RUN)
        HydraConfig.instance().set_config(composed)
        _require_usual(composed.hydra, sweep)
        typed = OmegaConf.to_container(composed.hydra[section])["dir"]  # type: ignore[call-overload,index]
        shipped = yaml.safe_load((CONF / "train.yaml").read_text())["hydra"][section]["dir"]
        if typed == shipped or (resume and "${now:" in str(typed)):
            return None
        # Once Hydra has made A/B, the path A/B/.. is A.
        return Path(os.path.normpath(str(composed.hydra[section].dir)))
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(" ".join(str(error).split())) from None


def _require_usual(hydra_section: DictConfig, sweep: bool) -> None:
    """Raises InputError for keys of Hydra that would write trials or configurations into unexpected
    folders or start other runs than were checked, and for numbers out of range."""
    values: Any = OmegaConf.to_container(hydra_section, enum_to_str=True)
    mode = "MULTIRUN" if sweep else "RUN"
    for path, allowed, remedy in (
        ("mode", (None, mode), "type -m for a sweep" if not sweep else "leave out -m for one run"),
        ("sweep.subdir", (NUMBERED,), "trials have the folders 0, 1, 2, …; leave it out"),
        ("output_subdir", (".hydra",), "a run has its configuration there; leave it out"),
        ("job.chdir", (None, False), "paths are relative to where you are; leave it out"),
    ):
        value = functools.reduce(lambda inner, key: inner[key], path.split("."), values)
        if value not in allowed:
            raise InputError(f"hydra.{path}={written(value)}: {remedy}")
    launcher = values["launcher"]
    if "max_trials" in launcher:
        _, faults = find_launcher_faults({k: v for k, v in launcher.items() if k != "_target_"})
        if faults:
            raise InputError("\n".join(faults))
    jobs = launcher.get("n_jobs")
    if jobs is not None and not (isinstance(jobs, int) and jobs and -1 <= jobs <= MOST_JOBS):
        raise InputError(
            f"hydra.launcher.n_jobs={jobs}: must be at least 1 and at most {MOST_JOBS}, or -1: "
            "a job on each core"
        )
