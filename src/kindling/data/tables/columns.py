"""How the cells of a column become features. Imports no torch.

What is learnt from a column is stored as numbers and texts, which a checkpoint may contain; the
imputer and encoder of scikit-learn are objects, which it may not.
"""

import functools
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from kindling.config.written import column_name, counted
from kindling.data.tables.cells import (
    CLOCK,
    DECIMAL_COMMAS,
    MARKS,
    OTHER_MINUS,
    Cells,
    Floats,
    Mask,
    listed,
)
from kindling.data.tables.table import Table

MOST_TOLD = 8  # columns, in a line about all of them
ROUNDING = 1e-9  # relative: a number this close to those of training is one of them
TOO_LARGE = "too large beside the numbers of training"  # infinite in float32
CORRECT = "correct that, or leave the rows out"
# Beside the standardised number: large values let small tables overfit. Models are trained with
# this value, so another one needs a field of the column.
WITHIN = 0.3
IN_CACHE = 2**14  # rows
# More whole numbers than MANY are a quantity, unless they count from 0 or 1 without a gap and have
# FEW rows each. Of 150 columns of real tables with gaps, nine in ten are an age, a year or a count.
MANY, FEW = 20, 10
DAY, WEEK, YEAR = 86_400.0, 7 * 86_400.0, 365.2425 * 86_400.0  # seconds

Features = NDArray[Any]  # float64 or float32
# Of each part of the rows: whether a column's numbers varied in training, how many are beyond
# those, with the other sign, and a text.
Beyond = dict[str, list[tuple[bool, int, str]]]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _one_of(allowed: Collection[str]) -> Callable[[str], str]:
    def check(value: str) -> str:
        if value not in allowed:
            raise ValueError("is unknown")
        return value

    return check


Mark = Annotated[str, AfterValidator(_one_of(("", *MARKS)))]


def _rising(edges: list[float]) -> list[float]:
    with np.errstate(over="ignore"):
        steps = np.diff(edges)
    if not ((steps > 0) & np.isfinite(steps)).all():
        raise ValueError("must rise")
    return edges


class _Column(BaseModel):
    """`absent`: the last feature is 1 where the cell is empty, else 0; the others then are as in
    the middle of the training rows, or 0. `required`: empty cells are refused; those of a column of
    numbers, also without `fill`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, AfterValidator(column_name)]  # models of before may have others
    absent: bool = False
    required: bool = False

    @property
    def own(self) -> int:
        """The number of features without that of absence."""
        return 1

    @property
    def width(self) -> int:
        return self.own + self.absent

    def cells(self, table: Table, empty: Sequence[str] | None) -> Cells:
        """The cells of this column; `empty` is data.empty."""
        return table.cells(self.name, empty)

    def features(self, cells: Cells) -> Features:
        """(rows, width). The cells must have no fault."""
        found = self.parts(cells)
        if not self.absent:
            return found
        return np.hstack([found, cells.gaps[:, None].astype(found.dtype)])

    def parts(self, cells: Cells) -> Features:
        """(rows, own)."""
        raise NotImplementedError

    def described(self, cells: Cells, new: Mask, among: Mask) -> str:
        return cells.counted(new, "is beyond", "are beyond", among)


class NumberColumn(_Column):
    """A feature, (number - mean) / deviation; and one for each interval between two `edges`, from 0
    below the interval to WITHIN above it (Gorishniy et al., On Embeddings for Numerical Features in
    Tabular Deep Learning, 2022). Empty cells become `fill`; None refuses them.

    Training saw numbers from `low` to `high`; None: of a model that was trained before these were
    stored. `mark`: one of MARKS, which its numbers have. `words` stand for empty cells; if
    `texts_are_empty`, each text does.
    """

    fill: FiniteFloat | None
    mean: FiniteFloat
    deviation: Positive
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    mark: Mark = ""
    words: list[str] = Field(default_factory=list)
    texts_are_empty: bool = False
    edges: Annotated[list[FiniteFloat], AfterValidator(_rising)] = Field(default_factory=list)

    @property
    def own(self) -> int:
        return max(1, len(self.edges))

    @property
    def filling(self) -> str:
        """What an empty cell is read as, as a text."""
        return f"{self.fill:g}"

    def cells(self, table: Table, empty: Sequence[str] | None) -> Cells:
        cells = table.cells(self.name, empty)
        if self.words:
            cells = replace(cells, empty=[*cells.empty, *self.words])
        if self.texts_are_empty:
            return without_texts(cells)
        return unmarked(cells, self.mark)

    def fault(self, cells: Cells) -> str:
        return cells.fault(texts=False, gaps=self.fill is not None)

    def parts(self, cells: Cells) -> Features:
        numbers, edges = cells.filled(self.fill)[:, None], np.array(self.edges)
        found = np.empty((len(numbers), self.own), np.float32)
        for start in range(0, len(numbers), IN_CACHE):
            some, place = numbers[start : start + IN_CACHE], slice(start, start + IN_CACHE)
            found[place, :1] = (some - self.mean) / self.deviation
            if self.edges:
                within = ((some - edges[:-1]) / np.diff(edges)).clip(0, 1)
                found[place, 1:] = WITHIN * within
        return found

    def new(self, cells: Cells) -> Mask:
        """The cells with a number beyond all that training saw."""
        if self.low is None or self.high is None:
            return np.zeros(len(cells), bool)
        near = ROUNDING * max(abs(self.low), abs(self.high))
        return (cells.numbers < self.low - near) | (cells.numbers > self.high + near)

    @property
    def seen(self) -> tuple[bool, str]:
        """Whether the numbers of training differed by more than rounding, and a text about them."""
        low, high = self.low or 0, self.high or 0
        varied = high - low > ROUNDING * max(abs(low), abs(high))
        return varied, f"{low:g} to {high:g}" if varied else f"always {low:g}"


def without_texts(cells: Cells) -> Cells:
    """The cells, of which each text counts as empty."""
    return replace(cells, empty=[*cells.empty, *sorted(cells.counts(cells.strange))])


def unmarked(cells: Cells, mark: str) -> Cells:
    """The cells with numbers that lack the marks; `mark` is one of MARKS, or "" for none."""
    if not mark:
        return cells
    shape, plain = MARKS[mark]
    fits = re.compile(shape).fullmatch
    column = cells.mapped(lambda t: plain(t) if fits(t) else t, texts=True)
    return replace(cells, column=column)


def is_quantity(cells: Cells) -> bool:
    """Whether labels are rather numbers to predict than classes: fractions, or many."""
    mark = cells.mark
    numbers = unmarked(cells, mark).numbers[~cells.gaps]
    if not len(numbers) or np.isnan(numbers).any():
        return False
    different = np.unique(numbers)
    codes = different[0] in (0, 1) and bool((np.diff(different) == 1).all())
    many = len(different) > MANY and not (
        codes and not mark and len(numbers) >= FEW * len(different)
    )
    apart = len(different) == len(numbers) > 2  # of which no class can be learnt
    return many or apart or bool((numbers % 1 != 0).any())


def read_as(mark: str) -> str:
    """How numbers with such marks are read."""
    if mark in CLOCK:
        return f"read as {mark}"
    kept = mark.startswith(OTHER_MINUS) or mark.endswith(DECIMAL_COMMAS)
    return f"read {'with' if kept else 'without'} {mark}"


class TextColumn(_Column):
    """A column of texts, one-hot: a feature for each category, 1 for the category of the row.

    Empty cells are read as `fill`. A text that is not a category sets all features to 0. If
    `others`, that is so everywhere, also for an empty cell without `fill`; otherwise only the other
    parts of a training run may have such texts, and empty cells without `fill` are refused.
    """

    fill: str | None
    categories: list[str]
    others: bool = False

    @property
    def own(self) -> int:
        return len(self.categories)

    @property
    def filling(self) -> str:
        return str(self.fill)

    @property
    def instead(self) -> str:
        """What else to do about a text that is not a category."""
        return "" if self.fill is None else f", or empty the cells to have {self.fill!r} read"

    def fault(self, cells: Cells) -> str:
        filled = self.others or self.fill is not None
        return cells.fault(texts=True, gaps=filled and not self.required)

    def parts(self, cells: Cells) -> Features:
        found: Mask = self._numbers(cells)[:, None] == np.arange(self.own)
        return found.astype(np.float64)

    def new(self, cells: Cells) -> Mask:
        """The cells with a text that training did not see, or whose category was too rare."""
        return (self._numbers(cells) < 0) & ~(cells.gaps & self.others)

    def described(self, cells: Cells, new: Mask, among: Mask) -> str:
        texts = cells.counted(new, "is a text", "are texts", among)
        why = "that training did not see"
        if self.others:
            why = "that is not a category" if new.sum() == 1 else "that are not categories"
        return f"{texts} {why}: {listed(cells.counts(new))}"

    @functools.cached_property
    def number_of(self) -> dict[str, int]:
        """The place of each category. A truth value is written as `true` by some programs, `True`
        by pandas and `TRUE` by spreadsheets."""
        number_of = {text: number for number, text in enumerate(self.categories)}
        for word in ("true", "false"):
            spelled = [text for text in self.categories if text.lower() == word]
            if len(spelled) == 1:
                same = dict.fromkeys((word, word.title(), word.upper()), number_of[spelled[0]])
                number_of = same | number_of
        return number_of

    def _numbers(self, cells: Cells) -> Floats:
        """The place of each cell's category, -1 for none."""
        known = self.number_of
        gap = -1 if self.fill is None else known.get(self.fill, -1)
        return np.where(cells.gaps, gap, cells.mapped(lambda text: known.get(text, -1)).to_numpy())


DATE_FORMATS = (
    "iso", "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%m/%d/%y",
    "%d/%m/%y", "%d.%m.%y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y",
    "%B %d, %Y", "%b %Y", "%B %Y", "%Y-%m", "%Y-%m-%d",
)  # fmt: skip
TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
ISO = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?", re.ASCII)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FORMS = ("iso", *(form + time for form in DATE_FORMATS[1:] for time in TIMES))
# Seconds of the years 1 and 9999.
Seconds = Annotated[float, Field(ge=-62_135_596_800, le=253_402_300_799)]


def as_date(text: str, form: str) -> float:
    """Seconds since 1970 of a date; NaN for other texts. `form`: iso, or one of strptime."""
    try:
        if form == "iso":
            if not ISO.fullmatch(text):
                return np.nan
            found = datetime.fromisoformat(text)
        else:
            found = datetime.strptime(text, form)
        zoned = found if found.tzinfo else found.replace(tzinfo=UTC)
        return (zoned - EPOCH).total_seconds()
    except (ValueError, OverflowError):
        return np.nan


class DateColumn(_Column):
    """The time, standardised; and as sine and cosine the place in the year, in the week, and if
    `timed` in the day. Empty cells have the mean time, and 0 for all others."""

    form: Annotated[str, AfterValidator(_one_of(FORMS))]
    mean: FiniteFloat
    deviation: Positive
    low: Seconds
    high: Seconds
    timed: bool

    @property
    def cycles(self) -> tuple[float, ...]:
        return (YEAR, WEEK, DAY) if self.timed else (YEAR, WEEK)

    @property
    def own(self) -> int:
        return 1 + 2 * len(self.cycles)

    @property
    def filling(self) -> str:
        return "the mean"

    def fault(self, cells: Cells) -> str:
        wrong = np.isnan(self.times(cells)) & ~cells.gaps
        if not wrong.any():
            return cells.fault(texts=True, gaps=not self.required)
        form = "%Y-%m-%d" if self.form == "iso" else self.form
        example = datetime.fromtimestamp(self.high, UTC).strftime(form)
        told = cells.counted(wrong, "is no date", "are no dates")
        return f"column {self.name}: {told}, as {example}"

    def times(self, cells: Cells) -> Floats:
        """Seconds since 1970; NaN for empty cells and other texts."""
        times = cells.mapped(lambda text: as_date(text, self.form)).to_numpy()
        return np.where(cells.gaps, np.nan, times)

    def parts(self, cells: Cells) -> Features:
        times = self.times(cells)
        angles = [2 * np.pi * times / cycle for cycle in self.cycles]
        waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
        found: Floats = np.stack([(times - self.mean) / self.deviation, *waves], 1)
        return np.nan_to_num(found)

    def new(self, cells: Cells) -> Mask:
        times = self.times(cells)
        return (times < self.low) | (times > self.high)

    @property
    def seen(self) -> tuple[bool, str]:
        first, last = (datetime.fromtimestamp(t, UTC).date() for t in (self.low, self.high))
        return self.low < self.high, f"{first} to {last}"


AnyColumn = NumberColumn | TextColumn | DateColumn


class Columns(BaseModel):
    """How a row becomes the features of a sample: its columns, with what was learned of each.
    `empty` is data.empty; None: of a model that was trained before there was this key. `marks` are
    those of the numbers to predict, by the names of their columns."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    columns: list[AnyColumn]
    empty: list[str] | None = None
    marks: dict[str, Mark] = Field(default_factory=dict)

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    @property
    def names(self) -> list[str]:
        """Of the columns of the table: `united` columns have several of one name."""
        return [*self.by_name]

    @property
    def by_name(self) -> dict[str, list[tuple[AnyColumn, slice]]]:
        """What is learned of each column of the table, and the place of its features."""
        found, first = dict[str, list[tuple[AnyColumn, slice]]](), 0
        for column in self.columns:
            part = slice(first, first := first + column.width)
            found.setdefault(column.name, []).append((column, part))
        return found

    def places_of(self, some: Iterable[AnyColumn]) -> list[int]:
        """The places of columns that are all among these."""
        named = defaultdict[str, list[int]](list)
        for place, column in enumerate(self.columns):
            named[column.name].append(place)
        return [
            next(place for place in named[own.name] if self.columns[place] == own) for own in some
        ]

    def features_at(self, places: Sequence[int]) -> list[int]:
        """The places of the features of the columns at these places."""
        ends = [*accumulate(column.width for column in self.columns)]
        return [n for at in places for n in range(ends[at] - self.columns[at].width, ends[at])]

    def features(
        self, table: Table, parts: Mapping[str, Mask] | None = None, *, tell_gaps: bool = True
    ) -> NDArray[np.float32]:
        """(rows, width). The table may have more columns, in any order. Raises InputError with a
        line for each missing column and each column with wrong cells.

        Notes of the table tell which cells were filled if `tell_gaps`, and which numbers are beyond
        those that training saw. Texts that training did not see are refused, except in a column
        with `others`.
        In a training run, `parts` are the rows of its other parts, by how a note begins; new texts
        are allowed there and noted.
        """
        table.require(self.names)
        rows = len(table.lines)
        features = np.empty((rows, self.width), np.float32)
        faults, filled = list[str](), list[str]()
        rows_of = {"": np.ones(rows, bool)} if parts is None else parts
        beyond: Beyond = {where: [] for where in rows_of}
        for parts_of_name in self.by_name.values():
            read = [(each, part, each.cells(table, self.empty)) for each, part in parts_of_name]
            column, _, cells = read[0]  # tells for all
            if wrong := [fault for each, _, own in read if (fault := each.fault(own))]:
                faults.append(f"{wrong[0]}; {CORRECT}")
                continue
            new = np.logical_and.reduce([each.new(own) for each, _, own in read])
            if parts is None and new.any() and isinstance(column, TextColumn) and not column.others:
                told = column.described(cells, new, rows_of[""])
                faults.append(f"column {column.name}: {told}; {CORRECT}{column.instead}")
                continue
            far = np.zeros(rows, bool)
            for each, part, own in read:
                with np.errstate(over="ignore"):
                    found = each.features(own).astype(np.float32, copy=False)
                far |= np.isinf(found).any(1)
                features[:, part] = found
            if far.any():
                told = cells.counted(far, f"is {TOO_LARGE}", f"are {TOO_LARGE}")
                faults.append(f"column {column.name}: {told}; {CORRECT}")
            if tell_gaps and cells.gaps.any():
                filled.append(_filling(cells, column))
            for where, chosen in rows_of.items():
                some = new & chosen
                if not some.any():
                    continue
                told = column.described(cells, some, chosen)
                if isinstance(column, TextColumn):
                    usual = column.others and parts is not None
                    text = f"{where}column {column.name}: {told}; its features are 0 there"
                    table.note(text, logging.INFO if usual else logging.WARNING)
                else:
                    varied, seen = column.seen
                    text = f"column {column.name}, {seen} in training: {told}"
                    beyond[where].append((varied, -int(some.sum()), text))
        table.refuse(faults)
        if filled:
            table.note(_first(filled))
        _note_beyond(table, beyond, training=parts is not None)
        return features


def united(several: Sequence[Columns]) -> Columns:
    """The columns of all, equal ones once. Columns of one name differ in what they learned, as in
    the folds of a cross-validation, and the first tells for them."""
    found = dict[str, list[AnyColumn]]()
    for columns in several:
        for column in columns.columns:
            own = found.setdefault(column.name, [])
            if column not in own:
                own.append(column)
    together = [column for own in found.values() for column in own]
    return several[0].model_copy(update={"columns": together})


def _note_beyond(table: Table, beyond: Beyond, *, training: bool) -> None:
    for where, found in beyond.items():
        if found:
            texts = _first([text for *_, text in sorted(found)])
            usual = training and all(varied for varied, *_ in found)
            level = logging.INFO if usual else logging.WARNING
            table.note(f"{where}numbers that training did not see: {texts}", level)


def _first(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_TOLD
    return "; ".join(
        [*texts[:MOST_TOLD], *([f"and {counted(more, 'more column')}"] if more > 0 else [])]
    )


def _filling(cells: Cells, column: AnyColumn) -> str:
    """A text with the number of cells that are filled, by what is written there."""
    counts = cells.counts(cells.gaps)
    texts = [
        counted(count, "cell") + f" {text[:40]!r}" if text else counted(count, "empty cell")
        for text, count in counts.most_common()
    ]
    read = "read as empty, " if cells.empty_words else ""
    if isinstance(column, TextColumn) and column.fill is None:
        return f"{' and '.join(texts)} of column {cells.name} read as no category"
    return f"{' and '.join(texts)} of column {cells.name} {read}filled with {column.filling}"


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
