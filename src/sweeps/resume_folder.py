"""`resume=FOLDER`: a run or a sweep continues with its own configuration."""

import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from src.config.compose import compose
from src.config.faults import check
from src.config.overrides import is_hydras, key_of, override_fault, parse, parse_all
from src.config.schema import GROUPS, UNTRAINED, Config, FusedLauncher
from src.data.paths import path_faults
from src.runs.config_files import require_same
from src.runs.folder import Run, is_confirmation, is_search, is_sweep, resume_command
from src.runs.lookup import RESUMED, find
from src.sweeps.execution import continued, is_execution
from src.sweeps.output_folder import last_value, with_folder
from src.sweeps.requirements import require_machine
from src.system.errors import InputError
from src.system.extras import missing_loggers
from src.system.files import read_yaml, require_contained

NAMES = "a run, runs/DATE/TIME, or a sweep, sweeps/DATE/TIME"
LAUNCHERS = ("basic", "fused", "joblib")
LAUNCHER = "hydra.launcher"
LAUNCHER_KEYS = (
    "hydra/launcher", "hydra.launcher.n_jobs",
    *(f"{LAUNCHER}.{name}" for name in FusedLauncher.model_fields),
)  # fmt: skip


def folder_to_resume(texts: Sequence[str]) -> Path | None:
    """The folder that `resume=FOLDER` names, or None. FOLDER is taken literally if it exists, or if
    Hydra's grammar cannot read it: Hydra never sees this override."""
    names = [text.partition("=")[2] for text in texts if text.lstrip("+").startswith("resume=")]
    if not names or names[-1] in ("null", "auto"):
        return None
    override = parse(f"resume={names[-1]}", [])
    value = override.value() if override is not None else None
    text = value if isinstance(value, str) and not Path(names[-1]).is_dir() else names[-1]
    return find(text, RESUMED)


def sweep_to_resume(folder: Path, others: Sequence[str], config_dir: str | None) -> list[str]:
    """The command line that made a sweep, from Hydra's record, to resume the sweep in its folder.

    The record may come from a stranger, and Hydra imports the classes that its configuration names.
    Therefore only overrides of this project's keys pass, and of Hydra's keys only the known
    launchers. Raises InputError for any other record, and when the command has overrides of other
    keys than the executor's (src/sweeps/execution.py).
    """
    refused = [text for text in others if not is_execution(text, LAUNCHER)]
    if refused:
        raise InputError(
            f"resume={folder}: a sweep continues as it was; leave out {' '.join(refused)}"
        )
    file = folder / "multirun.yaml"
    record = read_yaml(file)
    try:
        recorded = record["hydra"]["overrides"]
        task_texts, hydra_texts = recorded["task"], recorded["hydra"]
        for texts in (task_texts, hydra_texts):
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise TypeError
    except (KeyError, TypeError):
        raise InputError(f"{file}: is not Hydra's record of a sweep") from None
    faults: list[str] = []
    overrides = parse_all(task_texts, faults)
    faults += [
        f"{each.input_line}: a sweep of this project has no such key"
        for each in overrides
        if is_hydras(each.key_or_group)
    ]
    faults += [fault for each in overrides if (fault := override_fault(each, config_dir))]
    launcher = [
        each
        for each in parse_all(hydra_texts, [])
        if each.key_or_group in LAUNCHER_KEYS and not override_fault(each)
    ]
    name = last_value(launcher, "hydra/launcher")
    if name not in (None, *LAUNCHERS):
        faults.append(f"hydra/launcher={name}: must be one of {', '.join(LAUNCHERS)}")
    if faults:
        raise InputError(
            "\n  ".join([f"{file}: is not the record of a sweep of this project", *faults])
        )
    settings = [each.input_line or "" for each in overrides if each.key_or_group != "resume"]
    chosen = [each.input_line or "" for each in launcher]
    execution, faults = continued(
        folder, [text for text in chosen if is_execution(text, LAUNCHER)], others, LAUNCHER
    )
    if others and name != "fused":
        faults = [f"{' '.join(others)}: the sweep of {folder} has another launcher; leave it out"]
    if faults:
        raise InputError("\n".join(faults))
    chosen = [*(text for text in chosen if not is_execution(text, LAUNCHER)), *execution]
    return [
        "-m",
        *([] if config_dir is None else [f"--config-dir={config_dir}"]),
        *with_folder([*settings, "resume=auto", *chosen], "hydra.sweep.dir", folder),
    ]


def run_to_resume(folder: Path, others: Sequence[str], arguments: Namespace) -> Config:
    """The configuration of a run that continues, perhaps with more epochs.

    Raises InputError for a folder without a run, for another run, and for what this machine lacks.
    """
    run = Run(folder)
    if is_search(folder):
        raise InputError(f"resume={folder}: is a search; type {resume_command(folder)}")
    if is_confirmation(folder):
        raise InputError(f"resume={folder}: is a confirmation; type {resume_command(folder)}")
    if not folder.exists():
        raise InputError(f"resume={folder}: there is no such folder; name {NAMES}")
    if not run.config_file.exists():
        raise InputError(
            f"resume={folder}: is not a run or sweep folder; it has neither .hydra/config.yaml nor "
            f"multirun.yaml; name {NAMES}"
        )
    run.require_single()
    if arguments.multirun:
        raise InputError(f"resume={folder}: is one run, not a sweep; leave out -m")
    if is_sweep(folder.parent) and not run.ended:
        raise InputError(
            f"resume={folder}: is a trial of a sweep that has not ended; type "
            f"{resume_command(folder.parent)}"
        )
    if arguments.config_dir is not None:
        raise InputError(
            f"--config-dir={arguments.config_dir}: resume={folder} uses the run's own "
            "configuration; leave --config-dir out"
        )
    require_contained(folder)
    config = run.config
    _require_settings(folder, config, others)
    if others:
        config = _with_more_epochs(folder, config, others)
        if config.trainer.max_epochs > run.config.trainer.max_epochs:
            again = " ".join([run.command, *map(shlex.quote, others)])
            run.require_state(f"to train it again from the start, type {again}")
    moved = [f"{fault}; put it back as it was" for fault in path_faults(config.data.model_dump())]
    absent = missing_loggers(config.logger.chosen) + moved
    if absent:
        raise InputError("\n  ".join([f"resume={folder}: cannot continue here", *absent]))
    require_machine(config)
    return config


def _require_settings(folder: Path, config: Config, others: Sequence[str]) -> None:
    """Raises InputError for keys that a run cannot be resumed with, whatever their values."""
    hydras = [text for text in others if is_hydras(key_of(text))]
    if hydras:
        raise InputError(f"resume={folder}: continues in its folder; leave out {' '.join(hydras)}")
    labels = [text for text in others if key_of(text) in UNTRAINED]
    if labels:
        raise InputError(
            f"resume={folder}: keeps its name and tags; leave out {' '.join(labels)}, and type "
            f"python -m src.runs label {folder} to change them"
        )
    own = [text for text in others if key_of(text) == "data.path" and hasattr(config.data, "path")]
    if own:  # the default data set has no such key
        raise InputError(f"resume={folder}: keeps its data.path; leave out {' '.join(own)}")


def _with_more_epochs(folder: Path, config: Config, overrides: Sequence[str]) -> Config:
    """The configuration of a run with more epochs. Values that the command line does not set stay
    those of the run, whatever the defaults are now."""
    composed = compose(*overrides).to_primitives()
    defaults = compose().to_primitives()
    values = config.to_primitives()
    for text in overrides:
        group, choice = key_of(text), text.partition("=")[2]
        names = [each.get(group, {}).get("name") for each in (values, composed)]
        if group in GROUPS and names[0] != names[1]:
            raise InputError(f"resume={folder}: its {group} is not {choice}; leave out {text}")
    typed = {key_of(text) for text in overrides}
    for section, settings in values.items():
        new = composed[section]
        if not isinstance(settings, dict):
            values[section] = new if section in typed or new != defaults[section] else settings
            continue
        for key in settings.keys() & new.keys():
            if f"{section}.{key}" in typed or new[key] != defaults[section].get(key):
                settings[key] = new[key]
    refusal = f"resume={folder}: may only change to a larger trainer.max_epochs"
    require_same(config.to_primitives(), values, refusal)
    return check(values)
