"""From overrides to checked configurations: every fault at once, before torch is imported.

A point is the set of values that one run of a sweep trains with; a single run has one point. A
combination is the list of overrides of a point. Hydra calls a point a job; src/sweeps calls the run
of a point a trial, and messages to users do too.
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
    points, composing_faults = shared_composer().points(combinations)
    return check_all(points, faults + composing_faults)[0]


def check_all(points: Iterable[dict[str, Any]], faults: Sequence[str]) -> list[Config]:
    """The checked configurations. Raises InputError with `faults` and the faults of the points."""
    checked = [find_faults(point) for point in points]
    point_faults = [fault for _, own_faults in checked for fault in own_faults]
    if faults or point_faults:
        raise config_error(list(dict.fromkeys([*faults, *point_faults])))
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
    values = {override.get_key_element(): single_values(override) for override in valid}
    if math.prod(map(len, values.values())) > MOST_POINTS:
        faults.append(f"a sweep of more than {MOST_POINTS:,} trials; type fewer values")
        return [], valid, faults
    # A key whose values the sweeper chooses has no values here, so the product is empty.
    return list(itertools.product(*values.values())), valid, faults


def values_of(composed: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain values, without Hydra's own section."""
    nodes = {str(key): composed[key] for key in composed if key != "hydra"}
    return {
        key: OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        for key, node in nodes.items()
    }


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
        # Keys: overrides as typed. Checked jobs omit Hydra's own; bare templates have all of them.
        self._checked_by_job: dict[tuple[str, ...], Config] = {}
        self._composed_by_job: dict[tuple[str, ...], DictConfig] = {}
        self._template_by_choices: dict[tuple[str, ...], DictConfig] = {}
        self._bare_template_by_choices: dict[tuple[str, ...], DictConfig] = {}

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
            # Group choices and Hydra's own overrides make the template; the others set values.
            choices = tuple(t for t in texts if is_choice(key_of(t)) or is_hydras(key_of(t)))
            if choices in failed:
                continue
            try:
                template = self._bare_template(choices)
            except (HydraException, OmegaConfBaseException) as error:
                failed.add(choices)
                # Further lines have the remedy, then Hydra's search path.
                text = " ".join(str(error).split())
                faults[text.partition(" Config search path")[0]] = None
                continue
            try:
                points.append(self._point(template, [t for t in texts if t not in choices]))
            except (HydraException, OmegaConfBaseException) as error:
                faults[str(error).splitlines()[0]] = None  # further lines are OmegaConf's internals
        return points, [*faults]

    def _bare_template(self, choices: tuple[str, ...]) -> DictConfig:
        """The configuration without Hydra's own section, before the values of a point are set."""
        kept = self._bare_template_by_choices
        if choices not in kept:
            composed = self.load_configuration(MAIN, list(choices), RunMode.RUN)
            sections = [str(key) for key in composed if key != "hydra"]
            kept[choices] = OmegaConf.masked_copy(composed, sections)
        return kept[choices]

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
        """Keeps the checked configurations of a command's points, and forgets all others."""
        self._checked_by_job = dict(zip(map(_job_key, combinations), configs, strict=True))
        self._composed_by_job.clear()

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
        composed = copy.deepcopy(self._template(choices))
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
        naming = hydra.job.config.override_dirname
        hydra.job.override_dirname = get_overrides_dirname(
            task, naming.exclude_keys, naming.item_sep, naming.kv_sep
        )
        return composed

    def _template(self, choices: Sequence[Override]) -> DictConfig:
        """A configuration with these choices of groups, before any value is set."""
        # Hydra puts its own overrides first when it composes a job.
        ordered = sorted(choices, key=lambda override: not override.is_hydra_override())
        texts = tuple(override.input_line or "" for override in ordered)
        kept = self._template_by_choices
        if texts not in kept:
            kept[texts] = super().load_configuration(MAIN, list(texts), RunMode.RUN)
        return kept[texts]

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        """Like Hydra's method, but composes a job only once. Hydra's sweeper calls first, to
        validate the job: the job is kept. The launcher calls again: the kept job is returned."""
        key = tuple(sweep_overrides)
        job = self._composed_by_job.pop(key, None)
        if job is None:
            job = super().load_sweep_config(master_config, sweep_overrides)
            if key in self._checked_by_job and len(self._composed_by_job) < MOST_KEPT:
                self._composed_by_job[key] = job
        return job


@functools.lru_cache(8)
def shared_composer(config_dir: str | None = None) -> Composer:
    """The only Composer of a `--config-dir` folder. `config_dir` must be an absolute path."""
    return Composer(config_dir)


def job_config(composed: DictConfig, overrides: Sequence[str]) -> tuple[Config | None, list[str]]:
    """The configuration of a job and no faults, or None and the faults. If the command line checked
    the job in this process, its configuration was kept; any other job is checked now."""
    hydra = GlobalHydra.instance().hydra
    loader = hydra.config_loader if hydra is not None else None
    checked_by_job = loader._checked_by_job if isinstance(loader, Composer) else {}
    config = checked_by_job.get(_job_key(overrides))
    return (config, []) if config is not None else find_faults(values_of(composed))


def _job_key(overrides: Iterable[str]) -> tuple[str, ...]:
    """The overrides of a job without Hydra's own."""
    return tuple(text for text in overrides if not is_hydras(key_of(text)))
