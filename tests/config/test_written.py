"""Written values are read as they were."""

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString

from kindling.config.written import typed, unquoted


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


@pytest.mark.parametrize("quote", Quote)
@pytest.mark.parametrize("text", ["it's.csv", 'a "b" c', "a\\'b\\\\\"c", "", "'", "plain"])
def test_a_text_without_its_quotes(text: str, quote: Quote) -> None:
    typed_text = QuotedString(text, quote).with_quotes()
    assert OverridesParser.create().parse_override(f"x={typed_text}").value() == text
    assert unquoted(typed_text) == text
    assert unquoted("it's") == "it's"
