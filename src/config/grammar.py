"""Hydra's grammar of overrides, with one more function: zip.

KEY=zip(A,B,…) gives a key values that change together with those of all other zipped keys.
"""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hydra._internal.grammar.functions import FunctionCall, Functions
from hydra.core.override_parser.overrides_parser import OverridesParser, create_functions
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, RangeSweep, Sweep
from hydra.errors import HydraException

from src.config.schema import MOST_POINTS
from src.system.errors import InputError


@dataclass
class ZipSweep(ChoiceSweep):
    """The values of a zipped key. Hydra's types see a choice."""


def parse_override(text: str) -> Override:
    """Raises InputError for a misused function of a sweep, HydraException for any other fault of
    the grammar, and ValueError or RecursionError for what Hydra's parser cannot handle. The message
    of InputError does not repeat the text."""
    try:
        override = _parser().parse_override(text)
    except HydraException as error:
        if isinstance(error.__cause__, InputError):  # raised by a function, and wrapped by Hydra
            raise error.__cause__ from None
        raise
    value: Any = override._value  # .value() has a less exact type
    if any(isinstance(each, Sweep | Glob) for each in _inner(value)):
        if isinstance(value, ZipSweep):
            raise InputError("zip(…) takes single values or one range(…); type zip(A,B)")
        raise InputError(
            "choice(…), range(…), interval(…), glob(…) and zip(…) cannot be inside of another "
            "value; type KEY=A,B or KEY=zip(A,B)"
        )
    fault = _range_fault(value) if isinstance(value, RangeSweep) else None
    if fault:
        raise InputError(fault)
    return override


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


class _Functions(Functions):
    """Hydra's functions, and zip. Like `KEY=A,B`, zip keeps the quotes of its values."""

    def eval(self, func: FunctionCall) -> Any:
        if func.name == "zip":
            return _zip(func)
        if any(isinstance(each, ZipSweep) for each in (*func.args, *func.kwargs.values())):
            # Most of these functions would return a plain choice.
            raise InputError(f"zip(…) cannot be inside of {func.name}(…); type KEY=zip(A,B)")
        return super().eval(func)


def _zip(call: FunctionCall) -> ZipSweep:
    if call.kwargs:
        raise InputError(f"zip(…) takes values without names; leave out {next(iter(call.kwargs))}=")
    if not call.args:
        raise InputError("zip(…) has no values; type them, such as zip(0.1,0.3)")
    (first, *others) = call.args
    if others or not isinstance(first, RangeSweep) or first.shuffle or first.tags:
        return ZipSweep(list=call.args)
    fault = _range_fault(first)
    if fault:
        raise InputError(f"the range in zip(…) {fault}")
    numbers = list(itertools.islice(first.range(), MOST_POINTS + 1))
    if len(numbers) > MOST_POINTS:
        raise InputError(f"zip(…) takes at most {MOST_POINTS:,} values; type fewer")
    return ZipSweep(list=numbers)


def _range_fault(value: RangeSweep) -> str | None:
    """Why a range cannot be enumerated, or None."""
    start, stop, step = (Decimal(str(number)) for number in (value.start, value.stop, value.step))
    if not all(number.is_finite() for number in (start, stop, step)) or not step:
        return "must have finite ends and a step that is not 0"
    if start == stop or (start < stop) != (step > 0):
        return "has no number; the stop itself is not included"
    return None


@functools.cache
def _parser() -> OverridesParser:
    hydras = create_functions()
    return OverridesParser(_Functions(hydras.definitions, hydras.functions))
