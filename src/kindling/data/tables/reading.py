"""Reads a table from a file: its encoding, its separator, its header. Imports no torch."""

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from kindling.data.tables import arff
from kindling.data.tables.cells import as_numbers
from kindling.data.tables.frames import FRAMES, read_frame
from kindling.data.tables.table import Table
from kindling.system.errors import InputError, reading
from kindling.system.files import open_regular

PLAIN = (".csv", ".tsv", ".txt")
SUFFIXES = (*PLAIN, *(f"{suffix}.gz" for suffix in PLAIN), *arff.SUFFIXES, *FRAMES)
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabulators", "|": "|", " ": "spaces"}
SAMPLED, USUAL = 100, 0.9  # rows to find the separator, and the share that must have one length
MOST_NOTES = 10
GROWTH = 100  # a packed file may unpack to so many times its size


def is_table(path: Path) -> bool:
    """By its name."""
    return path.name.lower().endswith(SUFFIXES)


def read_table(path: Path, *, header_alone: bool = False) -> Table:
    """The table without blank lines, or without all rows; its notes tell what was found that is
    not plain: another encoding, another separator, columns without a name, two of one name. Raises
    InputError when the file is not a table, has no row, or rows of another length than the header.
    """
    notes: list[str] = []
    if path.suffix.lower() in FRAMES:
        names, cells = read_frame(path, header_alone=header_alone)
        if len(names) < 2:
            raise InputError(f"{path}: has {len(names)} columns; a table has two or more")
        if not (header_alone or cells[0]):
            raise InputError(f"{path}: has no row below its header")
        return _noted(path, _named(names, notes), cells, range(2, 2 + len(cells[0])), notes)
    text = _text(path, notes, header_alone=header_alone)
    if path.name.lower().endswith(arff.SUFFIXES):
        names, rows, lines = arff.read_arff(path, text, header_alone=header_alone)
        return _of_rows(path, names, rows, lines, [], notes, header_alone=header_alone)
    skipped, text, separator = _skip(text, notes)
    separator = separator or _separator(text)
    if separator != ",":
        notes.append(f"its cells are separated by {SEPARATORS[separator]}")
    rows, lines, faults, empty = [], [], [], list[int]()
    try:
        reader = csv.reader(
            io.StringIO(text, newline=""), delimiter=separator, strict=True,
            skipinitialspace=separator == " ",
        )  # fmt: skip
        names = [name.strip() for name in next(reader, [])]
        if not names:
            faults.append("is empty; its first line must name the columns")
        for row in reader if not (faults or header_alone) else ():
            if any(row):
                rows.append(row)
                lines.append(reader.line_num + skipped)
            elif len(row) > 1:
                empty.append(reader.line_num + skipped)
    except (ValueError, csv.Error) as error:
        raise InputError(
            f"{path}: is not a table ({error}); a table has a line for each row, and cells "
            "separated by commas, semicolons or tabulators"
        ) from None
    if empty:
        have, are = ("lines have", "are") if empty[1:] else ("line has", "is")
        place = f"{'the first is ' if empty[1:] else ''}line {empty[0]}"
        notes.append(f"{len(empty):,} {have} only empty cells, and {are} left out ({place})")
    names = _fitting(names, rows, notes)
    return _of_rows(path, names, rows, lines, faults, notes, header_alone=header_alone)


def _of_rows(
    path: Path, names: list[str], rows: list[list[str]], lines: Sequence[int], faults: list[str],
    notes: list[str], *, header_alone: bool,
) -> Table:  # fmt: skip
    """Raises InputError with all faults, and for rows of another length than the header."""
    faults += [
        f"line {line}: has {len(row)} of {len(names)} cells"
        for row, line in zip(rows, lines, strict=True)
        if len(row) != len(names)
    ]
    if len(names) == 1 and not faults:
        faults.append(
            f"has only one column, {names[0][:80]!r}; a table has columns separated by commas, "
            "semicolons or tabulators"
        )
    Table(path, {}, ()).refuse(faults)
    if not rows and not header_alone:
        raise InputError(f"{path}: has no row below its header")
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return _noted(path, _named(names, notes), columns, lines, notes)


def _noted(
    path: Path, names: Sequence[str], columns: Iterable[Sequence[str]], lines: Sequence[int],
    notes: Sequence[str],
) -> Table:  # fmt: skip
    found = Table(path, dict(zip(names, columns, strict=True)), lines)
    for note in notes:
        found.note(note)
    return found


def _text(path: Path, notes: list[str], *, header_alone: bool) -> str:
    """The text of the file, or its beginning."""
    with reading(path), open_regular(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        most = path.stat().st_size * GROWTH if packed else -1
        try:
            with gzip.open(file) if packed else file as plain:
                content = _beginning(plain, most) if header_alone else plain.read(most)
                if packed and not header_alone and plain.read(1):
                    raise InputError(
                        f"{path}: unpacks to more than {GROWTH} times its size; unpack it yourself"
                    )
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path}: cannot be unpacked ({error})") from None
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        found = content.decode(encoding, errors="ignore" if header_alone else "strict")
    except UnicodeDecodeError as error:
        notes.append(f"is not in UTF-8 (byte {error.start + 1:,}), and is read as Windows-1252")
        found = content.decode("cp1252", errors="replace")
    if found.count("\0") > len(found) // 4:  # UTF-16 or UTF-32 without a mark, or no text at all
        raise InputError(f"{path}: is not a table (most of its bytes are 0); save it in UTF-8")
    return found


def _beginning(file: IO[bytes] | gzip.GzipFile, most: int) -> bytes:
    """SAMPLED lines, however long they are, or the whole file; at most so many bytes, unless -1."""
    content = b""
    while content.count(b"\n") <= SAMPLED and not 0 <= most <= len(content):
        more = file.read(2**16)
        if not more:
            break
        content += more
    return content


def _skip(text: str, notes: list[str]) -> tuple[int, str, str | None]:
    """The number of lines before the header, the text from there, and the separator that a first
    line such as `sep=;` names."""
    skipped, separator, comment = 0, None, ""
    while True:
        line, end, rest = text.partition("\n")
        plain = line.strip().strip('"')
        if skipped == 0 and plain.startswith("sep=") and plain[4:5] in SEPARATORS:
            separator = plain[4:5]
        elif not (end and (plain.startswith("#") or not plain)):
            break
        else:
            comment = plain
        text, skipped = rest, skipped + 1
    header = comment.lstrip("#").strip()
    count = skipped - (separator is not None)
    if header and _names(header, text.partition("\n")[0].strip()):
        notes.append("its last comment names the columns")
        text, skipped, count = f"{header}\n{text}", skipped - 1, count - 1
    if count > 0:
        told = (
            "line is a comment or blank, and is"
            if count == 1
            else "lines are comments or blank, and are"
        )
        notes.append(f"{count} {told} left out above the header")
    return skipped, text, separator


def _names(comment: str, row: str) -> bool:
    """Whether a comment, as numpy.savetxt writes one, has a name for each cell of the first row."""
    for separator in SEPARATORS:
        names, cells = (
            each.split(None if separator == " " else separator) for each in (comment, row)
        )
        if len(names) == len(cells) > 1:
            of_numbers = ~np.isnan([as_numbers([c.strip()])[0] for c in cells])
            return bool(of_numbers.any() and np.isnan(as_numbers([*map(str.strip, names)])).all())
    return False


def _separator(text: str) -> str:
    """The first of SEPARATORS by which the header and the first rows have the same number of cells,
    more than one. The header may have one cell less: R names no column of row names."""
    for separator in SEPARATORS:
        lengths = []
        with suppress(csv.Error):  # perhaps in the last sampled row of a long text
            for row in csv.reader(
                io.StringIO(text, newline=""), delimiter=separator, strict=True,
                skipinitialspace=separator == " ",
            ):  # fmt: skip
                lengths += [len(row)] if row else []
                if len(lengths) > SAMPLED:
                    break
        header, *rows = lengths or [0]
        usual = max(rows, key=rows.count, default=header)
        if 1 < header <= usual <= header + 1 and rows.count(usual) >= USUAL * len(rows):
            return separator
    return ","


def _fitting(names: list[str], rows: list[list[str]], notes: list[str]) -> list[str]:
    """The header, with a name for the row names that R writes without one. An empty last cell of
    each row is left out."""
    if not rows or any(len(row) != len(names) + 1 for row in rows):
        return names
    if all(not row[-1].strip() for row in rows):
        for row in rows:
            row.pop()
        notes.append("each row ends with an empty cell more than the header has, which is left out")
        return names
    notes.append("the header has one name less than the rows have cells; their first names the row")
    return ["", *names]


def _named(names: Sequence[str], notes: list[str]) -> list[str]:
    """A name of its own for each column."""
    found: dict[str, None] = {}
    taken, repeats = {*names}, Counter[str]()
    for number, name in enumerate(names, 1):
        base = own = name or f"column {number}"
        while own in found or (own != name and own in taken):
            repeats[base] += 1
            own = f"{base}_{repeats[base] + 1}"
        if name and own != name and len(notes) < MOST_NOTES:
            notes.append(f"has two columns {name}; the second, column {number}, is called {own}")
        found[own] = None
    numbers = as_numbers([name for name in taken if name] or ["x"])
    if len(taken) < len(names) and not np.isnan(numbers).all():
        notes.append("if its first line is a row, write a line of names above the rows")
    return [*found]
