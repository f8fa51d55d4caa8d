"""From overrides to checked configurations: every fault at once, before torch is imported.

A point is the set of values that one run of a sweep trains with; a single run has one point. A
combination is the list of overrides of a point. Hydra calls a point a job; src/sweeps calls the run
of a point a trial, and messages to users do too.
"""

import copy
import functools
import math
import os
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from src.config.axes import axes_of, is_zipped, product_of, single_values, zip_faults
from src.config.faults import config_error, did_you_mean, find_faults
from src.config.overrides import (
    apply_to_plain,
    is_choice,
    is_hydras,
    key_of,
    override_fault,
    parse_all,
    parsed,
)
from src.config.schema import CONF, MOST_POINTS, Config
from src.system.errors import InputError

VERSION_BASE = "1.3"  # of Hydra
MAIN = "train"  # conf/train.yaml
NUMBERED = "${hydra.job.num}"  # hydra.sweep.subdir in conf/train.yaml


def compose(*overrides: str) -> Config:
    """The configuration that `python -m src.train` trains. Raises InputError with all faults."""
    if not all(isinstance(override, str) for override in overrides):
        raise InputError('compose takes texts, such as compose("optimizer.lr=0.1", "seed=1")')
    combinations, _, faults = combine(overrides, sweep=False)
    points, composing_faults = shared_composer().points(combinations)
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


def combine(
    texts: Sequence[str], sweep: bool, config_dir: str | None = None
) -> tuple[list[Sequence[str]], list[Override], list[str]]:
    """The overrides of each point, the overrides without a fault, and a message for each fault.

    A point and its trial have the same number. The list is empty if a sweeper such as Optuna
    chooses values as it goes, and for more than MOST_POINTS points.
    """
    valid: list[Override] = []
    faults: list[str] = []
    for override in parse_all(texts, faults):
        fault = override_fault(override, config_dir)
        if override.is_sweep_override() and not sweep:
            fault = f"{override.input_line}: several values need a sweep; type -m too"
        if fault:
            faults.append(fault)
        else:
            valid.append(override)
    if not sweep:
        return [[override.input_line or "" for override in valid]], valid, faults
    faults += zip_faults(valid)
    if any(map(is_zipped, valid)):
        faults += [
            f"{override.input_line}: does not go with zip(…), which needs the values of all keys; "
            f"type {override.key_or_group}=A,B"
            for override in valid
            if not single_values(override)
        ]
    axes = axes_of(valid)
    if math.prod(map(len, axes)) > MOST_POINTS:
        faults.append(f"a sweep of more than {MOST_POINTS:,} trials; type fewer values")
        return [], valid, faults
    # A key whose values the sweeper chooses has no values here, so the product is empty.
    return list(product_of(axes)), valid, faults


def values_of(composed: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain values, without Hydra's own section."""
    nodes = {str(key): composed[key] for key in composed if key != "hydra"}
    return {
        key: OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        for key, node in nodes.items()
    }


@dataclass(frozen=True)
class PlainJob:
    """A job of a sweep as plain values; interpolations are not resolved."""

    folder: Path
    values: Mapping[str, Any]  # without Hydra's section
    hydra: Mapping[str, Any]  # Hydra's section


class Template:
    """A composed configuration, to be copied for each point and job that chooses the same groups.

    Most overrides only replace a value of the template. Then plain dictionaries suffice, which take
    a hundredth of OmegaConf's time. A pickle is copied faster than what it holds.
    """

    def __init__(self, composed: DictConfig) -> None:
        self._composed = composed
        values: Any = OmegaConf.to_container(composed, enum_to_str=True)
        self.hydra: dict[str, Any] = values.pop("hydra")
        self._values = pickle.dumps(values)
        self._simple = _is_simple(composed)

    def plain_with(self, overrides: Sequence[Override]) -> dict[str, Any] | None:
        """The values without Hydra's section after the overrides, or None if only OmegaConf knows
        what the overrides do."""
        values: dict[str, Any] = pickle.loads(self._values)
        return values if self._simple and apply_to_plain(overrides, values) else None

    @functools.cached_property
    def bare(self) -> DictConfig:
        """The configuration without Hydra's section."""
        sections = [str(key) for key in self._composed if key != "hydra"]
        return OmegaConf.masked_copy(self._composed, sections)


def _is_simple(node: Any) -> bool:
    """Whether a node and those in it have neither a type nor an interpolation."""
    if isinstance(node, DictConfig | ListConfig):
        keys: Any = node if isinstance(node, DictConfig) else range(len(node))
        return node._metadata.object_type in (dict, list, None) and all(
            _is_simple(node._get_node(key)) for key in keys if key != "hydra"
        )
    return type(node) is AnyNode and not (node._is_interpolation() or node._is_missing())


class Composer(ConfigLoaderImpl):
    """Hydra's config loader, but it composes only once for all points that choose the same groups.

    Hydra composes a configuration in about a tenth of a second. Therefore points that choose the
    same files of the groups are copies of one template. The checked configuration of each job is
    kept for the function that trains the job. A copy in another process remembers nothing.
    """

    def __init__(self, config_dir: str | None) -> None:
        version.setbase(VERSION_BASE)
        search_path = create_config_search_path(str(CONF))
        if config_dir is not None:
            after = SearchPathQuery(provider="schema")
            search_path.prepend("command-line", f"file://{config_dir}", after)
        super().__init__(search_path)
        # Runs the jobs. Creating it registers the resolvers and the name that composing needs.
        self.hydra = Hydra(MAIN, self)
        self._config_dir = config_dir
        # Keys: overrides as typed. Checked jobs omit Hydra's own; templates have all of them.
        self._checked_by_job: dict[tuple[str, ...], Config] = {}
        self._composed_by_choices: dict[tuple[str, ...], DictConfig] = {}
        self._template_by_choices: dict[tuple[str, ...], Template] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Composer, (self._config_dir,)

    # --- points, to be checked ---

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
            for tried in (choices, tuple(t for t in choices if not is_hydras(key_of(t)))):
                if template is None and tried not in failed:
                    try:
                        template = self._template(tried)
                    except (HydraException, OmegaConfBaseException) as error:
                        failed.add(tried)
                        faults[_composing_fault(error)] = None
            if template is None:
                continue
            try:
                points.append(self._point(template, [parsed(text) for text in others]))
            except (HydraException, OmegaConfBaseException) as error:
                faults[str(error).splitlines()[0]] = None  # further lines are OmegaConf's internals
        return points, [*faults]

    def _template(self, choices: tuple[str, ...]) -> Template:
        """The configuration with these choices and with Hydra's own overrides among them."""
        kept = self._template_by_choices
        if choices not in kept:
            kept[choices] = Template(self.load_configuration(MAIN, list(choices), RunMode.RUN))
        return kept[choices]

    def _point(self, template: Template, overrides: list[Override]) -> dict[str, Any]:
        values = template.plain_with(overrides)
        if values is not None:
            return values
        config = template.bare.copy()
        OmegaConf.set_struct(config, False)  # the schema reports unknown keys
        self.validate_sweep_overrides_legal(overrides, RunMode.RUN, from_shell=True)
        for override in overrides:
            key, text = override.key_or_group, override.input_line or ""
            if override.is_add() and OmegaConf.select(config, key) is not None:
                raise HydraException(f"{text}: the key is there already; type {text.lstrip('+')}")
        self._apply_overrides_to_config(overrides, config)
        return values_of(config)

    # --- jobs of checked points ---

    def remember(self, combinations: Iterable[Sequence[str]], configs: Iterable[Config]) -> None:
        """Keeps the checked configurations of a command's points, and forgets all others."""
        self._checked_by_job = dict(zip(map(_job_key, combinations), configs, strict=True))

    def checked(self, overrides: Iterable[str]) -> Config | None:
        """The configuration of a job that the command line checked in this process, or None."""
        return self._checked_by_job.get(_job_key(overrides))

    def plain_job(
        self, master_config: DictConfig, overrides: Sequence[str], number: int
    ) -> PlainJob:
        """A job as `load_sweep_config` composes it, after its launcher has set its number."""
        master = master_config.hydra
        choices, others = _split([*master.overrides.hydra, *overrides])
        template = self._template(choices)
        values, hydra = template.plain_with([parsed(text) for text in others]), template.hydra
        if values is None or hydra["sweep"]["subdir"] != NUMBERED:
            job = self.load_sweep_config(master_config, list(overrides))
            with open_dict(job):
                job.hydra.job.id = job.hydra.job.num = number
            subdir = str(job.hydra.sweep.subdir)
            values, hydra = plain_parts(job)
        else:
            subdir = str(number)
            task = [text for text in overrides if not is_hydras(key_of(text))]
            named = {"override_dirname": _override_dirname([*map(parsed, task)], hydra["job"])}
            hydra = hydra | {
                "overrides": hydra["overrides"] | {"task": task},
                "job": hydra["job"] | named | {"id": str(number), "num": number},
            }
        folder, here = Path(master.sweep.dir, subdir), Path.cwd()
        runtime = hydra["runtime"] | {"cwd": str(here), "output_dir": str(here / folder)}
        return PlainJob(folder, values, hydra | {"runtime": runtime})

    # --- what Hydra calls ---

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Like Hydra's method, but copies a template if these choices were composed before."""
        if config_name != MAIN:  # config_name is None for --hydra-help
            return super().load_configuration(
                config_name, overrides, run_mode, from_shell, validate_sweep_overrides
            )
        parsed_overrides = [parsed(text) for text in overrides]
        if validate_sweep_overrides:
            self.validate_sweep_overrides_legal(parsed_overrides, run_mode, from_shell)
        fixed = [override for override in parsed_overrides if not override.is_sweep_override()]
        choices = [override for override in fixed if is_choice(override.key_or_group)]
        composed = self._composed(choices)
        values = [override for override in fixed if override not in choices]
        self._apply_overrides_to_config(values, composed)
        hydra = composed.hydra
        task = [override for override in parsed_overrides if not override.is_hydra_override()]
        hydra.overrides.task = [override.input_line for override in task]
        hydra.overrides.hydra = [o.input_line for o in parsed_overrides if o.is_hydra_override()]
        hydra.runtime.cwd = os.getcwd()  # noqa: PTH109, as Hydra writes it
        with open_dict(hydra):
            for name in hydra.job.env_copy:
                hydra.job.env_set[name] = os.environ[name]
        hydra.job.override_dirname = _override_dirname(task, hydra.job)
        return composed

    @staticmethod
    def _apply_overrides_to_config(overrides: list[Override], cfg: DictConfig) -> None:
        for override in overrides:
            try:
                ConfigLoaderImpl._apply_overrides_to_config([override], cfg)
            except (AssertionError, AttributeError):  # OmegaConf's, of a dictionary over null
                text = f"{override.input_line}: cannot be set on a command line"
                raise HydraException(f"{text}; set the key in a configuration file") from None

    def _composed(self, choices: Sequence[Override]) -> DictConfig:
        """A new configuration with these choices of groups, before any value is set."""
        # Hydra puts its own overrides first when it composes a job.
        ordered = sorted(choices, key=lambda override: not override.is_hydra_override())
        texts = tuple(override.input_line or "" for override in ordered)
        kept = self._composed_by_choices
        if texts not in kept:
            kept[texts] = super().load_configuration(MAIN, list(texts), RunMode.RUN)
        return copy.deepcopy(kept[texts])


def _composing_fault(error: Exception) -> str:
    # Further lines have the remedy, then Hydra's search path.
    text = " ".join(str(error).split()).partition(" Config search path")[0]
    unknown = re.search(r"Could not find '(hydra/\w+)/(.*)' Available options in '\1': (.*)", text)
    if unknown is None:
        return text
    group, choice, allowed = unknown[1], unknown[2], unknown[3].split()
    hint = did_you_mean(choice, allowed)
    return f"{group}={choice}: must be one of {', '.join(allowed)}{hint}"


def _split(texts: Iterable[str]) -> tuple[tuple[str, ...], list[str]]:
    """The overrides that make a template: choices of groups and Hydra's own; and the others, which
    set values."""
    made: dict[bool, list[str]] = {True: [], False: []}
    for text in texts:
        key = key_of(text)
        made[is_choice(key) or is_hydras(key)].append(text)
    return tuple(made[True]), made[False]


def _override_dirname(task: list[Override], job: Any) -> str:
    naming = job["config"]["override_dirname"]
    dirname: str = get_overrides_dirname(
        task, naming["exclude_keys"], naming["item_sep"], naming["kv_sep"]
    )
    return dirname


def plain_parts(job: DictConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration of a job and its Hydra section, as plain values without resolved
    interpolations."""
    values: Any = OmegaConf.to_container(job, enum_to_str=True)
    section = values.pop("hydra")
    return values, section


@functools.lru_cache(8)
def shared_composer(config_dir: str | None = None) -> Composer:
    """The only Composer of a `--config-dir` folder. `config_dir` must be an absolute path."""
    return Composer(config_dir)


def job_config(composed: DictConfig, overrides: Sequence[str]) -> tuple[Config | None, list[str]]:
    """The configuration of a job and no faults, or None and the faults. If the command line checked
    the job in this process, its configuration was kept; any other job is checked now."""
    hydra = GlobalHydra.instance().hydra
    loader = hydra.config_loader if hydra is not None else None
    config = loader.checked(overrides) if isinstance(loader, Composer) else None
    return (config, []) if config is not None else find_faults(values_of(composed))


def _job_key(overrides: Iterable[str]) -> tuple[str, ...]:
    """The overrides of a job without Hydra's own."""
    return tuple(text for text in overrides if not is_hydras(key_of(text)))
