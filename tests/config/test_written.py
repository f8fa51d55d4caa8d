"""Written values are read as they were."""

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from src.config.written import typed


@pytest.mark.parametrize(
    ("name", "text"),
    [("a", "x=[a]"), ("a b", "'x=[\"a b\"]'"), ("null", "'x=[\"null\"]'"), ("1", "'x=[\"1\"]'"),
     ("it's [1], \\ \\\"2\" =\\", None)],
)  # fmt: skip
def test_what_is_typed_is_read_as_it_was(name: str, text: str | None) -> None:
    shown = typed("x", [name])
    assert text in (None, shown)
    (given,) = shlex.split(shown)
    assert OverridesParser.create().parse_override(given).value() == [name]
