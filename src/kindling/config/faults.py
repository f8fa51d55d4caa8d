"""Plain values to a checked configuration, or to a message for each fault.

A message names the key, the given value, what is allowed and what to type instead.
"""

import difflib
import functools
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import yaml
from pydantic import TypeAdapter, ValidationError

from kindling.config import registry
from kindling.config.executors import EXECUTORS, detached, keys_of
from kindling.config.registry import CONFIG_FOLDERS
from kindling.config.rules import broken_rules
from kindling.config.schema import (
    GROUPS,
    MOST_POINTS,
    NO_DEFAULT,
    Config,
    Execution,
    FusedLauncher,
    Search,
)
from kindling.config.section import Section, names_of
from kindling.config.written import Values, shortened, typed, written
from kindling.system.errors import InputError
from kindling.system.extras import missing
from kindling.system.files import YAML_LIMIT, parse_yaml, read_bounded
from kindling.system.installation import CONF, as_command
from kindling.system.recent import Recent

FAULTS_SHOWN = 50
MOST_READ = 10_000  # configurations that are kept; a sweep has no more trials
EXTENSIONS = "extensions.yaml"  # beside config.yaml: what comes from extensions, and from which
_SCHEMA = TypeAdapter(Config)
_READ = Recent[bytes, Config](MOST_READ)  # by the content of their files
_CONTENTS = Recent[int, bytes](MOST_READ)  # of the files, by the identity of their configurations


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
            missing = absent(path.with_name(EXTENSIONS))
            raise InputError("\n  ".join([f"{path}: {error}", *missing])) from None
        _keep(content, config)
    return config


def absent(file: Path) -> list[str]:
    """A line for each package that a run needs, by its file, and that is not there."""
    with suppress(InputError):
        return registry.absent(parse_yaml(read_bounded(file, YAML_LIMIT), file))
    return []


def remember_config(content: bytes, values: Mapping[str, Any], config: Config) -> None:
    """From now on `read_config` returns `config`, which was checked, for a file with this content,
    if the content's values are those of `config`."""
    if _SCHEMA.validate_python(values) == config:
        _keep(content, config)


def _keep(content: bytes, config: Config) -> None:
    _READ[content] = config
    _CONTENTS[id(config)] = content


def remembered(configs: Iterable[Config]) -> dict[bytes, Config]:
    """Those of these objects that `read_config` returns, by the content of their files. Another
    process passes them to `remember`, and then need not parse the files."""
    pairs = ((_CONTENTS.get(id(config)), config) for config in configs)
    # Another object may have got the identity since.
    return {key: each for key, each in pairs if key is not None and _READ.get(key) is each}


def remember(contents: Mapping[bytes, Config]) -> None:
    """From now on `read_config` returns these, which `remembered` returned, perhaps elsewhere."""
    for content, config in contents.items():
        _keep(content, config)


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
    if not launcher.wait and launcher.executor not in detached():
        faults.append(
            "hydra.launcher.wait=false: only a cluster trains without this command; type "
            f"hydra.launcher.executor={' or '.join(detached())} too"
        )
    elif not launcher.wait and launcher.executor == "ray" and launcher.ray_address is None:
        faults.append(
            "hydra.launcher.wait=false: without an address, Ray ends with this command; type "
            "hydra.launcher.address=HOST:PORT too"
        )
    return launcher, faults


def _execution_faults(execution: Execution, section: str) -> list[str]:
    faults, name = [], execution.executor
    for key in dict.fromkeys(key for entry in EXECUTORS.values() for key in entry.keys):
        value = getattr(execution, key)
        if value is not None and key not in keys_of(name):
            having = [each for each, entry in EXECUTORS.items() if key in entry.keys]
            faults.append(
                f"{typed(f'{section}.{key}', value)}: needs another executor; type "
                f"{section}.executor={' or '.join(having)} too"
            )
    entry = EXECUTORS.get(name or "")
    if entry and entry.package:
        faults += missing(f"{section}.executor={name}", str(name), (entry.package,))
    if entry and entry.program and shutil.which(entry.program) is None:
        faults.append(
            f"{section}.executor={name}: there is no {entry.program} on this machine; start the "
            "command on a machine of the cluster"
        )
    return faults


def config_error(faults: Sequence[str], consequence: str = ", nothing was started") -> InputError:
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = "\n".join(f"  {fault}" for fault in faults)
    return InputError(f"{count} in the configuration{consequence}\n{lines}")


# --- the keys of the schema ------------------------------------------------------------------


@functools.cache
def _kinds_of_keys() -> dict[str, set[type]]:
    """The types in the annotation of each dotted key; of a key that several choices of a group
    have, those of the last choice. The `name` of a group is left out."""
    found = {}
    for name, field in Config.model_fields.items():
        sections = [kind for kind in _kinds(field.annotation) if issubclass(kind, Section)]
        for section in sections:
            for key, inner in section.model_fields.items():
                found[f"{name}.{key}"] = {*_kinds(inner.annotation)}
            found.pop(f"{name}.name", None)
        if not sections:
            found[name] = {*_kinds(field.annotation)}
    return found


def _kinds(annotation: Any) -> Iterator[type]:
    """The types in an annotation, without those of the values of a Literal."""
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    elif getattr(annotation, "__origin__", None) is list:
        yield list
    for each in get_args(annotation):
        yield from _kinds(each)


@functools.cache
def known_keys() -> frozenset[str]:
    """Every dotted key of every choice of every group, without the `name` of a group."""
    return frozenset(_kinds_of_keys())


@functools.cache
def keys_of_lists() -> frozenset[str]:
    """The keys whose value may be a list."""
    return frozenset(key for key, kinds in _kinds_of_keys().items() if list in kinds)


@functools.cache
def keys_of_texts(*, listed: bool = False) -> frozenset[str]:
    """The keys whose value is a text or a list of texts, or only those with a list."""
    needed = {str, list} if listed else {str}
    return frozenset(
        key for key, kinds in _kinds_of_keys().items() if needed <= kinds <= {str, list, NoneType}
    )


def _owners(key: str) -> str:
    """A text with the choices of a group that have a key."""
    section, name = key.split(".")
    kinds = get_args(Config.model_fields[section].annotation)
    names = {each for kind in kinds if name in kind.model_fields for each in names_of(kind)}
    owners = ", ".join(choice for choice in options(section) if choice in names)
    return f"it belongs to {section}={owners}"


def options(group: str, folder: Path | None = None) -> list[str]:
    """The choices for a configuration group: those of a folder, else all that are installed."""
    folders = [folder] if folder else [CONF, *CONFIG_FOLDERS]
    return sorted(path.stem for each in folders for path in (each / group).glob("[!_]*.yaml"))


def unknown_search_key(key: str, given: str) -> str | None:
    """As unknown_key, for a key that begins with `search.`."""
    keys = [f"search.{name}" for name in Search.model_fields]
    return None if key in keys else f"{given}: unknown key{did_you_mean(key, keys)}"


def unknown_key(key: str, given: str) -> str | None:
    """The fault of an override with a key that is not in the schema, or None."""
    if key in known_keys() or key in GROUPS:
        return None
    if key.startswith("search.") and key[len("search.") :] in Search.model_fields:
        return f"{given}: is a key of {as_command('search')}"
    return f"{given}: unknown key{did_you_mean(key, [*known_keys(), *GROUPS])}"


def did_you_mean(word: str, words: Sequence[str]) -> str:
    """`; did you mean …?`, or "". A key may also be found by its last part: lr, optimizer.lr."""
    same = {"gpu": "cuda"}.get(word, word).casefold()  # as Lightning names it
    close = [each for each in words if each.casefold() == same]
    close = close or difflib.get_close_matches(word, words, 1, 0.65)
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
    if section in known_keys():  # a list without a section, such as tags
        return section
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
    reasons = [_reason(detail) for detail in details]
    of_items = all(isinstance(detail["loc"][-1], int) for detail in details)
    word = "and" if of_items else "or"  # a fault of each item, or one for each type of the value
    text = f" {word} ".join(dict.fromkeys(reasons)).replace(f" {word} must be ", f" {word} ")
    if kinds == {"literal_error"}:  # a complete list needs no example
        example = ""
    elif "int_type" in kinds and isinstance(read[key], float) and read[key].is_integer():  # 1e3
        example = f"; type {key}={read[key]:.0f}"
    else:
        example = _example(key, name)
    return f"{given}: {text}{example}"


def _reason(detail: Any) -> str:
    if detail["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", detail["msg"])
        value = detail["input"]  # of a list, the item
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
        with suppress(yaml.YAMLError, OSError, UnicodeDecodeError):  # absent, or a broken own file
            shipped = {**shipped, section: yaml.safe_load(path.read_text("utf-8"))}
        value = Values(shipped)[key]
        if value is not None:
            return f", for example {key}={written(value)}"
    return ""
