"""Overrides: each by itself, zip in the grammar, and the order of the trials of a sweep."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException

from kindling.config.overrides import (
    OVERRIDES_LIMIT,
    ZipSweep,
    axes_of,
    combine,
    is_choice,
    is_hydras,
    key_of,
    override_fault,
    parse,
    parse_all,
    parsed,
    product_of,
    single_values,
    zip_faults,
)
from kindling.config.schema import MOST_POINTS
from kindling.system.errors import InputError


@pytest.mark.parametrize(
    ("text", "key"),
    [("a.b=1", "a.b"), ("+a.b=1", "a.b"), ("++a=b=c", "a"), ("~a.b", "a.b"), ("a", "a")],
)
def test_the_key_of_an_override(text: str, key: str) -> None:
    assert key_of(text) == key


def test_keys_of_hydra_and_of_groups() -> None:
    assert [key for key in ("hydra", "hydra.x", "hydra/x", "hydrant") if is_hydras(key)] == [
        "hydra", "hydra.x", "hydra/x",
    ]  # fmt: skip
    assert [key for key in ("model", "hydra/launcher", "model.name") if is_choice(key)] == [
        "model", "hydra/launcher",
    ]  # fmt: skip


def test_overrides_that_cannot_be_read_are_named() -> None:
    faults: list[str] = []
    assert [override.input_line for override in parse_all(["a=,", "seed=1"], faults)] == ["seed=1"]
    (fault,) = faults
    assert fault.startswith("a=,: cannot be read (")
    faults.clear()
    assert parse_all(["help"], faults) == []
    assert faults == [
        "help: must be KEY=VALUE, for example optimizer.lr=0.1; --help lists the keys"
    ]
    faults.clear()
    assert parse_all(["model.hidden_sizes=[128,", "64]", "optimizer.lr"], faults) == []
    assert [fault.partition(": ")[2][:30] for fault in faults] == [
        "a bracket has no partner; writ", "a bracket has no partner; writ",
        "must be KEY=VALUE, for example",
    ]  # fmt: skip
    faults.clear()
    assert parse_all(["seed=" + "1" * OVERRIDES_LIMIT], faults) == []
    assert faults[0].startswith("the overrides have 10,005 characters, at most 10,000 are read")


@pytest.mark.parametrize(
    "text",
    ["seed=0", "seed=17", "a.b_c.d2=1234567890123456", "lr=0.5", "lr=10.25",
     "lr=0.1000000000000001", "seed=-1", "seed=007", "seed=1_000", "lr=1e-3", "lr=.5", "lr=5.",
     "seed=12345678901234567890", "+seed=1", "~seed=1", "a/b=1", "seed@x=1", "seed= 1",
     "seed=1 ", "null=1", "9a=1"],
)  # fmt: skip
def test_numbers_are_parsed_as_hydra_does(text: str) -> None:
    def outcome(parse: Callable[[str], Override]) -> Any:
        try:
            override = parse(text)
        except HydraException as error:
            return str(error)
        return override, type(override.value()), override.get_value_element_as_str()

    assert outcome(parsed) == outcome(OverridesParser.create().parse_override)


@pytest.mark.parametrize("text", ["experiment=null", "experiment=null,mlp_tuned"])
def test_a_group_has_no_choice_null(text: str) -> None:
    """Hydra would end with a traceback."""
    fault = override_fault(parsed(text))
    assert fault is not None
    assert fault.startswith(
        "experiment=null: must be one of cnn, cnn_cifar10, digits_or_none, few_samples, "
    )


def values(text: str) -> list[str]:
    override = parsed(text)
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
        assert parsed(f"a.b={value}").get_value_element_as_str() == value


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
        parsed(text)
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
        parsed(text)


@pytest.mark.parametrize("text", ["a=zip", "a='zip(1,2)'", "zip=3", "a.zip=[zip,1]", "a=zip:1"])
def test_the_word_zip_alone_has_no_meaning(text: str) -> None:
    assert parsed(text) == OverridesParser.create().parse_override(text)


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("seed=3", ["seed=3"]),
        ("optimizer.lr=0.1,0.2", ["optimizer.lr=0.1", "optimizer.lr=0.2"]),
        ("seed=range(1,4)", ["seed=1", "seed=2", "seed=3"]),
        ("+model.x=a", ["+model.x=a"]),
        ("optimizer.lr=interval(0,1)", []),
    ],
)
def test_a_sweep_has_an_override_for_each_value(text: str, values: list[str]) -> None:
    assert single_values(parsed(text)) == values


def test_a_range_without_end_is_cut() -> None:
    assert len(single_values(parsed("seed=range(0,1000000000)"))) == MOST_POINTS + 1


def trials(*texts: str) -> list[tuple[str, ...]]:
    return product_of(axes_of([parsed(text) for text in texts]))


@pytest.mark.parametrize(
    "texts",
    [
        ["seed=3"],
        ["seed=1,2", "a=x,y", "b=5"],
        ["seed=1,2", "a=choice([1],[2,3])", "seed=7,8"],  # the last values count
        ["seed=range(3)", "+a='x y',z", "b=sort(3,1)"],
    ],
)
def test_without_zip_trials_are_those_of_hydra(texts: Sequence[str]) -> None:
    (jobs,) = BasicSweeper.split_arguments([parsed(text) for text in texts], None)
    assert [list(trial) for trial in trials(*texts)] == jobs


def test_zipped_keys_are_one_axis_in_the_place_of_the_first() -> None:
    """The oracle: nested loops over the axes, the last one innermost."""
    found = trials("s=1,2", "a=zip(0.1,0.2,0.3)", "t=5,6", "b=zip([8],[16,16],null)", "c=9")
    pairs = zip(["0.1", "0.2", "0.3"], ["[8]", "[16,16]", "null"], strict=True)
    assert found == [
        (f"s={s}", f"a={a}", f"b={b}", f"t={t}", "c=9")
        for s, (a, b), t in itertools.product("12", pairs, "56")
    ]
    first = trials("a=zip(1,2)", "s=3,4", "b=zip(5,6)", "c=zip(7,8)")
    assert first == [
        ("a=1", "b=5", "c=7", "s=3"), ("a=1", "b=5", "c=7", "s=4"),
        ("a=2", "b=6", "c=8", "s=3"), ("a=2", "b=6", "c=8", "s=4"),
    ]  # fmt: skip
    # Where the others stand does not matter.
    assert trials("a=zip(1,2)", "b=zip(5,6)", "c=zip(7,8)", "s=3,4") == first


def test_one_zipped_key_is_as_a_plain_one() -> None:
    assert trials("s=1,2", "a=zip(3,4)") == trials("s=1,2", "a=3,4")
    assert trials("a=zip(3)", "b=zip(4)", "s=1,2") == [("a=3", "b=4", "s=1"), ("a=3", "b=4", "s=2")]
    assert trials("a=zip(1,1)", "b=zip(2,2)") == [("a=1", "b=2")] * 2


def test_faults_of_zip_name_keys_and_lengths() -> None:
    def faults(*texts: str) -> list[str]:
        return zip_faults([parsed(text) for text in texts])

    assert faults("a=zip(1,2)", "b=zip(3,4)", "c=1,2,3", "d=5") == []
    assert faults("optimizer.lr=zip(1,2)", "s=1,2", "a=zip(range(1000))", "b=zip(3,4)") == [
        "zip(…): optimizer.lr has 2 values, a has 1,000 values, b has 2 values; keys that change "
        "together need the same number of values; to combine a key with all others, type KEY=A,B"
    ]
    for twice in ("a=3", "+a=3", "a=3,4"):
        assert faults("a=zip(1,2)", twice) == ["a=zip(1,2): a is given twice; type it once"]
    assert faults("a=zip(1,2)", "a=zip(3,4)") == [
        f"a=zip({values}): a is given twice; type it once" for values in ("1,2", "3,4")
    ]


def test_all_faults_of_a_zipped_sweep_come_at_once() -> None:
    combinations, _, faults = combine(
        ["seed=zip(1,2)", "optimizer.lr=zip(-1)", "model=glob(*)", "modell=zip(1,2)",
         "optimizer.momentum=interval(0,1)", "model.dropout=[zip(1,2)]"], sweep=True,
    )  # fmt: skip
    assert [fault.partition(":")[0] for fault in faults] == [
        "model.dropout=[zip(1,2)]", "modell=zip(1,2)", "zip(…)", "model=glob(*)",
        "optimizer.momentum=interval(0,1)",
    ]  # fmt: skip
    assert (
        "does not go with zip(…), which needs the values of all keys; type model=A,B" in faults[3]
    )
    assert combinations == []
    # Keys of different lengths are still composed and checked.
    combinations, _, faults = combine(["seed=zip(1,2)", "optimizer.lr=zip(-1)"], sweep=True)
    assert [*map(list, combinations)] == [["seed=1", "optimizer.lr=-1"], ["seed=2"]]
    assert combine(["seed=zip(1)", "optimizer.lr=zip(1,2)"], sweep=False)[2] == [
        "seed=zip(1): several values need a sweep; type -m too",
        "optimizer.lr=zip(1,2): several values need a sweep; type -m too",
    ]


def test_the_most_trials_of_a_zipped_sweep() -> None:
    """A zip has the trials of one key, however many keys there are."""
    keys = [f"{key}=zip(range(1,5001))" for key in ("seed", "data.split_seed", "optimizer.lr")]
    combinations, _, faults = combine([*keys, "trainer.max_epochs=1,2"], sweep=True)
    assert (len(combinations), faults) == (MOST_POINTS, [])
    assert combinations[-1] == (
        "seed=5000", "data.split_seed=5000", "optimizer.lr=5000", "trainer.max_epochs=2",
    )  # fmt: skip
    combinations, _, faults = combine([*keys, "trainer.max_epochs=1,2,3"], sweep=True)
    assert (combinations, faults) == (
        [],
        ["a sweep of more than 10,000 trials; type fewer values"],
    )
