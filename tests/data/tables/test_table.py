"""A table in memory."""

import numpy as np
import pytest

from kindling.data.tables.table import as_table
from kindling.system.errors import InputError
from tests.helpers.tables import texts_of


def test_rows_are_taken_with_their_lines() -> None:
    table = as_table({"a": [1, 2, 3], "b": ["x", None, "z"]})
    found = table.take(np.array([True, False, True]))
    assert texts_of(found) == {"a": ["1", "3"], "b": ["x", "z"]}
    assert found.lines == [1, 3]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"a": "text"}, "column a is 'text', must be a list of values"),
        ({"a": 5}, "column a is 5, must be a list of values"),
        ({"a": [1], "b": [1, 2]}, "they have a 1, b 2"),
        ({}, "they have none"),
    ],
)
def test_what_is_no_table(columns: dict[str, list[object]], told: str) -> None:
    with pytest.raises(InputError, match=told):
        as_table(columns)


def test_notes_stay_in_their_lines() -> None:
    table = as_table({"a": [1]})
    table.note("one\ntwo\x1b[0m", lines=["three\nfour"])
    ((_, text),) = table.notes
    assert len(text.splitlines()) == 2
    assert "\x1b" not in text
