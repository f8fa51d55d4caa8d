"""The space of a search, from Hydra's grammar."""

from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from kindling.config.overrides import parsed as zip_parsed
from kindling.sweeps.search.space import (
    Listed,
    Numbers,
    Parameter,
    corners,
    parameter_of,
    zip_of,
)
from kindling.system.errors import InputError


def parsed(text: str) -> Parameter:
    return parameter_of(OverridesParser.create().parse_override(text))


def choice(*values: str) -> Listed:
    return Listed({"a": f"choice({','.join(values)})"}, {each: (f"a={each}",) for each in values})


def numbers(key: str, text: str, low: float, high: float, **others: Any) -> Numbers:
    return Numbers(
        key, text, low, high, **({"integer": False, "log": False, "step": None} | others)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=choice(x,y)", choice("x", "y")),
        ("a=x, y", choice("x", "y")),
        ("a=[64],[64,64],null", choice("[64]", "[64,64]", "null")),
        ("a=sort(3,1,2)", choice("1", "2", "3")),
        ("a=interval(0, 1)", numbers("a", "interval(0,1)", 0.0, 1.0)),
        ("a=tag(log,interval(1e-3,1))",
         numbers("a", "tag(log,interval(1e-3,1))", 0.001, 1.0, log=True)),
        ("a=int(interval(2,5))", numbers("a", "int(interval(2,5))", 2, 5, integer=True, step=1)),
        ("a=range(3)", numbers("a", "range(3)", 0, 2, integer=True, step=1)),
        ("a=range(1,10,4)", numbers("a", "range(1,10,4)", 1, 9, integer=True, step=4)),
        ("a=range(10,1,-4)", numbers("a", "range(10,1,-4)", 2, 10, integer=True, step=4)),
        ("a=range(0.1,0.4,0.1)", numbers("a", "range(0.1,0.4,0.1)", 0.1, 0.3, step=0.1)),
        ("a=tag(log,range(1,9))",
         numbers("a", "tag(log,range(1,9))", 1, 8, integer=True, log=True, step=1)),
    ],
)  # fmt: skip
def test_forms_of_a_space(text: str, expected: Parameter) -> None:
    found = parsed(text)
    assert found == expected
    assert [type(value) for value in vars(found).values()] == [
        type(value) for value in vars(expected).values()
    ]


def test_corners_show_every_pair() -> None:
    space = [parsed(text) for text in ("a=choice(1,2,3)", "b=interval(0,1)", "c=x,y")]
    found = [set(point) for point in corners(space)]
    pairs = [("a=3", "b=1.0"), ("a=2", "c=y"), ("b=1.0", "c=y"), ("a=1", "b=0.0")]
    assert all(any(set(pair) <= point for point in found) for pair in pairs)
    assert len(found) == len({frozenset(point) for point in found}) == 10
    assert corners(space[:1]) == [["a=1"], ["a=2"], ["a=3"]]


def zipped(*texts: str) -> Listed:
    return zip_of([zip_parsed(text) for text in texts])


def test_zipped_keys_are_one_parameter() -> None:
    found = zipped("b=zip(0.1, 'x y' ,[1,2])", "c=1", "a=zip(range(3))")
    assert found == zipped("a=zip(0,1,2)", "b=zip(0.1,'x y',[1,2])")
    assert found.key == "a+b"
    assert found.texts == {"a": "zip(0,1,2)", "b": "zip(0.1,'x y',[1,2])"}
    assert [found.overrides(place) for place in found.extremes] == [
        ("a=0", "b=0.1"), ("a=1", "b='x y'"), ("a=2", "b=[1,2]"),
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"has a=1 b=2 twice"):
        zipped("a=zip(1,1,1)", "b=zip(2,3,2)")


def test_corners_have_all_places_of_a_zip() -> None:
    space = [zipped("a=zip(1,2,3)", "b=zip(4,5,6)"), parsed("c=interval(0,1)")]
    assert sorted(corners(space)) == sorted(
        [f"a={a}", f"b={a + 3}", f"c={c}"] for a in (1, 2, 3) for c in (0.0, 1.0)
    )
    assert corners(space[:1]) == [["a=1", "b=4"], ["a=2", "b=5"], ["a=3", "b=6"]]
