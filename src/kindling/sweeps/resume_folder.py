"""`resume=FOLDER`: a run or a sweep continues with its own configuration."""

import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kindling.config.compose import compose
from kindling.config.faults import EXECUTORS, check
from kindling.config.overrides import (
    is_hydras,
    key_of,
    last_value,
    override_fault,
    parse,
    parse_all,
    parsed,
    with_folder,
)
from kindling.config.schema import GROUPS, UNTRAINED, Config, Execution, FusedLauncher
from kindling.data.paths import path_faults
from kindling.records.config_files import require_same
from kindling.records.folder import Run, is_confirmation, is_search, is_sweep, resume_command
from kindling.records.foreign import WRITTEN, require_own_paths
from kindling.records.lookup import RESUMED, find
from kindling.sweeps.requirements import require_machine
from kindling.system.errors import InputError
from kindling.system.extras import missing_loggers
from kindling.system.files import read_yaml, require_contained
from kindling.system.installation import as_command

NAMES = "a run, runs/DATE/TIME, or a sweep, sweeps/DATE/TIME"
LAUNCHERS = ("basic", "fused", "joblib")
LAUNCHER = "hydra.launcher"
LAUNCHER_KEYS = (
    "hydra/launcher", "hydra.launcher.n_jobs",
    *(f"{LAUNCHER}.{name}" for name in FusedLauncher.model_fields),
)  # fmt: skip
# A record may come from a stranger. These keys run commands here, or connect to a machine that may
# send code, so they are typed anew.
TYPED_ANEW = ("setup", "address")


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
    keys than the executor's.
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
    if others and name != "fused":
        raise InputError(
            f"{' '.join(others)}: the sweep of {folder} has another launcher; leave it out"
        )
    chosen = continued(folder, chosen, others, LAUNCHER)
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
    paths = [text for text in others if key_of(text) in WRITTEN]
    others = [text for text in others if text not in paths]
    for why in _refusals(run, others, arguments.multirun):
        raise InputError(f"resume={folder}: {why}")
    if arguments.config_dir is not None:
        raise InputError(
            f"--config-dir={arguments.config_dir}: resume={folder} uses the run's own "
            "configuration; leave --config-dir out"
        )
    config = run.config
    if others:
        config = _with_more_epochs(folder, config, others)
        if config.trainer.max_epochs > run.config.trainer.max_epochs:
            again = " ".join([run.command, *map(shlex.quote, others)])
            run.require_state(f"to train it again from the start, type {again}")
    moved = [f"{fault}; put it back as it was" for fault in path_faults(config.data.model_dump())]
    absent = missing_loggers(config.logger.chosen) + moved
    if absent:
        raise InputError("\n  ".join([f"resume={folder}: cannot continue here", *absent]))
    require_own_paths([config], [folder], resume_command(folder), paths)
    require_machine(config)
    return config


def _refusals(run: Run, others: Sequence[str], multirun: bool) -> Iterator[str]:
    """Why a folder cannot be resumed as a run, or not with these keys, whatever their values."""
    folder = run.folder
    if is_search(folder) or is_confirmation(folder):
        kind = "search" if is_search(folder) else "confirmation"
        yield f"is a {kind}; type {resume_command(folder)}"
    if not folder.exists():
        yield f"there is no such folder; name {NAMES}"
    if not run.config_file.exists():
        files = ".hydra/config.yaml nor multirun.yaml"
        yield f"is not a run or sweep folder; it has neither {files}; name {NAMES}"
    run.require_single()
    if multirun:
        yield "is one run, not a sweep; leave out -m"
    if is_sweep(folder.parent) and not run.ended:
        sweep = resume_command(folder.parent)
        yield f"is a trial of a sweep that has not ended; type {sweep}"
    if run.config.only_from_python:
        call = f"kindling.fit(config, {str(folder)!r}, model=…, data=…, resume=True)"
        yield f"trains what a Python program holds; there, call {call}"
    require_contained(folder)
    if hydras := [text for text in others if is_hydras(key_of(text))]:
        yield f"continues in its folder; leave out {' '.join(hydras)}"
    if labels := [text for text in others if key_of(text) in UNTRAINED]:
        remedy = f"type {as_command('runs')} label {folder} to change them"
        yield f"keeps its name and tags; leave out {' '.join(labels)}, and {remedy}"
    own = [text for text in others if key_of(text) == "data.path"]
    if own and hasattr(run.config.data, "path"):  # the default data set has no such key
        yield f"keeps its data.path; leave out {' '.join(own)}"


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


# --- the keys of an executor, of a sweep or a search --------------------------------------------


def is_execution(text: str, section: str) -> bool:
    """Whether an override sets a key of the executor, or `wait`."""
    key = _key(text)
    name = key.removeprefix(f"{section}.")
    return name != key and name in (*Execution.model_fields, "wait")


def _key(text: str) -> str:
    """The key as Hydra reads the override, however it is spelt."""
    override = parse(text, [])
    return override.key_or_group if override is not None else ""


def continued(
    folder: Path, recorded: Sequence[str], typed: Sequence[str], section: str
) -> list[str]:
    """The overrides with which a sweep or search in `folder` goes on: those of its record, and
    `typed`, overrides of the executor's keys, in place of those of the record. Keys of the record
    that another executor does not have are left out. Raises InputError for TYPED_ANEW."""
    kept = [text for text in recorded if not is_execution(text, section)]
    execution = [text for text in recorded if is_execution(text, section)]
    chosen = {_key(text): text for text in [*execution, *typed]}
    name = f"{section}.executor"
    executor: Any = parsed(chosen[name]).value() if name in chosen else None
    faults = []
    for key, text in chosen.items():
        last = key.removeprefix(f"{section}.")
        if text in typed:
            kept.append(text)
        elif last in ("executor", *EXECUTORS.get(executor, ())):
            if last in TYPED_ANEW:
                faults.append(
                    f"resume={folder}: its record has {text}, which is not used unread; type "
                    f"{key}=… anew, or {key}=null"
                )
            kept.append(text)
    if faults:
        raise InputError("\n".join(faults))
    return kept
