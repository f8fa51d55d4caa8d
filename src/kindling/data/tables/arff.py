"""Tables in the format of Weka and OpenML: `@attribute` lines, then `@data` and the rows
(Attribute-Relation File Format). Imports no torch."""

import re
from collections.abc import Iterator
from pathlib import Path

from kindling.system.errors import InputError

SUFFIXES = (".arff", ".arff.gz")
QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
NAME = rf"{QUOTED}|[^\s'\"{{][^\s{{]*"
ATTRIBUTE = re.compile(rf"@attribute\s+({NAME})(?:\s+|(?={{))(\S.*)", re.IGNORECASE)
# In time that grows with the length of the line alone, whatever a stranger has written.
CELL = re.compile(rf" *({QUOTED}|[^,\t'\"]*) *")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def read_arff(
    path: Path, text: str, *, header_alone: bool
) -> tuple[list[str], list[list[str]], list[int]]:
    """The names of the columns, the rows, none of them if `header_alone`, and the numbers of their
    lines. The types of the columns are not used: what a column is, its cells tell. Raises
    InputError for another header, a cell with an open quote, and rows that list only some cells."""
    lines = _lines(text)
    names: list[str] = []
    for number, line in lines:
        if line.lower().startswith("@data"):
            break
        found = ATTRIBUTE.fullmatch(line)
        if found and not found[2].lower().startswith("relational"):
            names.append(_plain(found[1]))
        elif not line.lower().startswith("@relation"):
            raise InputError(
                f"{path}: line {number}: {line[:80]!r} is no column of a table; before @data, "
                "write @attribute NAME TYPE for each column"
            )
    else:
        if not header_alone:
            raise InputError(f"{path}: has no line @data, below which the rows begin")
    rows, numbers = [], []
    for number, line in lines if not header_alone else ():
        if line.startswith("{"):
            raise InputError(
                f"{path}: line {number}: lists only some cells, {line[:40]!r}; save the table dense"
            )
        cells = _cells(line)
        if cells is None:
            raise InputError(f"{path}: line {number}: has a quote without its end, {line[:80]!r}")
        rows.append(cells)
        numbers.append(number)
    return names, rows, numbers


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, without comments and blank lines."""
    for number, line in enumerate(text.split("\n"), 1):
        plain = line.strip()
        if plain and not plain.startswith("%"):
            yield number, plain


def _cells(line: str) -> list[str] | None:
    if "'" not in line and '"' not in line:
        return [cell.strip() for cell in re.split("[,\t]", line)]
    cells, at = list[str](), 0
    while True:
        found = CELL.match(line, at)
        assert found is not None
        cells.append(_plain(found[1].strip()))
        at = found.end()
        if at == len(line):
            return cells
        if line[at] not in ",\t":
            return None
        at += 1


def _plain(text: str) -> str:
    """Without quotes and escapes."""
    if text[:1] not in ("'", '"'):
        return text
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text[1:-1])
