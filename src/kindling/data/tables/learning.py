"""What the columns of a table are taken for, and what the training rows teach about them. Imports
no torch."""

import logging
import re
from dataclasses import dataclass

import numpy as np

from kindling.config import schema
from kindling.config.written import counted, printable, typed
from kindling.data.tables.cells import (
    DECIMAL_COMMAS,
    FIRST,
    Cells,
    Floats,
    Mask,
    alike,
    listed,
)
from kindling.data.tables.columns import (
    FORMS,
    AnyColumn,
    Columns,
    DateColumn,
    NumberColumn,
    TextColumn,
    as_date,
    read_as,
    scale,
    unmarked,
    without_texts,
)
from kindling.data.tables.table import Table, as_it_is
from kindling.system.errors import InputError

MOST_CATEGORIES = 100  # of a column; of more, the frequent ones
MOST_FEATURES = 2**28  # of all rows, 1 GiB; of larger tables, columns get fewer intervals and texts
LEAST_CATEGORIES = 10  # all the same
FEW, DIFFERENT = 20, 0.9  # more texts, in more than this share of rows, name the rows
MOST_WORDS = 3  # in a column of numbers, which may stand for empty cells
# Intervals of a number, for tables of so many columns; see docs/results.md for what they bring.
BINS, ROWS_OF_BIN, FEW_VALUES, ROWS_OF_VALUE, MOST_BINNED = 16, 20, 60, 5, 300
MOST_ROWS = 40  # of the table about the columns
# The names of columns that programs write to number the rows.
UNNAMED = r"column \d+|unnamed: \d+|row_?names?|row_?(id|number|nr)?|index|id|\.\.\.1"
UNNAMED += r"|__index_level_\d+__"  # of pandas, in Parquet


@dataclass(frozen=True)
class _Taken:
    """What a column was taken for, and what was done with it. Without a column, it is left out."""

    column: AnyColumn | None
    kind: str
    done: str = ""


class _UnusableError(InputError):
    """A column that cannot be used as it is."""


def learn_columns(table: Table, config: schema.Csv, trained_on: Mask) -> Columns:
    """Learns all columns but those of data.target, data.group, data.weights and data.drop from the
    training rows, a mask (rows,). A note of the table tells what each was taken for. Raises
    InputError with a line for each unusable column, and what to type."""
    others = (*config.targets, config.group, config.weights, *config.drop)
    names = [name for name in table.names if name not in others]
    table.require(config.categories, "data.categories")
    table.require(config.numbers, "data.numbers")
    if not names:
        raise InputError(f"{table.path}: data.drop leaves no column of features; leave out fewer")
    nested = [name for name in names if table.nested([name])]
    drop = typed("data.drop", [*config.drop, *nested])
    table.refuse(table.nested(nested, f", or type {drop}"))
    taken: dict[str, _Taken] = {}
    faults, room = [], MOST_FEATURES // (len(table.lines) * len(names))
    for name in names:
        try:
            if config.encode == "auto":
                taken[name] = _take(table, name, config, trained_on, room)
            else:
                taken[name] = _learn(table, name, config, trained_on)
        except _UnusableError as error:
            faults.append(str(error))
    table.refuse(faults)
    columns = [each.column for each in taken.values() if each.column is not None]
    if not columns:
        reasons = "; ".join(f"{name}: {each.done}" for name, each in [*taken.items()][:5])
        raise InputError(
            f"{table.path}: no column is left to learn from ({reasons}); to keep one, type "
            f"{typed('data.categories', names[:1])}"
        )
    if config.encode == "auto":
        table.note("its columns:", logging.INFO, _told(taken))
    elif told := ", ".join(f"{c.name} ({c.width})" for c in columns if isinstance(c, TextColumn)):
        table.note(f"columns of text, and their categories: {told}", logging.INFO)
    return Columns(columns=columns, empty=config.empty)


def _told(taken: dict[str, _Taken]) -> list[str]:
    """The lines of a table of the columns, those with something to tell first."""
    ordered = sorted(taken.items(), key=lambda item: (item[1].column is not None, not item[1].done))
    rows = [("column", "taken for", "features", "what was done")]
    for name, each in ordered[:MOST_ROWS]:
        width = "–" if each.column is None else f"{each.column.width}"
        rows.append((printable(name)[:40], each.kind, width, each.done))
    widths = [max(len(row[place]) for row in rows) for place in range(3)]
    lines = [
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[3]])
        for row in rows
    ]
    more = len(ordered) - MOST_ROWS
    lines += [f"and {counted(more, 'more column')}"] if more > 0 else []
    return [line.rstrip() for line in lines]


# --- a column as it comes ------------------------------------------------------------------------


def _take(  # noqa: PLR0911, a way out for each kind
    table: Table, name: str, config: schema.Csv, trained_on: Mask, room: int
) -> _Taken:
    """`room`: for so many features."""
    cells = table.cells(name, config.empty)
    known = trained_on & ~cells.gaps
    if not known.any():
        formulas = "; a formula without a stored value is read as empty: open and save the workbook"
        told = formulas if table.path.suffix.lower() == ".xlsx" else ""
        return _Taken(None, "nothing", f"left out: is empty in all training rows{told}")
    if name in config.categories:
        return _as_category(table, cells, config, trained_on, room)
    if name in config.numbers:
        found = _as_number(table, cells, config, trained_on, room)
        if found is None:
            fault = cells.fault(texts=False, gaps=config.fill is not None)
            fill = ", or type data.fill=auto" if config.fill is None else ""
            raise _UnusableError(f"{fault}; leave it out of data.numbers{fill}")
        return found
    if re.fullmatch(UNNAMED, name, re.IGNORECASE) and cells.column.is_unique().all():
        if cells.whole:
            keep = typed("data.numbers", [*config.numbers, name])
            return _Taken(None, "index", f"left out: numbers the rows; to keep it, type {keep}")
        if cells.strange.all():
            return _Taken(None, "index", "left out: names the rows")
    if not cells.gaps[trained_on].any():
        rounding = cells.varies(known)
        numbers = cells.numbers[known]
        if not rounding or (np.isfinite(numbers).all() and scale(numbers)[2]):
            text = cells.text(int(known.argmax()))
            but = " but for rounding" * rounding
            return _Taken(None, "constant", f"left out: always {text[:40]!r}{but}")
    return (
        _as_number(table, cells, config, trained_on, room)
        or _as_date(cells, config, trained_on)
        or _as_category(table, cells, config, trained_on, room)
    )


def _leave_out(name: str, config: schema.Csv) -> str:
    return f"type {typed('data.drop', [*config.drop, name])}"


def _note_alike(table: Table, cells: Cells) -> None:
    for told in alike(cells.counts(~cells.gaps)):
        table.note(f"column {cells.name}: {told} look like one text, and get features of their own")


def _gaps(cells: Cells, fill: str) -> str:
    if not cells.gaps.any():
        return ""
    words = cells.empty_words
    read = f" ({', '.join(map(repr, words[:3]))})" if words else ""
    return f"{counted(int(cells.gaps.sum()), 'empty cell')}{read}: {fill}"


def _refuse_gaps(cells: Cells, config: schema.Csv) -> None:
    if config.fill is None and (fault := cells.fault(texts=True, gaps=False)):
        raise _UnusableError(f"{fault}; type data.fill=auto, or {_leave_out(cells.name, config)}")


def _as_number(
    table: Table, cells: Cells, config: schema.Csv, trained_on: Mask, room: int
) -> _Taken | None:
    name, mark, done, words = cells.name, cells.mark, list[str](), list[str]()
    texts_are_empty = False
    if mark or not cells.strange.any():
        if cells.thousands and not mark.endswith(DECIMAL_COMMAS):
            done.append("its dots could be of thousands, and are read as decimal points")
        done += [read_as(mark)] if mark else []
        cells = unmarked(cells, mark)
    else:
        texts_are_empty, texts = name in config.numbers, cells.counts(cells.strange)
        few = len(texts) <= MOST_WORDS and 2 * cells.strange.sum() < (~cells.gaps).sum()
        if config.fill is None or not (few or texts_are_empty):
            return None
        done.append(f"{listed(texts)} read as empty")
        words = [] if texts_are_empty else sorted(texts)
        cells = without_texts(cells)
    leave_out, infinite = _leave_out(name, config), bool(cells.infinite.any())
    if infinite or (cells.gaps.any() and config.fill is None):
        fault = cells.fault(texts=not infinite, gaps=config.fill is not None)
        cure = "correct that" if infinite else "type data.fill=auto"
        raise _UnusableError(f"{fault}; {cure}, or {leave_out}")
    if not (trained_on & ~cells.gaps).any():
        return None
    which = "median" if config.fill == "auto" else config.fill
    absent = config.fill == "auto" and bool(cells.gaps[trained_on].any())
    binned = len(table.names) <= MOST_BINNED
    column = _number(cells, config, trained_on, which).model_copy(
        update={
            "edges": _edges(cells.numbers[trained_on & ~cells.gaps], room) if binned else [],
            "mark": mark, "words": words, "texts_are_empty": texts_are_empty, "absent": absent,
        }
    )  # fmt: skip
    if cells.gaps.any():
        fill = _gaps(cells, f"filled with the {str(which).replace('_', ' ')}, {column.filling}")
        done.append(fill + (", and a feature tells them" if absent else ""))
    if cells.counting and name not in config.numbers:
        done.append(f"numbers the rows; if the number says nothing, {leave_out}")
    return _Taken(column, "number", "; ".join(done))


def _edges(numbers: Floats, room: int) -> list[float]:
    """Between the values of a column with few of them, else between equal shares of the numbers;
    none where there would be one interval."""
    most = min(FEW_VALUES, room, len(numbers) / ROWS_OF_VALUE)
    values = np.unique(numbers[:FIRST])  # enough to tell most columns with many values
    if len(values) <= most:
        values = np.unique(numbers)
    if len(values) > most:
        bins = max(1, int(min(BINS, room - 1, len(numbers) / ROWS_OF_BIN)))
        values = np.unique(np.quantile(numbers, np.linspace(0, 1, bins + 1)))
    return values.tolist() if len(values) > 2 else []


def _as_date(cells: Cells, config: schema.Csv, trained_on: Mask) -> _Taken | None:
    """By the first format that reads all cells."""
    texts = [*cells.counts(~cells.gaps)]
    fitting = [form for form in FORMS if not any(np.isnan(as_date(text, form)) for text in texts)]
    if not fitting:
        return None
    form = fitting[0]
    times = cells.mapped(lambda text: as_date(text, form)).to_numpy()
    known = times[trained_on & ~cells.gaps]
    mean, deviation, constant = scale(known)
    if constant:
        return None
    _refuse_gaps(cells, config)
    column = DateColumn(
        name=cells.name, form=form, mean=mean, deviation=deviation, low=float(known.min()),
        high=float(known.max()), timed=bool((known % 86_400 != 0).any()),
        absent=bool(cells.gaps[trained_on].any()), required=config.fill is None,
    )  # fmt: skip
    done = ["time, place in the year and in the week" + (" and in the day" * column.timed)]
    if {"%m/%d/%Y", "%d/%m/%Y"} <= {each.partition(" ")[0] for each in fitting}:
        done.append("read as month/day/year, could be day/month/year too")
    if fill := _gaps(cells, "filled with the mean time"):
        done.append(fill)
    return _Taken(column, "date", "; ".join(done))


def _as_category(
    table: Table, cells: Cells, config: schema.Csv, trained_on: Mask, room: int
) -> _Taken:
    name, known, chosen = cells.name, trained_on & ~cells.gaps, cells.name in config.categories
    different = len(cells.counts(~cells.gaps))
    if not chosen and different > max(FEW, DIFFERENT * (~cells.gaps).sum()):
        keep = typed("data.categories", [*config.categories, name])
        why = f"left out: {different:,} different texts name the rows; to keep it, type {keep}"
        return _Taken(None, "identifier", why)
    _refuse_gaps(cells, config)
    counts, most = cells.counts(known), min(MOST_CATEGORIES, max(LEAST_CATEGORIES, room))
    frequent = sorted(counts, key=lambda text: (-counts[text], text))[:most]
    done = []
    if len(counts) > most:
        rest = sum(counts.values()) - sum(counts[text] for text in frequent)
        done.append(
            f"the {most} most frequent of {len(counts):,} texts; "
            f"{counted(rest, 'training row')} {'has' if rest == 1 else 'have'} another"
        )
    if fill := _gaps(cells, "no category"):
        done.append(fill)
    _note_alike(table, cells)
    absent = bool(cells.gaps[trained_on].any())
    column = TextColumn(
        name=name, fill=None, categories=sorted(frequent), others=True, absent=absent,
        required=config.fill is None,
    )  # fmt: skip
    return _Taken(column, "category", "; ".join(done))


# --- a column as data.encode and data.fill say ---------------------------------------------------


def _learn(table: Table, name: str, config: schema.Csv, trained_on: Mask) -> _Taken:
    cells, leave_out = table.cells(name, config.empty), _leave_out(name, config)
    of_text = bool(cells.strange.any())
    different = len(cells.counts(~cells.gaps)) if of_text else 0
    encoded = of_text and config.encode is not None and different <= MOST_CATEGORIES
    if fault := cells.fault(texts=encoded, gaps=config.fill is not None):
        raise _UnusableError(f"{fault}; type data.encode=auto data.fill=auto, or {leave_out}")
    known = trained_on & ~cells.gaps
    if not known.any():
        raise _UnusableError(f"column {name}: is empty in all training rows; {leave_out}")
    if encoded:
        counts = cells.counts(known)
        frequent = min(counts, key=lambda text: (-counts[text], text))
        fill = None if config.fill is None else frequent
        if cells.empty_words:
            words = cells.counts(cells.gaps)
            del words[""]
            kept = as_it_is(cells, config, "text")
            table.note(f"column {name}: {listed(words)} counts as empty{kept}")
        _note_alike(table, cells)
        return _Taken(TextColumn(name=name, fill=fill, categories=sorted(counts)), "category")
    if cells.counting:
        table.note(f"column {name}: numbers the rows; if the number says nothing, {leave_out}")
    which = "median" if config.fill == "auto" else config.fill
    return _Taken(_number(cells, config, trained_on, which), "number")


def _number(cells: Cells, config: schema.Csv, trained_on: Mask, which: str | None) -> NumberColumn:
    name, value = cells.name, _typical(cells.numbers[trained_on & ~cells.gaps], which)
    numbers = cells.filled(value)[trained_on]
    mean, deviation, constant = scale(numbers)
    low, high = float(numbers.min()), float(numbers.max())
    if config.empty is None:  # a run that was written before there was this key: as it learned
        deviation = 1.0 if low == high else deviation
        return NumberColumn(name=name, fill=value, mean=mean, deviation=deviation)
    deviation = max(1.0, deviation) if constant else deviation
    return NumberColumn(name=name, fill=value, mean=mean, deviation=deviation, low=low, high=high)


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
