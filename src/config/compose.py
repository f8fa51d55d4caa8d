"""From overrides to checked configurations: every fault at once, before torch is imported.

Hydra stops at its first fault, advises `+` for a misspelt key and checks no value. So the
overrides are looked at first, each by itself; what is left is composed point by point and
checked against src/config/schema.py.
"""

import copy
import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import get_overrides_dirname
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from src.config import schema
from src.config.schema import CONF, Config
from src.system.errors import InputError, first_line

MOST_POINTS = 10_000  # of a sweep: each is composed and checked before the first one trains
# Characters of all overrides. Hydra's parser takes a time that grows with their square: half a
# second for 5,000.
OVERRIDES_LIMIT = 10_000


def compose(*overrides: str) -> Config:
    """The configuration that `python -m src.train` with these overrides would train.

    Raises InputError with every fault at once.
    """
    points, _, faults = compose_all(overrides, sweep=False)
    if not faults:
        config, faults = schema.find_faults(points[0])
        if config is not None:
            return config
    raise InputError(schema.report(faults))


def values_of(composed: DictConfig) -> dict[str, Any]:
    """A composed configuration as plain values, Hydra's own node left out."""
    nodes = {str(key): composed[key] for key in composed if key != "hydra"}
    return {
        key: OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        for key, node in nodes.items()
    }


def searchpath(config_dir: str | None) -> list[str]:
    """The override for `--config-dir`."""
    if config_dir is None:
        return []
    return [f"hydra.searchpath=[{quoted(f'file://{Path(config_dir).resolve()}')}]"]


def quoted(text: str) -> str:
    return QuotedString(text, Quote.single).with_quotes()


def compose_all(
    texts: Sequence[str], sweep: bool, config_dir: str | None = None
) -> tuple[list[dict[str, Any]], list[Override], list[str]]:
    """The values of every point, the overrides that are right, and the faults of all."""
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
    values = [_texts(override) for override in right]
    if math.prod(map(len, values)) > MOST_POINTS:
        return (
            [],
            right,
            [*faults, f"a sweep of more than {MOST_POINTS:,} points; type fewer values"],
        )
    # In the order of Hydra's sweeper, so that a point's number is its trial's.
    points, found = compose_points(itertools.product(*values), config_dir)
    return points, right, faults + found


def parse_all(texts: Sequence[str], faults: list[str]) -> list[Override]:
    """The overrides that can be read, and one more fault for each other text."""
    length = sum(map(len, texts))
    if length > OVERRIDES_LIMIT:
        faults.append(
            f"the overrides have {length:,} characters, at most {OVERRIDES_LIMIT:,} are read; type "
            "range(…) for a list of numbers, or put values into DIR/experiment/NAME.yaml and type "
            "--config-dir=DIR experiment=NAME"
        )
        return []
    parsed = [parse(text, faults) for text in texts]
    return [override for override in parsed if override is not None]


def parse(text: str, faults: list[str]) -> Override | None:
    """An override, or None and one more fault."""
    try:
        return _parsed(text)
    except (HydraException, ValueError, RecursionError) as error:
        faults.append(f"{text}: cannot be read ({first_line(error)})")
        return None


@functools.lru_cache(4096)  # the points of a sweep share most of theirs
def _parsed(text: str) -> Override:
    return OverridesParser.create().parse_override(text)


def compose_points(
    combinations: Iterable[Sequence[str]], config_dir: str | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The values of each combination of overrides that Hydra composes, and the others' faults.

    Only the choices of groups are composed once more for each of their combinations; plain values
    are set on a copy, which costs a thousandth of it.
    """
    own_choices = searchpath(config_dir)
    points, faults = [], []
    failed: set[tuple[str, ...]] = set()
    for texts in combinations:
        chosen = tuple(text for text in texts if not is_value(key_of(text)))
        if chosen in failed:
            continue
        try:
            base = _base((*own_choices, *chosen))
        except (HydraException, OmegaConfBaseException) as error:
            failed.add(chosen)
            faults.append(" ".join(str(error).split()))
            continue
        try:
            points.append(_assign(base, [text for text in texts if text not in chosen]))
        except (HydraException, OmegaConfBaseException) as error:
            faults.append(str(error).splitlines()[0])
    return points, faults


@functools.lru_cache(64)
def _base(chosen: tuple[str, ...]) -> DictConfig:
    """What Hydra composes of choices of groups, without its own node."""
    composed = compose_groups(chosen)
    return OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])


@functools.lru_cache(64)
def compose_groups(chosen: tuple[str, ...]) -> DictConfig:
    """As `python -m src.train` has it; kept for the batches of a search, and for tests."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), job_name="train", version_base="1.3"):
        return hydra_compose("train", list(chosen), return_hydra_config=True)


def key_of(text: str) -> str:
    return text.lstrip("+~").partition("=")[0]


def is_value(key: str) -> bool:
    return not is_hydras(key) and "/" not in key and key not in schema.GROUPS


def is_hydras(key: str) -> bool:
    return key == "hydra" or key.startswith(("hydra.", "hydra/"))


def _texts(override: Override) -> list[str]:
    """The override itself, or one for each value that it sweeps over: of too many a part."""
    if not override.is_sweep_override():
        return [override.input_line or ""]
    try:
        values = itertools.islice(override.sweep_string_iterator(), MOST_POINTS + 1)
        return [f"{override.get_key_element()}={value}" for value in values]
    except HydraException:  # an interval: the sweeper chooses, and each job is checked as it starts
        return []


def _assign(base: DictConfig, texts: Sequence[str]) -> dict[str, Any]:
    config = base.copy()
    set_values(config, texts)
    return values_of(config)


def set_values(config: DictConfig, texts: Sequence[str]) -> None:
    """Sets plain values as Hydra does. Raises HydraException for a key that is added twice."""
    OmegaConf.set_struct(config, False)
    for override in map(_parsed, texts):
        key, text = override.key_or_group, override.input_line or ""
        if override.is_delete():
            section, _, name = key.rpartition(".")
            OmegaConf.select(config, section).pop(name, None)
        elif override.is_add() and OmegaConf.select(config, key) is not None:
            raise HydraException(f"{text}: the key is there already; type {text.lstrip('+')}")
        else:
            OmegaConf.update(config, key, override.value(), merge=True)


def override_fault(override: Override, config_dir: str | None = None) -> str | None:
    """What is wrong with an override by itself; the values of keys are checked where they are
    composed."""
    key, text = override.key_or_group, override.input_line or ""
    if is_hydras(key):
        return _hydras_fault(override)
    if override.package is not None and key not in schema.GROUPS:
        return f"{text}: unknown key"
    if key not in schema.GROUPS:
        return schema.unknown_key(key, text.lstrip("+"))
    if "=" not in text or text[0] in "+~" or override.package is not None:
        return f"{text}: a group is chosen by {key}=CHOICE"
    allowed = schema.options(key) + (schema.options(key, Path(config_dir)) if config_dir else [])
    for given in _texts(override) if override.is_sweep_override() else [text]:
        for choice in _choices(key, given.partition("=")[2]):
            if choice not in allowed and not (choice == "null" and key == "experiment"):
                hint = schema.did_you_mean(choice, allowed)
                return f"{key}={choice}: must be one of {', '.join(allowed)}{hint}"
    return None


def _hydras_fault(override: Override) -> str | None:
    key, text = override.key_or_group, override.input_line or ""
    if key == "hydra.searchpath":
        return f"{text}: type --config-dir=FOLDER"
    if key == "hydra" or override.is_delete() or override.package is not None:
        return f"{text}: Hydra's own keys are set by hydra.KEY=VALUE, one by one"
    if override.is_sweep_override():
        return f"{text}: Hydra's own keys have one value for a whole sweep"
    return None


def _choices(group: str, text: str) -> list[str]:
    """Of the loggers several may be chosen at once: logger=[tensorboard,mlflow]."""
    if group == "logger" and text.startswith("[") and text.endswith("]"):
        return [choice.strip() for choice in text[1:-1].split(",") if choice.strip()]
    return [text]


def name_job(composed: DictConfig, overrides: list[Override]) -> None:
    """Gives a copy of what Hydra composed the override_dirname of its own overrides."""
    job = composed.hydra.job
    naming = job.config.override_dirname
    job.override_dirname = get_overrides_dirname(
        overrides, naming.exclude_keys, naming.item_sep, naming.kv_sep
    )


class SweepLoader:
    """Hydra's config loader, composing once for all points of a sweep that differ in values.

    Hydra composes every point anew, twice: a tenth of a second each time. A point that differs
    from an earlier one in plain values alone is a copy of it with those values set, which costs a
    fifteenth; and the point that the sweeper composed to see whether it can is the one that the
    launcher gets. Everything else is the wrapped loader's.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader
        self._templates: dict[tuple[str, ...], DictConfig] = {}
        self._tried: dict[tuple[str, ...], DictConfig] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        tried = self._tried.pop(tuple(sweep_overrides), None)
        if tried is not None:
            return tried
        point = self._compose(master_config, sweep_overrides)
        self._tried[tuple(sweep_overrides)] = point
        return point

    def _compose(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        overrides = OverridesParser.create().parse_overrides(sweep_overrides)
        values = [override for override in overrides if is_value(override.key_or_group)]
        ours = set(Config.model_fields) <= set(master_config)
        special = any(
            override.is_add() or override.is_delete() or override.is_hydra_override()
            for override in overrides
        )
        if special or not ours:
            return self._loader.load_sweep_config(master_config, sweep_overrides)
        # The keys belong to what is alike: setting them is checked when the template is composed.
        key = (
            *(override.get_key_element() for override in values),
            *(text for text in sweep_overrides if not is_value(key_of(text))),
        )
        if key not in self._templates:
            composed = self._loader.load_sweep_config(master_config, sweep_overrides)
            self._templates[key] = composed
        point = copy.deepcopy(self._templates[key])
        with flag_override(point, ["struct", "readonly"], False):
            for override in values:
                OmegaConf.update(point, override.key_or_group, override.value(), merge=True)
            point.hydra.overrides.task = list(sweep_overrides)
            name_job(point, overrides)
        return point
