"""From overrides to checked configurations: every fault at once, before torch is imported.

A point is one combination of values of a sweep; a single run is one point.
"""

import copy
import functools
import itertools
import math
import os
from collections.abc import Iterable, Sequence
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
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from src.config.faults import config_error, find_faults
from src.config.overrides import (
    MOST_POINTS,
    is_choice,
    is_hydras,
    key_of,
    override_fault,
    parse_all,
    parsed,
    single_values,
)
from src.config.schema import CONF, Config

VERSION_BASE = "1.3"  # of Hydra
MAIN = "train"  # conf/train.yaml
MOST_KEPT = 1000  # the largest number of composed jobs that are kept for the launcher


def compose(*overrides: str) -> Config:
    """The configuration that `python -m src.train` trains. Raises InputError with all faults."""
    combinations, _, faults = combine(overrides, sweep=False)
    points, more = shared_composer().points(combinations)
    return check_all(points, faults + more)[0]


def check_all(points: Iterable[dict[str, Any]], faults: Sequence[str]) -> list[Config]:
    """The checked configurations. Raises InputError with `faults` and the faults of the points."""
    found = [find_faults(point) for point in points]
    every = dict.fromkeys([*faults, *(fault for _, faults in found for fault in faults)])
    if every:
        raise config_error(list(every))
    return [config for config, _ in found if config is not None]


def combine(
    texts: Sequence[str], sweep: bool, config_dir: str | None = None
) -> tuple[list[Sequence[str]], list[Override], list[str]]:
    """The overrides of each point, the overrides without a fault, and a message for each fault.

    The number of a point is the number of its trial. The list of points is empty if a sweeper such
    as Optuna chooses the values during the sweep.
    """
    right: list[Override] = []
    faults: list[str] = []
    for override in parse_all(texts, faults):
        fault = override_fault(override, config_dir)
        if override.is_sweep_override() and not sweep:
            fault = f"{override.input_line}: several values need a sweep; type -m too"
        if fault:
            faults.append(fault)
        else:
            right.append(override)
    if not sweep:
        return [[override.input_line or "" for override in right]], right, faults
    values = {override.get_key_element(): single_values(override) for override in right}
    if math.prod(map(len, values.values())) > MOST_POINTS:
        faults.append(f"a sweep of more than {MOST_POINTS:,} points; type fewer values")
        return [], right, faults
    return list(itertools.product(*values.values())), right, faults


def values_of(composed: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain values, without Hydra's own section."""
    nodes = {str(key): composed[key] for key in composed if key != "hydra"}
    return {
        key: OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        for key, node in nodes.items()
    }


class Composer(ConfigLoaderImpl):
    """Hydra's config loader, which composes once for all points that choose the same groups.

    Hydra composes a configuration in about a tenth of a second. Here the points of a sweep that
    differ in values alone are copies of one template. The checked configuration of each job is
    kept for the function that trains the job. A copy in another process remembers nothing.
    """

    def __init__(self, config_dir: str | None) -> None:
        version.setbase(VERSION_BASE)
        search_path = create_config_search_path(str(CONF))
        if config_dir is not None:
            place = SearchPathQuery(provider="schema")
            search_path.prepend("command-line", f"file://{config_dir}", place)
        super().__init__(search_path)
        self.hydra = Hydra(MAIN, self)
        self._config_dir = config_dir
        self._checked: dict[tuple[str, ...], Config] = {}
        self._templates: dict[tuple[str, ...], DictConfig] = {}
        self._bare: dict[tuple[str, ...], DictConfig] = {}
        self._jobs: dict[tuple[str, ...], DictConfig] = {}

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
            common = tuple(t for t in texts if is_choice(key_of(t)) or is_hydras(key_of(t)))
            if common in failed:
                continue
            try:
                template = self._bare_template(common)
            except (HydraException, OmegaConfBaseException) as error:
                failed.add(common)
                faults[" ".join(str(error).split())] = None
                continue
            try:
                points.append(self._point(template, [t for t in texts if t not in common]))
            except (HydraException, OmegaConfBaseException) as error:
                faults[str(error).splitlines()[0]] = None
        return points, [*faults]

    def _bare_template(self, common: tuple[str, ...]) -> DictConfig:
        """The configuration without Hydra's own section, before the values of a point are set."""
        if common not in self._bare:
            composed = self.load_configuration(MAIN, list(common), RunMode.RUN)
            ours = [str(key) for key in composed if key != "hydra"]
            self._bare[common] = OmegaConf.masked_copy(composed, ours)
        return self._bare[common]

    def _point(self, template: DictConfig, texts: Sequence[str]) -> dict[str, Any]:
        config = template.copy()
        OmegaConf.set_struct(config, False)  # the schema reports unknown keys
        overrides = [parsed(text) for text in texts]
        self.validate_sweep_overrides_legal(overrides, RunMode.RUN, from_shell=True)
        for override in overrides:
            key, text = override.key_or_group, override.input_line or ""
            if override.is_add() and OmegaConf.select(config, key) is not None:
                raise HydraException(f"{text}: the key is there already; type {text.lstrip('+')}")
        self._apply_overrides_to_config(overrides, config)
        return values_of(config)

    def remember(self, combinations: Iterable[Sequence[str]], configs: Iterable[Config]) -> None:
        """Keeps the checked configurations of a command's points, in place of any others."""
        self._checked = dict(zip(map(_job_key, combinations), configs, strict=True))
        self._jobs.clear()

    # --- what Hydra calls ---

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """As Hydra's method, but copies a template if the chosen groups were composed before."""
        if config_name != MAIN:  # config_name is None for --hydra-help
            return super().load_configuration(
                config_name, overrides, run_mode, from_shell, validate_sweep_overrides
            )
        given = [parsed(text) for text in overrides]
        if validate_sweep_overrides:
            self.validate_sweep_overrides_legal(given, run_mode, from_shell)
        set_now = [override for override in given if not override.is_sweep_override()]
        choices = [override for override in set_now if is_choice(override.key_or_group)]
        composed = copy.deepcopy(self._template(choices))
        values = [override for override in set_now if override not in choices]
        self._apply_overrides_to_config(values, composed)
        hydra = composed.hydra
        own = [override for override in given if not override.is_hydra_override()]
        hydra.overrides.task = [override.input_line for override in own]
        hydra.overrides.hydra = [each.input_line for each in given if each.is_hydra_override()]
        hydra.runtime.cwd = os.getcwd()  # noqa: PTH109, as Hydra writes it
        with open_dict(hydra):
            for name in hydra.job.env_copy:
                hydra.job.env_set[name] = os.environ[name]
        naming = hydra.job.config.override_dirname
        hydra.job.override_dirname = get_overrides_dirname(
            own, naming.exclude_keys, naming.item_sep, naming.kv_sep
        )
        return composed

    def _template(self, choices: Sequence[Override]) -> DictConfig:
        """A configuration with these choices of groups, before any value is set."""
        # Hydra puts its own overrides first when it composes a job.
        ordered = sorted(choices, key=lambda override: not override.is_hydra_override())
        texts = [override.input_line or "" for override in ordered]
        if tuple(texts) not in self._templates:
            composed = super().load_configuration(MAIN, texts, RunMode.RUN)
            self._templates[tuple(texts)] = composed
        return self._templates[tuple(texts)]

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        """As Hydra's method, but gives the launcher the job that was composed as a check."""
        key = tuple(sweep_overrides)
        job = self._jobs.pop(key, None)
        if job is None:
            job = super().load_sweep_config(master_config, sweep_overrides)
            if key in self._checked and len(self._jobs) < MOST_KEPT:
                self._jobs[key] = job
        return job


@functools.lru_cache(8)
def shared_composer(config_dir: str | None = None) -> Composer:
    """One for each folder of `--config-dir`, given as an absolute path."""
    return Composer(config_dir)


def job_config(composed: DictConfig, overrides: Sequence[str]) -> tuple[Config | None, list[str]]:
    """The configuration of a job that was checked with the command line, or None and its faults.
    Jobs of other processes, and jobs that a sweeper has chosen since then, are checked now."""
    hydra = GlobalHydra.instance().hydra
    loader = hydra.config_loader if hydra is not None else None
    checked = loader._checked if isinstance(loader, Composer) else {}
    config = checked.get(_job_key(overrides))
    return (config, []) if config is not None else find_faults(values_of(composed))


def _job_key(overrides: Iterable[str]) -> tuple[str, ...]:
    """The overrides of a job without Hydra's own."""
    return tuple(text for text in overrides if not is_hydras(key_of(text)))
