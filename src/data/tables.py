"""Tables with a header, separated by commas. No torch here: a wrong cell is told at once."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from src.config import did_you_mean
from src.errors import InputError
from src.files import open_regular

FAULTS_SHOWN = 20


class Columns(BaseModel):
    """A table's columns of features, standardised as (x - mean) / deviation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    names: list[str]
    mean: list[float]
    deviation: list[float]

    def standardise(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Values (N, columns) as they are written in the table."""
        standard: NDArray[np.float64] = (values - np.array(self.mean)) / np.array(self.deviation)
        return standard.astype(np.float32)


@dataclass(frozen=True)
class Table:
    """The cells as they are written, and the line of the file on which each row ends."""

    path: Path
    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    lines: Sequence[int]

    def column(self, name: str) -> list[str]:
        """Raises InputError when there is no such column, or a cell of it is empty."""
        at = self.names.index(name)
        cells = [row[at].strip() for row in self.rows]
        faults = [
            f"line {line}, column {name}: is empty"
            for line, cell in zip(self.lines, cells, strict=True)
            if not cell
        ]
        self._refuse(faults)
        return cells

    def numbers(self, names: Sequence[str]) -> NDArray[np.float64]:
        """The columns, (rows, columns). Raises InputError with every cell that is no number."""
        chosen = [self.names.index(name) for name in names]
        try:
            cells = [[row[at] for at in chosen] for row in self.rows]
            values = np.array(cells, np.float64).reshape(len(cells), len(chosen))
            if np.isfinite(values.astype(np.float32)).all():
                return values
        except ValueError:
            pass
        self._refuse(
            [
                f"line {line}, column {self.names[at]}: {fault}"
                for line, row in zip(self.lines, self.rows, strict=True)
                for at in chosen
                for fault in _faults_of(row[at].strip())
            ]
        )
        raise AssertionError("NumPy refuses a table whose cells are numbers, each by itself")

    def require(self, names: Sequence[str], key: str = "") -> None:
        """Raises InputError for each column that the table lacks; `key` is what named it."""
        missing = [name for name in names if name not in self.names]
        self._refuse([_unknown(name, self.names, key) for name in missing])

    def _refuse(self, faults: list[str]) -> None:
        if not faults:
            return
        shown = faults[:FAULTS_SHOWN]
        if len(faults) > len(shown):
            shown.append(f"and {len(faults) - len(shown):,} more")
        if len(shown) == 1:
            raise InputError(f"{self.path}: {shown[0]}")
        raise InputError("\n  ".join([f"{self.path}: {len(faults):,} faults", *shown]))


def _unknown(name: str, names: Sequence[str], key: str) -> str:
    given = f"{key}={name}: there is no such column" if key else f"there is no column {name}"
    listed = ", ".join(names)
    return f"{given}{did_you_mean(name, names) or f'; it has {listed[:200]}'}"


def _faults_of(cell: str) -> list[str]:
    if not cell:
        return ["is empty; fill it in, or leave the row out"]
    try:
        value = np.float32(float(cell))
    except ValueError:
        return [f"{cell[:40]!r} is no number; leave the column out, or write numbers for it"]
    return [] if np.isfinite(value) else [f"{cell[:40]} is not finite"]


def read_header(path: Path) -> Table:
    """The table without its rows. Raises InputError as `read_table`."""
    return _read(path, header_alone=True)


def read_table(path: Path) -> Table:
    """The whole table; blank lines are left out.

    Raises InputError for a file that is none, has no row below the header, a column without a
    name or two of one, or rows of other lengths than the header.
    """
    table = _read(path, header_alone=False)
    if not table.rows:
        raise InputError(f"{path}: has no row below its header")
    return table


def _read(path: Path, *, header_alone: bool) -> Table:
    rows, lines, faults = [], [], []
    try:
        with io.TextIOWrapper(open_regular(path), "utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            names = [name.strip() for name in next(reader, [])]
            faults += _header_faults(names)
            for row in reader if not faults and not header_alone else ():
                if row and len(row) != len(names):
                    faults.append(f"line {reader.line_num}: has {len(row)} of {len(names)} cells")
                elif row:
                    rows.append(row)
                    lines.append(reader.line_num)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: is no table in UTF-8, separated by commas ({error})") from None
    table = Table(path, names, rows, lines)
    table._refuse(faults)
    return table


def _header_faults(names: Sequence[str]) -> list[str]:
    if not names:
        return ["is empty; its first line must name the columns"]
    if len(names) == 1:
        return [f"has one column alone, {names[0][:80]!r}; a table has columns separated by commas"]
    faults = [
        f"column {number} has no name; name it, or leave it out if it is an index"
        for number, name in enumerate(names, 1)
        if not name
    ]
    twice = dict.fromkeys(name for name in names if name and names.count(name) > 1)
    return faults + [f"has two columns {name}; give each a name of its own" for name in twice]
