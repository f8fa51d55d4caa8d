"""From the command line of `python -m src.search` to a checked search, without Optuna and torch."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml
from hydra.core.override_parser.types import Override

from kindling.config.compose import shared_composer
from kindling.config.faults import config_error, find_search_faults, known_keys, unknown_search_key
from kindling.config.measures import score_of
from kindling.config.overrides import (
    is_zipped,
    key_of,
    override_fault,
    parse,
    with_quotes,
    zip_faults,
)
from kindling.config.schema import Config, Search
from kindling.config.written import flat
from kindling.records.folder import SEARCH, resume_command
from kindling.records.foreign import WRITTEN, require_own_paths
from kindling.records.lookup import RESUMED_SEARCH, find
from kindling.sweeps.requirements import find_all_faults, require_machine
from kindling.sweeps.resume_folder import continued, is_execution
from kindling.sweeps.search.space import Numbers, Parameter, corners, parameter_of, zip_of
from kindling.system.errors import InputError
from kindling.system.extras import missing
from kindling.system.files import read_yaml
from kindling.system.installation import CONF, as_command
from kindling.system.launch import launch_info


@dataclass(frozen=True)
class CheckedSearch:
    typed: Sequence[str]  # the arguments that resume the search
    settings: Search
    folder: Path
    fixed: Sequence[str]  # the overrides of all trials
    space: Sequence[Parameter]
    corner: Config  # one configuration of the space
    identity: dict[str, str]  # each setting as typed
    within: Path | None = field(default=None, compare=False)  # a search that must still be there


SETTINGS = ("batch", "sampler", "seed", "halving")
COMPARED_BY = ("checkpoint.monitor", "checkpoint.mode")
OF_FOLDS = ("data.folds", "data.fold")
OF_LOSSES = ("task.loss", "task.delta")


def check_command_line(argv: Sequence[str], folder: Path | None = None) -> CheckedSearch:
    """Raises InputError with every fault at once. `folder` is that of a search that is resumed."""
    resumed = [text.partition("=")[2] for text in argv if text.startswith("resume=")]
    if resumed and resumed[-1] != "null":
        return _resume(resumed[-1], [text for text in argv if not text.startswith("resume=")])
    argv, faults = with_quotes(argv, sweep=True), list[str]()
    search_values, fixed, space = _sorted_out(argv, faults)
    settings, search_faults = find_search_faults(search_values)
    faults += search_faults
    folds = None if settings is None else settings.folds
    faults += _fold_faults(folds, fixed, space)
    if not space and not faults:
        faults.append(
            "nothing to search: no key has choice(…), range(…), interval(…) or zip(…); type for "
            "example 'optimizer.lr=tag(log,interval(0.01,1))'"
        )
    combinations = (runs_of(fixed, folds, corner)[0] for corner in corners(space))
    points, composing_faults = shared_composer(None).points(combinations)
    faults += composing_faults
    configs: list[Config] = []
    for point in points:
        config, point_faults = find_all_faults(point)
        faults += [_in_space(fault, space) for fault in point_faults]
        configs += [config] if config is not None else []
    faults += _loss_faults(configs, space)
    faults += missing(as_command("search"), "search", ("optuna",))
    launched_by = launch_info().launched_by
    if launched_by is not None:
        faults.append(
            f"{launched_by} has started this process; start the search alone, with "
            "trainer.devices=N"
        )
    if faults or settings is None:
        raise config_error(list(dict.fromkeys(faults)))
    require_machine(configs[0], settings.executor)
    identity = _identity(configs[0], space, settings)
    if folder is None:
        folder = Path(settings.folder or Path("searches", _name(space, identity)))
    typed = [text for text in argv if not text.startswith("search.folder=")]
    return CheckedSearch(typed, settings, folder, fixed, space, configs[0], identity)


def _sorted_out(
    argv: Sequence[str], faults: list[str]
) -> tuple[dict[str, object], list[str], list[Parameter]]:
    """The section `search`, the fixed overrides, and the space by key. Adds to `faults`."""
    search: dict[str, object] = yaml.safe_load((CONF / "search.yaml").read_text("utf-8"))["search"]
    fixed: list[str] = []
    space: dict[str, Parameter] = {}
    zipped: dict[str, Override] = {}
    keys: set[str] = set()
    for text in argv:
        override = parse(text, faults)
        if override is None:
            continue
        key = override.key_or_group
        try:
            if fault := _fault_of(override):
                raise InputError(fault)
            if key.startswith("search."):
                search[key.removeprefix("search.")] = override.value()
            elif not override.is_sweep_override():
                fixed.append(text)
            elif is_zipped(override):
                zipped[key] = override
            else:
                space[key] = parameter_of(override)
            if key in keys:
                raise InputError(f"{text}: {key} is given twice")
        except InputError as error:
            faults.append(str(error))
        keys.add(key)
    zipping_faults = zip_faults([*zipped.values()])
    faults += zipping_faults
    if zipped and not zipping_faults:
        try:
            parameter = zip_of([*zipped.values()])
            space[parameter.key] = parameter
        except InputError as error:
            faults.append(str(error))
    return search, fixed, [space[key] for key in sorted(space)]


def _fault_of(override: Override) -> str | None:
    """The fault of an override by itself, but for the form of its space."""
    key, text = override.key_or_group, override.input_line or ""
    swept = override.is_sweep_override()
    if key.startswith("search."):
        one = not (swept or override.is_delete())
        return unknown_search_key(key, text) or (None if one else f"{text}: needs one value")
    if key.startswith("hydra"):
        return f"{text}: a search does not use Hydra's launchers; leave it out"
    if swept and key in COMPARED_BY:
        return f"{text}: trials are compared by this key; type one value"
    if not swept and key not in known_keys() and key in Search.model_fields:
        return f"{text}: unknown key; did you mean search.{key}?"
    return override_fault(override)


def runs_of(fixed: Sequence[str], folds: int | None, point: Sequence[str]) -> list[list[str]]:
    """The overrides of each run that trains a point of the space: with folds one for each."""
    if folds is None:
        return [[*fixed, *point]]
    own = [[f"data.folds={folds}", f"data.fold={fold}"] for fold in range(folds)]
    return [[*fixed, *each, *point] for each in own]


def _fold_faults(
    folds: int | None, fixed: Sequence[str], space: Sequence[Parameter]
) -> Iterator[str]:
    searched = [f"{key}={text}" for each in space for key, text in each.texts.items()]
    for text in [*searched, *fixed]:
        if key_of(text) not in OF_FOLDS:
            continue
        if folds is not None:
            yield f"{text}: search.folds={folds} sets this key in each run; leave it out"
        elif text not in fixed:
            yield (
                f"{text}: a search would choose the easiest fold; type search.folds=5 to compare "
                "means over folds"
            )


def _loss_faults(configs: Sequence[Config], space: Sequence[Parameter]) -> Iterator[str]:
    by_loss = [config for config in configs if config.checkpoint.monitor.endswith("/loss")]
    searched = {key: text for each in space for key, text in each.texts.items()}
    for key in filter(searched.get, OF_LOSSES if by_loss else ()):
        score = score_of(by_loss[0].task.name)
        yield (
            f"{key}={searched[key]}: the values of one loss are not compared with those of "
            f"another; type checkpoint.monitor=val/{score} checkpoint.mode=max"
        )


def _in_space(fault: str, space: Sequence[Parameter]) -> str:
    """The fault, with the parameter of the space that reaches the faulty value."""
    for parameter in space:
        if not isinstance(parameter, Numbers) or not fault.startswith(f"{parameter.key}="):
            continue
        if not parameter.integer and ("whole number" in fault or "valid list" in fault):
            whole = re.sub(r"interval\([^)]*\)", r"int(\g<0>)", parameter.text)
            return f"{parameter.key}={parameter.text}: needs integers; type {parameter.key}={whole}"
        return f"{parameter.key}={parameter.text} reaches {fault}"
    return fault


def _identity(config: Config, space: Sequence[Parameter], settings: Search) -> dict[str, str]:
    of_search = {f"search.{name}": str(getattr(settings, name)) for name in SETTINGS}
    of_space = {key: text for parameter in space for key, text in parameter.texts.items()}
    of_runs = dict(flat(config.identity_values()))
    if settings.folds is not None:  # older searches have no such setting
        of_search["search.folds"] = str(settings.folds)
        of_runs = {key: value for key, value in of_runs.items() if key not in OF_FOLDS}
    return of_runs | of_space | of_search


def _name(space: Sequence[Parameter], identity: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    keys = "-".join(key.rpartition(".")[2] for parameter in space for key in parameter.texts)
    return f"{keys[:80]}-{digest}"


def _resume(name: str, others: Sequence[str]) -> CheckedSearch:
    """`resume=FOLDER`: the search of the folder as it was typed, perhaps with more trials."""
    if name == "auto":
        raise InputError("resume=auto: the same command resumes its search anyway; leave it out")
    folder = find(name, RESUMED_SEARCH)
    record = folder / SEARCH
    execution = [text for text in others if is_execution(text, "search")]
    more = [text for text in others if text.startswith("search.trials=")]
    paths = [text for text in others if key_of(text) in WRITTEN]
    refused = [text for text in others if text not in (*execution, *more, *paths)]
    if refused:
        raise InputError(
            f"resume={folder}: a search continues as it was, search.trials alone may grow; leave "
            f"out {' '.join(refused)}"
        )
    if not record.exists():
        raise InputError(f"resume={folder}: is not a search folder; it has no {SEARCH}")
    typed = read_yaml(record)
    if not isinstance(typed, list) or not all(isinstance(text, str) for text in typed):
        raise InputError(f"{record}: is not the record of a search")
    if any(text.startswith("resume=") for text in typed):
        raise InputError(f"{record}: has resume=, which the record of a search never has")
    if more:
        typed = [text for text in typed if not text.startswith("search.trials=")]
    typed = continued(folder, typed, execution, "search")
    command = check_command_line([*typed, *more], folder)
    varied = [text for each in command.space for text in each.overrides(each.extremes[0])]
    for key in {key_of(text) for text in varied} & {*WRITTEN}:
        raise InputError(f"{record}: searches over {key}, which says where to write")
    require_own_paths([command.corner], [folder], resume_command(folder), paths)
    return replace(command, within=folder)
