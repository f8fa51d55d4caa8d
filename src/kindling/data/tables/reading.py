"""Reads a table from a file: its encoding, its separator, its header. Imports no torch."""

import codecs
import csv
import gzip
import io
import logging
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, compress, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kindling.config.written import column_name, printable
from kindling.data.tables import arff
from kindling.data.tables.cells import as_column, as_numbers, as_text, stripped
from kindling.data.tables.signatures import PARQUET, TEXT, WORKBOOK, require_kind
from kindling.data.tables.table import Table, own_names
from kindling.system.errors import InputError, first_line, parsing, reading
from kindling.system.extras import missing
from kindling.system.files import open_regular
from kindling.system.resources import require_memory

if TYPE_CHECKING:
    import polars as pl

FRAMES = (".parquet", ".xlsx")
MADE_UP = re.compile(r"__UNNAMED__\d+")  # the name of a column of a workbook that has none
PLAIN = (".csv", ".tsv", ".txt")
SUFFIXES = (*PLAIN, *(f"{suffix}.gz" for suffix in PLAIN), *arff.SUFFIXES, *FRAMES)
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabulators", "|": "|", " ": "spaces"}
SAMPLED, USUAL = 100, 0.9  # rows to find the separator, and the share that must have one length
END = "\0\0END\0\0"  # a row of its own after the last one, unless a quote there has no end
WIDE = 10_000  # columns; polars takes some kilobytes for each, however few the rows
TEXTS = 12  # bytes of memory for each byte of a table, while its cells are texts of Python
CELL = 16  # bytes of memory of a cell of a frame; a longer text takes more
GROWTH = 100  # a packed file or a workbook may unpack to so many times its size


def is_table(path: Path) -> bool:
    """By its name."""
    return path.name.lower().endswith(SUFFIXES)


def read_table(path: Path, *, header_alone: bool = False) -> Table:
    """The table without blank lines, or without all rows; its notes tell what was found that is
    not plain: another encoding, another separator, columns without a name, two of one name. Raises
    InputError when the file is not a table, has no row, or rows of another length than the header.
    """
    notes: list[str] = []
    lines: Sequence[int] = ()
    sheets = ""
    if path.suffix.lower() in FRAMES:
        names, columns, sheets = _read_frame(path, header_alone=header_alone)
        lines = range(2, 2 + len(columns[0])) if columns else ()
    elif path.name.lower().endswith(arff.SUFFIXES):
        text = _content(path, notes, header_alone=header_alone).decode()
        names, rows, lines = arff.read_arff(path, text, header_alone=header_alone)
        columns = _columns(path, len(names), rows, lines)
    else:
        content = _content(path, notes, header_alone=header_alone)
        names, columns, lines = _separated(path, content, notes, header_alone=header_alone)
    names = [*map(column_name, names)]
    if len(names) < 2:
        only = f"only one column, {names[0][:80]!r}" if names else "no column"
        apart = "separated by commas, semicolons or tabulators"
        more = "two or more" if path.suffix.lower() in FRAMES else f"columns {apart}"
        raise InputError(f"{path}: has {only}; a table has {more}{sheets}")
    if not (lines or header_alone):
        raise InputError(f"{path}: has no row below its header{sheets}")
    found = Table(
        path, dict(zip(own_names(names, notes), columns, strict=True)), lines, sheets=sheets
    )
    if sheets:
        found.note(sheets.removeprefix("; "))
    for note in notes:
        found.note(note)
    return found


def _read_frame(path: Path, *, header_alone: bool) -> tuple[list[str], list["pl.Series"], str]:
    """The names of the columns, the columns, without rows if `header_alone`, and a text about the
    sheets of a workbook, which ends an error, if there are several. Raises InputError
    for other files, without the reader of workbooks, and if the table does not fit into memory.
    Columns of lists stay as they are."""
    workbook = path.suffix.lower() == ".xlsx"
    kind = WORKBOOK if workbook else PARQUET
    with reading(path), open_regular(path) as file:  # polars would wait for a pipe
        require_kind(path, file, kind)
        for fault in missing(str(path), "tables", ("fastexcel",)) if workbook else ():
            raise InputError(fault)
        size = path.stat().st_size
        if workbook and zipfile.is_zipfile(file):
            with parsing(f"{path}: is not a workbook"), zipfile.ZipFile(file) as parts:
                if sum(part.file_size for part in parts.infolist()) > GROWTH * size:
                    raise InputError(f"{path}: unpacks to more than {GROWTH} times its size")
    import polars as pl

    sheets = ""
    try:
        if workbook:  # its first sheet
            logging.getLogger("fastexcel").setLevel(logging.ERROR)  # the table tells what is empty
            sheets = _sheets(path)
            frame = pl.read_excel(path, infer_schema_length=None)
            names = _written(path, frame.columns)
        else:
            lazy = pl.scan_parquet(path)
            width = len(lazy.collect_schema())
            rows = 0 if header_alone else lazy.select(pl.len()).collect().item()
            needed = f"{path}: its {rows:,} rows of {width:,} columns need"
            require_memory(needed, CELL * rows * width, "fewer rows")
            frame = lazy.head(rows).collect()
            names = frame.columns
    except (InputError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of its library is no Exception
        if type(error).__name__ != "PanicException" and not isinstance(error, Exception):
            raise
        told = f"cannot be read as {kind} ({printable(first_line(error))[:200]})"
        raise InputError(f"{path}: {told}{sheets}") from None
    columns = [
        column if column.dtype.is_nested() else as_column(column.name, column)
        for column in (frame.clear() if header_alone else frame)
    ]
    return names, columns, sheets


def _written(path: Path, names: Sequence[str]) -> list[str]:
    """The names as the first sheet of a workbook has them, of which polars makes others where one
    is missing or repeated."""
    import polars as pl

    found = ["" if MADE_UP.fullmatch(name) else name for name in names]
    bases = [re.sub(r"_\d+$", "", name) for name in found]
    if any(base != name and base in found for base, name in zip(bases, found, strict=True)):
        header = pl.read_excel(path, has_header=False, read_options={"n_rows": 1})
        written = [as_text(value) for value in (header.row(0) if len(header) else ())]
        if len(written) == len(found):
            pairs = zip(found, bases, written, strict=True)
            return [base if base == cell else name for name, base, cell in pairs]
    return found


def _sheets(path: Path) -> str:
    """The end of an error about a workbook of several sheets, of which the first is read."""
    import fastexcel

    first, *others = fastexcel.read_excel(path).sheet_names
    if not others:
        return ""
    return (
        f"; only its first sheet, {first!r}, is read, not {', '.join(map(repr, others))[:200]}; to "
        "read another sheet, move it to the front or save it as CSV"
    )


def _separated(
    path: Path, content: bytes, notes: list[str], *, header_alone: bool
) -> tuple[list[str], list["pl.Series"], Sequence[int]]:
    """The names, the columns and the lines of a file with separated cells."""
    skipped, content, separator = _skip(content, notes)
    sample = b"".join(islice(io.BytesIO(content), SAMPLED)).decode(errors="ignore")
    separator = separator or _separator(sample)
    if separator != ",":
        notes.append(f"its cells are separated by {SEPARATORS[separator]}")
    try:
        try:
            names, header, width = _begun(sample, separator)
        except csv.Error:  # perhaps of a cell with more lines than the sample
            names, header, width = _begun(content.decode(), separator)
        if not names:
            raise InputError(f"{path}: is empty; its first line must name the columns")
        if header_alone:
            return names, _columns(path, len(names), [], []), []
        plain = _plain(content, separator, header, width if width - len(names) in (0, 1) else 0)
        columns, lines, blank = plain or _row_by_row(path, content.decode(), separator)
    except (ValueError, csv.Error) as error:
        raise InputError(
            f"{path}: is not a table ({error}); a table has a line for each row, and cells "
            "separated by commas, semicolons or tabulators"
        ) from None
    if blank:
        have, are = ("lines have", "are") if blank[1:] else ("line has", "is")
        place = f"{'the first is ' if blank[1:] else ''}line {blank[0] + skipped}"
        notes.append(f"{len(blank):,} {have} only empty cells, and {are} left out ({place})")
    if isinstance(lines, range):
        lines = range(lines.start + skipped, lines.stop + skipped)
    else:
        lines = [line + skipped for line in lines]
    return _fitting(names, columns, notes), columns, lines


def _begun(text: str, separator: str) -> tuple[list[str], int, int]:
    """The names, the lines that they take, and the cells of the first row."""
    rows = _rows(text, separator)
    names, lines = next(rows, ([], 0))
    return names, lines, len(next(rows, ([], 0))[0])


def _rows(text: str, separator: str, *, strict: bool = False) -> Iterator[tuple[list[str], int]]:
    """The rows, each with the line where it ends. Raises csv.Error for a quote without its end and,
    if `strict`, for a cell that goes on after its closing quote."""
    lines = chain(io.StringIO(text, newline=""), [END])
    reader = csv.reader(
        lines, delimiter=separator, strict=strict, skipinitialspace=separator == " "
    )
    for row in reader:
        if row == [END]:
            return
        if row and row[-1].endswith(END):
            raise csv.Error("a quote has no end")
        yield row, reader.line_num


# The columns, the lines where the rows end, and those of rows with only empty cells, which are
# left out.
Rows = tuple[list["pl.Series"], Sequence[int], list[int]]


def _plain(content: bytes, separator: str, header: int, width: int) -> Rows | None:
    """The rows below so many lines of header, by polars; None for content that polars reads
    otherwise than Python. Polars fills short rows, so their missing separators are counted."""
    import polars as pl

    if not 2 <= width <= WIDE or separator == " " or content.count(b"\r") != content.count(b"\r\n"):
        return None
    start = 0
    for _ in range(header):
        start = content.find(b"\n", start) + 1
    try:
        frame = pl.read_csv(
            content, has_header=False, skip_lines=header, separator=separator,
            schema={str(place): pl.String for place in range(width)}, empty_string_is_null=False,
        )  # fmt: skip
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    lines: Sequence[int] = range(header + 1, header + 1 + len(frame))
    separators = len(frame) * (width - 1)
    if content.find(b'"', start) >= 0:
        end = rf"\n\r{re.escape(separator)}"
        odd = rf'"(?:(?<=[^"{end}]")(?:"")*|(?<=[{end}]")(?:"")*")[^"{end}]'
        if re.search(odd.encode(), content):
            return None  # perhaps a cell that goes on after its quotes
        separators += int(_within(frame, separator).sum())
        inside = _within(frame, "\n")
        if inside.any():
            lines = (header + np.arange(1, 1 + len(frame)) + inside.cumsum()).tolist()
    if content.count(separator.encode(), start) != separators:
        return None
    empty = frame.select(pl.all_horizontal(pl.all() == "")).to_series()
    if not empty.any():
        return frame.get_columns(), lines, []
    blank = [*compress(lines, empty)]
    return frame.filter(~empty).get_columns(), [*compress(lines, ~empty)], blank


def _within(frame: "pl.DataFrame", mark: str) -> NDArray[np.int64]:
    """The number of such marks in the cells of each row."""
    found: NDArray[np.int64] = np.zeros(len(frame), np.int64)
    for column in frame:
        found += column.str.count_matches(mark, literal=True).to_numpy()
    return found


def _row_by_row(path: Path, text: str, separator: str) -> Rows:
    """By Python: slower, and with the faults of each row."""
    require_memory(f"{path}: row by row it needs", TEXTS * len(text), "fewer rows")
    read = _rows(text, separator)
    (names, _), rows, lines, blank = next(read), list[list[str]](), list[int](), list[int]()
    for row, line in read:
        if any(row):
            rows.append(row)
            lines.append(line)
        elif len(row) > 1:
            blank.append(line)
    extra = bool(rows) and all(len(row) == len(names) + 1 for row in rows)
    return _columns(path, len(names) + extra, rows, lines), lines, blank


def _columns(
    path: Path, width: int, rows: Sequence[Sequence[str]], lines: Sequence[int]
) -> list["pl.Series"]:
    """Raises InputError for rows of another length."""
    faults = [
        f"line {line}: has {len(row)} of {width} cells"
        for row, line in zip(rows, lines, strict=True)
        if len(row) != width
    ]
    Table(path, {}, ()).refuse(faults)
    columns = zip(*rows, strict=True) if rows else [()] * width
    return [as_column("", column) for column in columns]


def _content(path: Path, notes: list[str], *, header_alone: bool) -> bytes:
    """The file, or its beginning, in UTF-8."""
    with reading(path), open_regular(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        most = path.stat().st_size * GROWTH if packed else -1
        try:
            with gzip.open(file) if packed else file as plain:
                content = _beginning(plain, most) if header_alone else plain.read(most)
                require_kind(path, io.BytesIO(content), TEXT)
                if packed and not header_alone and plain.read(1):
                    raise InputError(
                        f"{path}: unpacks to more than {GROWTH} times its size; unpack it yourself"
                    )
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path}: cannot be unpacked ({error})") from None
    marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    encoding = "utf-16" if content.startswith(marks) else "utf-8-sig"
    try:
        text = content.decode(encoding, "ignore" if header_alone else "strict")
    except UnicodeDecodeError as error:
        notes.append(f"is not in UTF-8 (byte {error.start + 1:,}), and is read as Windows-1252")
        text = content.decode("cp1252", "replace")
    content = text.encode()
    if content.count(0) > len(content) // 4:  # UTF-16 or UTF-32 without a mark, or no text at all
        raise InputError(f"{path}: is not a table (most of its bytes are 0); save it in UTF-8")
    return content


def _beginning(file: IO[bytes] | gzip.GzipFile, most: int) -> bytes:
    """SAMPLED lines, however long they are, or the whole file; at most so many bytes, unless -1."""
    content = b""
    while content.count(b"\n") <= SAMPLED and not 0 <= most <= len(content):
        more = file.read(2**16)
        if not more:
            break
        content += more
    return content


def _skip(content: bytes, notes: list[str]) -> tuple[int, bytes, str | None]:
    """The number of lines before the header, the content from there, and the separator that a first
    line such as `sep=;` names."""
    skipped, start, separator, comment = 0, 0, None, ""
    for line in io.BytesIO(content):
        plain = line.decode(errors="ignore").strip().strip('"')
        if skipped == 0 and plain.startswith("sep=") and plain[4:5] in SEPARATORS:
            separator = plain[4:5]
        elif not line.endswith(b"\n") or (plain and not plain.startswith("#")):
            break
        else:
            comment = plain
        start, skipped = start + len(line), skipped + 1
    header = comment.lstrip("#").strip()
    count = skipped - (separator is not None)
    content = content[start:] if start else content
    if header and _names(header, plain):
        notes.append("its last comment names the columns")
        content, skipped, count = f"{header}\n".encode() + content, skipped - 1, count - 1
    if count > 0:
        one, several = "line is a comment or blank, and is", "lines are comments or blank, and are"
        notes.append(f"{count} {one if count == 1 else several} left out above the header")
    return skipped, content, separator


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
            for row, _ in _rows(text, separator, strict=True):
                lengths += [len(row)] if row else []
                if len(lengths) > SAMPLED:
                    break
        header, *rows = lengths or [0]
        usual = max(rows, key=rows.count, default=header)
        if 1 < header <= usual <= header + 1 and rows.count(usual) >= USUAL * len(rows):
            return separator
    return ","


def _fitting(names: list[str], columns: list["pl.Series"], notes: list[str]) -> list[str]:
    """The header, with a name for the row names that R writes without one. An empty last cell of
    each row is left out."""
    if len(columns) == len(names):
        return names
    if (stripped(columns[-1]) == "").all():
        columns.pop()
        notes.append("each row ends with an empty cell more than the header has, which is left out")
        return names
    notes.append("the header has one name less than the rows have cells; their first names the row")
    return ["", *names]
