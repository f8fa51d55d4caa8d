"""The overrides of a command line, each checked by itself.

Hydra stops at its first fault, recommends `+` for a misspelt key and checks no value. Therefore
this module looks at every override before Hydra composes anything.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import (
    Override,
    OverrideType,
    Quote,
    QuotedString,
)
from hydra.errors import HydraException

from src.config.axes import single_values
from src.config.faults import did_you_mean, options, unknown_key
from src.config.grammar import parse_override
from src.config.schema import GROUPS, MOST_POINTS
from src.system.errors import InputError, first_line

# Characters of all overrides together. The time of Hydra's parser grows with their square: half a
# second for 5,000.
OVERRIDES_LIMIT = 10_000


def parse_all(texts: Sequence[str], faults: list[str]) -> list[Override]:
    """The overrides that can be parsed. For each other override, a fault is added to `faults`."""
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
    """An override. If it cannot be parsed: None, and a fault is added to `faults`."""
    try:
        return parsed(text)
    except InputError as error:
        faults.append(f"{text}: {error}")
        return None
    except (HydraException, ValueError, RecursionError) as error:
        why = f"cannot be read ({first_line(error)})"
        if any(text.count(left) != text.count(right) for left, right in ("[]", "()", "{}")):
            why = "a bracket has no partner; write a list without spaces, or put it in quotes"
        elif "=" not in text:
            why = "must be KEY=VALUE, for example optimizer.lr=0.1; --help lists the keys"
        faults.append(f"{text}: {why}")
        return None


_WITH_NUMBER = re.compile(r"([A-Za-z_][\w.]*)=((?:0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?)", re.ASCII)


@functools.lru_cache(2 * MOST_POINTS)  # the points of a sweep have most overrides in common
def parsed(text: str) -> Override:
    """As `parse_override`. Where the value is a plain number, a text with the same key and
    another number is parsed, once: Hydra's parser takes 1 ms."""
    match = _WITH_NUMBER.fullmatch(text)
    if match is None:
        return parse_override(text)
    key, number, fraction = match.groups()
    value = int(number) if fraction is None else float(number)
    return dataclasses.replace(_parsed_number(key), _value=value, input_line=text)


@functools.lru_cache(1000)
def _parsed_number(key: str) -> Override:
    return parse_override(f"{key}=0")


def apply_to_plain(overrides: Iterable[Override], values: dict[str, Any]) -> bool:
    """Sets values in nested dictionaries as Hydra does in its configurations.

    Returns False, perhaps after some values were set, if an override does anything else than to
    replace a number, a text, null or a list of them by another one.
    """
    for override in overrides:
        if override.type is not OverrideType.CHANGE or override.package is not None:
            return False
        if override.is_sweep_override():
            return False
        *sections, name = override.key_or_group.split(".")
        section: Any = values
        for inner in sections:
            section = section.get(inner) if isinstance(section, dict) else None
        if not isinstance(section, dict) or isinstance(section.get(name, {}), dict):
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


def key_of(text: str) -> str:
    return text.lstrip("+~").partition("=")[0]


def quoted(text: str) -> str:
    return QuotedString(text, Quote.single).with_quotes()


def is_hydras(key: str) -> bool:
    """Whether a key belongs to Hydra's own configuration."""
    return key == "hydra" or key.startswith(("hydra.", "hydra/"))


def is_choice(key: str) -> bool:
    """Whether a key chooses a file of a configuration group. Other keys set a value."""
    return key in GROUPS or "/" in key


def override_fault(override: Override, config_dir: str | None = None) -> str | None:
    """The fault of an override by itself, or None. Values of keys are checked after composing."""
    key, text = override.key_or_group, override.input_line or ""
    if is_hydras(key):
        return _hydras_fault(override)
    if key not in GROUPS:
        if override.package is not None:
            return f"{text}: unknown key"
        return unknown_key(key, text.lstrip("+"))
    if "=" not in text or text[0] in "+~" or override.package is not None:
        return f"{text}: a group is chosen by {key}=CHOICE"
    allowed = options(key) + (options(key, Path(config_dir)) if config_dir else [])
    for given in single_values(override) if override.is_sweep_override() else [text]:
        for choice in _choices(key, given.partition("=")[2]):
            if choice not in allowed:
                hint = did_you_mean(choice, allowed)
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
    """The choices in a text. Several loggers can be chosen at once: logger=[tensorboard,mlflow]."""
    if group == "logger" and text.startswith("[") and text.endswith("]"):
        return [choice.strip() for choice in text[1:-1].split(",") if choice.strip()]
    return [text]
