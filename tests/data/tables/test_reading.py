"""How a table is read from a file: its encoding, its separator, its header."""

import csv
import gzip
import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kindling.data.tables import reading
from kindling.data.tables.reading import read_table
from kindling.system.errors import InputError
from tests.helpers.tables import texts_of

PLAIN = "name,size\nA,1.5\nB,2\n"
COLUMNS = {"name": ("A", "B"), "size": ("1.5", "2")}


Read = tuple[dict[str, tuple[str, ...]], list[str], list[int]]


def read(path: Path, content: bytes | str) -> Read:
    """The columns, the notes without the path, and the lines of the rows."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    table = read_table(path)
    notes = [text.removeprefix(f"{path}: ") for _, text in table.notes]
    columns = {name: tuple(cells) for name, cells in texts_of(table).items()}
    return columns, notes, [*table.lines]


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (PLAIN, ""),
        (PLAIN.replace("\n", "\r\n"), ""),
        (PLAIN.rstrip("\n"), ""),
        ("\ufeff" + PLAIN, ""),
        (PLAIN.encode("utf-16"), ""),
        (PLAIN.replace(",", ";"), "its cells are separated by semicolons"),
        (PLAIN.replace(",", "\t"), "its cells are separated by tabulators"),
        (PLAIN.replace(",", "|"), "its cells are separated by |"),
        (PLAIN.replace(",", "  "), "its cells are separated by spaces"),
        ("sep=;\n" + PLAIN.replace(",", ";"), "its cells are separated by semicolons"),
        ("# made by hand\n# twice\n" + PLAIN, "2 lines are comments or blank, and are left out"),
        ("\n" + PLAIN, "1 line is a comment or blank, and is left out above the header"),
        ("# " + PLAIN, "its last comment names the columns"),
        ("# by hand, twice\n" + PLAIN, "1 line is a comment or blank"),
        (PLAIN.replace("\nB", "\n,\nB"), "1 line has only empty cells, and is left out (line 3)"),
        (PLAIN.replace("\n", ",\n").replace("size,", "size"), "ends with an empty cell more"),
        ('name,"size"\n"A","1.5"\n"B",2\n', ""),
    ],
)
def test_a_table_in_many_dialects(content: bytes | str, note: str, tmp_path: Path) -> None:
    columns, notes, _ = read(tmp_path / "a.csv", content)
    assert columns == COLUMNS
    assert note in "".join(notes)
    assert bool(notes) == bool(note)
    raw = content if isinstance(content, bytes) else content.encode()
    packed, *_ = read(tmp_path / "a.csv.gz", gzip.compress(raw))
    assert packed == COLUMNS


def test_row_names_columns_without_a_name_and_two_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    columns, notes, _ = read(path, ",x,x,\n1,2,3,4\n5,6,7,8\n")
    assert [*columns] == ["column 1", "x", "x_2", "column 4"]
    assert notes == ["has two columns x; the second, column 3, is called x_2"]
    columns, notes, _ = read(path, "x,y\nr1,2,3\nr2,4,5\n")
    assert columns == {"column 1": ("r1", "r2"), "x": ("2", "4"), "y": ("3", "5")}
    assert "their first names the row" in notes[0]
    columns, _, _ = read(path, "x,x_2,x,x\n1,2,3,4\n")
    assert [*columns] == ["x", "x_2", "x_3", "x_4"]
    _, notes, _ = read(path, "5,5,a\n1,2,3\n")
    assert notes[-1] == "if its first line is a row, write a line of names above the rows"


def test_the_header_alone_of_a_wide_table(tmp_path: Path) -> None:
    """However long its line is."""
    names = [f"column_{number}" for number in range(30_000)]
    path = tmp_path / "a.csv"
    path.write_text(",".join(names) + "\n" + ",".join(["1"] * len(names)) + "\n")
    found = read_table(path, header_alone=True)
    assert (found.names, len(found.lines)) == (names, 0)
    endless = gzip.compress(b"a" * 10**7, mtime=0)
    path.write_bytes(endless)
    (name,) = _names_alone(path)
    assert len(name) < 10**7


def _names_alone(path: Path) -> list[str]:
    try:
        return read_table(path, header_alone=True).names
    except InputError as error:
        return [str(error)]


def test_another_encoding_is_told(tmp_path: Path) -> None:
    columns, notes, _ = read(tmp_path / "a.csv", "ort,x\nKöln,1\n".encode("cp1252"))
    assert columns["ort"] == ("Köln",)
    assert notes == ["is not in UTF-8 (byte 8), and is read as Windows-1252"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("a,b\n1,2,3\n4,5\n", "line 2: has 3 of 2 cells"),
        ("a,b,c\n1,2\n4,5,6\n", "line 2: has 2 of 3 cells"),
        ("# only\n", "is empty; its first line must name the columns"),
        ("a\n1\n", "has only one column, 'a'"),
        ("", "is empty; its first line must name the columns"),
        ("a,b\n", "has no row below its header"),
        ("a,b\n,\n", "has no row below its header"),
        (PLAIN.encode("utf-16-le"), "most of its bytes are 0"),
        (gzip.compress(PLAIN.encode(), mtime=0)[:-9], "cannot be unpacked"),
        (b"\x1f\x8b nothing", "cannot be unpacked"),
        (
            gzip.compress(b"a,b\n" + b"1,2\n" * 200_000, mtime=0),
            "unpacks to more than 100 times its size",
        ),
        ('a,b\n"1,2\n', "is not a table (a quote has no end)"),
        ('a,b\n"1"2,3\n4,"5\n6,7\n', "is not a table (a quote has no end)"),
        ('a,b\n1,2"\n4,"5', "is not a table (a quote has no end)"),
    ],
)
def test_what_is_no_table(content: bytes | str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path / "a.csv", content)
    assert str(caught.value).startswith(f"{tmp_path}/a.csv: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("separator", ",;\t|")
@pytest.mark.parametrize("place", [0, 1, 150])
@pytest.mark.parametrize(
    ("written", "cell"),
    [
        ('"5" tall', "5 tall"), ('"a"b1', "ab1"), ('"a"b"c"', 'ab"c"'), ('"a\nb"c', "a\nbc"),
        ('"" b', " b"), ('"a""b"c', 'a"bc'), ('"é"é', "éé"),
    ],
)  # fmt: skip
def test_cells_that_go_on_after_their_quotes(
    written: str, cell: str, place: int, separator: str, tmp_path: Path
) -> None:
    """As Python reads them, in any row of the file."""
    rows = [[f"{n}.5", "ok", f"{n}"] for n in range(200)]
    rows[place][1] = written
    text = "\n".join(separator.join(row) for row in [["x", "n", "y"], *rows])
    columns, _, lines = read(tmp_path / "a.csv", text)
    rows[place][1] = cell
    assert [[*row] for row in zip(*columns.values(), strict=True)] == rows
    more = written.count("\n")
    assert lines == [n + 2 + (more if n >= place else 0) for n in range(200)]
    python = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    assert [*python][1:] == rows


@pytest.mark.parametrize("seed", range(20))
def test_what_pythons_writer_writes_is_read_back(seed: int, tmp_path: Path) -> None:
    """With each separator, quoted cells with separators, quotes and line ends among them."""
    draw = random.Random(seed)
    letters = 'ab1.,;|\t "\n'
    names = [f"n{number}" for number in range(draw.randint(2, 6))]
    rows = [
        ["".join(draw.choices(letters, k=draw.randint(1, 6))) for _ in names]
        for _ in range(draw.randint(3, 40))
    ]
    file = io.StringIO()
    csv.writer(file, delimiter=draw.choice(",;|\t")).writerows([names, *rows])
    columns, _, lines = read(tmp_path / "a.csv", file.getvalue())
    assert [[*row] for row in zip(*columns.values(), strict=True)] == rows
    ends = np.cumsum([1 + sum(cell.count("\n") for cell in row) for row in rows]) + 1
    assert lines == ends.tolist()


def outcome(path: Path) -> object:
    try:
        table = read_table(path)
    except InputError as error:
        return str(error)
    return texts_of(table), [*table.lines], table.notes


@pytest.mark.slow
@pytest.mark.parametrize("separator", ",;\t|")
def test_polars_reads_what_python_reads(
    separator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts, lines, notes and faults of odd files: rows of other lengths, blank lines, quotes in
    the wrong place, every line end. Polars reads a good part of them itself."""
    draw = random.Random(ord(separator))
    path, tables, read = tmp_path / "a.csv", 0, list[bool]()
    own = reading._plain

    def plain(*each: Any) -> Any:
        found = own(*each)
        read.append(found is not None)
        return found

    cells = ["1", "-2.5", "", " ", "a b", "é", "\0", '"x"', '""', '"a""b"', f'"{separator}"']
    odd = [
        'a"b', '"', '"a"b', '"a" ', ' "a"', '"a\nb"', '"a\r\nb"', "\r", '"\r"', "\x1c", '"""',
        '"a" "b"', '"a"."b"', '"a"""b"', '""b""', '"" "b"', f'"a{separator}""b"', '"" b', 'é"é',
    ]  # fmt: skip
    for number in range(600):
        width, some = draw.randint(2, 4), cells + odd * (number % 3 == 0)
        rows = [[draw.choice(some) for _ in range(width)] for _ in range(draw.randint(1, 6))]
        if number % 4 == 1:
            rows[-1] = rows[-1] + ["9"] if draw.random() < 0.5 else rows[-1][:-1]
        end = draw.choice(["\n", "\n", "\r\n", "\n\n"])
        names = [f"n{place}" for place in range(width - (number % 5 == 2))]
        text = end.join(separator.join(row) for row in [names, *rows])
        path.write_bytes((text + draw.choice(["", end])).encode())
        monkeypatch.setattr(reading, "_plain", plain)
        found = outcome(path)
        monkeypatch.setattr(reading, "_plain", lambda *_: None)
        assert outcome(path) == found, text
        tables += not isinstance(found, str)
    assert sum(read) > tables // 3 > 30


def test_long_files_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars reads parts of a file at once, and must not begin one within a cell."""
    draw, path = random.Random(0), tmp_path / "a.csv"
    cells = ["1.5", "", "two\nlines", 'a "b", c', "," * 9, "x" * 200, "\n" * 150]
    rows = [[draw.choice(cells) for _ in range(4)] + [str(row)] for row in range(20_000)]
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [["a\nb", *"cdef"], ["\n" * 150] * 5, *rows]
        )
    assert path.stat().st_size > 4 * 10**6
    monkeypatch.setattr(reading, "_row_by_row", None)
    read = read_table(path)
    monkeypatch.undo()
    monkeypatch.setattr(reading, "_plain", lambda *_: None)
    slow = read_table(path)
    assert texts_of(read) == texts_of(slow)
    assert [*read.lines] == [*slow.lines]
    assert [*zip(*texts_of(read).values(), strict=True)][1:] == [*map(tuple, rows)]
