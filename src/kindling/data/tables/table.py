"""A table in memory. Imports no torch."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from kindling.config import schema
from kindling.config.faults import did_you_mean
from kindling.config.written import column_name, printable, typed
from kindling.data.tables.cells import (
    DECIMAL_COMMAS,
    FIRST,
    FORMERLY_EMPTY,
    Cells,
    as_column,
    as_numbers,
    stripped,
)
from kindling.system.errors import FAULTS_SHOWN, InputError, shortened

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger(__name__)

MOST_NOTES = 10  # about repeated names
ALIKE = 1000  # names that an unknown name is compared with
MOST_KEPT = 2**24  # cells; the columns of a larger table are read anew at each use


def as_it_is(cells: Cells, config: schema.Csv, kind: str) -> str:
    """What to type if a word that was read as empty is a text, a class or a group; "" without such
    words."""
    words = cells.empty_words
    if not words or config.empty is None:
        return ""
    kept = [word for word in config.empty if word not in words]
    return f"; if {' or '.join(map(repr, words))} is a {kind}, type {typed('data.empty', kept)}"


@dataclass(frozen=True)
class Table:
    """The columns, by `as_column` or of lists, and the line of the file where each row ends.
    `notes` are levels of logging and texts about what was done with the table; `sheets` ends an
    error, if the file has other sheets."""

    path: Path
    columns: Mapping[str, "pl.Series"]
    lines: Sequence[int]
    notes: list[tuple[int, str]] = field(default_factory=list, compare=False)
    sheets: str = ""
    _cells: dict[tuple[str, frozenset[str]], Cells] = field(
        default_factory=dict, compare=False, repr=False, init=False
    )

    @property
    def names(self) -> list[str]:
        return [*self.columns]

    def note(self, text: str, level: int = logging.WARNING, lines: Sequence[str] = ()) -> None:
        """`lines` go below the text."""
        texts = [f"{self.path}: {text}", *(f"  {line}" for line in lines)]
        self.notes.append((level, "\n".join(map(printable, texts))))

    def tell(self) -> None:
        """Logs the notes."""
        for level, text in self.notes:
            log.log(level, "%s", text)

    def cells(self, name: str, empty: Collection[str] | None) -> Cells:
        """The cells of a column without white space around them; `empty` is data.empty. Raises
        InputError for a column of lists."""
        self.refuse(self.nested([name]))
        words = frozenset(FORMERLY_EMPTY if empty is None else empty)
        if (name, words) not in self._cells:
            cells = Cells(name, self.columns[name], self.lines, words, self._dots_are_thousands)
            if np.isnan(cells.read).any():  # a number has no white space around
                cells = replace(cells, column=stripped(self.columns[name]))
            if len(self.lines) * len(self.columns) > MOST_KEPT:
                return cells
            self._cells[name, words] = cells
        return self._cells[name, words]

    @cached_property
    def _dots_are_thousands(self) -> bool:
        """Whether a column has decimal commas, by its first rows."""
        import polars as pl

        for column in self.columns.values():
            first = column.head(FIRST)
            if first.dtype == pl.String and first.str.contains(",", literal=True).any():
                texts = stripped(first)
                cells = Cells(column.name, texts, range(len(texts)), FORMERLY_EMPTY)
                if cells.mark.endswith(DECIMAL_COMMAS):
                    return True
        return False

    def nested(self, names: Sequence[str], cure: str = "") -> list[str]:
        """A text for each of these columns that has lists or structs; `cure` ends it."""
        return [
            f"column {name}: has lists or structs, and a cell is one text or number; write the "
            f"parts as columns of their own{cure}"
            for name in names
            if self.columns[name].dtype.is_nested()
        ]

    def take(self, rows: NDArray[np.bool_]) -> "Table":
        """The table of the chosen rows."""
        columns = {name: column.filter(rows) for name, column in self.columns.items()}
        return replace(self, columns=columns, lines=[*compress(self.lines, rows)])

    def texts(self, name: str, kind: str, config: schema.Csv) -> Sequence[str]:
        """The text of each row, its class or its group by `kind`. Raises InputError for an empty
        cell."""
        cells = self.cells(name, config.empty or ())
        if cells.gaps.any():
            told = cells.counted(cells.gaps, "is empty", "are empty")
            advice = f"write a {kind} there, or leave the rows out"
            self.refuse([f"column {name}: {told}; {advice}{as_it_is(cells, config, kind)}"])
        return cells.texts

    def missing(self, names: Sequence[str], key: str = "") -> list[str]:
        """A text for each column that the table lacks; `key` is the setting that names it."""
        lacking = [name for name in names if name not in self.columns]
        # The search for similar names is slow, so only the shown columns get one.
        wanted = set(names)
        others = [name for name in self.names if name not in wanted]
        told = []
        for name in lacking[:FAULTS_SHOWN]:
            own = f"{key}={name}: there is no such column" if key else f"there is no column {name}"
            alike = did_you_mean(name, others[:ALIKE])
            told.append(f"{own}{alike or f'; it has {self._names_in_words}{self.sheets}'}")
        return told + [f"there is no column {name}" for name in lacking[FAULTS_SHOWN:]]

    @cached_property
    def _names_in_words(self) -> str:
        row = "" if np.isnan(as_numbers(self.names)).all() else "; the first line must name columns"
        return f"{', '.join(self.names[:ALIKE])[:200]}{row}"

    def require(self, names: Sequence[str], key: str = "") -> None:
        """Raises InputError with the columns that the table lacks. `key`: see `missing`."""
        self.refuse(self.missing(names, key))

    def refuse(self, faults: Sequence[str], instead: str = "") -> None:
        """Raises InputError with the faults, if any; `instead` is what corrects all of them."""
        if not faults:
            return
        if len(faults) == 1:
            raise InputError(f"{self.path}: {faults[0]}")
        count = f"{self.path}: {len(faults):,} faults"
        raise InputError("\n  ".join([count, *shortened(faults), *([instead] if instead else [])]))


def as_table(columns: Mapping[str, Iterable[Any]]) -> Table:
    """The table of a dictionary or a DataFrame of pandas or polars: a sequence of values for each
    column. None, NaN and pandas' NA are empty cells. Raises InputError for anything but sequences
    of one length."""
    if not hasattr(columns, "keys"):  # of polars
        columns = cast(Any, columns).to_dict()
    name, notes, found = Path("the table"), list[str](), dict[str, Any]()
    keys = [*columns.keys()]
    at = getattr(columns, "iloc", None)  # of pandas, where two columns may have one name
    for place, own in enumerate(own_names([column_name(str(key)) for key in keys], notes)):
        values = columns[keys[place]] if at is None else at[:, place]
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InputError(f"{name}: column {own} is {values!r}, must be a list of values")
        found[own] = as_column(own, values)
    lengths = {key: len(column) for key, column in found.items()}
    if len(set(lengths.values())) != 1 or not any(lengths.values()):
        told = ", ".join(f"{key} {length}" for key, length in lengths.items())[:200]
        raise InputError(
            f"{name}: its columns must have the same number of values, one or more; they have "
            f"{told or 'none'}"
        )
    table = Table(name, found, range(1, 1 + len(next(iter(found.values())))))
    for note in notes:
        table.note(note)
    return table


def own_names(names: Sequence[str], notes: list[str]) -> list[str]:
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
