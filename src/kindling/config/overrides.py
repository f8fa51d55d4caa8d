"""The overrides of a command line: parsed, each checked by itself, and combined to the trials of a
sweep.

Hydra stops at its first fault, recommends `+` for a misspelt key and checks no value. Therefore
this module looks at every override before Hydra composes anything.

Every key of a sweep is an axis with its values. The trials are the product of the axes, and the
last axis changes fastest. KEY=zip(A,B,…), which Hydra's grammar does not have, gives a key values
that change together with those of all other zipped keys: all of them are one axis, in the place of
the first.
"""

import dataclasses
import functools
import itertools
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser, create_functions
from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    Override,
    Quote,
    QuotedString,
    RangeSweep,
    Sweep,
)
from hydra.errors import HydraException

from kindling.config.faults import (
    did_you_mean,
    keys_of_lists,
    keys_of_texts,
    options,
    unknown_key,
)
from kindling.config.schema import GROUPS, MOST_POINTS, TARGET
from kindling.config.written import counted, written
from kindling.system.errors import InputError, first_line

# Characters of all overrides together. The time of Hydra's parser grows with their square: half a
# second for 5,000.
OVERRIDES_LIMIT = 10_000
# `KEY = VALUE` of two or three arguments, which are joined by \0.
SPACED = re.compile(r"(?<![^\0])([^\0=]+)(?:\0=\0?|=\0)([^\0=]+)(?![^\0])")


@dataclass
class ZipSweep(ChoiceSweep):
    """The values of a zipped key. Hydra's types see a choice."""


class _Functions:
    """The functions of the grammar: Hydra's, and zip(…), whose values keep their quotes."""

    def __init__(self) -> None:
        self._hydras = create_functions()
        self.names = (*self._hydras.functions, "zip")

    def eval(self, call: Any) -> Any:
        """The value of a function that the parser has read; nested ones are read before."""
        if call.name == "zip":
            return _zipped(call.args, call.kwargs)
        values = [*call.args, *call.kwargs.values()]
        if any(isinstance(each, ZipSweep) for each in values):
            raise InputError(f"zip(…) cannot be inside of {call.name}(…); type KEY=zip(A,B)")
        if any(isinstance(each, ZipSweep) for each in _inner(values)):
            raise InputError(_INSIDE)
        return self._hydras.eval(call)


_INSIDE = (
    "choice(…), range(…), interval(…), glob(…) and zip(…) cannot be inside of another "
    "value; type KEY=A,B or KEY=zip(A,B)"
)


def _zipped(values: list[Any], named: Mapping[str, Any]) -> ZipSweep:
    if named:
        raise InputError(f"zip(…) takes values without names; leave out {next(iter(named))}=")
    if not values:
        raise InputError("zip(…) has no values; type them, such as zip(0.1,0.3)")
    only = values[0] if len(values) == 1 else None
    if isinstance(only, RangeSweep) and not (only.tags or only.shuffle):
        if fault := _range_fault(only):
            raise InputError(f"the range in zip(…) {fault}")
        values = [*itertools.islice(only.range(), MOST_POINTS + 1)]
        if len(values) > MOST_POINTS:
            raise InputError(f"zip(…) takes at most {MOST_POINTS:,} values; type fewer")
    elif isinstance(only, ChoiceSweep) and only.simple_form and not (only.tags or only.shuffle):
        values = only.list  # of sort(…)
    if any(isinstance(each, Sweep | Glob) for each in _inner(values)):
        raise InputError("zip(…) takes single values or one range(…); type zip(A,B)")
    return ZipSweep(list=values)


def _inner(value: Any) -> Iterator[Any]:
    """Everything inside a value, at any depth."""
    inner: Any = ()
    if isinstance(value, ChoiceSweep):
        inner = value.list
    elif isinstance(value, list):
        inner = value
    elif isinstance(value, dict):
        inner = value.values()
    for each in inner:
        yield each
        yield from _inner(each)


def _range_fault(value: RangeSweep) -> str | None:
    """Why a range cannot be enumerated, or None."""
    start, stop, step = (Decimal(str(number)) for number in (value.start, value.stop, value.step))
    if not all(number.is_finite() for number in (start, stop, step)) or not step:
        return "must have finite ends and a step that is not 0"
    if start == stop or (start < stop) != (step > 0):
        return "has no number; the stop itself is not included"
    return None


UNREADABLE = (InputError, HydraException, ValueError, RecursionError)  # as `parsed` raises them
_FUNCTIONS = _Functions()
_PARSER = OverridesParser(cast(Any, _FUNCTIONS))
_WITH_NUMBER = re.compile(r"([A-Za-z_][\w.]*)=((?:0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?)", re.ASCII)


@functools.lru_cache(2 * MOST_POINTS)  # the points of a sweep have most overrides in common
def parsed(text: str) -> Override:
    """Raises InputError for a misused function of a sweep, HydraException for any other fault of
    the grammar, and ValueError or RecursionError for what Hydra's parser cannot handle. The message
    of InputError does not repeat the text."""
    if match := _WITH_NUMBER.fullmatch(text):  # the key is parsed once: Hydra's parser takes 1 ms
        key, number, fraction = match.groups()
        value = int(number) if fraction is None else float(number)
        return dataclasses.replace(parsed(f"{key}=x"), _value=value, input_line=text)
    try:
        override = _PARSER.parse_override(text)
    except HydraException as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise
    found: Any = override._value  # .value() has a less exact type
    if not isinstance(found, ZipSweep) and any(
        isinstance(each, Sweep | Glob) for each in _inner(found)
    ):
        raise InputError(_INSIDE)
    fault = _range_fault(found) if isinstance(found, RangeSweep) else None
    if fault:
        raise InputError(fault)
    return override


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
    spaced = any(text.startswith("=") or text.endswith("=") for text in texts)
    line = "\0".join(texts) if spaced and not any("\0" in text for text in texts) else ""
    faults += [
        f"{match[0].replace(chr(0), ' ')}: write no spaces around =; type {match[1]}={match[2]}"
        for match in SPACED.finditer(line)
    ]
    if line:
        texts = [text for text in SPACED.sub("", line).split("\0") if text or "" in texts]
    parsed = [parse(text, faults) for text in texts]
    return [override for override in parsed if override is not None]


def parse(text: str, faults: list[str]) -> Override | None:
    """An override. If it cannot be parsed: None, and a fault is added to `faults`."""
    try:
        return parsed(text)
    except InputError as error:
        faults.append(f"{text}: {error}")
        return None
    except UNREADABLE as error:
        why = f"cannot be read ({first_line(error)})"
        if _brackets_differ(text):
            why = "a bracket has no partner; write a list without spaces, or put it in quotes"
            if key_of(text) not in keys_of_lists() - keys_of_texts():
                why += f"; a text in two kinds of quotes: {as_one_text(text)}"
        elif "=" not in text:
            why = "must be KEY=VALUE, for example optimizer.lr=0.1; --help lists the keys"
        else:
            why += f"; a text needs quotes: {as_one_text(text)}"
        faults.append(f"{text}: {why}")
        return None


def _brackets_differ(text: str) -> bool:
    """Whether a bracket has no partner."""
    return any(text.count(left) != text.count(right) for left, right in ("[]", "()", "{}"))


def key_of(text: str) -> str:
    return text.lstrip("+~").partition("=")[0]


def quoted(text: str) -> str:
    return QuotedString(text, Quote.single).with_quotes()


def as_one_text(text: str) -> str:
    """An override whose whole value is one text, as typed in a shell."""
    key, _, value = text.partition("=")
    return shlex.quote(f"{key}={QuotedString(value, Quote.double).with_quotes()}")


def _as_one_value(text: str) -> str:
    """`, or as one list: …` or `, or as one text: …` for an override with commas, "" if the key
    takes neither."""
    key, _, value = text.partition("=")
    if key_of(text) in keys_of_lists() - {TARGET}:
        return f", or as one list: {shlex.quote(f'{key}=[{value}]')}"
    return f", or as one text: {as_one_text(text)}" if key_of(text) in keys_of_texts() else ""


def is_hydras(key: str) -> bool:
    """Whether a key belongs to Hydra's own configuration."""
    return key == "hydra" or key.startswith(("hydra.", "hydra/"))


def task_of(texts: Iterable[str]) -> list[str]:
    """The overrides that are not Hydra's own."""
    return [text for text in texts if not is_hydras(key_of(text))]


def last_value(overrides: Sequence[Override], key: str) -> Any:
    """The last value that a command line gives to a key, or None."""
    values = [each.value() for each in overrides if each.key_or_group == key]
    return values[-1] if values else None


def override_text(key: str, value: Any) -> str:
    """KEY=VALUE in the grammar of Hydra's command line. A text that the grammar would read as
    anything else is quoted."""
    text = f"{key}={written(value)}"
    if not isinstance(value, str):
        return text
    override = parse(text, [])
    read = None if override is None or override.is_sweep_override() else override.value()
    # The schema takes a whole number for these texts.
    same = read == value or (key == "trainer.precision" and str(read) == value)
    return text if same else f"{key}={quoted(value)}"


def with_folder(texts: Sequence[str], key: str, folder: Path) -> list[str]:
    """The overrides, with a key of Hydra set to a path of any characters except `${`."""
    if "${" in str(folder):
        raise InputError(f"{folder}: Hydra would replace the part after ${{; rename the folder")
    fixed = override_text(key, str(folder))
    return [*(text for text in texts if text != fixed), fixed]


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
        value: Any = parsed(given).value()
        several = key == "logger" and isinstance(value, list)  # logger=[tensorboard,mlflow]
        for choice in map(written, value if several else [value]):
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


Axis = list[tuple[str, ...]]  # the overrides of each place on the axis


def is_zipped(override: Override) -> bool:
    return isinstance(override._value, ZipSweep)


def single_values(override: Override) -> list[str]:
    """An override for each value of a sweep, as Hydra's basic sweeper writes it; at most
    MOST_POINTS + 1. Empty if the sweeper chooses the values during the sweep."""
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    try:
        values = itertools.islice(override.sweep_string_iterator(), MOST_POINTS + 1)
        return [f"{key}={value}" for value in values]
    except HydraException:  # an interval or a glob
        return []


def axes_of(overrides: Sequence[Override]) -> list[Axis]:
    """The axes of a sweep. Of a key that is given twice, the last values count. If zipped keys have
    different numbers of values, which `zip_faults` reports, the last places lack some keys."""
    values = {each.get_key_element(): single_values(each) for each in overrides}
    zipped = list(dict.fromkeys(each.get_key_element() for each in overrides if is_zipped(each)))
    axes: list[Axis] = []
    for key, texts in values.items():
        if key not in zipped:
            axes.append([(text,) for text in texts])
        elif key == zipped[0]:
            together = itertools.zip_longest(*(values[each] for each in zipped), fillvalue="")
            axes.append([tuple(filter(None, texts)) for texts in together])
    return axes


def product_of(axes: Sequence[Axis]) -> list[tuple[str, ...]]:
    """The overrides of each trial, in the order of the trials."""
    return [tuple(itertools.chain(*places)) for places in itertools.product(*axes)]


def zip_faults(overrides: Sequence[Override]) -> list[str]:
    """The faults of zipped overrides among all overrides of a command."""
    zipped = [each for each in overrides if is_zipped(each)]
    keys = [each.key_or_group for each in overrides]
    faults = [
        f"{each.input_line}: {each.key_or_group} is given twice; type it once"
        for each in zipped
        if keys.count(each.key_or_group) > 1
    ]
    counts = {each.key_or_group: len(single_values(each)) for each in zipped}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{key} has {counted(count, 'value')}" for key, count in counts.items())
        faults.append(
            f"zip(…): {listed}; keys that change together need the same number of values; to "
            "combine a key with all others, type KEY=A,B"
        )
    return faults + [
        f"{each.input_line}: does not go with zip(…), which needs the values of all keys; "
        f"type {each.key_or_group}=A,B"
        for each in overrides
        if zipped and not single_values(each)
    ]


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
            text = override.input_line or ""
            fault = f"{text}: several values need a sweep; type -m too{_as_one_value(text)}"
        if fault:
            faults.append(fault)
        else:
            valid.append(override)
    if not sweep:
        return [[override.input_line or "" for override in valid]], valid, faults
    faults += zip_faults(valid)
    axes = axes_of(valid)
    if math.prod(map(len, axes)) > MOST_POINTS:
        faults.append(f"a sweep of more than {MOST_POINTS:,} trials; type fewer values")
        return [], valid, faults
    # A key whose values the sweeper chooses has no values here, so the product is empty.
    return list(product_of(axes)), valid, faults


# --- quotes -----------------------------------------------------------------------------------
# To Hydra a bare text has ASCII letters, digits, spaces and some signs. A path such as
# /home/josé/a#b.csv, or a column named `Größe` or `true`, needs quotes inside those of the shell.
# Kindling adds them, so that users need not.

# A text in quotes that is a whole value; and the innermost brackets.
_QUOTED = re.compile(
    r"""(?s)(?:^|[\[(,])\s*(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')(?=\s*(?:[,\])]|$))"""
)
_BRACKETS = re.compile(r"\[[^][(){}]*\]|\([^][(){}]*\)|\{[^][(){}]*\}")


def with_quotes(texts: Sequence[str], *, sweep: bool) -> list[str]:
    """The overrides of a command line, with quotes around values that Hydra would not read, and
    around words such as `true` or `1e5` where a key takes texts. Commas still separate the values
    of a sweep and of a list. What quotes cannot mend stays as it is."""
    if sum(map(len, texts)) > OVERRIDES_LIMIT:
        return list(texts)
    return [_with_quotes(text, sweep) for text in texts]


def _with_quotes(text: str, sweep: bool) -> str:
    key, _, value = text.partition("=")
    if not value or text.startswith("~") or key == "resume":  # resume=FOLDER is read literally
        return text
    own = key_of(text)
    listed = own in keys_of_texts(listed=True)
    if own == TARGET:  # a text with commas, or a list in brackets
        listed = value.lstrip().startswith("[")
    kind = _Kind(own in keys_of_texts(), listed, sweep)
    if kind.is_read(value) or _brackets_differ(value):  # perhaps the shell has divided a list
        return text
    with_quotes = f"{key}={kind.quoted_parts(value)}"
    try:
        parsed(with_quotes)
    except UNREADABLE:
        return text
    return with_quotes


@dataclass(frozen=True)
class _Kind:
    """What the values of a key are: texts or lists of texts, of a sweep or of one run."""

    of_texts: bool
    listed: bool
    sweep: bool

    def is_read(self, value: str) -> bool:
        """Whether Hydra reads a value, and for a key of texts, as texts."""
        try:
            found: Any = parsed(f"key={value}")._value  # .value() has a less exact type
        except InputError:  # a misused function: its fault says what to type
            return True
        except UNREADABLE:
            return False
        if not self.of_texts or (isinstance(found, Sweep) and not isinstance(found, ChoiceSweep)):
            return True
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found) == value.strip()  # the schema takes the number for a text
        if isinstance(found, list) and not self.listed:
            return False
        several = found.list if isinstance(found, ChoiceSweep) else found
        return all(
            isinstance(each, str | QuotedString | None)
            for each in (several if isinstance(several, list) else [several])
        )

    def quoted_parts(self, values: str) -> str:
        several = self.sweep or self.listed or not self.of_texts
        parts = _split(values) if several else [values]
        return ",".join(self._quoted(part.strip(" \t")) for part in parts)

    def _quoted(self, part: str) -> str:
        if not part or self.is_read(part):
            return part
        if part[0] == "[" and part[-1] == "]" and self.listed:
            return f"[{self.quoted_parts(part[1:-1])}]"
        function = re.fullmatch(r"(?as)([a-z_]\w*)\s*\((.*)\)", part)
        if function and self.sweep and function[1] == "zip":
            return f"zip({self.quoted_parts(function[2])})"
        if function and self.sweep and function[1] == "choice":  # Hydra's would drop the quotes
            return self.quoted_parts(function[2])
        misused = function and (function[1] in _FUNCTIONS.names or not self.of_texts)
        return part if misused else quoted(part)


def _split(values: str) -> list[str]:
    """The parts between commas that are neither in brackets nor in quotes."""
    masked, found = _QUOTED.sub(lambda m: m[0][0] + "_" * (len(m[0]) - 1), values), 1
    while found:
        masked, found = _BRACKETS.subn(lambda m: "_" * len(m[0]), masked)
    commas = [place for place, sign in enumerate(masked) if sign == ","]
    return [
        values[start + 1 : end] for start, end in itertools.pairwise([-1, *commas, len(values)])
    ]
