"""Reads CSV tables with a header, and turns their columns into features. Imports no torch.

What is learnt from a column is stored as numbers and texts, which a checkpoint may contain; the
imputer and encoder of scikit-learn are objects, which it may not.
"""

import csv
import io
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from src.config import schema
from src.config.faults import did_you_mean
from src.config.schema import PositiveFloat
from src.config.written import typed
from src.system.errors import FAULTS_SHOWN, InputError, reading, shortened
from src.system.files import open_regular

log = logging.getLogger(__name__)

ALIKE = 1000  # names that an unknown name is compared with
MOST_CATEGORIES = 100  # of an encoded column; names or ticket numbers are not categories
EMPTY = ("None", "<NA>", "NaT")  # values of Python and pandas that stand for an empty cell
GAPS = ("", "?", "na", "n/a", "nan", "null")  # cells that count as empty, in any case

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class _Learned(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NumberColumn(_Learned):
    """A feature, (number - mean) / deviation. Empty cells become `fill`; None refuses them."""

    name: str
    fill: FiniteFloat | None
    mean: FiniteFloat
    deviation: PositiveFloat
    width: ClassVar[int] = 1

    def fault(self, cells: "Cells") -> str:
        return cells.fault(texts=False, gaps=self.fill is not None)

    def features(self, cells: "Cells") -> Floats:
        """(rows, 1). The cells must have no fault."""
        return ((cells.filled(self.fill) - self.mean) / self.deviation)[:, None]


class TextColumn(_Learned):
    """A column of texts, one-hot: a feature for each category, 1 for the category of the row.

    Empty cells are read as `fill`, and refused when `fill` is None. A text that is not a category
    sets all features to 0, and is logged.
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
        """(rows, categories). The cells must have no fault."""
        number_of = {text: number for number, text in enumerate(self.categories)}
        texts = zip(cells.texts, cells.gaps, strict=True)
        numbers = np.array([number_of.get(str(self.fill) if gap else t, -1) for t, gap in texts])
        unknown = numbers < 0
        if unknown.any():
            log.warning(
                "%s: column %s: %s that training did not see; all features of the column are 0",
                cells.path, self.name, cells.told(unknown, "is a text", "are texts"),
            )  # fmt: skip
        features = np.zeros((len(numbers), self.width))
        features[~unknown, numbers[~unknown]] = 1
        return features


class Columns(_Learned):
    """How a row becomes the features of a sample: its columns, with what was learned of each."""

    columns: list[NumberColumn | TextColumn]

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def features(self, table: "Table") -> NDArray[np.float32]:
        """(rows, width). The table may have more columns, in any order. Raises InputError with a
        line for each missing column and each column with wrong cells."""
        table.require([column.name for column in self.columns])
        features = np.empty((len(table.rows), self.width), np.float32)
        faults, first = [], 0
        for column in self.columns:
            cells = table.cells(column.name)
            fault = column.fault(cells)
            if fault:
                faults.append(f"{fault}; correct that, or leave the rows out")
            else:
                features[:, first : first + column.width] = column.features(cells)
            first += column.width
        table.refuse(faults)
        return features


class Cells:
    """The cells of one column as texts, with the line number of each row."""

    def __init__(self, path: Path, name: str, texts: Sequence[str], lines: Sequence[int]) -> None:
        self.path, self.name, self.texts, self.lines = path, name, texts, lines
        self.gaps: Mask = np.array([text.lower() in GAPS for text in texts], bool)

    @cached_property
    def numbers(self) -> Floats:
        """The cells as numbers; NaN for empty cells and texts."""
        try:
            return np.array(self.texts, np.float64)
        except ValueError:
            return np.array([_number(text) for text in self.texts])

    @cached_property
    def strange(self) -> Mask:
        """The cells that are neither empty nor a number."""
        return np.isnan(self.numbers) & ~self.gaps

    @property
    def infinite(self) -> Mask:
        with np.errstate(over="ignore"):
            return np.isinf(self.numbers.astype(np.float32))

    def filled(self, value: float | None) -> Floats:
        """The numbers, with `value` in place of empty cells."""
        return self.numbers if value is None else np.where(self.gaps, value, self.numbers)

    def counts(self, chosen: Mask) -> Counter[str]:
        """The number of times each text occurs in the chosen cells; empty cells are not counted."""
        texts = zip(self.texts, chosen & ~self.gaps, strict=True)
        return Counter(text for text, counted in texts if counted)

    def told(self, chosen: Mask, one: str, several: str) -> str:
        """A text with the number of chosen cells, what they are, and the first of them."""
        first, count = int(chosen.argmax()), int(chosen.sum())
        place = f"{'the first in ' if count > 1 else ''}line {self.lines[first]}"
        if self.texts[first]:
            place += f": {self.texts[first][:40]!r}"
        told = f"{count:,} of {len(self.texts):,} cells {several if count > 1 else one}"
        return f"{told} ({place})"

    def fault(self, *, texts: bool, gaps: bool) -> str:
        """The faults of the column, "" for none. `texts` allows texts, `gaps` empty cells."""
        refused = []
        if not texts:
            refused += [(self.strange, "is not a number", "are not numbers")]
            refused += [(self.infinite, "is not finite", "are not finite")]
        if not gaps:
            refused += [(self.gaps, "is empty", "are empty")]
        told = [self.told(*each) for each in refused if each[0].any()]
        return f"column {self.name}: {', '.join(told)}" if told else ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


class _UnusableError(InputError):
    """A column that cannot be used as it is. `keys` are the settings that would make it usable. If
    `keys` is empty, the column must be corrected or left out."""

    def __init__(self, fault: str, advice: str, keys: Sequence[str] = ()) -> None:
        super().__init__(f"{fault}; {advice}")
        self.keys = keys


def learn_columns(table: "Table", config: schema.Csv, trained_on: Mask) -> Columns:
    """Learns all columns but data.target, data.group and data.drop from the training rows, a mask
    (rows,).
    Raises InputError with a line for each unusable column, and what to type."""
    others = (config.target, config.group, *config.drop)
    names = [name for name in table.names if name not in others]
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
    """The settings for all faulty columns together."""
    keys = {key for error in faults.values() for key in error.keys}
    if "data.fill=median" in keys:  # fills text columns with the most frequent text too
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
        raise _UnusableError(f"column {cells.name}: is empty in all training rows", leave_out)
    if encoded:
        counts = cells.counts(known)
        frequent = min(counts, key=lambda text: (-counts[text], text))
        fill = None if config.fill is None else frequent
        return TextColumn(name=cells.name, fill=fill, categories=sorted(counts))
    value = _typical(cells.numbers[known], config.fill)
    numbers = cells.filled(value)[trained_on]
    constant = numbers.min() == numbers.max()  # the deviation is 0 or a rounding error
    return NumberColumn(
        name=cells.name,
        fill=value,
        mean=float(numbers.mean()),
        deviation=1.0 if constant else float(numbers.std()),
    )


def _typical(numbers: Floats, which: str | None) -> float | None:
    """The mean, the median, or the most frequent number (the smallest of several)."""
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
    """The cells as texts, and the line of the file where each row ends."""

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

    def texts(self, name: str, kind: str) -> Sequence[str]:
        """The text of each row, its class or its group by `kind`. Raises InputError for an empty
        cell."""
        cells = self.cells(name)
        empty = np.array([not text for text in cells.texts])
        if empty.any():
            told = cells.told(empty, "is empty", "are empty")
            self.refuse([f"column {name}: {told}; write a {kind} there, or leave the rows out"])
        return cells.texts

    def missing(self, names: Sequence[str], key: str = "") -> list[str]:
        """A text for each column that the table lacks; `key` is the setting that names it."""
        lacking = [name for name in names if name not in self._numbers]
        # The search for similar names is slow, so only the shown columns get one.
        wanted = set(names)
        others = [name for name in self.names if name not in wanted]
        told = [self._unknown(name, others, key) for name in lacking[:FAULTS_SHOWN]]
        told += [f"there is no column {name}" for name in lacking[FAULTS_SHOWN:]]
        return [f"{self.path}: {text}" for text in told]

    def _unknown(self, name: str, others: Sequence[str], key: str) -> str:
        """With the most similar of the `others`, the columns that are not wanted anyway."""
        given = f"{key}={name}: there is no such column" if key else f"there is no column {name}"
        listed = ", ".join(self.names[:ALIKE])
        return f"{given}{did_you_mean(name, others[:ALIKE]) or f'; it has {listed[:200]}'}"

    def require(self, names: Sequence[str], key: str = "") -> None:
        """Raises InputError with the columns that the table lacks. `key`: see `missing`."""
        self.refuse([text.removeprefix(f"{self.path}: ") for text in self.missing(names, key)])

    def refuse(self, faults: Sequence[str], instead: str = "") -> None:
        """Raises InputError with the faults, if any; `instead` is what corrects all of them."""
        if not faults:
            return
        if len(faults) == 1:
            raise InputError(f"{self.path}: {faults[0]}")
        count = f"{self.path}: {len(faults):,} faults"
        raise InputError("\n  ".join([count, *shortened(faults), *([instead] if instead else [])]))


def as_table(columns: Mapping[str, Sequence[Any]]) -> Table:
    """The table of a dictionary or a pandas DataFrame: a sequence of values for each column. None,
    NaN and pandas' NA are empty cells. Raises InputError for anything but sequences of one length.
    """
    name, texts = Path("the table"), dict[str, list[str]]()
    for key in columns.keys():  # noqa: SIM118  # a DataFrame has keys, too
        values = columns[key]
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InputError(f"{name}: column {key} is {values!r}, must be a list of values")
        texts[str(key)] = ["" if value in EMPTY else value for value in map(str, values)]
    lengths = {key: len(cells) for key, cells in texts.items()}
    if len(set(lengths.values())) != 1 or not any(lengths.values()):
        told = ", ".join(f"{key} {length}" for key, length in lengths.items())[:200]
        raise InputError(
            f"{name}: its columns must have the same number of values, one or more; they have "
            f"{told or 'none'}"
        )
    rows = list(zip(*texts.values(), strict=True))
    return Table(name, list(texts), rows, range(1, len(rows) + 1))


def read_header(path: Path) -> Table:
    """The table without its rows. Raises InputError as `read_table`."""
    return _read(path, header_alone=True)


def read_table(path: Path) -> Table:
    """The whole table without blank lines. Raises InputError when the file is not a table, has no
    row, has columns without a name of their own, or rows of another length than the header."""
    table = _read(path, header_alone=False)
    if not table.rows:
        raise InputError(f"{path}: has no row below its header")
    return table


def _read(path: Path, *, header_alone: bool) -> Table:
    rows, lines, faults = [], [], []
    try:
        with reading(path), io.TextIOWrapper(open_regular(path), "utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            names = [name.strip() for name in next(reader, [])]
            faults += _header_faults(names)
            for row in reader if not faults and not header_alone else ():
                if row and len(row) != len(names):
                    faults.append(f"line {reader.line_num}: has {len(row)} of {len(names)} cells")
                elif row:
                    rows.append(row)
                    lines.append(reader.line_num)
    except (ValueError, csv.Error) as error:
        raise InputError(
            f"{path}: is not a table in UTF-8 with commas between its cells ({error}); save it as "
            "such a table"
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
