"""What the columns of a table are taken for, by data.encode=auto and data.fill=auto."""

import random
from typing import Any

import numpy as np
import pytest

from kindling.config.compose import compose
from kindling.config.schema import Csv
from kindling.data.tables import columns, learning
from kindling.data.tables.columns import Columns, NumberColumn, TextColumn
from kindling.data.tables.learning import _edges, learn_columns
from kindling.data.tables.table import as_table
from kindling.system.errors import InputError
from tests.helpers.tables import NUMBERS, ROWS, learn


def with_gaps(values: Any, gap: object = None) -> list[object]:
    return [gap if n % 10 == 3 else value for n, value in enumerate(values)]


def test_numbers_with_gaps_get_a_feature_of_absence() -> None:
    found, table, told = learn({"a": with_gaps(NUMBERS), "b": NUMBERS})
    a, b = found.columns
    assert isinstance(a, NumberColumn)
    assert (a.absent, a.width, b.width) == (True, 4, 4)  # with two intervals each
    known = np.array([v for n, v in enumerate(NUMBERS) if n % 10 != 3])
    assert a.fill == np.median(known)
    filled = np.array([np.median(known) if v is None else v for v in with_gaps(NUMBERS)], float)
    features = found.features(table)
    np.testing.assert_allclose(features[:, 0], (filled - filled.mean()) / filled.std(), rtol=1e-5)
    np.testing.assert_array_equal(features[:, 3], np.arange(ROWS) % 10 == 3)
    assert "6 empty cells: filled with the median" in told[0]
    assert told[1].split() == ["b", "number", "4"]
    new = as_table({"a": ["", 0.5], "b": [0, ""]})
    assert found.features(new)[0, 3] == 1
    assert [text for _, text in new.notes] == [
        f"the table: 1 empty cell of column a filled with {a.fill:g}; 1 empty cell of column b "
        f"filled with {np.median(NUMBERS):g}"
    ]


@pytest.mark.parametrize(
    ("write", "done"),
    [
        (lambda n: f"{1000 * n + 1000:,}", "read without commas"),
        (lambda n: f"{n + 0.5}%", "read without %"),
        (lambda n: f"{n + 0.5}".replace(".", ","), "read with decimal commas"),
        (lambda n: f"${n:,}.50", "read without a currency"),
        (lambda n: "unknown" if n == 3 else str(n * n), "'unknown' (1) read as empty"),
        (lambda n: "." if n == 3 else str(n * n), "'.' (1) read as empty"),
    ],
)
def test_numbers_as_people_write_them(write: Any, done: str) -> None:
    texts = [write(n) for n in range(ROWS)]
    found, table, told = learn({"a": texts})
    (column,) = found.columns
    assert isinstance(column, NumberColumn)
    assert done in told[0]
    plain = [t.replace("%", "").replace("$", "") for t in texts]
    decimal = "decimal" in done
    plain = [t.replace(",", "." if decimal else "") for t in plain]
    values = np.array([np.nan if t in ("unknown", ".") else float(t) for t in plain])
    values = np.where(np.isnan(values), np.nanmedian(values), values)
    features = found.features(table)[:, 0]
    np.testing.assert_allclose(features, (values - values.mean()) / values.std(), atol=1e-5)
    again = Columns.model_validate(found.model_dump(exclude_defaults=True))
    np.testing.assert_array_equal(again.features(as_table({"a": texts[:7]}))[:, 0], features[:7])


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (
            [f"{n % 24}:{7 * n % 60:02}" for n in range(ROWS)],
            [60 * (n % 24) + 7 * n % 60 for n in range(ROWS)],
        ),
        (
            [f"{n:02}:00:{n % 60:02}.5" for n in range(ROWS)],
            [3600 * n + n % 60 + 0.5 for n in range(ROWS)],
        ),
        ([f"-{n}:30" for n in range(ROWS)], [-60 * n - 30 for n in range(ROWS)]),
        ([*["59:10", "1:02:03"] * (ROWS // 2)], None),
        ([*["8:30", "12"] * (ROWS // 2)], None),
        ([f"{n % 9}:{n % 5}" for n in range(ROWS)], None),
    ],
)
def test_times_are_numbers(texts: list[str], numbers: list[float] | None) -> None:
    """Not results, and not times of two kinds, of which one would be misread."""
    (column,) = (found := learn({"a": texts}))[0].columns
    assert isinstance(column, NumberColumn) == (numbers is not None)
    if isinstance(column, NumberColumn) and numbers is not None:
        np.testing.assert_array_equal(column.cells(found[1], []).numbers, numbers)
        assert "read as hours:minutes" in found[2][0]


def _dotted(number: float) -> str:
    """As in German: 12.958,5; a whole number without a comma."""
    return f"{number:,}".removesuffix(".0").translate(str.maketrans(",.", ".,"))


@pytest.mark.parametrize(
    ("write", "mark"),
    [
        (lambda x: f"{x:,}", "commas"),
        (_dotted, "decimal commas"),
        (lambda x: f"${x:,}", "a currency"),
        (lambda x: f"{x} €", "a currency"),
        (lambda x: f"{_dotted(x)} €", "a currency and decimal commas"),
        (lambda x: f"€{_dotted(x)}", "a currency and decimal commas"),
        (lambda x: f"{_dotted(x)} %", "% and decimal commas"),
        (lambda x: f"{x:,}%", "%"),
        (
            lambda x: f"{x:,}".translate(str.maketrans(",.", " ,")) + " €",
            "a currency and spaces and decimal commas",
        ),
        (lambda x: f"${x:,}".replace(",", "'"), "a currency and apostrophes"),
        (lambda x: f"{x:,}".replace(",", "'"), "apostrophes"),
        (lambda x: f"{x:,}".replace(",", "\u202f"), "spaces"),
        (lambda x: f"{x:,}".translate(str.maketrans(",.", " ,")), "spaces and decimal commas"),
        (lambda x: f"{x:,}".replace("-", "\u2212"), "other minus signs"),
        (lambda x: f"{abs(x)}-" if x < 0 else str(x), "other minus signs"),
        (lambda x: f"({-x:.1f}%)" if x < 0 else f"{x:.1f}%", "other minus signs and %"),
        (lambda x: f"${x:,}" if x > 0 else f"$({-x:,})", "a currency"),
        (
            lambda x: f"{_dotted(x)} €" if x > 0 else f"({_dotted(-x)} €)",
            "other minus signs and a currency and decimal commas",
        ),
    ],
)
def test_all_ways_to_write_a_number(write: Any, mark: str) -> None:
    """Small and large ones, with a half and without, of both signs."""
    values = [
        sign * (10 ** (n % 7) * (n % 9 + 1) + n % 2 / 2) for n in range(30) for sign in (1, -1)
    ]
    found, table, told = learn({"a": [write(value) for value in values]})
    (column,) = found.columns
    assert isinstance(column, NumberColumn)
    assert column.mark == mark
    assert (column.low, column.high) == (min(values), max(values))
    np.testing.assert_array_equal(column.cells(table, []).numbers, values)
    assert mark in told[0]


@pytest.mark.parametrize("seed", range(40))
def test_random_numbers_are_read_as_they_were_written(seed: int) -> None:
    """In one way for a table. Misread are only whole numbers whose dots could be decimal points,
    and this is told."""
    draw = random.Random(seed)
    separators = draw.choice([",.", ".,", " ,", "\u00a0,", "'.", " .", "\u202f,"])
    grouped, rows = draw.random() < 0.8, draw.randint(20, 60)
    columns: dict[str, list[str]] = {}
    values: dict[str, list[float]] = {}
    for name in "abc":
        decimals, size = draw.choice([[0], [1, 2, 3, 4], [2], [0, 0, 1, 2]]), draw.choice([1, 3, 7])
        form = draw.choice(["{}", "${}", "€ {}", "{} €", "{}%"])
        negative = draw.choice(["", "-{}", "({})", "\u2212{}", "\u2013 {}", "{}-"])
        values[name], columns[name] = [], []
        for _ in range(rows):
            places = draw.choice(decimals)
            value = round(draw.uniform(0, 10 ** draw.uniform(0, size)), places)
            text = f"{value:{',' * grouped}.{places}f}"
            text = text.translate(str.maketrans(",.", separators))
            minus = bool(negative) and draw.random() < 0.5
            columns[name].append((negative if minus else "{}").format(form.format(text)))
            values[name].append(-value if minus else value)
    found, table, told = learn(columns)
    for column in found.columns:
        assert isinstance(column, NumberColumn)
        if not np.allclose(column.cells(table, []).numbers, values[column.name]):
            lines = (line for line in told[0].splitlines() if line.split()[0] == column.name)
            assert "its dots could be of thousands" in next(lines)
            assert np.mod(values[column.name], 1).max() == 0


def test_dots_are_of_thousands_where_another_column_has_decimal_commas() -> None:
    prices = [f"{n}.{n + 100}" if n % 3 else f"{n + 100}" for n in range(1, ROWS + 1)]
    exact = [float(text.replace(".", "")) for text in prices]
    as_they_are = [float(text) for text in prices]
    shares, thousands = [f"{n},5" for n in range(ROWS)], [f"{n},500" for n in range(1, ROWS + 1)]
    halves = [f"0.{n + 100}" for n in range(ROWS)]
    for other, expected in ((shares, exact), (thousands, as_they_are), (halves, as_they_are)):
        found, table, told = learn({"price": prices, "other": other, "half": halves})
        column, _, half = found.columns
        np.testing.assert_array_equal(column.cells(table, []).numbers, expected)
        np.testing.assert_array_equal(half.cells(table, []).numbers, [float(t) for t in halves])
        told_of_price = told[0].partition("other")[0]
        assert ("read with decimal commas" in told_of_price) == (expected is exact)
        assert ("could be of thousands" in told_of_price) == (expected is as_they_are)
        assert told[0].count("could be of thousands") == (expected is as_they_are)
        new = as_table({"price": ["2.500"], "other": [other[0]], "half": ["0.5"]})
        assert column.cells(new, []).numbers[0] == (2500 if expected is exact else 2.5)


def test_texts_are_categories_and_new_ones_are_none_of_them() -> None:
    texts = with_gaps(["red", "green", "blue"] * 20)
    found, table, told = learn({"a": texts, "b": NUMBERS})
    column = found.columns[0]
    assert isinstance(column, TextColumn)
    assert column.categories == ["blue", "green", "red"]
    expected = [[t == c for c in column.categories] + [t is None] for t in texts]
    np.testing.assert_array_equal(found.features(table)[:, :4], expected)
    assert told[0].split()[:3] == ["a", "category", "4"]
    assert "6 empty cells: no category" in told[0]
    new = as_table({"a": ["red", "pink", ""], "b": [0, 0, 0]})
    np.testing.assert_array_equal(
        found.features(new)[:, :4], [[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
    )
    notes = [text for _, text in new.notes]
    assert any("'pink') that is not a category: 'pink' (1); its features are 0" in t for t in notes)


def test_many_texts_are_the_frequent_ones_and_identifiers_are_left_out() -> None:
    many = [f"city {n % 40}" for n in range(ROWS)]
    names = [f"Mr {n}" for n in range(ROWS)]
    found, _, told = learn({"many": many, "names": names, "b": NUMBERS})
    assert [column.name for column in found.columns] == ["many", "b"]
    assert "left out: 60 different texts name the rows; to keep it, type data.categories" in told[0]
    kept, *_ = learn({"names": names, "b": NUMBERS}, "data.categories=[names]")
    assert kept.columns[0].width == ROWS
    config = compose("data=csv", "data.path=a.csv", "data.target=y").data
    assert isinstance(config, Csv)
    texts = [f"t{n % 150}" for n in range(1000)] + ["t7"] * 5
    table = as_table({"y": [0, 1] * 502 + [0], "a": texts})
    (column,) = learn_columns(table, config, np.ones(1005, bool)).columns
    assert isinstance(column, TextColumn)
    assert len(column.categories) == 100
    assert "t7" in column.categories
    told = [table.notes[-1][1]]
    assert "the 100 most frequent of 150 texts; 300 training rows have another" in told[0]


@pytest.mark.parametrize(
    ("columns", "kind", "why"),
    [
        ({"": range(ROWS)}, "index", "numbers the rows"),
        ({"rownames": [f"r{n}" for n in range(ROWS)]}, "index", "names the rows"),
        ({"id": range(700, 700 + 3 * ROWS, 3)}, "index", "numbers the rows"),
        ({"a": ["same"] * ROWS}, "constant", "always 'same'"),
        ({"a": [4] * ROWS}, "constant", "always '4'"),
        ({"a": [10**17 + n % 3 for n in range(ROWS)]}, "constant", f"always '{10**17}' but for r"),
        ({"a": [None] * ROWS}, "nothing", "is empty in all training rows"),
    ],
)
def test_columns_that_are_left_out(columns: dict[str, Any], kind: str, why: str) -> None:
    named = {name or "column 1": cells for name, cells in columns.items()}
    found, _, told = learn({**named, "b": NUMBERS})
    assert [column.name for column in found.columns] == ["b"]
    assert kind in told[0]
    assert f"left out: {why}" in told[0]
    with pytest.raises(InputError, match="no column is left to learn from"):
        learn(named)


@pytest.mark.parametrize("values", [2, 5, 12, 40, 10**6])
def test_numbers_have_a_feature_for_each_interval(values: int) -> None:
    """Against NumPy's interpolation, also for numbers beyond those of training."""
    draw = np.random.default_rng(values)
    numbers = draw.integers(0, values, 600) * 1.5 - 3
    numbers[:2] = -3, (values - 1) * 1.5 - 3
    config = compose("data=csv", "data.path=a.csv", "data.target=y").data
    assert isinstance(config, Csv)
    table = as_table({"y": [0, 1] * 300, "a": numbers.tolist()})
    found = learn_columns(table, config, np.ones(600, bool))
    (column,) = found.columns
    assert isinstance(column, NumberColumn)
    few = np.unique(numbers)
    edges = few if values <= 60 else np.unique(np.quantile(numbers, np.linspace(0, 1, 17)))
    expected = edges.tolist() if values > 2 else []
    assert column.edges == pytest.approx(expected)
    new = np.array([*numbers[:50], -100, 1e9, few[0], few[-1]])
    features = found.features(as_table({"a": new.tolist()}))
    assert features.shape[1] == max(1, len(expected))
    for place in range(len(expected) - 1):
        pair = edges[place : place + 2]
        np.testing.assert_allclose(
            features[:, 1 + place], np.interp(new, pair, [0, 0.3]), rtol=1e-5, atol=1e-6
        )


def test_a_feature_is_no_index() -> None:
    """A feature may be called x, and be different whole numbers."""
    found, *_ = learn({"x": range(ROWS)})
    assert [column.name for column in found.columns] == ["x"]


def test_a_column_that_counts_is_kept_and_told() -> None:
    found, _, told = learn({"year": range(1960, 1960 + ROWS)})
    assert len(found.columns) == 1
    assert "numbers the rows; if the number says nothing, type data.drop=[year]" in told[0]


def test_numbers_may_be_categories() -> None:
    found, table, _ = learn({"zip": [n % 3 for n in range(ROWS)]}, "data.categories=[zip]")
    np.testing.assert_array_equal(found.features(table), np.eye(3)[np.arange(ROWS) % 3])
    with pytest.raises(InputError, match=r"data.categories=zup: there is no such column"):
        learn({"zip": NUMBERS}, "data.categories=[zup]")


def test_an_index_may_be_a_number() -> None:
    left, _, told = learn({"id": range(ROWS), "b": NUMBERS})
    assert [column.name for column in left.columns] == ["b"]
    assert told[0].endswith("left out: numbers the rows; to keep it, type data.numbers=[id]")
    kept, table, told = learn({"id": range(ROWS), "b": NUMBERS}, "data.numbers=[id]")
    assert not any("data.drop" in line for line in told)
    assert [column.name for column in kept.columns] == ["id", "b"]
    numbers = np.arange(ROWS)
    whole = (numbers - numbers.mean()) / numbers.std()
    np.testing.assert_allclose(kept.features(table)[:, 0], whole, rtol=1e-5)


def test_texts_among_numbers_may_be_gaps() -> None:
    """However many there are; four words make a column of categories otherwise."""
    texts = [f"sold by {n}" if n % 3 == 0 else str(n * n) for n in range(ROWS)]
    taken, *_ = learn({"a": texts, "b": NUMBERS}, "data.drop=[b]", "data.categories=[a]")
    assert isinstance(taken.columns[0], TextColumn)
    found, table, told = learn({"a": texts, "b": NUMBERS}, "data.numbers=[a]")
    column = found.columns[0]
    assert isinstance(column, NumberColumn)
    assert column.fill == np.median([n * n for n in range(ROWS) if n % 3])
    assert "20 empty cells" in told[0]
    np.testing.assert_array_equal(found.features(table)[:, column.own], np.arange(ROWS) % 3 == 0)
    new = as_table({"a": ["sold by nobody", "4", ""], "b": [0, 0, 0]})  # another text
    np.testing.assert_array_equal(found.features(new)[:, column.own], [1, 0, 1])
    with pytest.raises(InputError, match=r"data.numbers=c: there is no such column"):
        learn({"a": texts}, "data.numbers=[c]")
    with pytest.raises(InputError, match=r"20 of 60 cells are not numbers .* data.fill=auto"):
        learn({"a": texts}, "data.numbers=[a]", "data.fill=null")
    with pytest.raises(InputError, match=r"data.numbers=\[a\]: data.categories has a too"):
        learn({"a": texts}, "data.numbers=[a]", "data.categories=[a]")


def test_a_column_of_words_is_no_column_of_numbers() -> None:
    with pytest.raises(InputError, match="column a: 60 of 60 cells are not numbers"):
        learn({"a": ["x", "y"] * 30, "b": NUMBERS}, "data.numbers=[a]")


def test_the_order_of_day_and_month_is_told() -> None:
    texts = [f"{n % 12 + 1:02}/{n % 11 + 1:02}/2024" for n in range(ROWS)]
    _, _, told = learn({"when": texts})
    assert "read as month/day/year, could be day/month/year too" in told[0]
    texts = [f"{n % 28 + 1:02}/{n % 11 + 1:02}/2024" for n in range(ROWS)]
    found, _, told = learn({"when": texts})
    assert found.columns[0].form == "%d/%m/%Y"  # type: ignore[union-attr]
    assert "could be" not in told[0]


@pytest.mark.parametrize("first", [0, 900, 1500, 2999])
def test_intervals_follow_from_all_rows(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first rows have few values; and the features of many rows are those of one."""
    numbers = np.random.default_rng(0).normal(size=3000)
    numbers[:first] = 0.5
    values = np.unique(numbers)
    expected = (
        values if len(values) <= 60 else np.unique(np.quantile(numbers, np.linspace(0, 1, 17)))
    )
    assert _edges(numbers, 100) == (expected.tolist() if len(expected) > 2 else [])
    monkeypatch.setattr(columns, "IN_CACHE", 7)
    number = NumberColumn(name="a", fill=0, mean=0.1, deviation=2, edges=[-1, 0, 0.5, 1])
    cells = as_table({"a": numbers}).cells("a", [])
    within = np.clip((numbers[:, None] - [-1, 0, 0.5]) / [1, 0.5, 0.5], 0, 1)
    whole = np.hstack([(numbers[:, None] - 0.1) / 2, 0.3 * within])
    np.testing.assert_array_equal(number.features(cells), whole.astype(np.float32))


@pytest.mark.parametrize("room", [1, 2, 3, 5, 17, 40, 10_000])
def test_large_tables_get_fewer_features(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Down to a feature for each number and ten for each text."""
    draw, rows = np.random.default_rng(room), 2000
    table = {
        "many": draw.normal(size=rows).tolist(),
        "few": draw.integers(0, 30, rows).tolist(),
        "text": draw.choice([f"t{n}" for n in range(60)], rows).tolist(),
    }
    monkeypatch.setattr(learning, "MOST_FEATURES", room * rows * len(table))
    found, read, _ = learn(table)
    widths = {column.name: column.width for column in found.columns}
    wanted = {
        "many": 1 if room < 3 else min(room, 17),
        "few": 30 if room >= 30 else 1 if room < 3 else min(room, 17),
        "text": min(60, max(room, 10)),
    }
    assert widths == wanted
    assert found.features(read).shape == (rows, sum(wanted.values()))


DATES = [f"2024-{1 + n % 12:02}-{1 + n % 28:02}" for n in range(ROWS)]
KINDS: dict[str, Any] = {
    "number": NUMBERS,
    "date": DATES,
    "category": ["red", "green", "blue"] * 20,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_may_refuse_empty_cells(kind: str) -> None:
    """In training and in prediction, and whatever the column is taken for."""
    values = KINDS[kind]
    strict, table, told = learn({"a": values}, "data.fill=null")
    usual, same, usually_told = learn({"a": values})
    assert told == usually_told
    assert told[0].split()[1] == kind
    np.testing.assert_array_equal(strict.features(table), usual.features(same))
    stored = Columns.model_validate(strict.model_dump(exclude_defaults=True))
    assert stored == strict
    fault = "the table: column a: 1 of 2 cells is empty (line 2); "
    new = {"a": [values[1], ""]}
    with pytest.raises(InputError) as refused:
        stored.features(as_table(new))
    assert str(refused.value) == f"{fault}correct that, or leave the rows out"
    assert usual.features(as_table(new)).shape == (2, usual.width)
    with pytest.raises(InputError) as refused:
        learn({"a": with_gaps(values), "b": values}, "data.fill=null")
    assert str(refused.value) == (
        "the table: column a: 6 of 60 cells are empty (the first in line 4); type data.fill=auto, "
        "or type data.drop=[a]"
    )


@pytest.mark.parametrize(("new", "rows"), [(1, 1), (1, 60), (2, 60)])
def test_notes_about_one_and_about_several_cells(new: int, rows: int) -> None:
    found, *_ = learn({"kind": KINDS["category"], "number": NUMBERS, "date": DATES})
    many = rows - new
    table = as_table({
        "kind": ["pink"] * new + ["red"] * many, "number": [99] * new + [0] * many,
        "date": ["2025-01-01"] * new + [DATES[0]] * many,
    })  # fmt: skip
    found.features(table)
    place = "the first in line 1" if new > 1 else "line 1"
    cells = f"{new} of {rows} {'cell' if rows == 1 else 'cells'}"
    texts, which = ("are texts", "are not categories")
    if new == 1:
        texts, which = ("is a text", "is not a category")
    beyond = f"{cells} {'is' if new == 1 else 'are'} beyond ({place}: "
    assert [text for _, text in table.notes] == [
        f"the table: column kind: {cells} {texts} ({place}: 'pink') that {which}: 'pink' ({new}); "
        "its features are 0 there",
        "the table: numbers that training did not see: "
        f"column date, 2024-01-01 to 2024-12-24 in training: {beyond}'2025-01-01'); "
        f"column number, {NUMBERS.min():g} to {NUMBERS.max():g} in training: {beyond}'99')",
    ]
