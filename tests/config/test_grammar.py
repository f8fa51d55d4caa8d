"""Hydra's grammar with zip: what it takes, and what it refuses."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ValueType
from hydra.errors import HydraException

from src.config.grammar import ZipSweep, parse_override
from src.config.overrides import OVERRIDES_LIMIT, parse
from src.config.schema import MOST_POINTS
from src.system.errors import InputError


def values(text: str) -> list[str]:
    override = parse_override(text)
    assert isinstance(override._value, ZipSweep)
    assert override.input_line == text
    return list(override.sweep_string_iterator())


LISTS = [
    "0.1,0.3",
    "1, 2 ,3",
    "[32],[64,64]",
    "[[1],[2]],[]",
    "null,true,-0.5,1e-3",
    "mlp,logistic_regression",
    "'a b','c,d'",
    "'1',\"it's\"",
    "a b,c\\,d",
    "'zip(1,2)',x",
    "${seed},${oc.env:HOME}",
    "{a:1},{b:[2]}",
    "'(',')'",
    "inf,1_000",
    "int(2.5),float(1)",
]


@pytest.mark.parametrize("listed", LISTS)
def test_values_are_those_of_a_plain_list(listed: str) -> None:
    """By Hydra's own parser: KEY=zip(A,B) has the values of KEY=A,B, quotes included."""
    plain = OverridesParser.create().parse_override(f"a.b={listed}")
    assert plain.value_type == ValueType.SIMPLE_CHOICE_SWEEP
    found = values(f"a.b=zip({listed})")
    assert found == list(plain.sweep_string_iterator())
    for value in found:  # each is an override again
        assert parse_override(f"a.b={value}").get_value_element_as_str() == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed=zip(3)", ["3"]),
        ("seed=zip([1,2])", ["[1,2]"]),
        ("seed=zip (1,2)", ["1", "2"]),
        ("seed=zip(range(3))", ["0", "1", "2"]),
        ("seed=zip(range(9,1,-3))", ["9", "6", "3"]),
        ("a=zip(range(0.25,1,0.25))", ["0.25", "0.5", "0.75"]),
        ("+a=zip(1,2)", ["1", "2"]),
    ],
)
def test_one_value_and_ranges(text: str, expected: list[str]) -> None:
    assert values(text) == expected


SINGLE = "zip(…) takes single values or one range(…); type zip(A,B)"
INSIDE = "cannot be inside of another value; type KEY=A,B or KEY=zip(A,B)"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a=zip()", "zip(…) has no values; type them, such as zip(0.1,0.3)"),
        ("a=zip(x=1)", "zip(…) takes values without names; leave out x="),
        ("a=zip(1,x=2)", "zip(…) takes values without names; leave out x="),
        ("a=zip(range(2),5)", SINGLE),
        ("a=zip(range(2),range(2))", SINGLE),
        ("a=zip(choice(1,2))", SINGLE),
        ("a=zip(interval(0,1))", SINGLE),
        ("a=zip(glob(*))", SINGLE),
        ("a=zip(zip(1,2))", SINGLE),
        ("a=zip([zip(1,2)],3)", SINGLE),
        ("a=zip(shuffle(range(3)))", SINGLE),
        ("a=zip(tag(log,range(3)))", SINGLE),
        ("a=zip(range(3,3))", "the range in zip(…) has no number; the stop itself is not included"),
        ("a=zip(range(0,1,0))", "the range in zip(…) must have finite ends and a step that is not"),
        ("a=zip(range(0,inf))", "the range in zip(…) must have finite ends and a step that is not"),
        ("a=zip(range(1000000000000))", "zip(…) takes at most 10,000 values; type fewer"),
        ("a=choice(zip(1,2),3)", "zip(…) cannot be inside of choice(…); type KEY=zip(A,B)"),
        ("a=shuffle(zip(1,2))", "zip(…) cannot be inside of shuffle(…); type KEY=zip(A,B)"),
        ("a=sort(zip(2,1),reverse=true)", "zip(…) cannot be inside of sort(…)"),
        ("a=int(value=zip(2,1))", "zip(…) cannot be inside of int(…)"),
        ("a=tag(log,zip(2,1))", "zip(…) cannot be inside of tag(…)"),
        ("a=[zip(1,2)]", INSIDE),
        ("a={b:[zip(1,2)]}", INSIDE),
        ("a=zip(1,2),3", INSIDE),
        ("a=choice([zip(1,2)],3)", INSIDE),
        ("a=int([zip(1,2)])", INSIDE),
        # The same of Hydra's own functions, where Hydra ends with a traceback.
        ("a=1,choice(2,3)", INSIDE),
        ("a=[range(3)]", INSIDE),
        ("a={b:interval(0,1)}", INSIDE),
        ("a=range(3,3)", "has no number; the stop itself is not included"),
        ("a=range(1,5,-1)", "has no number; the stop itself is not included"),
        ("a=range(0,1,0)", "must have finite ends and a step that is not 0"),
        ("a=range(0,nan)", "must have finite ends and a step that is not 0"),
    ],
)
def test_what_is_refused(text: str, fault: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_override(text)
    assert fault in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    faults: list[str] = []
    assert parse(text, faults) is None
    assert faults == [f"{text}: {caught.value}"]


@pytest.mark.parametrize(
    "text", ["a=zip(1,2", "a=zip(1,,2)", "a=zip 1,2)", "a=Zip(1,2)", "a=zip(1,2)3", "zip(1,2)"]
)
def test_faults_of_the_grammar_are_hydras(text: str) -> None:
    with pytest.raises(HydraException):
        parse_override(text)


@pytest.mark.parametrize("text", ["a=zip", "a='zip(1,2)'", "zip=3", "a.zip=[zip,1]", "a=zip:1"])
def test_the_word_zip_alone_has_no_meaning(text: str) -> None:
    assert parse_override(text) == OverridesParser.create().parse_override(text)


def test_a_long_zip_is_read() -> None:
    count = OVERRIDES_LIMIT // 4
    assert values(f"a=zip({','.join(['1'] * count)})") == ["1"] * count
    assert len(values(f"a=zip(range({MOST_POINTS}))")) == MOST_POINTS


def test_deep_values_are_no_traceback() -> None:
    for depth, opening, closing in ((30, "zip(", ")"), (1000, "zip(", ")"), (1000, "[", "]")):
        faults: list[str] = []
        assert parse(f"a=zip({opening * depth}1{closing * depth},2)", faults) is None
        assert [len(fault.splitlines()) for fault in faults] == [1]
    assert values(f"a=zip({'[' * 30}1{']' * 30},2)")[0] == f"{'[' * 30}1{']' * 30}"
