"""How the cells of a column become features."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from kindling.data.tables.columns import (
    Columns,
    DateColumn,
    NumberColumn,
    TextColumn,
    as_date,
    united,
)
from kindling.data.tables.table import as_table
from kindling.system.errors import InputError
from tests.helpers.tables import ROWS, learn

FIRST = datetime(2020, 1, 30, tzinfo=UTC)
DAYS = [FIRST + timedelta(days=11 * n, hours=5 * n) for n in range(ROWS)]


@pytest.mark.parametrize(
    "form",
    ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%d.%m.%Y", "%m/%d/%Y %I:%M %p",
     "%b %d, %Y", "%d %B %Y", "%d-%b-%y"],
)  # fmt: skip
def test_dates(form: str) -> None:
    texts = [day.strftime(form) for day in DAYS]
    found, table, told = learn({"when": texts})
    (column,) = found.columns
    assert isinstance(column, DateColumn)
    timed = "%H" in form or "%I" in form
    assert (column.timed, column.width) == (timed, 7 if timed else 5)
    read = [datetime.strptime(text, form).replace(tzinfo=UTC) for text in texts]
    seconds = np.array([day.timestamp() for day in read])
    features = found.features(table)
    np.testing.assert_allclose(
        features[:, 0], (seconds - seconds.mean()) / seconds.std(), rtol=1e-4, atol=1e-5
    )
    days = np.array([day.weekday() + (day.hour + day.minute / 60) / 24 for day in read])
    angle = 2 * np.pi * (days - 3) / 7  # 1970 began on a Thursday
    np.testing.assert_allclose(np.hypot(features[:, 3], features[:, 4]), 1, rtol=1e-5)
    np.testing.assert_allclose(features[:, 3], np.sin(angle), atol=2e-3)
    assert "date" in told[0]
    new = as_table({"when": [texts[0], "soon"]})
    with pytest.raises(InputError, match=r"when: 1 of 2 cells is no date \(line 2: 'soon'\)"):
        found.features(new)
    gap = as_table({"when": ["", DAYS[-1].replace(year=2040).strftime(form)]})
    assert not found.features(gap)[0].any()
    assert "2020-01-30 to 2021" in gap.notes[-1][1]


def test_no_date_is_read_of_odd_texts() -> None:
    for text in ("2024-13-01", "20240101", "99999-01-01", "1/1/99999", "2024-01-01Z[x]", ""):
        assert np.isnan(as_date(text, "iso"))
    assert as_date("2024-01-01T00:00:00+01:00", "iso") == 1704063600


NUMBER = {"name": "a", "fill": 0.0, "mean": 0.0, "deviation": 1.0}
DATE = {
    "name": "a", "form": "iso", "mean": 0.0, "deviation": 1.0, "low": 0.0, "high": 1.0,
    "timed": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "column",
    [
        NUMBER | {"mark": "foo"},
        NUMBER | {"edges": [0.0, 0.0, 1.0]},
        NUMBER | {"edges": [1.0, 0.0]},
        NUMBER | {"edges": [-1.7e308, 1.7e308]},
        DATE | {"form": "%M%M"},
        DATE | {"form": "%Y" * 10},
        DATE | {"high": 1e300},
        DATE | {"low": -1e300},
    ],
)
def test_columns_of_a_stranger_are_checked(column: dict[str, Any]) -> None:
    """Each would end in a traceback, or in features that are no numbers."""
    for good in (NUMBER, DATE):
        Columns.model_validate({"columns": [good]})
    with pytest.raises(ValidationError):
        Columns.model_validate({"columns": [column]})


def test_what_several_folds_have_learned() -> None:
    """A text is new if no fold knows it. A column is told once."""
    folds = [
        Columns(
            columns=[
                TextColumn(name="t", fill=None, categories=categories),
                NumberColumn(name="n", fill=fill, mean=fill, deviation=2.0, low=0.0, high=high),
            ],
            empty=[],
        )
        for categories, fill, high in ((["a", "b"], 1.0, 3.0), (["a", "c"], 2.0, 5.0))
    ]
    columns = united([*folds, folds[0]])
    assert [column.name for column in columns.columns] == ["t", "t", "n", "n"]
    assert columns.names == ["t", "n"]
    assert [columns.places_of(each.columns) for each in folds] == [[0, 2], [1, 3]]
    assert columns.features_at([1, 3]) == [2, 3, 5]
    table = as_table({"t": ["b", "c", "a"], "n": ["4", "", "9"]})
    found = columns.features(table)
    assert found.tolist() == [
        [0, 1, 0, 0, 1.5, 1],
        [0, 0, 0, 1, 0, 0],
        [1, 0, 1, 0, 4, 3.5],
    ]
    told = [text for _, text in table.notes]
    assert len(told) == 2
    assert "1 empty cell of column n filled with 1" in told[0]
    assert "1 of 3 cells is beyond (line 3: '9')" in told[1]
    for row, each in enumerate(folds):
        own = found[:, columns.features_at(columns.places_of(each.columns))]
        part = as_table({"t": ["a", "bc"[row]], "n": ["9", "4"]})
        assert own[[2, row], :2].tolist() == each.features(part)[:, :2].tolist()
    with pytest.raises(
        InputError, match=r"column t: 1 of 1 cell is a text .* that training did not"
    ):
        columns.features(as_table({"t": ["d"], "n": ["1"]}))
