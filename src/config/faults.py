"""Plain values to a checked configuration, or to a message for each fault.

A message names the key, the given value, what is allowed and what to type instead.
"""

import difflib
import functools
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import TypeAdapter, ValidationError

from src.config.rules import Values, broken_rules
from src.config.schema import (
    CONF,
    GROUPS,
    MOST_POINTS,
    NO_DEFAULT,
    Config,
    Execution,
    FusedLauncher,
    Search,
    Section,
)
from src.config.written import shortened, typed, written
from src.system.errors import InputError
from src.system.extras import missing
from src.system.files import YAML_LIMIT, parse_yaml, read_bounded

FAULTS_SHOWN = 50
MOST_READ = 10_000  # configurations that are kept; a sweep has no more trials
_SCHEMA = TypeAdapter(Config)
_READ: dict[bytes, Config] = {}  # by the content of their files


def check(values: Mapping[str, Any]) -> Config:
    """The checked configuration of these values. Raises InputError with a line for each fault."""
    config, faults = find_faults(values)
    if config is None:
        raise config_error(faults, consequence="")
    return config


def read_config(path: Path) -> Config:
    """The configuration in a run folder's file. Raises InputError for any other file.

    A sweep reads the file of each trial several times, so configurations are kept by the content of
    their files.
    """
    content = read_bounded(path, YAML_LIMIT)
    config = _READ.get(content)
    if config is None:
        values = parse_yaml(content, path)
        if not isinstance(values, dict):
            raise InputError(f"{path}: is not a configuration")
        try:
            config = check(values)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        _remember(content, config)
    return config


def remember_config(content: bytes, values: Mapping[str, Any], config: Config) -> None:
    """From now on `read_config` returns `config`, which was checked, for a file with this content,
    if the content's values are those of `config`."""
    if _SCHEMA.validate_python(values) == config:
        _remember(content, config)


def _remember(content: bytes, config: Config) -> None:
    if len(_READ) == MOST_READ:
        _READ.clear()
    _READ[content] = config


def find_faults(values: Mapping[str, Any]) -> tuple[Config | None, list[str]]:
    """The configuration and no faults, or None and a message for each fault."""
    config, faults = None, []
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        faults = _schema_faults(error, values)
    faults = list(dict.fromkeys([*faults, *broken_rules(values)]))
    return (None if faults else config), faults


def find_search_faults(values: Mapping[str, Any]) -> tuple[Search | None, list[str]]:
    """As find_faults, for the values of the section `search`."""
    try:
        search = Search.model_validate(values)
    except ValidationError as error:
        return None, _schema_faults(error, {"search": values}, "search")
    return search, [*_fold_faults(search), *_execution_faults(search, "search")]


def _fold_faults(search: Search) -> Iterator[str]:
    folds = search.folds
    if folds is None:
        return
    if search.halving is not None:
        yield (
            f"search.halving={search.halving}: compares single runs, and search.folds={folds} "
            "compares means over folds; leave one of them out"
        )
    if search.batch * folds > MOST_POINTS:
        yield (
            f"search.batch={search.batch}: with search.folds={folds}, a batch has "
            f"{search.batch * folds:,} runs, at most {MOST_POINTS:,}; type "
            f"search.batch={MOST_POINTS // folds} or less"
        )


def find_launcher_faults(values: Mapping[str, Any]) -> tuple[FusedLauncher | None, list[str]]:
    """As find_faults, for the section `hydra.launcher` of hydra/launcher=fused."""
    try:
        launcher = FusedLauncher.model_validate(values)
    except ValidationError as error:
        return None, _schema_faults(error, {"hydra": {"launcher": values}}, "hydra.launcher")
    faults = _execution_faults(launcher, "hydra.launcher")
    if not launcher.wait and launcher.executor not in DETACHED:
        faults.append(
            "hydra.launcher.wait=false: only a cluster trains without this command; type "
            f"{_either('hydra.launcher.executor', DETACHED)} too"
        )
    elif not launcher.wait and launcher.executor == "ray" and launcher.ray_address is None:
        faults.append(
            "hydra.launcher.wait=false: without an address, Ray ends with this command; type "
            "hydra.launcher.address=HOST:PORT too"
        )
    return launcher, faults


EXECUTORS_OF = {  # the executors that have a key
    "slots": ("local", "slurm", "ray"),
    "gpus": ("slurm", "ray"),
    "cpus": ("slurm", "ray"),
    "memory": ("slurm", "ray"),
    "minutes": ("slurm",),
    "partition": ("slurm",),
    "account": ("slurm",),
    "setup": ("slurm",),
    "address": ("ray",),
}
DETACHED = ("slurm", "ray")  # executors of other machines, whose work outlives the command
PACKAGES = {"slurm": "submitit", "ray": "ray"}


def _execution_faults(execution: Execution, section: str) -> list[str]:
    faults = []
    for key, executors in EXECUTORS_OF.items():
        value = getattr(execution, key)
        if value is not None and execution.executor not in executors:
            remedy = _either(f"{section}.executor", executors)
            faults.append(
                f"{typed(f'{section}.{key}', value)}: needs another executor; type {remedy} too"
            )
    name = execution.executor
    if name in PACKAGES:
        faults += missing(f"{section}.executor={name}", name, (PACKAGES[name],))
    if name == "slurm" and shutil.which("sbatch") is None:
        faults.append(
            f"{section}.executor=slurm: there is no sbatch on this machine; start the command on a "
            "machine of the cluster"
        )
    return faults


def _either(key: str, values: Sequence[str]) -> str:
    return f"{key}={' or '.join(values)}"


def config_error(faults: Sequence[str], consequence: str = ", nothing was started") -> InputError:
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = "\n".join(f"  {fault}" for fault in faults)
    return InputError(f"{count} in the configuration{consequence}\n{lines}")


# --- the keys of the schema ------------------------------------------------------------------


@functools.cache
def known_keys() -> frozenset[str]:
    """Every dotted key of every choice of every group, without the `name` of a group."""
    keys = set()
    for name, field in Config.model_fields.items():
        kinds = get_args(field.annotation) or (field.annotation,)
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
        for section in sections:
            keys |= {f"{name}.{key}" for key in section.model_fields if key != "name"}
        if not sections:
            keys.add(name)
    return frozenset(keys)


def _owners(key: str) -> str:
    """A text with the choices of a group that have a key."""
    section, name = key.split(".")
    kinds = get_args(Config.model_fields[section].annotation)
    names = [
        choice
        for kind in kinds
        if name in kind.model_fields
        for choice in get_args(kind.model_fields["name"].annotation)
    ]
    owners = [choice for choice in options(section) if choice in names]
    return f"it belongs to {section}={', '.join(owners)}"


def options(group: str, folder: Path = CONF) -> list[str]:
    """The choices that a folder has for a configuration group."""
    return sorted(path.stem for path in (folder / group).glob("[!_]*.yaml"))


def unknown_search_key(key: str, given: str) -> str | None:
    """As unknown_key, for a key that begins with `search.`."""
    keys = [f"search.{name}" for name in Search.model_fields]
    return None if key in keys else f"{given}: unknown key{did_you_mean(key, keys)}"


def unknown_key(key: str, given: str) -> str | None:
    """The fault of an override with a key that is not in the schema, or None."""
    if key in known_keys() or key in GROUPS:
        return None
    if key.startswith("search.") and key[len("search.") :] in Search.model_fields:
        return f"{given}: is a key of python -m src.search"
    return f"{given}: unknown key{did_you_mean(key, [*known_keys(), *GROUPS])}"


def did_you_mean(word: str, words: Sequence[str]) -> str:
    """`; did you mean …?`, or "". A key may also be found by its last part: lr, optimizer.lr."""
    close = difflib.get_close_matches(word, words, 1, 0.65)
    if not close:
        by_end = {key.rpartition(".")[2]: key for key in words}
        ends = difflib.get_close_matches(word.rpartition(".")[2], by_end, 1, 0.75)
        close = [by_end[end] for end in ends]
    return f"; did you mean {close[0]}?" if close else ""


# --- pydantic's errors as messages -----------------------------------------------------------


def _schema_faults(
    error: ValidationError, values: Mapping[str, Any], section: str | None = None
) -> list[str]:
    """One message for each key. Pydantic has an error for each member of a union and for each
    element of a list. `section` is given when the error is about this section alone."""
    by_key: dict[str, list[Any]] = {}
    for detail in error.errors():
        key = _key(detail["loc"]) if section is None else f"{section}.{detail['loc'][0]}"
        by_key.setdefault(key, []).append(detail)
    shown = [*by_key.items()][:FAULTS_SHOWN]  # to find a similar key takes time
    more = [f"and {len(by_key) - len(shown):,} more"] if len(by_key) > len(shown) else []
    return [_schema_fault(key, details, values) for key, details in shown] + more


def _key(location: tuple[int | str, ...]) -> str:
    """('optimizer', 'sgd', 'lr') gives optimizer.lr; an index into a list is left out."""
    section, *names = [str(name) for name in location]
    field = Config.model_fields.get(section)
    tagged = field is not None and field.discriminator is not None
    return ".".join([section, *(names[1:2] if tagged else names[:1])])


def _schema_fault(key: str, details: Sequence[Any], values: Mapping[str, Any]) -> str:
    kinds = {detail["type"] for detail in details}
    section = key.partition(".")[0]
    read = Values(values)
    name = read[f"{section}.name"]
    given = f"{key}={shortened(read[key])}"
    if "extra_forbidden" in kinds:
        if key in known_keys():
            return f"{given}: {section}={name} has no such key; {_owners(key)}"
        return unknown_key(key, given) or f"{given}: not allowed here"
    if kinds & {"union_tag_invalid", "union_tag_not_found"}:
        choices = options(section)
        return f"{section}={name}: must be one of {', '.join(choices)}"
    if "missing" in kinds:
        return f"{key}: is missing{_example(key, name)}"
    if NO_DEFAULT in details[0]["msg"]:
        placeholder = details[0]["msg"].rpartition(" ")[2]  # such as PATH, from schema.py
        return f"{key}: {NO_DEFAULT}; type {key}={placeholder}"
    reasons = [_reason(detail, read[key]) for detail in details]
    of_items = all(isinstance(detail["loc"][-1], int) for detail in details)
    word = "and" if of_items else "or"  # a fault of each item, or one for each type of the value
    text = f" {word} ".join(dict.fromkeys(reasons)).replace(f" {word} must be ", f" {word} ")
    listed = kinds == {"literal_error"}  # a complete list needs no example
    return f"{given}: {text}{'' if listed else _example(key, name)}"


def _reason(detail: Any, value: Any) -> str:
    if detail["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", detail["msg"])
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        return f"must be {'one of ' if len(allowed) > 1 else ''}{', '.join(allowed)}{hint}"
    message = str(detail["msg"]).removeprefix("Value error, ")
    message = message.replace("Input should", "must").replace("List should", "must")
    message = message.replace("be a valid integer", "be a whole number")
    return message.replace(" after validation", "")


def _example(key: str, name: Any) -> str:
    """A valid value of the key to type: its default in conf/."""
    section = key.partition(".")[0]
    shipped = yaml.safe_load((CONF / "train.yaml").read_text("utf-8"))
    shipped |= yaml.safe_load((CONF / "search.yaml").read_text("utf-8"))
    others = [] if name else options(section)  # if the group has no choice, any of its files
    for choice in (name, "default", "_common", *others):
        path = CONF / section / f"{choice}.yaml"
        if path.exists():
            shipped = {**shipped, section: yaml.safe_load(path.read_text("utf-8"))}
        value = Values(shipped)[key]
        if value is not None:
            return f", for example {key}={written(value)}"
    return ""
