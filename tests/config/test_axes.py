"""The axes of a sweep, and the order of its trials."""

import itertools
from collections.abc import Sequence

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

from src.config.axes import axes_of, product_of, single_values, zip_faults
from src.config.compose import combine
from src.config.overrides import parsed
from src.config.schema import MOST_POINTS


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
