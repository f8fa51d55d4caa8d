"""The space of a search, from Hydra's grammar of overrides. Neither torch nor Optuna is imported.

Hydra's documentation describes the grammar in "Extended override syntax". Each form means the same
as in hydra-optuna-sweeper, except that a range does not include its stop, as in Hydra's sweeps.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    IntervalSweep,
    Override,
    RangeSweep,
    Sweep,
)
from hydra.errors import HydraException

from kindling.config.overrides import axes_of, is_zipped, single_values
from kindling.system.errors import InputError, first_line


@dataclass(frozen=True)
class Listed:
    """Values that are listed: of one key, as typed; or of several keys that change together, whose
    values are the places 0, 1, 2, …"""

    texts: dict[str, str]
    places: dict[Any, tuple[str, ...]]  # the overrides of each value

    @property
    def key(self) -> str:
        return "+".join(self.texts)

    @property
    def extremes(self) -> Sequence[Any]:
        return tuple(self.places)

    def overrides(self, value: Any) -> tuple[str, ...]:
        return self.places[value]


@dataclass(frozen=True)
class Numbers:
    """The numbers from `low` to `high`, both included, in steps of `step`; None: all numbers."""

    key: str
    text: str  # as typed
    low: float
    high: float
    integer: bool
    log: bool
    step: float | None

    @property
    def texts(self) -> dict[str, str]:
        return {self.key: self.text}

    @property
    def extremes(self) -> Sequence[float]:
        return tuple(dict.fromkeys((self.low, self.high)))

    def overrides(self, value: Any) -> tuple[str, ...]:
        return (f"{self.key}={value!r}",)


# Each has a `key`, its name in the study; `texts`, the space of each key that it sets; `extremes`,
# the values to check; and the `overrides` of a value.
Parameter = Listed | Numbers


def zip_of(overrides: Sequence[Override]) -> Listed:
    """The parameter of zipped overrides without `zip_faults`; their order does not matter. Raises
    InputError if two places have the same values."""
    zipped = sorted(filter(is_zipped, overrides), key=lambda each: each.key_or_group)
    (places,) = axes_of(zipped)
    place, count = Counter(places).most_common(1)[0]
    if count > 1:
        raise InputError(f"zip(…): has {' '.join(place)} twice")
    texts = {}
    for each in zipped:
        values = (text.partition("=")[2] for text in single_values(each))
        texts[each.key_or_group] = f"zip({','.join(values)})"
    return Listed(texts, dict(enumerate(places)))


def parameter_of(override: Override) -> Parameter:
    """The parameter of a sweep override that is not zipped. Raises InputError for an override of
    another form."""
    key, typed = override.key_or_group, override.input_line or ""
    text = "".join(typed.partition("=")[2].split())
    value = override._value  # .value() has a less exact type
    if isinstance(value, Glob):
        raise InputError(f"{typed}: glob cannot be searched; list the choices: {key}=choice(a,b)")
    tags = value.tags if isinstance(value, Sweep) else set()
    unknown = ", ".join(sorted(tags - {"log"}))
    if unknown:
        raise InputError(f"{typed}: the tag {unknown} has no meaning here; the only tag is log")
    try:
        if getattr(value, "shuffle", False):
            raise ValueError("a search has no order that could be shuffled; leave shuffle out")
        if isinstance(value, ChoiceSweep):
            return _choice(override, log=bool(tags))
        if isinstance(value, RangeSweep):
            numbers = _range(key, text, value, log=bool(tags))
        else:
            assert isinstance(value, IntervalSweep)
            numbers = _interval(key, text, value, log=bool(tags))
        if numbers.log and numbers.low <= 0:
            raise ValueError("the tag log needs a start greater than 0")
        return numbers
    except (HydraException, ValueError) as error:
        raise InputError(f"{typed}: {first_line(error)}") from None


def _choice(override: Override, *, log: bool) -> Listed:
    if log:
        raise ValueError("the tag log goes with interval and range, not with choice")
    values = [str(text) for text in override.sweep_string_iterator()]
    twice = [value for value in values if values.count(value) > 1]
    if twice:
        raise ValueError(f"has {twice[0]} twice")
    key = override.key_or_group
    space = {key: f"choice({','.join(values)})"}
    return Listed(space, {value: (f"{key}={value}",) for value in values})


def _range(key: str, text: str, value: RangeSweep, *, log: bool) -> Numbers:
    """As in Hydra's sweeps: from the start in steps, without the stop."""
    start, stop, step = (Decimal(str(number)) for number in (value.start, value.stop, value.step))
    count = math.ceil((stop - start) / step)
    ends = sorted((start, start + (count - 1) * step))
    integer = all(isinstance(each, int) for each in (value.start, value.stop, value.step))
    if log and not (integer and abs(step) == 1):
        raise ValueError("the tag log goes with interval, and with range of integers by 1")
    low, high = (int(end) if integer else float(end) for end in ends)
    size = int(abs(step)) if integer else float(abs(step))
    return Numbers(key, text, low, high, integer, log, size)


def _interval(key: str, text: str, value: IntervalSweep, *, log: bool) -> Numbers:
    low, high = value.start, value.end
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("must have finite ends")
    if low >= high:
        raise ValueError("its start must be less than its end")
    integer = isinstance(low, int)  # Hydra gives floats, or integers inside int(...)
    return Numbers(key, text, low, high, integer, log, 1 if integer else None)


def corners(space: Sequence[Parameter]) -> list[list[str]]:
    """Points with each pair of extreme values of two parameters, and the first value of the others:
    enough to check a space, because no rule across keys looks at more than two numbers."""
    extremes = [[each.overrides(value) for value in each.extremes] for each in space]
    first = tuple(texts[0] for texts in extremes)
    points = {first: None}
    for (i, some), (j, others) in itertools.combinations(enumerate(extremes), 2):
        for one, other in itertools.product(some, others):
            points[(*first[:i], one, *first[i + 1 : j], other, *first[j + 1 :])] = None
    if len(extremes) == 1:
        points |= {(texts,): None for texts in extremes[0]}
    return [list(itertools.chain(*point)) for point in points]
