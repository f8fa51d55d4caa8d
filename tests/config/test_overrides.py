"""Overrides, each by itself."""

import pytest

from src.config.overrides import (
    MOST_POINTS,
    OVERRIDES_LIMIT,
    is_choice,
    is_hydras,
    key_of,
    parse_all,
    parsed,
    single_values,
)


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


def test_overrides_that_cannot_be_read_are_named() -> None:
    faults: list[str] = []
    assert [override.input_line for override in parse_all(["a=[", "seed=1"], faults)] == ["seed=1"]
    (fault,) = faults
    assert fault.startswith("a=[: cannot be read (")
    faults.clear()
    assert parse_all(["seed=" + "1" * OVERRIDES_LIMIT], faults) == []
    assert faults[0].startswith("the overrides have 10,005 characters, at most 10,000 are read")
