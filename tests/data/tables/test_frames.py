"""Tables of .parquet and .xlsx files."""

import csv
import datetime
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch

from kindling.config.compose import compose
from kindling.config.schema import Csv
from kindling.data.sources.catalogue import open_source
from kindling.data.sources.source import Source
from kindling.data.tables import reading
from kindling.data.tables.cells import as_numbers, as_text
from kindling.data.tables.columns import Columns, NumberColumn
from kindling.data.tables.learning import learn_columns
from kindling.data.tables.reading import is_table, read_table
from kindling.data.tables.table import as_table
from kindling.inference.evaluation import evaluate_path
from kindling.inference.model import load
from kindling.system import resources
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.tables import texts_of

ROWS = 60
FRAME = polars.DataFrame({
    "n": [None if row == 7 else row for row in range(ROWS)],
    "x": [row / 8 - 3 for row in range(ROWS)],
    "day": [datetime.date(2024, 1, 1) + datetime.timedelta(row) for row in range(ROWS)],
    "kind": ["a,b" if row % 3 else 'say "é"' for row in range(ROWS)],
    "good": [row % 2 == 0 for row in range(ROWS)],
})  # fmt: skip


def write_workbook(path: Path, rows: list[list[object]], others: Sequence[str] = ()) -> None:
    """The least that a workbook has; `others` are the names of further sheets with the rows."""

    def cell(value: object) -> str:
        if isinstance(value, int | float):
            return f"<c><v>{value}</v></c>"
        return f'<c t="inlineStr"><is><t>{value}</t></is></c>' if value is not None else "<c/>"

    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    of_documents = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    of_packages = "http://schemas.openxmlformats.org/package/2006"
    names = dict(enumerate(["one", *others], 1))
    body = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("[Content_Types].xml", (
            f'<Types xmlns="{of_packages}/content-types">'
            '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.'
            'relationships+xml"/><Default Extension="xml" ContentType="application/xml"/></Types>'
        ))  # fmt: skip
        for name, kind, targets in (
            ("_rels/.rels", "officeDocument", {1: "xl/workbook.xml"}),
            (
                "xl/_rels/workbook.xml.rels", "worksheet",
                {n: f"worksheets/sheet{n}.xml" for n in names},
            ),
        ):  # fmt: skip
            links = "".join(
                f'<Relationship Id="rId{n}" Type="{of_documents}/{kind}" Target="{target}"/>'
                for n, target in targets.items()
            )
            parts.writestr(
                name, f'<Relationships xmlns="{of_packages}/relationships">{links}</Relationships>'
            )
        sheets = "".join(
            f'<sheet name="{name}" sheetId="{n}" r:id="rId{n}"/>' for n, name in names.items()
        )
        parts.writestr("xl/workbook.xml", (
            f'<workbook xmlns="{main}" xmlns:r="{of_documents}"><sheets>{sheets}'
            "</sheets></workbook>"
        ))  # fmt: skip
        for n in names:
            parts.writestr(
                f"xl/worksheets/sheet{n}.xml",
                f'<worksheet xmlns="{main}"><sheetData>{body}</sheetData></worksheet>',
            )


def test_a_parquet_file_is_the_table_of_its_csv(tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "t.parquet")
    FRAME.write_csv(tmp_path / "t.csv")
    found, plain = (read_table(tmp_path / f"t.{kind}") for kind in ("parquet", "csv"))
    assert found.names == plain.names
    assert texts_of(found)["n"] == ["" if n == 7 else str(n) for n in range(ROWS)]
    for name in ("n", "x", "day", "kind"):
        cells = [table.cells(name, []) for table in (found, plain)]
        assert cells[0].texts == cells[1].texts, name
    assert set(texts_of(found)["good"]) == {"True", "False"}
    header = read_table(tmp_path / "t.parquet", header_alone=True)
    assert header.names == found.names
    assert len(header.lines) == 0


def test_a_frame_of_polars_is_a_table() -> None:
    found = as_table(FRAME)  # type: ignore[arg-type]
    assert found.names == FRAME.columns
    assert texts_of(found)["n"][7] == ""
    assert found.columns["kind"][0] == 'say "é"'


def test_a_model_is_trained_on_one_and_answers_for_it(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    FRAME.write_parquet(path)
    config = compose(
        "data=csv", f"data.path={path}", "data.target=kind", "trainer=cpu", "trainer.max_epochs=2"
    )
    run = fit(config, tmp_path / "run")
    model = load(run.folder)
    said = model.predict(path)
    assert (said == model.predict(FRAME)).all()
    assert (said == model.predict({name: FRAME[name].to_list() for name in FRAME.columns})).all()
    FRAME.tail(40).write_parquet(tmp_path / "other.parquet")
    found = evaluate_path(run.folder, str(tmp_path / "other.parquet"))
    assert int(found.confusion.sum()) == 40


def test_a_workbook(tmp_path: Path) -> None:
    rows: list[list[object]] = [["x", "kind", "y"], *([n / 4, "ab"[n % 2], n] for n in range(9))]
    rows[3][0] = None
    write_workbook(tmp_path / "t.xlsx", rows)
    found = read_table(tmp_path / "t.xlsx")
    assert found.names == ["x", "kind", "y"]
    assert list(found.columns["kind"]) == [*"ababababa"]
    assert [float(text or "nan") for text in texts_of(found)["x"]][3:5] == [0.75, 1.0]
    assert texts_of(found)["x"][2] == ""
    assert found.lines == range(2, 11)


@pytest.mark.parametrize("name", ["t.parquet", "t.xlsx"])
@pytest.mark.parametrize(
    "content", [b"", b"PAR1" + bytes(80) + b"PAR1", b"x,y\n1,2\n", b"PK\3\4" * 9]
)
def test_other_bytes_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    fault = "cannot be read as|is not a workbook|is a (text file|ZIP archive|Parquet file), not "
    with pytest.raises(InputError, match=f"{name}: ({fault})") as refused:
        read_table(path)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("suffix", ["parquet", "xlsx"])
def test_damaged_bytes_are_refused_or_read(tmp_path: Path, suffix: str) -> None:
    """Never another error, whatever byte is wrong."""
    path = tmp_path / f"t.{suffix}"
    if suffix == "parquet":
        FRAME.write_parquet(path)
    else:
        rows: list[list[object]] = [["x", "y"], *([n, str(n)] for n in range(20))]
        write_workbook(path, rows)
    content = path.read_bytes()
    refused = 0
    for number in range(60):
        place = number * len(content) // 60
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        try:
            read_table(path)
        except InputError:
            refused += 1
    assert refused > 5


def test_a_small_file_of_many_cells_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column of one value takes a few bytes, whatever its length."""
    path = tmp_path / "t.parquet"
    polars.DataFrame({"a": [0] * 100_000, "b": [0] * 100_000}).write_parquet(path)
    assert path.stat().st_size < 5000
    monkeypatch.setattr(resources, "free_memory", lambda: 10**6)
    with pytest.raises(InputError, match="its 100,000 rows of 2 columns need"):
        read_table(path)
    book = tmp_path / "t.xlsx"
    write_workbook(book, [["x" * 10**6, "y"], [1, 2]])
    with pytest.raises(InputError, match="unpacks to more than 100 times its size"):
        read_table(book)


def test_what_is_no_table_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    polars.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(InputError, match="has only one column, 'a'; a table has two or more"):
        read_table(path)
    polars.DataFrame({"a": [], "b": []}).write_parquet(path)
    with pytest.raises(InputError, match="has no row below its header"):
        read_table(path)
    book = tmp_path / "t.xlsx"
    write_workbook(book, [["x", "y"], [1, 2]])
    monkeypatch.setattr(reading, "missing", lambda *_: ["t: needs fastexcel; type pip install"])
    with pytest.raises(InputError, match="needs fastexcel; type pip install"):
        read_table(book)


def test_names_of_tables() -> None:
    assert all(
        is_table(Path(name)) for name in ("a.csv", "A.CSV", "b.tsv.gz", "c.parquet", "d.xlsx")
    )
    assert not any(is_table(Path(name)) for name in ("a.npz", "b.gz", "c.png", "csv", "d.npz.gz"))


def test_columns_of_arrays_and_of_python_are_those_of_a_file(tmp_path: Path) -> None:
    """Each column has the numbers, gaps, counts and texts of the same column in a file."""
    draw = np.random.default_rng(0)
    whole, real = draw.integers(-(2**60), 2**60, ROWS), draw.normal(size=ROWS)
    real[3] = np.nan
    columns = {
        "whole": whole,
        "real": real,
        "single": real.astype(np.float32),
        "list": [None if row % 7 == 0 else row / 4 for row in range(ROWS)],
        "mixed": [Decimal("1.50"), "a\udc80", True, *range(ROWS - 3)],
        "kind": polars.Series(["x", None] * (ROWS // 2)),
        "flag": polars.Series([True, None, False] * (ROWS // 3)),
        "day": FRAME["day"],
    }
    table = as_table(columns)  # type: ignore[arg-type]
    assert table.columns["whole"].dtype == polars.Int64
    assert table.columns["real"].dtype == polars.Float64
    assert table.columns["real"].null_count() == 1
    texts = {
        "whole": [*map(str, whole.tolist())],
        "real": ["" if row == 3 else repr(real[row].item()) for row in range(ROWS)],
        "single": ["" if row == 3 else str(np.float32(real[row])) for row in range(ROWS)],
        "list": ["" if row % 7 == 0 else str(row / 4) for row in range(ROWS)],
        "mixed": ["1.50", "a?", "True", *map(str, range(ROWS - 3))],
        "kind": ["x", ""] * (ROWS // 2),
        "flag": ["True", "", "False"] * (ROWS // 3),
        "day": [*map(str, FRAME["day"])],
    }
    assert texts_of(table) == texts
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([texts, *zip(*texts.values(), strict=True)])
    plain = read_table(tmp_path / "t.csv")
    for name, cells in texts.items():
        found, other = table.cells(name, ["NA", "1.25"]), plain.cells(name, ["NA", "1.25"])
        np.testing.assert_array_equal(found.numbers, other.numbers)
        np.testing.assert_array_equal(found.gaps, other.gaps)
        everywhere = np.ones(ROWS, bool)
        assert found.counts(everywhere) == other.counts(everywhere)
        assert [*found.counts(everywhere)] == [*dict.fromkeys(cells)]
        lengths = [len(text) for text in cells]
        assert found.mapped(len).to_list() == other.mapped(len).to_list() == lengths
        assert [*found.mapped(str.upper, texts=True)] == [text.upper() for text in cells]
        assert found.texts == other.texts == cells
        assert found.varies(everywhere)
        assert not found.varies(np.arange(ROWS) == 5)


DATE = datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.UTC)
TYPED: list[tuple[list[Any], Any]] = [
    (["a", "b", None], polars.Categorical), (["a", "b", None], polars.Enum(["a", "b"])),
    ([[1, 2], [3], None], None), ([{"a": 1}, {"a": 2}, None], None),
    ([None, None, None], None), ([Decimal("1.50"), None, Decimal(2)], None),
    ([DATE.time(), None, DATE.time()], None), ([DATE, None, DATE], None),
    ([DATE - DATE, None, DATE - DATE], None), ([b"a", None, b"b"], None),
    ([2**64 - 1, 0, None], polars.UInt64), ([1, 2, None], polars.Int128),
    ([0.1, None, float("nan")], polars.Float32), ([0.1, None, float("nan")], None),
    ([DATE, None, 3], polars.Object),
]  # fmt: skip


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((3, 2)), np.array([0.1, 0.2, 0.3], np.float16), np.array([1.0, 2.0, 3.0], ">f8"),
        np.array([1, "a", None], object), np.array(["2020-01-01", "NaT", ""], "datetime64[D]"),
        np.array([1.5, np.nan, 2]), np.array([True, False, True]), [10**30, None, 1], range(3),
        *(polars.Series(each, dtype=dtype, strict=False) for each, dtype in TYPED),
    ],
)  # fmt: skip
def test_columns_of_every_type_have_the_texts_of_their_values(values: Any) -> None:
    table = as_table({"a": values, "b": [1, 2, 3]})
    listed = values.to_list() if isinstance(values, polars.Series) else values
    texts = [as_text(value) for value in listed]
    cells = table.cells("a", [])
    assert cells.texts == texts
    assert cells.counts(np.ones(3, bool)) == Counter(texts)
    assert cells.gaps.tolist() == [text == "" for text in texts]
    assert cells.mapped(len).to_list() == [*map(len, texts)]
    np.testing.assert_array_equal(cells.numbers, as_numbers(texts))


@pytest.mark.parametrize("dtype", [polars.List(polars.Int64), polars.Array(polars.Int64, 1), None])
def test_columns_of_lists_may_be_left_out(dtype: Any, tmp_path: Path) -> None:
    """Lists, arrays and structs: in training, and beside the features of new rows."""
    values = [{"a": n} if dtype is None else [n] for n in range(ROWS)]
    frame = FRAME.with_columns(polars.Series("nested", values, dtype), other=polars.lit([1]))
    path = tmp_path / "t.parquet"
    frame.write_parquet(path)
    plain = tmp_path / "plain.parquet"
    FRAME.write_parquet(plain)
    fault = "has lists or structs, and a cell is one text or number; write the parts as columns of"

    def opened(file: Path, *overrides: str) -> Source:
        return open_source(compose("data=csv", f"data.path={file}", *overrides).data)

    usual = opened(plain, "data.target=good")
    found = opened(path, "data.target=good", "data.drop=[nested,other]")
    assert found.columns == usual.columns
    torch.testing.assert_close(found.train.features, usual.train.features, rtol=0, atol=0)
    assert found.columns is not None
    same = found.columns.features(read_table(path))
    np.testing.assert_array_equal(same, found.columns.features(read_table(plain)))
    with pytest.raises(InputError) as refused:
        opened(path, "data.target=good", "data.drop=[x]")
    cure = "or type data.drop=[x,nested,other]"
    told = [f"column {name}: {fault} their own, {cure}" for name in ("nested", "other")]
    assert str(refused.value) == "\n  ".join([f"{path}: 2 faults", *told])
    for key in ("data.target", "data.weights", "data.group"):
        others = [] if key == "data.target" else ["data.target=good"]
        with pytest.raises(InputError, match=f"t.parquet: column nested: {fault} their own"):
            opened(path, f"{key}=nested", *others, "data.drop=[other]")


@pytest.mark.parametrize("others", [[], ["data"], ["data", "a&amp;b"]])
def test_the_sheet_of_a_workbook_that_is_read_is_told(others: list[str], tmp_path: Path) -> None:
    """When the table is read, and in the errors of a sheet that is not the table."""
    path = tmp_path / "t.xlsx"
    shown = ", ".join(f"'{name}'" for name in others).replace("&amp;", "&")
    told = (
        f"only its first sheet, 'one', is read, not {shown}; to read another sheet, move it to the "
        "front or save it as CSV"
    )
    end = f"; {told}" if others else ""
    write_workbook(path, [["x", "y"], [1, 2]], others)
    found = read_table(path)
    assert [text for _, text in found.notes] == ([f"{path}: {told}"] if others else [])
    with pytest.raises(InputError) as refused:
        found.require(["z"], "--target")
    assert str(refused.value) == (f"{path}: --target=z: there is no such column; it has x, y{end}")
    faulty: list[tuple[list[list[object]], str]] = [
        ([["note"], [1]], "has only one column, 'note'; a table has two or more"),
        ([["x", "y"]], "has no row below its header"),
    ]
    for rows, fault in faulty:
        write_workbook(path, rows, others)
        with pytest.raises(InputError) as refused:
            read_table(path)
        assert str(refused.value) == f"{path}: {fault}{end}"
    write_workbook(path, [], others)
    with pytest.raises(InputError, match="cannot be read as an Excel workbook") as refused:
        read_table(path)
    assert str(refused.value).endswith(f"){end}")


@pytest.mark.parametrize("padding", ["", " ", "\t "])
def test_white_space_around_names_does_not_count(padding: str, tmp_path: Path) -> None:
    """In files of every kind, in DataFrames, and in models of before."""
    names = [f"{padding}{name}{padding}" for name in ("a", "b", "y")]
    values = [[float(n % 7) for n in range(ROWS)], [*range(ROWS)], [*"pq" * (ROWS // 2)]]
    columns = dict(zip(names, values, strict=True))
    frame = polars.DataFrame(columns)
    rows = [*zip(*values, strict=True)]
    paths = [tmp_path / name for name in ("t.csv", "t.parquet", "t.xlsx", "t.arff")]
    frame.write_csv(paths[0], separator=";")
    frame.write_parquet(paths[1])
    write_workbook(paths[2], [[*names], *map(list, rows)])
    attributes = "".join(f"@attribute '{name}' string\n" for name in names)
    cells = "\n".join(",".join(map(str, row)) for row in rows)
    paths[3].write_text(f"@relation r\n{attributes}@data\n{cells}\n")
    sources = [
        open_source(compose("data=csv", f"data.path={path}", "data.target=y", "data.drop=[b]").data)
        for path in paths
    ]
    learned = sources[0].columns
    assert learned is not None
    assert learned.names == ["a"]
    expected = learned.features(read_table(paths[0]))
    before = Columns.model_validate(
        {"columns": [each.model_dump() | {"name": names[0]} for each in learned.columns],
         "empty": learned.empty}
    )  # fmt: skip
    assert before == learned
    for source in sources:
        assert source.columns == learned
    for table in (*map(read_table, paths), as_table(columns), as_table(frame)):  # type: ignore[arg-type]
        np.testing.assert_array_equal(learned.features(table), expected)


NAMES: list[tuple[list[str], list[str]]] = [
    (["", "x", "x", "y"], ["column 1", "x", "x_2", "y"]),
    (["x", "x_1", "x", "x"], ["x", "x_1", "x_2", "x_3"]),
    (["x_1", "x", "", "x_1"], ["x_1", "x", "column 3", "x_1_2"]),
    (["a_1", "b_2", "", ""], ["a_1", "b_2", "column 3", "column 4"]),
    (["a", " a", "gro\u0308\u00dfe", "y"], ["a", "a_2", "gr\u00f6\u00dfe", "y"]),
]


class Repeating:
    """As much of pandas' DataFrame as is used: columns by their place, for names may repeat."""

    def __init__(self, names: list[str], values: list[list[float]]) -> None:
        self.names, self.values, self.iloc = names, values, self

    def keys(self) -> list[str]:
        return self.names

    def __getitem__(self, key: tuple[slice, int]) -> list[float]:
        return self.values[key[1]]


@pytest.mark.parametrize(("names", "expected"), NAMES)
def test_columns_have_the_same_names_in_files_of_all_kinds(
    names: list[str], expected: list[str], tmp_path: Path
) -> None:
    """Without a name, with a repeated one, in another form of Unicode."""
    values = [[float(place), place + 0.5] for place in range(4)]
    rows = [*zip(*values, strict=True)]
    write_workbook(tmp_path / "t.xlsx", [[name or None for name in names], *map(list, rows)])
    lines = [",".join(names), *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    frame: Any = Repeating(names, values)
    for table in (read_table(tmp_path / "t.csv"), read_table(tmp_path / "t.xlsx"), as_table(frame)):
        assert table.names == expected
        told = [
            name
            for name in expected
            if name not in names and f"is called {name}" in str(table.notes)
        ]
        assert told == [
            n for n in expected if re.fullmatch(r"a_2|x_[23]|x_1_2", n) and n not in names
        ]
        for place, column in enumerate(table.columns.values()):
            assert [float(value) for value in column] == values[place]


def test_a_typed_name_is_found_in_another_form_of_unicode(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("art,gr\u00f6\u00dfe\n" + "".join(f"{n},{'ab'[n % 2]}\n" for n in range(40)))
    plain = open_source(
        compose("data=csv", f"data.path={path}", "data.target=gr\u00f6\u00dfe").data
    )
    typed = compose("data=csv", f"data.path={path}", "data.target=gro\u0308\u00dfe").data
    assert torch.equal(open_source(typed).train.features, plain.train.features)


def test_the_index_that_pandas_stores_is_left_out(tmp_path: Path) -> None:
    number = [*range(ROWS)]
    frame = polars.DataFrame(
        {"a": [n % 7 for n in number], "__index_level_0__": number, "y": [*"pq" * (ROWS // 2)]}
    )
    frame.sample(fraction=1, shuffle=True, seed=0).write_parquet(tmp_path / "t.parquet")
    source = open_source(
        compose("data=csv", f"data.path={tmp_path / 't.parquet'}", "data.target=y").data
    )
    assert source.columns is not None
    assert source.columns.names == ["a"]


def test_durations_are_seconds_and_times_of_the_day_numbers(tmp_path: Path) -> None:
    """In Parquet, in a list, and in NumPy's type, which pandas has too."""
    spans = [datetime.timedelta(minutes=7 * n) if n % 9 else None for n in range(ROWS)]
    clock = [datetime.time(n % 24, n % 60, 0, n % 2) for n in range(ROWS)]
    polars.DataFrame({"span": spans, "clock": clock}).write_parquet(tmp_path / "t.parquet")
    of_numpy = np.array(
        [datetime.timedelta(0) if span is None else span for span in spans], "m8[ns]"
    )
    of_numpy[[span is None for span in spans]] = np.timedelta64("NaT")
    seconds = [np.nan if span is None else span.total_seconds() for span in spans]
    days = [3600.0 * (n % 24) + 60.0 * (n % 60) + 1e-6 * (n % 2) for n in range(ROWS)]
    config = compose("data=csv", "data.path=t.csv", "data.target=y").data
    assert isinstance(config, Csv)
    frames: list[Any] = [{"span": spans, "clock": clock}, {"span": of_numpy, "clock": clock}]
    for table in (read_table(tmp_path / "t.parquet"), *map(as_table, frames)):
        columns = learn_columns(table, config, np.ones(ROWS, bool))
        span, of_day = columns.columns
        assert isinstance(span, NumberColumn)
        assert isinstance(of_day, NumberColumn)
        np.testing.assert_allclose(span.cells(table, []).numbers, seconds)
        np.testing.assert_allclose(of_day.cells(table, []).numbers, days, rtol=1e-12)
