"""Tables with a header, separated by commas. No torch here: a wrong cell is told at once.

What is learnt of a column is numbers and texts, which a checkpoint may hold. scikit-learn's imputer
and encoder would hide the same in objects of their own.
"""

import csv
import io
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from src.config import schema
from src.config.schema import PositiveFloat, did_you_mean, typed
from src.system.errors import FAULTS_SHOWN, InputError, shortened
from src.system.files import open_regular

log = logging.getLogger(__name__)

ALIKE = 1000  # names that are compared with one that is unknown
MOST_CATEGORIES = 100  # of an encoded column: names and numbers of tickets are no categories
GAPS = ("", "?", "na", "n/a", "nan", "null")  # cells that count as empty, whatever their case

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class _Learnt(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NumberColumn(_Learnt):
    """A column of numbers: one feature, (number - mean) / deviation.

    An empty cell is read as `fill`, and refused where that is None.
    """

    name: str
    fill: FiniteFloat | None
    mean: FiniteFloat
    deviation: PositiveFloat
    width: ClassVar[int] = 1

    def fault(self, cells: "Cells") -> str:
        return cells.fault(texts=False, gaps=self.fill is not None)

    def features(self, cells: "Cells") -> Floats:
        """(rows, 1), of cells without a fault."""
        return ((cells.filled(self.fill) - self.mean) / self.deviation)[:, None]


class TextColumn(_Learnt):
    """A column of texts: a feature for each category, 1 for the row's own and 0 for the others.

    An empty cell is read as `fill`, and refused where that is None. Any other text than the
    categories gives zeros alone, and a line in the log.
    """

    name: str
    fill: str | None
    categories: list[str]

    @property
    def width(self) -> int:
        return len(self.categories)

    def fault(self, cells: "Cells") -> str:
        return cells.fault(texts=True, gaps=self.fill is not None)

    def features(self, cells: "Cells") -> Floats:
        """(rows, categories), of cells without a fault."""
        number_of = {text: number for number, text in enumerate(self.categories)}
        texts = zip(cells.texts, cells.gaps, strict=True)
        numbers = np.array([number_of.get(str(self.fill) if gap else t, -1) for t, gap in texts])
        unknown = numbers < 0
        if unknown.any():
            log.warning(
                "%s: column %s: %s that training did not see; all features of the column are 0",
                cells.path, self.name, cells.told(unknown, "is a text", "are texts"),
            )  # fmt: skip
        found = np.zeros((len(numbers), self.width))
        found[~unknown, numbers[~unknown]] = 1
        return found


class Columns(_Learnt):
    """How a row of a table becomes the features of a sample: its columns in their order, each with
    what the samples that are trained on have taught of it."""

    columns: list[NumberColumn | TextColumn]

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def features(self, table: "Table") -> NDArray[np.float32]:
        """(rows, width). The table may have its columns in any order, and others too.

        Raises InputError with a line for each column that is missing or has wrong cells.
        """
        table.require([column.name for column in self.columns])
        found = np.empty((len(table.rows), self.width), np.float32)
        faults, first = [], 0
        for column in self.columns:
            cells = table.cells(column.name)
            fault = column.fault(cells)
            if fault:
                faults.append(f"{fault}; correct that, or leave the rows out")
            else:
                found[:, first : first + column.width] = column.features(cells)
            first += column.width
        table.refuse(faults)
        return found


class Cells:
    """The cells of one column, by rows: as they are written, and which of them are empty."""

    def __init__(self, path: Path, name: str, texts: Sequence[str], lines: Sequence[int]) -> None:
        self.path, self.name, self.texts, self.lines = path, name, texts, lines
        self.gaps: Mask = np.array([text.lower() in GAPS for text in texts], bool)

    @cached_property
    def numbers(self) -> Floats:
        """NaN for empty cells, and for those that are not numbers."""
        try:
            return np.array(self.texts, np.float64)
        except ValueError:
            return np.array([_number(text) for text in self.texts])

    @cached_property
    def strange(self) -> Mask:
        """Which are neither empty nor a number."""
        return np.isnan(self.numbers) & ~self.gaps

    @property
    def infinite(self) -> Mask:
        with np.errstate(over="ignore"):
            return np.isinf(self.numbers.astype(np.float32))

    def filled(self, value: float | None) -> Floats:
        """The numbers with `value` in empty cells."""
        return self.numbers if value is None else np.where(self.gaps, value, self.numbers)

    def counts(self, chosen: Mask) -> Counter[str]:
        """How often each text stands in the chosen cells that are not empty."""
        texts = zip(self.texts, chosen & ~self.gaps, strict=True)
        return Counter(text for text, counted in texts if counted)

    def told(self, chosen: Mask, one: str, several: str) -> str:
        """How many are chosen, what they are, and the first of them."""
        first, count = int(chosen.argmax()), int(chosen.sum())
        place = f"{'the first in ' if count > 1 else ''}line {self.lines[first]}"
        if self.texts[first]:
            place += f": {self.texts[first][:40]!r}"
        told = f"{count:,} of {len(self.texts):,} cells {several if count > 1 else one}"
        return f"{told} ({place})"

    def fault(self, *, texts: bool, gaps: bool) -> str:
        """What is wrong with the column; "" for one without a fault. `texts` and `gaps` are
        whether texts and empty cells are allowed."""
        found = []
        if not texts:
            found += [(self.strange, "is not a number", "are not numbers")]
            found += [(self.infinite, "is not finite", "are not finite")]
        if not gaps:
            found += [(self.gaps, "is empty", "are empty")]
        told = [self.told(*each) for each in found if each[0].any()]
        return f"column {self.name}: {', '.join(told)}" if told else ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


class _UnusableError(InputError):
    """A column that cannot be used as it is. `keys` are what to type for it; with none it must be
    corrected or left out."""

    def __init__(self, fault: str, advice: str, keys: Sequence[str] = ()) -> None:
        super().__init__(f"{fault}; {advice}")
        self.keys = keys


def learn_columns(table: "Table", config: schema.Csv, trained_on: Mask) -> Columns:
    """What the rows that are trained on, a mask (rows,), teach of all columns but the target and
    those that are left out.

    Raises InputError with a line for each column that cannot be used, and what to type.
    """
    names = [name for name in table.names if name not in (config.target, *config.drop)]
    if not names:
        raise InputError(f"{table.path}: data.drop leaves no column of features; leave out fewer")
    columns: list[NumberColumn | TextColumn] = []
    faults: dict[str, _UnusableError] = {}
    for name in names:
        try:
            columns.append(_learn(table.cells(name), config, trained_on))
        except _UnusableError as error:
            faults[name] = error
    together = _together(faults, config) if 1 < len(faults) <= FAULTS_SHOWN else ""
    table.refuse([str(error) for error in faults.values()], together)
    told = ", ".join(f"{c.name} ({c.width})" for c in columns if isinstance(c, TextColumn))
    if told:
        log.info("%s: columns of text, and their categories: %s", table.path, told)
    return Columns(columns=columns)


def _together(faults: Mapping[str, _UnusableError], config: schema.Csv) -> str:
    """What to type for several columns at once."""
    keys = {key for error in faults.values() for key in error.keys}
    if "data.fill=median" in keys:  # of text it fills in the most frequent too
        keys.discard("data.fill=most_frequent")
    hopeless = [name for name, error in faults.items() if not error.keys]
    dropped = [typed("data.drop", [*config.drop, *hopeless])] if hopeless else []
    return f"all together: type {' '.join([*sorted(keys), *dropped])}"


def _learn(cells: Cells, config: schema.Csv, trained_on: Mask) -> NumberColumn | TextColumn:
    of_text = bool(cells.strange.any())
    different = len(cells.counts(~cells.gaps)) if of_text else 0
    encoded = of_text and config.encode is not None and different <= MOST_CATEGORIES
    fault = cells.fault(texts=encoded, gaps=config.fill is not None)
    leave_out = f"type {typed('data.drop', [*config.drop, cells.name])}"
    if fault:
        keys = ["data.encode=onehot"] if of_text and not encoded else []
        if keys and 2 * cells.strange.sum() < (~cells.gaps).sum():
            raise _UnusableError(fault, f"write numbers there, or {leave_out}")
        if keys and different > MOST_CATEGORIES:
            many = f"{different:,} different texts are more than data.encode=onehot takes"
            raise _UnusableError(fault, f"{many} ({MOST_CATEGORIES}); {leave_out}")
        if cells.infinite.any() and not encoded:
            raise _UnusableError(fault, f"correct that, or {leave_out}")
        if cells.gaps.any() and config.fill is None:
            keys.append(f"data.fill={'most_frequent' if of_text else 'median'}")
        raise _UnusableError(fault, f"type {' '.join(keys)}, or {leave_out}", keys)
    known = trained_on & ~cells.gaps
    if not known.any():
        raise _UnusableError(
            f"column {cells.name}: is empty in all rows that are trained on", leave_out
        )
    if encoded:
        counts = cells.counts(known)
        frequent = min(counts, key=lambda text: (-counts[text], text))
        fill = None if config.fill is None else frequent
        return TextColumn(name=cells.name, fill=fill, categories=sorted(counts))
    value = _typical(cells.numbers[known], config.fill)
    numbers = cells.filled(value)[trained_on]
    constant = numbers.min() == numbers.max()  # its deviation is 0, or what rounding leaves
    return NumberColumn(
        name=cells.name,
        fill=value,
        mean=float(numbers.mean()),
        deviation=1.0 if constant else float(numbers.std()),
    )


def _typical(numbers: Floats, which: str | None) -> float | None:
    """The mean or median; or the most frequent, of several the smallest."""
    match which:
        case "mean":
            return float(numbers.mean())
        case "median":
            return float(np.median(numbers))
        case "most_frequent":
            values, counts = np.unique(numbers, return_counts=True)
            return float(values[counts.argmax()])
    return None


@dataclass(frozen=True)
class Table:
    """The cells as they are written, and the line of the file on which each row ends."""

    path: Path
    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    lines: Sequence[int]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def cells(self, name: str) -> Cells:
        at = self._numbers[name]
        return Cells(self.path, name, [row[at].strip() for row in self.rows], self.lines)

    def classes(self, name: str) -> Sequence[str]:
        """The column that names the class of each row. Raises InputError for an empty cell."""
        cells = self.cells(name)
        empty = np.array([not text for text in cells.texts])
        if empty.any():
            told = cells.told(empty, "is empty", "are empty")
            self.refuse([f"column {name}: {told}; write a class there, or leave the rows out"])
        return cells.texts

    def missing(self, names: Sequence[str], key: str = "") -> list[str]:
        """A text for each column that the table lacks; `key` is what named it."""
        lacking = [name for name in names if name not in self._numbers]
        # To look for a name that is like another takes long: only for those that are shown.
        told = [_unknown(name, self.names, key) for name in lacking[:FAULTS_SHOWN]]
        told += [f"there is no column {name}" for name in lacking[FAULTS_SHOWN:]]
        return [f"{self.path}: {text}" for text in told]

    def require(self, names: Sequence[str], key: str = "") -> None:
        """Raises InputError for each column that the table lacks; `key` is what named it."""
        self.refuse([text.removeprefix(f"{self.path}: ") for text in self.missing(names, key)])

    def refuse(self, faults: Sequence[str], instead: str = "") -> None:
        """Raises InputError with the faults, if there are any, and what mends them together."""
        if not faults:
            return
        if len(faults) == 1:
            raise InputError(f"{self.path}: {faults[0]}")
        count = f"{self.path}: {len(faults):,} faults"
        raise InputError("\n  ".join([count, *shortened(faults), *([instead] if instead else [])]))


def _unknown(name: str, names: Sequence[str], key: str) -> str:
    given = f"{key}={name}: there is no such column" if key else f"there is no column {name}"
    listed = ", ".join(names[:ALIKE])
    return f"{given}{did_you_mean(name, names[:ALIKE]) or f'; it has {listed[:200]}'}"


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
        raise InputError(
            f"{path}: is not a table in UTF-8 with commas between its cells ({error})"
        ) from None
    table = Table(path, names, rows, lines)
    table.refuse(faults)
    return table


def _header_faults(names: Sequence[str]) -> list[str]:
    if not names:
        return ["is empty; its first line must name the columns"]
    if len(names) == 1:
        return [f"has only one column, {names[0][:80]!r}; a table has columns separated by commas"]
    faults = [
        f"column {number} has no name; name it, or leave it out if it is an index"
        for number, name in enumerate(names, 1)
        if not name
    ]
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    return faults + [f"has two columns {name}; give each a name of its own" for name in twice]
