"""Cells of a table: which are numbers, which are empty, and which look like one text.
Imports no torch.

Files, dictionaries and DataFrames, training and prediction share these rules.
"""

import functools
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kindling.config.written import counted

if TYPE_CHECKING:
    import polars as pl  # 0.3 s, which only commands with a table wait for

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]

# A number as spreadsheets write it. Python's `float` also takes 1_25 and the digits of other
# scripts. An infinite number is read, so that its fault can say so.
NUMBER = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?", re.ASCII | re.IGNORECASE
)
DECIMAL_COMMAS = "decimal commas"
_POINT, _COMMA = r"(\.\d*)?", r"(,\d+)?(e[+-]?\d+)?"
_SPACES, _SIGNS = " \u00a0\u202f", "$€£"
_WAYS = (  # to write a number: what stands between thousands, and the decimals
    ("commas", ",", _POINT),
    (DECIMAL_COMMAS, ".", _COMMA),
    ("apostrophes", "'’", _POINT),
    ("spaces", _SPACES, _POINT),
    (f"spaces and {DECIMAL_COMMAS}", _SPACES, _COMMA),
)
_BESIDE = (  # what stands before or behind the number
    ("", "{0}"),
    ("%", "{0} ?%"),
    ("a currency", rf"[{_SIGNS}] ?(-?{{0}}|\({{0}}\))|{{0}} ?[{_SIGNS}]"),
)
OTHER_MINUS = "other minus signs"
_MINUS = "\u2212\u2013"  # the minus of typographers, and their dash in its place
_OF_SIGNS = (  # how a negative number is told
    ("", "[+-]?({0})"),
    (OTHER_MINUS, rf"[+-]?({{0}})|[{_MINUS}] ?({{0}})|\(({{0}})\)|({{0}})-"),
)
_LIKE_NUMBER = re.compile(  # which most texts and dates are not, at once
    rf"(?ai)[(+{_MINUS}{_SIGNS} -]*[\d.][\d.,:'’{_SPACES}]*(e[+-]?\d+)?[{_SIGNS}% )-]*"
)
CLOCK = ("hours:minutes", "hours:minutes:seconds")


def _marks() -> Iterator[tuple[str, tuple[str, Callable[[str], str]]]]:
    kinds = itertools.product(_OF_SIGNS, _BESIDE, _WAYS)
    for (sign, signed), (beside, form), (way, thousands, decimals) in kinds:
        number = rf"([1-9]\d{{0,2}}([{thousands}]\d{{3}})+|\d+){decimals}"
        number = rf"({number}|\.\d+)" if decimals == _POINT else f"({number})"
        names = [sign, beside, "" if way == "commas" and (sign or beside) else way]
        plain = partial(_plain, f"{thousands}{_SIGNS}% )", "," if decimals == _COMMA else ".")
        shape = "(?a)" + signed.format(form.format(number))
        yield " and ".join(filter(None, names)), (shape, plain)
    yield CLOCK[0], (r"(?a)[+-]?\d{1,6}:[0-5]\d", _of_clock)
    yield CLOCK[1], (r"(?a)[+-]?\d{1,6}:[0-5]\d:[0-5]\d(\.\d+)?", _of_clock)


def _of_clock(text: str) -> str:
    """Minutes of 8:30, seconds of 8:30:00: a column has one of the two."""
    number = functools.reduce(
        lambda all_, part: 60 * all_ + float(part), text.strip("+-").split(":"), 0.0
    )
    return f"{'-' * text.startswith('-')}{number!r}"


def _plain(away: str, point: str, text: str) -> str:
    text = text.translate(dict.fromkeys(map(ord, away))).replace(point, ".")
    negative = text.startswith(("(", *_MINUS)) or text.endswith("-")
    return f"-{text.strip(f'({_MINUS}-')}" if negative else text


# What makes texts of numbers, by the shape of a cell, and how they are read without: 12,958.42,
# 12.958,42, 12'958, 12 958,42, 98%, $5, 12.958,42 €, (5) and 8:30. A shape fits numbers without
# marks too, but that of times, which are minutes or seconds.
MARKS = dict(_marks())
FIRST = 1000  # rows, which are enough to tell most columns
WHITE_SPACE = "".join(filter(str.isspace, map(chr, range(0x3001))))  # polars knows fewer
OTHER_CHARACTER = re.compile("[^0-9eE.+-]")  # `float` takes what is left just as NUMBER does
# The empty cells of models and runs that were trained before data.empty: these words in any case.
FORMERLY_EMPTY = frozenset(
    "".join(letters)
    for word in ("?", "na", "n/a", "nan", "null")
    for letters in itertools.product(*zip(word, word.upper(), strict=True))
)


def as_numbers(texts: Sequence[str]) -> Floats:
    """The texts as numbers; NaN for a text that is not a number."""
    if not OTHER_CHARACTER.search("".join(texts)):
        with suppress(ValueError):
            return np.array(texts, np.float64)
    return np.array([float(text) if NUMBER.fullmatch(text) else np.nan for text in texts])


def as_text(value: object) -> str:
    """A value of Python, NumPy or pandas as a file would have it; "" for a missing value."""
    if isinstance(value, str):
        return value
    if isinstance(value, timedelta):
        return "" if value != value else repr(value.total_seconds())  # noqa: PLR0124, NaT
    missing = value is None or type(value).__name__ == "NAType"
    with suppress(TypeError, ValueError, ArithmeticError):
        missing = missing or bool(value != value)  # noqa: PLR0124, NaN and NaT
    return "" if missing else str(value)


@functools.lru_cache  # the words are the same for all columns, of which a table may have many
def numbers_among(words: frozenset[str]) -> Floats:
    """The words that are numbers."""
    numbers = as_numbers([*words])
    return numbers[~np.isnan(numbers)]


def as_column(name: str, values: Iterable[Any]) -> "pl.Series":
    """A column of numbers as they are and of durations in seconds, null for a missing one; of
    anything else as texts, "" for a missing one. Lists, arrays and columns of pandas and polars."""
    import polars as pl

    if isinstance(values, pl.Series):
        if values.dtype == pl.String:
            return values.fill_null("")
        if values.dtype == pl.Duration:
            values = values.dt.total_nanoseconds() / 1e9
        if values.dtype.is_float():
            return values.fill_nan(None)
        if values.dtype.is_integer():
            return values
        values = values.to_list()
    array = values.to_numpy() if hasattr(values, "to_numpy") else values  # of pandas
    if isinstance(array, np.ndarray) and array.ndim == 1:
        if array.dtype.kind == "m":
            array = array / np.timedelta64(1, "s")
        if array.dtype in (np.int64, np.float64):
            return pl.Series(name, array, nan_to_null=True)
    texts = [as_text(value) for value in values]
    try:
        return pl.Series(name, texts, pl.String)
    except UnicodeEncodeError:  # half of a pair of UTF-16
        return pl.Series(name, [t.encode(errors="replace").decode() for t in texts], pl.String)


def stripped(column: "pl.Series") -> "pl.Series":
    """Without white space around texts."""
    import polars as pl

    if column.dtype != pl.String:
        return column
    found = column.str.strip_chars(WHITE_SPACE)
    return column if (found == column).all() else found


def text_counts(column: "pl.Series") -> Counter[str]:
    """The number of times each text occurs, in the order of their first rows."""
    texts = map(as_text, column.unique(maintain_order=True))
    return Counter(dict(zip(texts, column.unique_counts().to_list(), strict=True)))


@dataclass(frozen=True)
class Cells:
    """The cells of one column, texts without white space around them or numbers, with the line
    number of each row. `empty` are the words that count as empty; a word that is a number stands
    for all spellings of the number. `dots_are_thousands`, if the column allows that, because
    another column of the table has decimal commas."""

    name: str
    column: "pl.Series"
    lines: Sequence[int]
    empty: Collection[str] = ()
    dots_are_thousands: bool = False

    def __len__(self) -> int:
        return len(self.column)

    @functools.cached_property
    def read(self) -> Floats:
        """The cells that are numbers, also those that count as empty; NaN for others."""
        import polars as pl

        # Polars takes the texts that NUMBER takes, and "nan".
        return self.column.cast(pl.Float64, strict=False).to_numpy()

    @functools.cached_property
    def gaps(self) -> Mask:
        words = frozenset(self.empty)
        gaps: Mask = np.isnan(self.read)
        if not self.column.dtype.is_numeric() and gaps.any():
            gaps &= self.column.is_in(["", *words]).to_numpy()
        numbers = numbers_among(words)
        if len(numbers):
            gaps |= np.isin(self.read, numbers)
        return gaps

    @functools.cached_property
    def numbers(self) -> Floats:
        """The cells as numbers; NaN for empty cells and texts."""
        return np.where(self.gaps, np.nan, self.read) if self.gaps.any() else self.read

    @functools.cached_property
    def strange(self) -> Mask:
        """The cells that are neither empty nor a number."""
        return np.isnan(self.numbers) & ~self.gaps

    @property
    def mark(self) -> str:
        """A name of MARKS, if each strange cell would be a number without such marks; else ""."""
        found = (self.dots_are_thousands and self.thousands) or _mark(self._strange_texts)
        mixed = found in CLOCK and not np.isnan(self.numbers).all()
        return "" if mixed else found

    @property
    def _strange_texts(self) -> set[str]:
        return {*self.counts(self.strange)} if self.strange.any() else set()

    @functools.cached_property
    def thousands(self) -> str:
        """The mark of cells with dots that can all be of thousands; "" for other cells."""
        if self.column.dtype.is_numeric():
            return ""
        first = self.column.head(FIRST).to_list()  # a list is faster for a short column
        dotted = {text for text in first if "." in text and text not in self.empty}
        if dotted and not _mark(dotted, DECIMAL_COMMAS):
            return ""
        if len(self) > FIRST:
            known = self.column.filter(~self.gaps)
            dotted |= {*known.filter(known.str.contains(".", literal=True)).unique()}
        return _mark(dotted | self._strange_texts, DECIMAL_COMMAS) if dotted else ""

    @property
    def infinite(self) -> Mask:
        with np.errstate(over="ignore"):
            return np.isinf(self.numbers.astype(np.float32))

    @property
    def counting(self) -> bool:
        """Whether the cells are consecutive whole numbers, as an index of the rows is."""
        return (
            len(self) > 1
            and float(self.numbers[0]).is_integer()
            and bool((np.diff(self.numbers) == 1).all())
        )

    @property
    def whole(self) -> bool:
        """Whether all cells are whole numbers."""
        return bool((self.numbers % 1 == 0).all())

    def filled(self, value: float | None) -> Floats:
        """The numbers, with `value` in place of empty cells."""
        return self.numbers if value is None else np.where(self.gaps, value, self.numbers)

    @property
    def texts(self) -> list[str]:
        return [*map(as_text, self.column)]

    def text(self, row: int) -> str:
        return as_text(self.column[row])

    def varies(self, chosen: Mask) -> bool:
        """Whether the chosen cells, one or more, have different texts."""
        some = self.column.filter(chosen)
        return bool((some != some[0]).any())

    def counts(self, chosen: Mask) -> Counter[str]:
        """The number of times each text occurs in the chosen cells, in the order of first rows."""
        return text_counts(self.column.filter(chosen))

    def mapped(self, function: Callable[[str], float | str], *, texts: bool = False) -> "pl.Series":
        """The numbers, or `texts`, of a function that is called once for each different text."""
        import polars as pl

        different = self.column.unique(maintain_order=True)
        values = [function(as_text(value)) for value in different]
        kind = pl.String if texts else pl.Float64
        return self.column.replace_strict(different, values, return_dtype=kind)

    @property
    def empty_words(self) -> list[str]:
        """The different texts that were read as empty, without the empty text."""
        return sorted(self.counts(self.gaps).keys() - {""})

    def counted(self, chosen: Mask, one: str, several: str, among: Mask | None = None) -> str:
        """A text with the number of chosen cells, by default among all, what they are, and the
        first of them."""
        first, count = int(chosen.argmax()), int(chosen.sum())
        place = f"{'the first in ' if count > 1 else ''}line {self.lines[first]}"
        if text := self.text(first):
            place += f": {text[:40]!r}"
        total = len(self) if among is None else int(among.sum())
        return f"{count:,} of {counted(total, 'cell')} {several if count > 1 else one} ({place})"

    def fault(self, *, texts: bool, gaps: bool) -> str:
        """The faults of the column, "" for none. `texts` allows texts, `gaps` empty cells."""
        refused = []
        if not texts:
            refused += [(self.strange, "is not a number", "are not numbers")]
            refused += [(self.infinite, "is beyond ±3.4e+38", "are beyond ±3.4e+38")]
        if not gaps:
            refused += [(self.gaps, "is empty", "are empty")]
        told = [self.counted(*each) for each in refused if each[0].any()]
        return f"column {self.name}: {', '.join(told)}" if told else ""


def _mark(texts: Collection[str], end: str = "") -> str:
    """The first of MARKS with this end that all texts fit; "" if there is none."""
    if not texts or not all(map(_LIKE_NUMBER.fullmatch, texts)):
        return ""
    ending = (mark for mark in MARKS if mark.endswith(end))
    return next((m for m in ending if all(map(re.compile(MARKS[m][0]).fullmatch, texts))), "")


def listed(counts: Mapping[str, int], most: int = 5) -> str:
    """The texts with their counts, the frequent ones first."""
    ordered = sorted(counts, key=lambda text: (-counts[text], text))
    more = [f"{len(ordered) - most:,} more"] if ordered[most:] else []
    return ", ".join([*(f"{text[:40]!r} ({counts[text]:,})" for text in ordered[:most]), *more])


def alike(counts: Mapping[str, int]) -> list[str]:
    """A text for each group of names that are probably meant as one, with their counts: names that
    differ only in case, white space, invisible characters, Unicode's forms of one letter, or the
    way in which a number is written."""
    groups: dict[str, list[str]] = {}
    for name in sorted(counts):
        groups.setdefault(_skeleton(name), []).append(name)
    told = []
    for names in (names for names in groups.values() if len(names) > 1):
        look_equal = len({unicodedata.normalize("NFC", name) for name in names}) < len(names)
        shown = ascii if look_equal else repr  # repr escapes invisible characters
        told.append(" and ".join(f"{shown(name)[:80]} ({counts[name]:,})" for name in names))
    return told


def _skeleton(name: str) -> str:
    """The same text for names that are probably meant as one."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    seen = "".join(c for c in folded if not c.isspace() and unicodedata.category(c) != "Cf")
    return str(float(seen)) if NUMBER.fullmatch(seen) else seen
