"""The rules of cells: numbers, empty cells, and texts that look like one."""

import itertools
import random
import re
import unicodedata
from collections import Counter
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kindling.data.tables.cells import (
    FORMERLY_EMPTY,
    MARKS,
    Cells,
    alike,
    as_column,
    as_numbers,
    as_text,
)
from kindling.data.tables.table import as_table

DEFAULT = ["?", "NA", "na", "N/A", "n/a", "NaN", "nan", "NULL", "null"]
CELLS = st.text("0123456789+-.eE_, infaNy\u0663\uff11\u00b2\u00bd\n", max_size=8)


def is_number(cell: str) -> bool:
    """As spreadsheets write numbers, said in another way than in kindling/data/cells.py."""
    if (
        not cell.isascii()
        or any(character in cell for character in "_ \n")
        or "nan" in cell.lower()
    ):
        return False
    try:
        float(cell)
    except ValueError:
        return False
    return True


@given(st.lists(CELLS | st.floats(allow_nan=False).map(repr) | st.integers().map(str)))
def test_a_number_is_one_as_spreadsheets_write_it(cells: list[str]) -> None:
    """The texts of a column are read together, and each alone gives the same."""
    found = as_numbers(cells)
    expected = [float(cell) if is_number(cell) else np.nan for cell in cells]
    np.testing.assert_array_equal(found, np.array(expected, float))
    alone = [as_numbers([cell])[0] for cell in cells]
    np.testing.assert_array_equal(alone, np.array(expected, float))
    column = Cells("a", as_column("a", cells), range(len(cells)))  # by polars
    np.testing.assert_array_equal(column.numbers, np.array(expected, float))


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("5", 5), ("+5", 5), ("-0.5", -0.5), ("5.", 5), (".5", 0.5), ("1e5", 1e5), ("1E-3", 1e-3),
        ("007", 7), ("inf", np.inf), ("-Infinity", -np.inf), ("1e999", np.inf),
        ("1_25", None), ("12_5", None), ("１２", None), ("١٢", None), ("1,000", None),
        ("1 000", None),
        ("nan", None), ("", None), (".", None), ("e5", None), ("1e", None), ("0x1f", None),
        ("½", None), ("--1", None), ("5%", None), ("$5", None), ("1\n", None),
    ],
)  # fmt: skip
def test_numbers_and_texts(cell: str, value: float | None) -> None:
    for others in ([], ["1.5"], ["x"]):  # each way of reading a column
        found = as_numbers([*others, cell])[-1]
        assert np.isnan(found) if value is None else found == value


def gaps(texts: list[str], empty: list[str]) -> list[bool]:
    cells = Cells("a", as_column("a", texts), range(2, 2 + len(texts)), empty)
    return [bool(gap) for gap in cells.gaps]


def test_cells_that_count_as_empty() -> None:
    words = ["", "NA", "Na", "nA", "?", "None", "null", "Null", "-999", "-999.0", "-9.99e2", "999"]
    assert gaps(words, DEFAULT) == [word in ("", "NA", "?", "null") for word in words]
    assert gaps(words, []) == [word == "" for word in words]
    assert gaps(words, ["Na", "-999"]) == [
        word in ("", "Na", "-999", "-999.0", "-9.99e2") for word in words
    ]


@given(st.sampled_from(["na", "n/a", "nan", "null", "?"]), st.integers(0, 15))
def test_models_of_before_read_gaps_in_any_case(word: str, case: int) -> None:
    spelled = "".join(c.upper() if case >> place & 1 else c for place, c in enumerate(word))
    assert spelled in FORMERLY_EMPTY
    assert len(FORMERLY_EMPTY) == 1 + 4 + 4 + 8 + 16


class NAType:
    """As pandas' missing value, the truth of whose comparisons is refused."""

    def __ne__(self, other: object) -> "NAType":  # type: ignore[override]
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (float("nan"), ""), (np.float32("nan"), ""), (np.datetime64("NaT"), ""),
        (Decimal("NaN"), ""), (Decimal("sNaN"), "sNaN"), (NAType(), ""),
        ("None", "None"), ("NaT", "NaT"), ("<NA>", "<NA>"), ("NA", "NA"), ("", ""),
        (True, "True"), (np.bool_(0), "False"), (3, "3"), (0.1, "0.1"), (np.float32(0.1), "0.1"),
        (Decimal("1.50"), "1.50"), (np.str_("a"), "a"), ([1, 2], "[1, 2]"),
    ],
)  # fmt: skip
def test_values_of_python_as_cells(value: object, text: str) -> None:
    assert as_text(value) == text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Yes", "yes"), ("yes", "YES"), ("new york", "newyork"), ("new york", "new\u00a0york"),
        ("1", "1.0"), ("1", "01"), ("1", "+1"), ("100", "1e2"), ("1", "\uff11"), ("2", "\u00b2"),
        (unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")),
        ("straße", "STRASSE"), ("می\u200cخواهم", "میخواهم"), ("a", "a\u200b"), ("a", "\ufeffa"),
        ("fi", "\ufb01"), ("ｙｅｓ", "yes"),
    ],
)  # fmt: skip
def test_names_that_look_like_one(one: str, other: str) -> None:
    (told,) = alike({one: 3, other: 10, "another": 5})
    assert "(3)" in told
    assert "(10)" in told
    assert len(set(told.split(" and "))) == 2  # the two can be told apart
    assert told.isprintable()


def test_names_that_do_not_look_like_one() -> None:
    names = [
        "a",
        "b",
        "é",
        "e",
        "1",
        "2",
        "10",
        "1.5",
        "no",
        "none",
        "",
        "1_0",
        "ı",
        "l",
        "I1",
        "-1",
    ]
    assert alike(dict.fromkeys(names, 1)) == []
    assert alike({"Yes": 1, "yes": 2, "YES": 3, "x": 1}) == [
        "'YES' (3) and 'Yes' (1) and 'yes' (2)"
    ]


WORDS = st.sampled_from(["NA", "nan", "-99", "1e2", "?", "a", "0"])


@given(
    st.lists(WORDS | CELLS | st.text(" \t\x1c\x85\u200a\u3000ab", max_size=3), min_size=1),
    st.lists(WORDS, max_size=3),
)
def test_gaps_numbers_and_texts_of_random_cells(texts: list[str], empty: list[str]) -> None:
    """By Python alone: stripped, a word of `empty`, or another spelling of such a number."""
    cells = as_table({"a": texts, "b": texts}).cells("a", empty)
    plain = [text.strip() for text in texts]
    numbers = [float(text) if is_number(text) else np.nan for text in plain]
    words = [float(word) for word in empty if is_number(word)]
    gaps = [
        not text or text in empty or number in words
        for text, number in zip(plain, numbers, strict=True)
    ]
    assert cells.texts == plain
    assert cells.gaps.tolist() == gaps
    np.testing.assert_array_equal(cells.numbers, np.where(gaps, np.nan, numbers))
    strange = [not gap and np.isnan(number) for gap, number in zip(gaps, numbers, strict=True)]
    assert cells.strange.tolist() == strange
    assert cells.counts(cells.strange) == Counter(itertools.compress(plain, strange))


def test_a_mark_is_the_first_whose_shape_the_text_has() -> None:
    """In random texts of all characters that a number may have: none is excluded beforehand. What
    is left without the marks is a number."""
    draw, found = random.Random(0), Counter[str]()
    for _ in range(5000):
        parts = [
            draw.choice(["", "(", "-", "\u2212", "$"]),
            draw.choice(["1", "15", "1.", ".5", "1,"]),
        ]
        parts += [
            draw.choice(["", "0", "000", " 000", "'000,5", "e-5", ",5E3", ":30", ":30:59.5"]),
            draw.choice(["", ")", "-", "%", " €"]),
        ]
        text = draw.choice(["", "", "+", " "]).join(parts).strip()
        fitting = [mark for mark, (shape, _) in MARKS.items() if re.fullmatch(shape, text)]
        column = as_column("a", [text])
        mark = "" if is_number(text) else next(iter(fitting), "")
        assert Cells("a", column, [2]).mark == mark, text
        assert all(is_number(MARKS[mark][1](text)) for mark in fitting), text
        found[mark] += 1
    assert len(found) > 15
