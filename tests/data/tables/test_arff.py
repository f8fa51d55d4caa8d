"""Tables of Weka and OpenML."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from scipy.io import arff

from kindling.config.compose import compose
from kindling.data.sources.csv import open_source
from kindling.data.tables.arff import _cells
from kindling.data.tables.reading import read_table
from kindling.system.errors import InputError
from tests.helpers.tables import texts_of

HEADER = """% a comment
@relation 'cars of 1970'

@ATTRIBUTE weight  real
@attribute 'price, new'\tNUMERIC
@attribute "maker's name" string
@attribute origin{usa, 'western europe', japan}
@data
"""
ROWS = """1, 2.5, 'Ford, Inc.', usa
% between
3\t4\t'O\\'Neill'\t'western europe'
?, 6e2, "say \\"hi\\"", japan

"""


def written(folder: Path, text: str, name: str = "table.arff") -> Path:
    path = folder / name
    content = text.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("name", ["table.arff", "TABLE.ARFF", "table.arff.gz"])
def test_names_quotes_and_escapes(tmp_path: Path, name: str) -> None:
    table = read_table(written(tmp_path, HEADER + ROWS, name))
    assert texts_of(table) == {
        "weight": ["1", "3", "?"],
        "price, new": ["2.5", "4", "6e2"],
        "maker's name": ["Ford, Inc.", "O'Neill", 'say "hi"'],
        "origin": ["usa", "western europe", "japan"],
    }
    assert [*table.lines] == [9, 11, 12]
    alone = read_table(written(tmp_path, HEADER), header_alone=True)
    assert [*alone.columns] == [*table.columns]


def test_random_tables_are_those_of_scipy(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for count in (1, 7, 50):
        numbers = draw.normal(size=(count, 2)).round(5)
        words = draw.choice(["a b", "c,d", "e'f", "g"], count)
        quoted = ["'" + word.replace("'", "\\'") + "'" for word in words]
        lines = [f"{a},{w}, {b}" for (a, b), w in zip(numbers, quoted, strict=True)]
        head = "@relation r\n@attribute a real\n@attribute w string\n@attribute b real\n@data\n"
        table = read_table(written(tmp_path, head + "\n".join(lines)))
        assert texts_of(table)["w"] == words.tolist()
        plain = head.replace("@attribute w string\n", "") + "\n".join(
            f"{a},{b}" for a, b in numbers
        )
        theirs, _ = arff.loadarff(written(tmp_path, plain, "plain.arff"))
        for name in ("a", "b"):
            np.testing.assert_array_equal(np.array(table.columns[name], float), theirs[name])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HEADER + "1,2\n", "line 9: has 2 of 4 cells"),
        (HEADER, "has no row below its header"),
        (HEADER.replace("@data\n", ""), "has no line @data"),
        (HEADER + "{0 1, 2 x}\n", "line 9: lists only some cells"),
        (HEADER + "1,2,'open,usa\n", "line 9: has a quote without its end"),
        ("weight,price\n1,2\n", "line 1: 'weight,price' is no column of a table; before @data"),
        (HEADER.replace("real", "relational"), "line 4: .* is no column of a table"),
        ("@attribute a real\n@data\n1\n", "has only one column, 'a'"),
        ("@data\n1,2\n", "line 2: has 2 of 0 cells"),
    ],
)
def test_what_is_no_table(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_table(written(tmp_path, text))


def test_a_damaged_file_is_a_table_or_told(tmp_path: Path) -> None:
    draw, whole, refused = np.random.default_rng(1), HEADER + ROWS, []
    for _ in range(500):
        start, count = draw.integers(len(whole)), draw.integers(4)
        more = "".join(draw.choice([*"\\'\"{},@%\t\n?\0é "], draw.integers(3)))
        path = written(tmp_path, whole[:start] + more + whole[start + count :])
        try:
            assert len(read_table(path).columns) > 1
        except InputError as error:
            refused.append(str(error))
    assert 50 < len(refused) < 450
    assert all(str(tmp_path) in told for told in refused)


def test_a_strangers_lines_take_no_longer_than_others() -> None:
    """Time that grows with the square of a length would be hours here."""
    wide = ", ".join(["'a\\'b' "] * 200_000)
    assert _cells(wide) == ["a'b"] * 200_000
    assert _cells(" " * 1_000_000 + "x'") is None
    assert _cells("'" + "\\" * 1_000_001) is None


def test_it_trains(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [f"{x},{'?' if n % 9 == 0 else x * x},{'yes' if x > 0 else 'no'}"
            for n, x in enumerate(draw.normal(size=60).round(3))]  # fmt: skip
    head = "@relation r\n@attribute x real\n@attribute y real\n@attribute c {yes,no}\n@data\n"
    path = written(tmp_path, head + "\n".join(rows))
    config = compose("data=csv", f"data.path={path}", "data.target=c")
    source = open_source(config.data, config.task)  # type: ignore[arg-type]
    assert source.labels == ("no", "yes")
    assert source.columns is not None
    assert [column.name for column in source.columns.columns] == ["x", "y"]
    assert len(source.train) + len(source.test) == 60


def test_the_header_alone_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "table.arff"
    path.write_bytes(("% Köln\n" + HEADER + ROWS).encode("cp1252"))
    assert read_table(path, header_alone=True).names == read_table(path).names
    for more in ("", "x"):  # one of the two is cut within a letter
        path.write_bytes((f"%{more}\n" + HEADER + "%" + "é" * 2**16).encode())
        assert len(read_table(path, header_alone=True).names) == 4
