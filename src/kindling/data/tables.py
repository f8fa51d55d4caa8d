"""Reads CSV tables with a header, and turns their columns into features. Imports no torch.

What is learnt from a column is stored as numbers and texts, which a checkpoint may contain; the
imputer and encoder of scikit-learn are objects, which it may not.
"""

import csv
import io
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from kindling.config import schema
from kindling.config.faults import did_you_mean
from kindling.config.written import counted, printable, typed
from kindling.data.cells import (
    FORMERLY_EMPTY,
    Cells,
    Floats,
    Mask,
    alike,
    as_numbers,
    as_text,
    listed,
)
from kindling.system.errors import FAULTS_SHOWN, InputError, reading, shortened
from kindling.system.files import open_regular

log = logging.getLogger(__name__)

ALIKE = 1000  # names that an unknown name is compared with
MOST_CATEGORIES = 100  # of an encoded column; names or ticket numbers are not categories
MOST_TOLD = 8  # columns, in a line about all of them
MOST_WORDS = 3  # in a column of numbers, which may stand for empty cells
ROUNDING = 1e-9  # relative: a number this close to those of training is one of them
TOO_LARGE = "too large beside the numbers of training"  # infinite in float32
CORRECT = "correct that, or leave the rows out"

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class _Learned(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NumberColumn(_Learned):
    """A feature, (number - mean) / deviation. Empty cells become `fill`; None refuses them.

    Training saw numbers from `low` to `high`; None: of a model that was trained before these were
    stored."""

    name: str
    fill: FiniteFloat | None
    mean: FiniteFloat
    deviation: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    width: ClassVar[int] = 1

    def features(self, cells: Cells) -> Floats:
        """(rows, 1). The cells must have no fault."""
        return ((cells.filled(self.fill) - self.mean) / self.deviation)[:, None]

    def new(self, cells: Cells) -> Mask:
        """The cells with a number beyond all that training saw."""
        if self.low is None or self.high is None:
            return np.zeros(len(cells.texts), bool)
        near = ROUNDING * max(abs(self.low), abs(self.high))
        return (cells.numbers < self.low - near) | (cells.numbers > self.high + near)

    def describe_new(self, cells: Cells, new: Mask, among: Mask) -> str:
        return cells.counted(new, "is beyond", "are beyond", among)

    @property
    def seen(self) -> tuple[bool, str]:
        """Whether the numbers of training differed by more than rounding, and a text about them."""
        low, high = self.low or 0, self.high or 0
        varied = high - low > ROUNDING * max(abs(low), abs(high))
        return varied, f"{low:g} to {high:g}" if varied else f"always {low:g}"


class TextColumn(_Learned):
    """A column of texts, one-hot: a feature for each category, 1 for the category of the row.

    Empty cells are read as `fill`, and refused when `fill` is None. A text that is not a category
    sets all features to 0; outside of a training run, the text is refused.
    """

    name: str
    fill: str | None
    categories: list[str]

    @property
    def width(self) -> int:
        return len(self.categories)

    def features(self, cells: Cells) -> Floats:
        """(rows, categories). The cells must have no fault."""
        found: Mask = self._numbers(cells)[:, None] == np.arange(self.width)
        return found.astype(np.float64)

    def new(self, cells: Cells) -> Mask:
        """The cells with a text that training did not see."""
        return self._numbers(cells) < 0

    def describe_new(self, cells: Cells, new: Mask, among: Mask | None = None) -> str:
        texts = cells.counted(new, "is a text", "are texts", among)
        return f"{texts} that training did not see: {listed(cells.counts(new))}"

    def _numbers(self, cells: Cells) -> NDArray[np.int64]:
        """The place of each cell's category, -1 for none. A truth value is written as `true` by
        some programs, `True` by pandas and `TRUE` by spreadsheets."""
        number_of = {text: number for number, text in enumerate(self.categories)}
        for word in ("true", "false"):
            spelled = [text for text in self.categories if text.lower() == word]
            if len(spelled) == 1:
                same = dict.fromkeys((word, word.title(), word.upper()), number_of[spelled[0]])
                number_of = same | number_of
        texts = zip(cells.texts, cells.gaps, strict=True)
        return np.array([number_of.get(str(self.fill) if gap else t, -1) for t, gap in texts])


class Columns(_Learned):
    """How a row becomes the features of a sample: its columns, with what was learned of each.
    `empty` is data.empty; None: of a model that was trained before there was this key."""

    columns: list[NumberColumn | TextColumn]
    empty: list[str] | None = None

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    def features(
        self, table: "Table", parts: Mapping[str, Mask] | None = None
    ) -> NDArray[np.float32]:
        """(rows, width). The table may have more columns, in any order. Raises InputError with a
        line for each missing column and each column with wrong cells.

        Notes of the table tell which cells were filled, and which numbers are beyond those that
        training saw. Texts that training did not see are refused. In a training run, `parts` are
        the rows of its other parts, by how a note begins; new texts are allowed there and noted.
        """
        table.require([column.name for column in self.columns])
        rows = len(table.lines)
        features = np.empty((rows, self.width), np.float32)
        faults, filled, first = [], [], 0
        rows_of = {"": np.ones(rows, bool)} if parts is None else parts
        beyond: dict[str, list[tuple[bool, int, str]]] = {where: [] for where in rows_of}
        for column in self.columns:
            cells = table.cells(column.name, self.empty)
            fault = cells.fault(texts=isinstance(column, TextColumn), gaps=column.fill is not None)
            if fault:
                faults.append(f"{fault}; {CORRECT}")
                continue
            new = column.new(cells)
            if isinstance(column, TextColumn) and parts is None and new.any():
                fill = column.fill
                instead = "" if fill is None else f", or empty the cells to have {fill!r} read"
                told = column.describe_new(cells, new)
                faults.append(f"column {column.name}: {told}; {CORRECT}{instead}")
                continue
            part = slice(first, first := first + column.width)
            with np.errstate(over="ignore"):
                features[:, part] = column.features(cells)
            far = np.asarray(np.isinf(features[:, part]).any(1))
            if far.any():
                told = cells.counted(far, f"is {TOO_LARGE}", f"are {TOO_LARGE}")
                faults.append(f"column {column.name}: {told}; {CORRECT}")
            filled += _filling(cells, column.fill)
            for where, chosen in rows_of.items():
                some = new & chosen
                if not some.any():
                    continue
                told = column.describe_new(cells, some, chosen)
                if isinstance(column, TextColumn):
                    table.note(f"{where}column {column.name}: {told}; its features are 0 there")
                else:
                    varied, seen = column.seen
                    text = f"column {column.name}, {seen} in training: {told}"
                    beyond[where].append((varied, -int(some.sum()), text))
        table.refuse(faults)
        if filled:
            table.note(_first(filled))
        for where, found in beyond.items():
            if found:
                texts = _first([text for *_, text in sorted(found)])
                usual = parts is not None and all(varied for varied, *_ in found)
                level = logging.INFO if usual else logging.WARNING
                table.note(f"{where}numbers that training did not see: {texts}", level)
        return features


def _first(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_TOLD
    return "; ".join([*texts[:MOST_TOLD], *([f"and {more:,} more columns"] if more > 0 else [])])


def _filling(cells: Cells, fill: float | str | None) -> list[str]:
    """A text with the number of cells that are filled, by what is written there; none if no cell
    is empty."""
    if not cells.gaps.any():
        return []
    counts = cells.counts(cells.gaps)
    value = fill if isinstance(fill, str) else f"{fill:g}"
    texts = [
        counted(count, "cell") + f" {text[:40]!r}" if text else counted(count, "empty cell")
        for text, count in counts.most_common()
    ]
    read = "read as empty, " if cells.empty_words else ""
    return [f"{' and '.join(texts)} of column {cells.name} {read}filled with {value}"]


class _UnusableError(InputError):
    """A column that cannot be used as it is. `keys` are the settings that would make it usable,
    with `words` that count as empty. Without keys, the column must be corrected or left out."""

    def __init__(
        self, fault: str, advice: str, keys: Sequence[str] = (), words: Sequence[str] = ()
    ) -> None:
        super().__init__(f"{fault}; {advice}")
        self.keys, self.words = keys, words


def learn_columns(table: "Table", config: schema.Csv, trained_on: Mask) -> Columns:
    """Learns all columns but those of data.target, data.group, data.weights and data.drop from the
    training rows, a mask (rows,). Raises InputError with a line for each unusable column, and what
    to type."""
    others = (*config.targets, config.group, config.weights, *config.drop)
    names = [name for name in table.names if name not in others]
    if not names:
        raise InputError(f"{table.path}: data.drop leaves no column of features; leave out fewer")
    columns: list[NumberColumn | TextColumn] = []
    faults: dict[str, _UnusableError] = {}
    for name in names:
        try:
            columns.append(_learn(table, name, config, trained_on))
        except _UnusableError as error:
            faults[name] = error
    together = _together(faults, config) if 1 < len(faults) <= FAULTS_SHOWN else ""
    table.refuse([str(error) for error in faults.values()], together)
    told = ", ".join(f"{c.name} ({c.width})" for c in columns if isinstance(c, TextColumn))
    if told:
        table.note(f"columns of text, and their categories: {told}", logging.INFO)
    return Columns(columns=columns, empty=config.empty)


def _together(faults: Mapping[str, _UnusableError], config: schema.Csv) -> str:
    """The settings for all faulty columns together."""
    keys = {key for error in faults.values() for key in error.keys}
    if "data.fill=median" in keys:  # fills text columns with the most frequent text too
        keys.discard("data.fill=most_frequent")
    words = dict.fromkeys(word for error in faults.values() for word in error.words)
    empty = [typed("data.empty", [*(config.empty or ()), *words])] if words else []
    hopeless = [name for name, error in faults.items() if not (error.keys or error.words)]
    dropped = [typed("data.drop", [*config.drop, *hopeless])] if hopeless else []
    return f"all together: type {' '.join([*empty, *sorted(keys), *dropped])}"


def _learn(
    table: "Table", name: str, config: schema.Csv, trained_on: Mask
) -> NumberColumn | TextColumn:
    cells = table.cells(name, config.empty)
    of_text = bool(cells.strange.any())
    different = len(cells.counts(~cells.gaps)) if of_text else 0
    encoded = of_text and config.encode is not None and different <= MOST_CATEGORIES
    fault = cells.fault(texts=encoded, gaps=config.fill is not None)
    leave_out = f"type {typed('data.drop', [*config.drop, name])}"
    a_text = read_as_text(cells, config, "a text") if of_text else ""
    if fault:
        keys = ["data.encode=onehot"] if of_text and not encoded else []
        if keys and cells.mark:
            advice = f"remove the {cells.mark} from its numbers, or {leave_out}"
            raise _UnusableError(fault, advice)
        if keys and 2 * cells.strange.sum() < (~cells.gaps).sum():
            cure, gaps, filled = _as_empty(cells, config)
            advice = f"write numbers there, or {leave_out}{cure}"
            raise _UnusableError(fault, advice, filled, gaps)
        if keys and different > MOST_CATEGORIES:
            many = f"{different:,} different texts are more than data.encode=onehot takes"
            raise _UnusableError(fault, f"{many} ({MOST_CATEGORIES}); {leave_out}")
        if cells.infinite.any() and not encoded:
            raise _UnusableError(fault, f"correct that, or {leave_out}")
        if cells.gaps.any() and config.fill is None:
            keys.append(f"data.fill={'most_frequent' if of_text else 'median'}")
        raise _UnusableError(fault, f"type {' '.join(keys)}, or {leave_out}{a_text}", keys)
    known = trained_on & ~cells.gaps
    if not known.any():
        raise _UnusableError(f"column {name}: is empty in all training rows", leave_out)
    if encoded:
        counts = cells.counts(known)
        frequent = min(counts, key=lambda text: (-counts[text], text))
        fill = None if config.fill is None else frequent
        if a_text:
            words = Counter({word: cells.texts.count(word) for word in cells.empty_words})
            table.note(f"column {name}: {listed(words)} counts as empty{a_text}")
        for told in alike(cells.counts(~cells.gaps)):
            table.note(f"column {name}: {told} look like one text, and get features of their own")
        return TextColumn(name=name, fill=fill, categories=sorted(counts))
    if cells.counting:
        table.note(f"column {name}: numbers the rows; if the number says nothing, {leave_out}")
    value = _typical(cells.numbers[known], config.fill)
    numbers = cells.filled(value)[trained_on]
    mean, deviation, constant = scale(numbers)
    low, high = float(numbers.min()), float(numbers.max())
    if config.empty is None:  # a run that was written before there was this key: as it learned
        deviation = 1.0 if low == high else deviation
        return NumberColumn(name=name, fill=value, mean=mean, deviation=deviation)
    deviation = max(1.0, deviation) if constant else deviation
    return NumberColumn(name=name, fill=value, mean=mean, deviation=deviation, low=low, high=high)


def scale(numbers: Floats) -> tuple[float, float, bool]:
    """The mean, the standard deviation, and whether the numbers are constant but for rounding, by
    the bound of scikit-learn's StandardScaler. Computed in units of a power of two, which changes
    no digit, so that no square overflows or becomes 0."""
    unit = 2.0 ** int(np.frexp(np.abs(numbers).max())[1])
    scaled, count, eps = numbers / unit, len(numbers), np.finfo(np.float64).eps
    mean, variance = float(scaled.mean()), float(scaled.var())
    constant = bool(variance <= count * eps * variance + (count * mean * eps) ** 2)
    deviation = float(scaled.std()) * unit
    return mean * unit, deviation, constant or not deviation


def _as_empty(cells: Cells, config: schema.Csv) -> tuple[str, list[str], list[str]]:
    """What to type if the texts of a column of numbers stand for empty cells: as a text, and as the
    words and the keys in it. Nothing if there are many."""
    words = sorted(cells.counts(cells.strange))
    if len(words) > MOST_WORDS or config.empty is None:
        return "", [], []
    fill = [] if config.fill else ["data.fill=median"]
    told = " ".join([typed("data.empty", [*config.empty, *words]), *fill])
    cure = f"; if {' or '.join(map(repr, words))} stands for an empty cell, type {told}"
    return cure, words, fill


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


def read_as_text(cells: Cells, config: schema.Csv, what: str) -> str:
    """What to type if a word that was read as empty is a text, a class or a group; "" without such
    words."""
    words = cells.empty_words
    if not words or config.empty is None:
        return ""
    kept = [word for word in config.empty if word not in words]
    return f"; if {' or '.join(map(repr, words))} is {what}, type {typed('data.empty', kept)}"


@dataclass(frozen=True)
class Table:
    """The cells of each column as they are written, and the line of the file where each row ends.
    `notes` are levels of logging and texts about what was done with the table."""

    path: Path
    columns: Mapping[str, Sequence[str]]
    lines: Sequence[int]
    notes: list[tuple[int, str]] = field(default_factory=list, compare=False)

    @property
    def names(self) -> list[str]:
        return [*self.columns]

    def note(self, text: str, level: int = logging.WARNING) -> None:
        self.notes.append((level, printable(f"{self.path}: {text}")))

    def tell(self) -> None:
        """Logs the notes."""
        for level, text in self.notes:
            log.log(level, "%s", text)

    def cells(self, name: str, empty: Collection[str] | None) -> Cells:
        """The cells of a column without white space around them; `empty` is data.empty."""
        words = FORMERLY_EMPTY if empty is None else empty
        return Cells(name, [text.strip() for text in self.columns[name]], self.lines, words)

    def texts(self, name: str, kind: str, config: schema.Csv) -> Sequence[str]:
        """The text of each row, its class or its group by `kind`. Raises InputError for an empty
        cell."""
        cells = self.cells(name, config.empty or ())
        if cells.gaps.any():
            told = cells.counted(cells.gaps, "is empty", "are empty")
            self.refuse([
                f"column {name}: {told}; write a {kind} there, or leave the rows out"
                f"{read_as_text(cells, config, f'a {kind}')}"
            ])  # fmt: skip
        return cells.texts

    def missing(self, names: Sequence[str], key: str = "") -> list[str]:
        """A text for each column that the table lacks; `key` is the setting that names it."""
        lacking = [name for name in names if name not in self.columns]
        # The search for similar names is slow, so only the shown columns get one.
        wanted = set(names)
        others = [name for name in self.names if name not in wanted]
        told = [self._unknown(name, others, key) for name in lacking[:FAULTS_SHOWN]]
        return told + [f"there is no column {name}" for name in lacking[FAULTS_SHOWN:]]

    def _unknown(self, name: str, others: Sequence[str], key: str) -> str:
        """With the most similar of the `others`, the columns that are not wanted anyway."""
        given = f"{key}={name}: there is no such column" if key else f"there is no column {name}"
        listed = ", ".join(self.names[:ALIKE])
        row = "" if np.isnan(as_numbers(self.names)).all() else "; the first line must name columns"
        return f"{given}{did_you_mean(name, others[:ALIKE]) or f'; it has {listed[:200]}{row}'}"

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


def as_table(columns: Mapping[str, Sequence[Any]]) -> Table:
    """The table of a dictionary or a pandas DataFrame: a sequence of values for each column. None,
    NaN and pandas' NA are empty cells. Raises InputError for anything but sequences of one length.
    """
    name, texts = Path("the table"), dict[str, list[str]]()
    for key in columns.keys():  # noqa: SIM118  # a DataFrame has keys, too
        values = columns[key]
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InputError(f"{name}: column {key} is {values!r}, must be a list of values")
        texts[str(key)] = [*map(as_text, values)]
    lengths = {key: len(cells) for key, cells in texts.items()}
    if len(set(lengths.values())) != 1 or not any(lengths.values()):
        told = ", ".join(f"{key} {length}" for key, length in lengths.items())[:200]
        raise InputError(
            f"{name}: its columns must have the same number of values, one or more; they have "
            f"{told or 'none'}"
        )
    return Table(name, texts, range(1, 1 + len(next(iter(texts.values())))))


def read_table(path: Path, *, header_alone: bool = False) -> Table:
    """The table without blank lines, or without all rows. Raises InputError when the file is not a
    table, has no row, has columns without a name of their own, or rows of another length than the
    header."""
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
    Table(path, {}, ()).refuse(faults)
    if not rows and not header_alone:
        raise InputError(f"{path}: has no row below its header")
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return Table(path, dict(zip(names, columns, strict=True)), lines)


def _header_faults(names: Sequence[str]) -> list[str]:
    if not names:
        return ["is empty; its first line must name the columns"]
    if len(names) == 1:
        return [f"has only one column, {names[0][:80]!r}; a table has columns separated by commas"]
    faults = [
        f"column {number} has no name; write one, such as id, into the first line; if the column "
        "only numbers the rows, type data.drop=[id] too"
        for number, name in enumerate(names, 1)
        if not name
    ]
    counts = Counter(names)
    row = (
        "" if np.isnan(as_numbers([*counts])).all() else ", or write a line of names above the rows"
    )
    return faults + [
        f"has two columns {name}; give each a name of its own{row}"
        for name, count in counts.items()
        if name and count > 1
    ]
