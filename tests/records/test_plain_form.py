"""Values of callbacks in a checkpoint: written to a file, checked, read, and of the same types."""

import enum
import math
import random
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch

from kindling.records import checkpoint
from kindling.records.plain_form import KIND, LEVELS, PARTS, NotPlainError, from_plain, to_plain


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 3


class Mood(enum.StrEnum):
    GOOD = "good"


class Pair(NamedTuple):
    first: int


class Foo:
    pass


ENUMS: dict[str, type[enum.Enum]] = {"Colour": Colour, "Size": Size, "Mood": Mood}
SHARED, TENSOR = [1, [2]], torch.arange(6.0).view(2, 3)
BOUND = datetime(2026, 10, 25, 2, 30, fold=1)
VALUES: list[Any] = [
    None, True, 0, -(2**63), 2**63, -(2**200), 1.5, math.inf, "", "ä\0", "half \ud800", 3 + 4j,
    b"", b"\0\xff", bytearray(b"ab"), [], (), {}, set(), [1, (2, [3]), {"a": (4,)}],
    {1, 2}, {(1, 2), frozenset({3})}, frozenset({"a"}), deque([1, 2], maxlen=2), deque([[1]]),
    {1: "a", (1, 2): "b"}, {KIND: "set", PARTS: []}, OrderedDict(a=1, b=OrderedDict()),
    OrderedDict({(1,): 2}), Counter("aab"), defaultdict(list, {"a": [1]}),
    defaultdict(None, {1: 2}),
    range(2, 9, 3), Path("a/b"), PurePosixPath("/x"), PureWindowsPath("c:/x"),
    BOUND, datetime.now(UTC), datetime(2000, 1, 1, tzinfo=timezone(timedelta(hours=-3), "BRT")),
    date(1, 1, 1), time(1, 2, 3, 4, fold=1), time(1, tzinfo=UTC), timedelta(-1, 2, 3),
    timezone(timedelta(minutes=90)), Decimal("1.10"), Decimal("NaN"), Fraction(1, 3), UUID(int=7),
    Colour.RED, Colour.BLUE, [Size.SMALL], {"m": Mood.GOOD},
    np.float64(0.1), np.float32(0.1), np.int8(-3), np.bool_(True), np.str_("ä"), np.str_(""),
    np.bytes_(b"x"), np.complex64(1j), np.datetime64("2026-01-02", "D"), np.timedelta64(5, "s"),
    np.arange(6).reshape(2, 3), np.zeros((0, 4)), np.array(7.0), np.array(["a", "bcd"]),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(3, dtype=">i2"), np.array([], "U"),
    TENSOR, TENSOR.T, TENSOR[0], torch.zeros(1).expand(1000), torch.tensor(3, dtype=torch.int16),
    torch.tensor([True]), torch.tensor([1j, 2]), torch.ones(2, dtype=torch.bfloat16),
    torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2), requires_grad=False),
    torch.float16, torch.device("cpu"), torch.Size([2, 3]), torch.nn.Linear(2, 1).state_dict(),
    [SHARED, SHARED], {"a": TENSOR, "b": TENSOR}, [TENSOR, TENSOR[1:]],
    {"best": {"scores": [np.float64(0.5), np.float64(0.7)], "when": BOUND, "seen": {1, 2}}},
]  # fmt: skip


def read_again(value: Any, tmp_path: Path) -> Any:
    file = tmp_path / "state.ckpt"
    checkpoint.write({"state": to_plain(value, ENUMS)}, file)
    return from_plain(checkpoint.read(file)["state"], ENUMS)


def told(value: Any) -> tuple[Any, ...]:
    """The value and the types of all its parts, to compare."""
    inside: Any
    if isinstance(value, torch.Tensor):
        inside = value.dtype, value.requires_grad, value.tolist()
    elif isinstance(value, np.ndarray | np.generic):
        inside = value.dtype, value.tolist()
    elif isinstance(value, dict):
        extra = [getattr(value, name, None) for name in ("default_factory", "_metadata")]
        inside = extra, [(told(key), told(item)) for key, item in value.items()]
    elif isinstance(value, list | tuple | deque):
        inside = getattr(value, "maxlen", None), [told(item) for item in value]
    elif isinstance(value, set | frozenset):
        inside = sorted(repr(told(item)) for item in value)
    else:
        inside = value, getattr(value, "fold", None)
    return type(value), inside


def same(one: Any, other: Any) -> bool:
    return repr(told(one)) == repr(told(other))  # NaN equals NaN


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_a_value_comes_back_with_its_type(number: int, tmp_path: Path) -> None:
    assert same(VALUES[number], read_again(VALUES[number], tmp_path))


def test_random_trees_come_back(tmp_path: Path) -> None:
    stream = random.Random(0)
    hashable = [None, 1, 2**70, "a", b"b", Colour.RED, Path("x"), np.int64(3), frozenset({1})]

    def tree(depth: int) -> Any:
        if not depth or stream.random() < 0.2:
            return stream.choice(VALUES)
        items = [tree(depth - 1) for _ in range(stream.randrange(4))]
        keys = stream.sample(hashable, len(items))
        kind: Any = stream.choice([list, tuple, deque, dict, OrderedDict, set])
        if kind is set:
            return set(keys)
        return kind(zip(keys, items, strict=True)) if issubclass(kind, dict) else kind(items)

    for _ in range(100):
        value = tree(2)
        assert same(value, read_again(value, tmp_path))


def test_a_tensor_is_saved_without_what_it_is_a_view_of(tmp_path: Path) -> None:
    big = torch.zeros(10**6)
    checkpoint.write({"state": to_plain([big[:2], big.expand(5, 10**6)[:, :1]])}, tmp_path / "a")
    assert (tmp_path / "a").stat().st_size < 10_000
    state = to_plain([big])
    big += 1
    assert state[0].sum() == 0  # what is written later is the state of now


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP: Any = []
for _ in range(LEVELS):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, Foo()]}, "['a'][1] is a Foo"),
        (Pair(1), " is a Pair"),
        ({"f": print}, "['f'] is a builtin_function_or_method"),
        ({"d": defaultdict(Foo)}, "['d'] is a defaultdict"),
        ({"s": {"x", Foo}}, "is a type"),
        (CYCLE, "[0] holds itself"),
        (DEEP, "is nested more than 20 levels deep"),
        ([datetime(2000, 1, 1, tzinfo=ZoneInfo("UTC"))], "is a ZoneInfo"),
        (np.array([Foo()]), " is a ndarray"),
        (np.zeros(1, [("a", "f4")])[0], " is a void"),
        (np.ma.masked_array([1]), " is a MaskedArray"),
        (torch.zeros(2).to_sparse(), " is a Tensor"),
        (np.random.default_rng(0), " is a Generator"),
        (enum.Enum("Other", "ONE").ONE, "is <Other.ONE: 1>, whose class is not one of"),  # type: ignore[attr-defined]
        ([1 << 17_000], "[0] is a int"),
    ],
)
def test_another_value_is_named_with_its_place(value: Any, place: str) -> None:
    with pytest.raises(NotPlainError) as error:
        to_plain(value, ENUMS)
    assert place in str(error.value)


@pytest.mark.parametrize(
    "hostile",
    [
        {KIND: "builtins.eval", PARTS: "1"},
        {KIND: "enum", PARTS: ["os", "system"]},
        {KIND: "enum", PARTS: ["Colour", "__class__"]},
        {KIND: "defaultdict", PARTS: ["eval", []]},
        {KIND: "array", PARTS: ["|O", [1], torch.zeros(8, dtype=torch.uint8)]},
        {KIND: "array", PARTS: ["<f8", [10**9], torch.zeros(8, dtype=torch.uint8)]},
        {KIND: "array", PARTS: ["f8,O", [1], torch.zeros(8, dtype=torch.uint8)]},
        {KIND: "int", PARTS: "f" * 10**6},
        {KIND: "set"},
        {KIND: [], PARTS: []},
    ],
)
def test_a_strange_form_is_refused(hostile: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        from_plain([hostile], ENUMS)
