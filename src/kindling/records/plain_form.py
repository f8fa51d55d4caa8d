"""Plain forms of values that a checkpoint cannot hold as they are: a set, a date, a NumPy array.

A checkpoint file is a tree of tensors and plain values (records/checkpoint.py). `to_plain` turns
a value into such a tree, in which a value of another type is a dictionary with its kind and its
parts. `from_plain` gives back values of the same types. All kinds are in this module: nothing that
a file names is imported. A value that occurs twice becomes two equal values.
"""

import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import torch
from torch import Tensor, nn

KIND, PARTS = "kindling.kind", "parts"
LEVELS = 20  # the deepest nesting of a plain form
LONGEST = 4096  # hexadecimal digits of a number: to build a longer one takes their square
TENSORS = {
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.uint8, torch.int8, torch.bool,
}  # fmt: skip
_FACTORIES = {kind.__name__: kind for kind in (int, float, bool, str, list, dict, set, tuple)}
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_NUMBERS = re.compile(
    r"[<>|=][biufcmMSU]\d{1,9}(\[\d{0,9}[a-zA-Z]{1,2}\])?"
)  # NumPy's names of types

Enums = Mapping[str, type[Enum]]


class NotPlainError(Exception):
    """A value has no plain form. The message names its place in the whole and its type."""


class _Kind(NamedTuple):
    """How to take a value apart into parts, and to build one of the parts."""

    type: type
    parts_of: Callable[[Any], Any]
    build: Callable[[Any], Any]


def _of_arguments(kind: Any, parts_of: Callable[[Any], list[Any]]) -> _Kind:
    """A kind whose parts are the arguments of its type."""
    return _Kind(kind, parts_of, lambda parts: kind(*parts))


def _pairs(value: Mapping[Any, Any]) -> list[list[Any]]:
    return [list(pair) for pair in value.items()]


def _as_tensor(content: "bytes | bytearray") -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(content), np.uint8))


def _as_bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def _number(digits: str) -> int:
    if len(digits) > LONGEST:
        raise ValueError("a number has too many digits")
    return int(digits, 16)


def _of_array(value: np.ndarray | np.generic) -> list[Any]:
    return [value.dtype.str, list(value.shape), _as_tensor(value.tobytes())]


def _array(parts: list[Any]) -> np.ndarray:
    name, shape, content = parts
    if not _NUMBERS.fullmatch(name):
        raise ValueError("an array is not of numbers or texts")
    dtype = np.dtype(name)
    if not dtype.itemsize:
        return np.zeros(shape if len(content) else [0], dtype)
    return np.frombuffer(_as_bytes(content), dtype).reshape(shape).copy()


def _moment(kind: type[datetime] | type[time]) -> _Kind:
    """A kind whose text tells neither its zone nor its fold."""
    return _Kind(
        kind,
        lambda v: [v.replace(tzinfo=None, fold=0).isoformat(), v.tzinfo, v.fold],
        lambda parts: kind.fromisoformat(parts[0]).replace(tzinfo=parts[1], fold=parts[2]),
    )


_KINDS = {
    "int": _Kind(int, hex, _number),
    "str": _Kind(
        str,
        lambda text: _as_tensor(text.encode("utf-8", "surrogatepass")),
        lambda tensor: _as_bytes(tensor).decode("utf-8", "surrogatepass"),
    ),
    "bytes": _Kind(bytes, _as_tensor, _as_bytes),
    "bytearray": _Kind(bytearray, _as_tensor, lambda tensor: bytearray(_as_bytes(tensor))),
    "complex": _of_arguments(complex, lambda v: [v.real, v.imag]),
    "range": _of_arguments(range, lambda v: [v.start, v.stop, v.step]),
    "dict": _Kind(dict, _pairs, dict),
    "OrderedDict": _Kind(OrderedDict, _pairs, OrderedDict),
    "Counter": _Kind(Counter, _pairs, lambda pairs: Counter(dict(pairs))),
    "defaultdict": _Kind(
        defaultdict,
        lambda v: [v.default_factory and v.default_factory.__name__, _pairs(v)],
        lambda parts: defaultdict(parts[0] and _FACTORIES[parts[0]], parts[1]),
    ),
    "set": _Kind(set, list, set),
    "frozenset": _Kind(frozenset, list, frozenset),
    "deque": _of_arguments(deque, lambda v: [list(v), v.maxlen]),
    "Path": _Kind(type(Path()), str, Path),
    "PurePosixPath": _Kind(PurePosixPath, str, PurePosixPath),
    "PureWindowsPath": _Kind(PureWindowsPath, str, PureWindowsPath),
    "datetime": _moment(datetime),
    "date": _Kind(date, date.isoformat, date.fromisoformat),
    "time": _moment(time),
    "timedelta": _of_arguments(timedelta, lambda v: [v.days, v.seconds, v.microseconds]),
    # The offset, and a name if it was given.
    "timezone": _of_arguments(timezone, lambda v: list(v.__getinitargs__())),
    "Decimal": _Kind(Decimal, str, Decimal),
    "Fraction": _of_arguments(Fraction, lambda v: [v.numerator, v.denominator]),
    "UUID": _Kind(UUID, str, UUID),
    "array": _Kind(np.ndarray, _of_array, _array),
    "number": _Kind(np.generic, _of_array, lambda parts: _array(parts)[()]),
    "complex tensor": _Kind(Tensor, torch.view_as_real, torch.view_as_complex),
    "Parameter": _of_arguments(nn.Parameter, lambda v: [v.detach(), v.requires_grad]),
    "Size": _Kind(torch.Size, list, torch.Size),
    "dtype": _Kind(torch.dtype, str, _DTYPES.__getitem__),
    "device": _Kind(torch.device, str, torch.device),
}
_KIND_OF = {kind.type: name for name, kind in _KINDS.items() if name != "complex tensor"}


def to_plain(value: Any, enums: Enums | None = None) -> Any:
    """A tree of tensors and plain values, which shares none of them with `value`. Members of the
    classes in `enums` are kept by their names. Raises NotPlainError."""
    return _to_plain(value, "", enums or {}, ())


def _to_plain(value: Any, place: str, enums: Enums, above: tuple[int, ...]) -> Any:
    """`above` has the identities of the values that hold this one."""
    if _is_plain(value):
        return value
    kind = type(value)
    if id(value) in above:
        raise NotPlainError(f"{place} holds itself")
    if len(above) >= LEVELS:
        raise NotPlainError(f"{place} is nested more than {LEVELS} levels deep")
    above = (*above, id(value))

    def inner(item: Any, where: str) -> Any:
        return _to_plain(item, place + where, enums, above)

    if kind in (list, tuple):
        items = [inner(item, f"[{number}]") for number, item in enumerate(value)]
        return items if kind is list else tuple(items)
    if kind in (dict, OrderedDict) and KIND not in value and all(map(_is_plain, value)):
        found = kind((key, inner(item, f"[{key!r}]")) for key, item in value.items())
        if metadata := getattr(value, "_metadata", None):  # of a module's state_dict
            vars(found)["_metadata"] = inner(metadata, "._metadata")
        return found
    if kind is Tensor and value.dtype in TENSORS and value.layout is torch.strided:
        return value.detach().resolve_neg().clone()  # a view would save the whole tensor
    if isinstance(value, Enum):
        named = [name for name, members in enums.items() if members is kind]
        if not named or value.name not in kind.__members__:
            raise NotPlainError(f"{place} is {value!r}, whose class is not one of the module's own")
        return {KIND: "enum", PARTS: [named[0], value.name]}
    name = _name_of(value)
    if name is None:
        raise NotPlainError(f"{place} is a {kind.__qualname__}")
    parts = _KINDS[name].parts_of(value)
    # The parts are counted as a level, like the dictionary around them.
    return {KIND: name, PARTS: _to_plain(parts, place, enums, (*above, -1))}


def _is_plain(value: Any) -> bool:
    if value is None or type(value) in (bool, float):
        return True
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) is str and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _name_of(value: Any) -> str | None:
    """The kind of a value that is not plain; None if there is none."""
    if isinstance(value, np.ndarray | np.generic):
        plain = type(value) is np.ndarray or isinstance(value, np.generic)
        if not plain or not _NUMBERS.fullmatch(np.asarray(value).dtype.str):
            return None
        return "number" if isinstance(value, np.generic) else "array"
    if type(value) is Tensor:
        whole = value.layout is torch.strided and not value.is_quantized
        return "complex tensor" if whole and value.is_complex() else None
    if type(value) is int and value.bit_length() > 4 * (LONGEST - 3):
        return None
    if type(value) is defaultdict:
        made = value.default_factory
        return "defaultdict" if made is None or made in _FACTORIES.values() else None
    return _KIND_OF.get(type(value))


def from_plain(value: Any, enums: Enums | None = None) -> Any:
    """The value of which `to_plain` made this tree. Raises an error of any type for another one."""
    if type(value) in (list, tuple):
        return type(value)(from_plain(item, enums) for item in value)
    if type(value) not in (dict, OrderedDict):
        return value
    if KIND not in value:
        found = type(value)((key, from_plain(item, enums)) for key, item in value.items())
        if metadata := getattr(value, "_metadata", None):
            vars(found)["_metadata"] = metadata
        return found
    name, parts = value[KIND], from_plain(value[PARTS], enums)
    if name == "enum":
        members, member = parts
        return (enums or {})[members].__members__[member]
    return _KINDS[name].build(parts)
