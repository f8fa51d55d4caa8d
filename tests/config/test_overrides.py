"""Overrides, each by itself."""

from collections.abc import Callable
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from src.config.overrides import (
    OVERRIDES_LIMIT,
    is_choice,
    is_hydras,
    key_of,
    override_fault,
    parse_all,
    parsed,
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
