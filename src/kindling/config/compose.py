"""From overrides to checked configurations: every fault at once, before torch is imported.

A point is the set of values that one run of a sweep trains with; a single run has one point. A
combination is the list of overrides of a point. Hydra calls a point a job; sweeps calls the run
of a point a trial, and messages to users do too.
"""

import copy
import functools
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kindling.config.faults import config_error, did_you_mean, find_faults, options
from kindling.config.overrides import (
    combine,
    is_choice,
    is_hydras,
    key_of,
    override_text,
    parsed,
    task_of,
    with_quotes,
)
from kindling.config.registry import CONFIG_FOLDERS
from kindling.config.schema import UNTRAINED, Config
from kindling.config.written import flat_values
from kindling.system.errors import InputError, first_line
from kindling.system.installation import CONF

# Hydra 1.3 warns without a version, and 1.4 with one.
VERSION_BASE = {"version_base": "1.3"} if hydra.__version__ < "1.4" else {}
MAIN = "train"  # conf/train.yaml
NUMBERED = "${hydra.job.num}"  # hydra.sweep.subdir in conf/train.yaml
# What composing raises for a user's file or override. Hydra also raises the last four, for a file
# whose defaults are no list, or whose sections are no sections.
BROKEN = (
    InputError, HydraException, OmegaConfBaseException, yaml.YAMLError,
    ValueError, TypeError, AttributeError, AssertionError,
)  # fmt: skip
# Keys of Hydra that every command sets. They need no template of their own.
USUAL = ("hydra.run.dir=", "hydra.sweep.dir=", "hydra.mode=")
MOST_LEARNT = 64  # compositions of a warm process; each takes half a megabyte


def compose(*overrides: str) -> Config:
    """The configuration that `python -m src.train` trains. Raises InputError with all faults."""
    if not all(isinstance(override, str) for override in overrides):
        raise InputError('compose takes texts, such as compose("optimizer.lr=0.1", "seed=1")')
    combinations, _, faults = combine(with_quotes(overrides, sweep=False), sweep=False)
    points, composing_faults = shared_composer(None).points(combinations)
    return check_all(points, faults + composing_faults, consequence="")[0]


def check_all(
    points: Iterable[dict[str, Any]],
    faults: Sequence[str],
    consequence: str = ", nothing was started",
) -> list[Config]:
    """The checked configurations. Raises InputError with `faults` and the faults of the points."""
    checked = [find_faults(point) for point in points]
    point_faults = [fault for _, own_faults in checked for fault in own_faults]
    if faults or point_faults:
        raise config_error(list(dict.fromkeys([*faults, *point_faults])), consequence)
    return [config for config, _ in checked if config is not None]


class _OwnFolder(SearchPathPlugin):
    """Adds the folder of --config-dir to Hydra's search path, as hydra.main does."""

    folder: str | None = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.folder is not None:
            search_path.append("command-line", f"file://{self.folder}")


@contextmanager
def initialized(config_dir: str | None) -> Iterator[Any]:
    """Yields Hydra for conf/ and the folder of --config-dir. Afterwards Hydra's global state is
    that of before: perhaps this is called within another Hydra application."""
    plugins, outer = Plugins.instance(), GlobalHydra.instance().hydra
    if _OwnFolder not in plugins.discover(SearchPathPlugin):
        plugins.register(_OwnFolder)
    _OwnFolder.folder = config_dir
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(CONF), job_name=MAIN, **VERSION_BASE):
            yield GlobalHydra.instance().hydra
    finally:
        _OwnFolder.folder = None
        GlobalHydra.instance().hydra = outer


class Template:
    """A composed configuration, to be copied for each point that chooses the same groups.

    Most overrides only replace a value of the template. Then plain dictionaries suffice, which take
    a hundredth of OmegaConf's time. A pickle is copied faster than what it holds.
    """

    def __init__(self, composed: DictConfig) -> None:
        self.composed = composed
        values: Any = OmegaConf.to_container(composed, enum_to_str=True)
        self.section: dict[str, Any] = values.pop("hydra")
        self._linked = "${" in repr(values)
        self._values = pickle.dumps(values)

    def values_with(self, texts: Sequence[str], *, resolve: bool = True) -> dict[str, Any]:
        """The values without Hydra's section after the overrides."""
        overrides, values = [parsed(text) for text in texts], pickle.loads(self._values)
        plain = apply_to_plain(overrides, values)
        if plain and not (resolve and self._linked):
            return dict(values)
        config = values if plain else _merged(pickle.loads(self._values), overrides)
        found: Any = OmegaConf.to_container(OmegaConf.create(config), resolve=resolve)
        return dict(found)


def apply_to_plain(overrides: Iterable[Override], values: dict[str, Any]) -> bool:
    """Sets values in nested dictionaries as Hydra does in its configurations.

    Returns False, perhaps after some values were set, if an override does anything else than to
    set a number, a text, null or a list of them. The schema reports unknown keys.
    """
    for override in overrides:
        if override.type is not OverrideType.CHANGE or override.package is not None:
            return False
        key = override.key_or_group
        *sections, name = key.split(".")
        section: Any = values
        for inner in sections:
            section = section.get(inner) if isinstance(section, dict) else None
        if not isinstance(section, dict) or isinstance(section.get(name), dict) or "[" in key:
            return False
        value = override.value()
        if not _is_plain(value):
            return False
        section[name] = value
    return True


def _is_plain(value: Any) -> bool:
    """Whether OmegaConf keeps a value as it is. Texts with `${` and `???` have a meaning to it."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return "${" not in value and value != "???"
    return value is None or isinstance(value, bool | int | float)


def _merged(values: dict[str, Any], overrides: Sequence[Override]) -> DictConfig:
    """The values after the overrides, as Hydra applies them; the schema reports unknown keys."""
    config = OmegaConf.create(values)
    for override in overrides:
        key, text, value = override.key_or_group, override.input_line or "", override.value()
        try:
            found = OmegaConf.select(config, key)
            if override.is_delete():
                if found is None or value not in (None, found):
                    raise HydraException(f"{text}: there is no such key or value to delete")
                section, _, name = key.rpartition(".")
                del (OmegaConf.select(config, section) if section else config)[name]
            elif override.is_add() and found is not None:
                raise HydraException(f"{text}: the key is there already; type {text.lstrip('+')}")
            else:
                OmegaConf.update(config, key, value)
        except OmegaConfBaseException:
            raise HydraException(f"Error merging override {text}") from None
        except (AssertionError, AttributeError):  # OmegaConf's, of a dictionary over null
            raise HydraException(_unsettable(text)) from None
    return config


class Composer:
    """Composes by Hydra, but only once for all points that choose the same groups: Hydra takes a
    tenth of a second. Points that choose the same files of the groups are copies of one template.
    """

    def __init__(self, config_dir: str | None) -> None:
        self.config_dir = config_dir
        self._templates: dict[tuple[str, ...], Template] = {}

    def prepare(self) -> Iterator[list[str]]:
        """Composes what most commands begin with: the defaults, and each of the data sets. Yields
        all files that are read, and then nothing after each template."""
        files = _files()
        yield sorted(map(str, files))
        names = {file.stem for file in files if file.parent.name == "data" and file.stem[0] != "_"}
        for choices in [(), *((f"data={name}",) for name in sorted(names))]:
            self._template(choices)
            yield []

    def learn(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """Composes what a command with these arguments begins with; yields as `prepare`. Hydra's
        own overrides may name further folders of files, which nobody watches."""
        choices, _ = _split([text for text in texts if "=" in text])
        foreign = any(is_hydras(key_of(text)) for text in choices)
        if not foreign and not any(text.startswith("-") for text in texts):
            yield sorted(map(str, _files()))  # some may be new
            if len(self._templates) < MOST_LEARNT:
                self._template(choices)
            yield []

    def points(
        self, combinations: Iterable[Sequence[str]]
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """The values of each combination that can be composed, and the faults of the others."""
        points: list[dict[str, Any]] = []
        faults: dict[str, None] = {}
        failed: set[tuple[str, ...]] = set()
        for texts in combinations:
            choices, others = _split(texts)
            template = None
            # Without Hydra's own overrides, the values of the others can still be checked.
            for tried in (choices, tuple(task_of(choices))):
                if template is None and tried not in failed:
                    try:
                        template = self._template(tried)
                    except BROKEN as error:
                        failed.add(tried)
                        faults[self._composing_fault(error, tried)] = None
            if template is None:
                continue
            try:
                points.append(template.values_with(others))
            except (HydraException, OmegaConfBaseException) as error:
                faults[str(error).splitlines()[0]] = None  # further lines are OmegaConf's internals
        return points, [*faults]

    def values(self, texts: Sequence[str], *, resolve: bool = True) -> dict[str, Any]:
        """The values after overrides without a fault."""
        choices, others = _split(texts)
        return self._template(choices).values_with(others, resolve=resolve)

    def section(
        self, texts: Sequence[str], number: int | None = None, cwd: str | None = None
    ) -> dict[str, Any]:
        """Hydra's own section of the configuration of a run or of a sweep, or with a number of a
        job of the sweep; interpolations are not resolved. `cwd`: the current folder, if known."""
        section = self._template(_split(texts)[0]).section
        hydras = [text for text in texts if is_hydras(key_of(text))]
        task = task_of(texts)
        for text in hydras:
            if (value := _usual_value(text)) is not None:
                _, name, *inner = key_of(text).split(".")
                section = section | {name: section[name] | {"dir": value} if inner else value}
        job, naming = section["job"], section["job"]["config"]["override_dirname"]
        if "${" not in job["override_dirname"]:  # before Hydra 1.4
            named = sorted(text for text in task if key_of(text) not in naming["exclude_keys"])
            dirname = naming["item_sep"].join(named).replace("=", naming["kv_sep"])
            job = job | {"override_dirname": dirname}
        if number is not None:
            job = job | {"id": str(number), "num": number}
        return section | {
            "overrides": section["overrides"] | {"hydra": hydras, "task": task},
            "job": job,
            "runtime": section["runtime"] | {"cwd": cwd or str(Path.cwd())},
        }

    def resolved(self, texts: Sequence[str], section: Mapping[str, Any], key: str) -> Any:
        """The value of a key of Hydra's section, with interpolations resolved."""
        plain = section.get(key)  # None for a key of an inner section
        if plain is not None and "${" not in repr(plain):
            return copy.deepcopy(plain)  # a merge of the whole configuration takes 50 ms
        composed = copy.deepcopy(self._template(_split(texts)[0]).composed)
        OmegaConf.set_struct(composed, False)  # a key of a section may have no default in its file
        config = OmegaConf.merge(composed, self.values(texts, resolve=False), {"hydra": section})
        assert isinstance(config, DictConfig)
        outer = HydraConfig.instance().cfg
        HydraConfig.instance().set_config(config)  # for interpolations
        try:
            value = OmegaConf.select(config.hydra, key)
            is_section = OmegaConf.is_config(value)
            return OmegaConf.to_container(value, resolve=True) if is_section else value
        finally:
            HydraConfig.instance().cfg = outer

    def _template(self, choices: tuple[str, ...]) -> Template:
        if choices not in self._templates:
            self._templates[choices] = Template(self._compose(choices))
        return self._templates[choices]

    def _compose(self, texts: Sequence[str]) -> DictConfig:
        require_readable(self.config_dir, texts)
        with initialized(self.config_dir):
            try:
                return hydra.compose(MAIN, list(texts), return_hydra_config=True)
            except (yaml.YAMLError, UnicodeDecodeError):
                require_readable(self.config_dir)
                raise

    def _composing_fault(self, error: Exception, texts: Sequence[str]) -> str:
        if isinstance(error, AssertionError | AttributeError):
            # OmegaConf has no words for a dictionary over null.
            for text in texts:
                try:
                    self._compose([text])
                except (AssertionError, AttributeError):
                    if not is_choice(key_of(text)):
                        return _unsettable(text)
                except BROKEN:
                    pass
        # Further lines have the remedy, then Hydra's search path.
        text = " ".join(str(error).split()).partition(" Config search path")[0]
        unknown = re.search(
            r"Could not find '(hydra/\w+)/(.*)' Available options in '\1': (.*)", text
        )
        if unknown is None:
            return text
        group, choice, allowed = unknown[1], unknown[2], unknown[3].split()
        hint = did_you_mean(choice, allowed)
        return f"{group}={choice}: must be one of {', '.join(allowed)}{hint}"


def _files() -> list[Path]:
    return [file for folder in (CONF, *CONFIG_FOLDERS) for file in folder.rglob("*.yaml")]


def _unsettable(text: str) -> str:
    return f"{text}: cannot be set on a command line; set the key in a configuration file"


def _split(texts: Iterable[str]) -> tuple[tuple[str, ...], list[str]]:
    """The overrides that make a template: choices of groups and Hydra's own, except for the usual;
    and the others, which set values. Hydra puts its own first when it composes a job. Overrides
    with several values, which a sweep itself does not have, are left out."""
    hydras, choices, values = list[str](), list[str](), list[str]()
    for text in texts:
        key = key_of(text)
        if is_hydras(key):
            hydras += [text] if _usual_value(text) is None else []
        elif not parsed(text).is_sweep_override():
            (choices if is_choice(key) else values).append(text)
    return (*hydras, *choices), values


def _usual_value(text: str) -> str | None:
    """The value of one of the USUAL keys; None for other keys, and for values that Hydra checks."""
    value = parsed(text).value() if text.startswith(USUAL) else None
    if text.startswith("hydra.mode=") and value not in ("RUN", "MULTIRUN"):
        return None
    return str(value) if isinstance(value, str | int | float) else None


@functools.lru_cache(8)
def shared_composer(config_dir: str | None) -> Composer:
    """The only Composer of a `--config-dir` folder. `config_dir` must be an absolute path."""
    return Composer(config_dir)


# --- the files of configurations ------------------------------------------------------------


def require_readable(config_dir: str | None, choices: Sequence[str] | None = None) -> None:
    """Raises InputError for a file that Hydra could not read, among those that the choices of
    groups name, or among all."""
    folders = [CONF, *([Path(config_dir)] if config_dir else [])]
    if choices is None:
        for folder in reversed(folders):
            for file in sorted(folder.rglob("*.yaml")):
                _require_readable(file)
        return
    for text in choices:
        value = parsed(text).value()
        for choice in value if isinstance(value, list) else [value]:
            files = [folder / key_of(text) / f"{choice}.yaml" for folder in folders]
            for file in [each for each in files if each.is_file()][:1]:  # Hydra takes the first
                _require_readable(file)


def _require_readable(file: Path) -> None:
    here = Path.cwd()
    shown = file.relative_to(here) if file.is_relative_to(here) else file
    try:
        text = file.read_text("utf-8")
        yaml.compose(text, yaml.SafeLoader)  # its faults have better words than libyaml's
        found = OmegaConf.load(file)
    except Exception as error:  # of the file's content
        raise InputError(f"{shown}: cannot be read ({_why(error, file)})") from None
    if not OmegaConf.is_dict(found):
        raise InputError(f"{shown}: is a list, must have lines such as seed: 1")
    is_global = re.match(r"\s*#\s*@package\s+_global_\s*(\n|$)", text)
    if file.parent.name == "experiment" and not is_global:
        raise InputError(f"{shown}: its first line must be # @package _global_")


def _why(error: Exception, path: Path) -> str:
    """What is wrong in a file, and in which line."""
    if isinstance(error, OSError):
        return error.strerror or first_line(error)
    if isinstance(error, UnicodeDecodeError):
        lines = error.object[: error.end].splitlines()  # the last one has the fault
        return f"line {len(lines)} is not UTF-8; save the file as UTF-8"
    if isinstance(error, yaml.reader.ReaderError):
        line = path.read_text("utf-8").count("\n", 0, error.position) + 1
        return f"line {line} has the unprintable character #x{error.character:04x}"
    if not isinstance(error, yaml.MarkedYAMLError):
        return first_line(error)
    mark, why = error.problem_mark or error.context_mark, str(error.problem)[:200]
    if "'\\t'" in why:
        why = "a tab; indent with spaces"
    elif "duplicate key" in why:
        why = f"the key {why.rpartition(' ')[2]} is given twice"
    elif "stream end" in why or "end of stream" in why:
        mark, why = error.context_mark or mark, "a bracket or a quote has no partner"
        last = len(path.read_text("utf-8").rstrip().splitlines())
        return f"line {min(mark.line + 1, last) if mark else last}: {why}"
    elif "another document" in why:
        why = "a second document begins; leave out ---"
    return f"line {mark.line + 1}: {why}" if mark else why


# --- a configuration as overrides ------------------------------------------------------------

# The groups that are chosen; other keys are set.
CHOSEN = ("data", "augmentation", "model", "optimizer", "scheduler")


def overrides_of(config: Config) -> list[str]:
    """Overrides such as `model=cnn` and `seed=1`, which `compose` turns into this configuration,
    except for the keys of UNTRAINED. Choices of groups come first. `${` in a text is not
    escaped."""
    values, choices = config.to_primitives(), list[str]()
    different = _different(values, choices)
    for group in CHOSEN:
        for choice in _candidates(group, values, different):
            tried = [*choices, f"{group}={choice}"]
            fewer = _different(values, tried)
            if len(fewer) < len(different):
                choices, different = tried, fewer
    return [*choices, *(override_text(key, value) for key, value in different.items())]


def changed_overrides(texts: Sequence[str], before: Config, now: Config) -> list[str]:
    """The overrides of a run that was configured as `before` by the overrides `texts`, and goes on
    as `now`. A batch size that was decided since stays as it was typed."""
    former = dict(flat_values(before.to_primitives()))
    changed = {
        key: value
        for key, value in flat_values(now.to_primitives())
        if key not in UNTRAINED and value != former.get(key) and former.get(key) != "auto"
    }
    kept = [text for text in texts if key_of(text) not in changed]
    return [*kept, *(override_text(key, value) for key, value in changed.items())]


def _candidates(group: str, values: dict[str, Any], different: dict[str, Any]) -> list[str]:
    """The choices of a group that might leave fewer differences. Each one costs a tenth of a
    second."""
    if not any(key.startswith(f"{group}.") for key in different):
        return []
    name = values[group].get("name")
    if name is None:
        return options(group)
    # Two choices of data sets have one name: mnist and mnist_or_digits.
    return [name] if f"{group}.name" in different or group == "data" else []


def _different(values: dict[str, Any], choices: list[str]) -> dict[str, Any]:
    """The values, by dotted key, that these choices of groups leave different."""
    points, faults = shared_composer(None).points([choices])
    assert not faults, faults
    shipped, missing = dict(flat_values(points[0])), object()

    def differs(key: str, value: Any) -> bool:
        own = shipped.get(key, missing)
        # In a checked configuration, some numbers of conf/ are texts.
        return own != value and not (type(own) is int and str(own) == value)

    return {
        key: value
        for key, value in flat_values(values)
        if key not in UNTRAINED and differs(key, value)
    }
