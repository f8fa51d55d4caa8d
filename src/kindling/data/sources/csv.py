"""The user's own table: a file with a header, whose column data.target has the labels.

data/tables/ reads the file and turns its columns into features.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kindling.config import schema
from kindling.config.measures import CLASSIFICATION, MULTILABEL, REGRESSION
from kindling.config.written import typed
from kindling.data.sources.folds import training_and_validation
from kindling.data.sources.source import COPIES, Groups, Source, Split, grouped, split_off_test
from kindling.data.tables.cells import (
    Floats,
    Mask,
    alike,
    as_numbers,
    listed,
    text_counts,
)
from kindling.data.tables.columns import Columns, NumberColumn, is_quantity, read_as, unmarked
from kindling.data.tables.learning import learn_columns
from kindling.data.tables.reading import read_table
from kindling.data.tables.table import Table
from kindling.system.errors import InputError, all_at_once
from kindling.system.files import sha256
from kindling.system.resources import require_memory

if TYPE_CHECKING:
    import polars as pl

# Of a column that tells the label: the rows of each text, the share of rows that are not empty, and
# the rounding of a correlation.
ROWS_OF_CODE, KNOWN, SAME = 10, 0.9, 1e-9
BEGINNING = 10_000  # rows
SHOWN = 5  # names of columns, in a message
AT_ONCE = 4096  # rows
READING = 4  # bytes of memory for each byte of a table, while it is read


def open_source(config: schema.Csv, task: schema.Task) -> Source:
    """Features (N, width), float32, standardised and encoded by what the training samples show; the
    notes say what was done with the table, and what is doubtful. Raises InputError with all faults
    of the table."""
    path = Path(config.path)
    divided = _Divided.of(config, task)
    table, found, rows = divided.table, divided.labels, divided.rows
    columns = learn_columns(table, config, divided.mask(divided.training)).model_copy(
        update={"marks": found.marks}
    )
    require_memory(
        f"data.path={path}: as {columns.width:,} features of each row it needs",
        4 * COPIES * len(rows) * columns.width,
        "fewer rows, or leave out columns of text by data.drop",
    )
    parts = {name: divided.mask(part) for name, part in divided.held_out.items()}
    told = config.encode == "auto"  # by learn_columns
    features = torch.from_numpy(columns.features(table, parts, tell_gaps=not told))
    of_each = _apart(features, *(part.features for part in divided.splits))
    train, test = (
        replace(part, features=own) for part, own in zip(divided.splits, of_each, strict=True)
    )
    for doubt in chain(
        _class_doubts(table, config, found.texts),
        _doubts(table, config, found.texts, columns),
        _leaks(table, config, found, columns),
    ):
        table.note(doubt)
    source = Source(
        config.name, train, test, tuple(found.names), digest=sha256(path), columns=columns,
        notes=table.notes,
    )  # fmt: skip
    if config.val_path is None:
        return source
    other = _read(Path(config.val_path), "data.val_path")
    validation = _own_validation(other, config, columns, found, task, train.groups)
    return replace(
        source, validation=validation, validation_digest=sha256(other.path),
        notes=[*table.notes, *other.notes],
    )  # fmt: skip


def _apart(features: Tensor, some: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of two parts, in ascending order. The first part gets the memory of all rows, so the
    features are not twice in memory."""
    second = features[others]
    for start in range(0, len(some), AT_ONCE):
        rows = some[start : start + AT_ONCE]  # never before the place that they get
        features[start : start + len(rows)] = features[rows]
    return features[: len(some)], second


def rows_of_test(config: schema.Csv, task: schema.Task) -> Table:
    """The rows of the test set, as the file has them. Raises as `open_source`."""
    divided = _Divided.of(config, task)
    return divided.table.take(divided.mask(divided.splits[1]))


def _read(path: Path, key: str) -> Table:
    """The table that the setting `key` names. Raises InputError if it does not fit into memory."""
    size = path.stat().st_size if path.is_file() else 0
    require_memory(f"{key}={path}: it needs", READING * size, "fewer rows")
    return read_table(path)


def _labelled(table: Table, config: schema.Csv) -> Table:
    """The rows that have a label, with data.encode=auto; otherwise an empty one is a fault."""
    if config.encode != "auto":
        return table
    gaps = [table.cells(name, config.empty or ()).gaps for name in config.targets]
    without = np.logical_or.reduce(gaps)
    if not without.any() or without.all():
        return table
    count = int(without.sum())
    first = f"{'the first in ' if count > 1 else ''}line {table.lines[int(without.argmax())]}"
    has, is_left_out = ("has", "is left out") if count == 1 else ("have", "are left out")
    names = " or ".join(config.targets[:SHOWN])
    words = sorted({w for n in config.targets for w in table.cells(n, config.empty).empty_words})
    table.note(
        f"{count:,} of {len(without):,} rows {has} no label in {names} ({first}"
        f"{'; read as empty: ' + ', '.join(map(repr, words[:SHOWN])) if words else ''}), and "
        f"{is_left_out}"
    )
    return table.take(~without)


@dataclass(frozen=True)
class _Labels:
    """The labels of the rows, and the names of the classes or of the columns; of classes, also the
    text of each row; of numbers, `marks` as those of Columns."""

    labels: Tensor
    names: list[str]
    texts: Sequence[str] = ()
    marks: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, table: Table, config: schema.Csv, task: schema.Task, known: Self | None = None
    ) -> Self:
        """`known`: those of the training table. Raises InputError for cells that are no labels of
        this task, and for other classes."""
        if task.name == CLASSIFICATION:
            target = config.targets[0]
            texts = table.texts(target, "class", config)
            names = _classes(texts, table.path, target) if known is None else known.names
            number_of = {name: number for number, name in enumerate(names)}
            unknown = sorted(set(texts) - set(number_of))
            if unknown:
                raise InputError(
                    f"data.val_path={table.path}: column {target} has the class "
                    f"{unknown[0][:80]!r}, which data.path={config.path} lacks; add rows of this "
                    "class there, or leave them out here"
                )
            return cls(torch.tensor([number_of[text] for text in texts]), names, texts)
        marks = _marks(table, config, task) if known is None else known.marks
        numbers = torch.from_numpy(numbers_of(table, config, task, marks))
        labels = numbers.float() if task.name == MULTILABEL else numbers
        return cls(labels, config.targets, marks=marks)


def _marks(table: Table, config: schema.Csv, task: schema.Task) -> dict[str, str]:
    """Those of the columns of numbers to predict, which a note tells."""
    named = {name: table.cells(name, config.empty).mark for name in config.targets}
    marks = {name: mark for name, mark in named.items() if mark and task.name == REGRESSION}
    for name, mark in marks.items():
        table.note(f"column {name}: {read_as(mark)}", logging.INFO)
    return marks


@dataclass(frozen=True)
class _Divided:
    """A table, its labels, and which of its rows belong to which part. The splits have row numbers
    in place of features: columns are learned from the training rows alone."""

    table: Table
    labels: _Labels
    rows: Split
    splits: Sequence[Split]  # training with validation, and test
    training: Split
    held_out: Mapping[str, Split]  # the other parts, by how a note about them begins

    @classmethod
    def of(cls, config: schema.Csv, task: schema.Task) -> Self:
        table = _read(Path(config.path), "data.path")
        table.require(config.targets, "data.target")
        table.require(config.drop, "data.drop")
        _require_columns(table, config)
        table = _labelled(table, config)
        try:
            found = _Labels.of(table, config, task)
            every = torch.arange(len(table.lines))
            rows = Split(every, found.labels, _groups(table, config), _weights(table, config))
            splits = split_off_test(rows, config.test_fraction, config.split_seed)
            training, held_out = splits[0], {"test part: ": splits[1]}
            if config.val_path is None:
                training, held_out["validation part: "] = training_and_validation(
                    training, config, found.names
                )
        except InputError as error:
            faults = [str(error)]
            if task.name == CLASSIFICATION and REGRESSION not in faults[0]:
                told = _quantity(table, config)
                cure = f"{table.path}: {told}; to predict the number, type task=regression"
                faults = [cure, *faults] if told else faults
            try:
                learn_columns(table, config, np.ones(len(table.lines), bool))
            except InputError as more:
                faults.append(str(more))
            raise all_at_once(faults, "nothing was read") from None
        return cls(table, found, rows, splits, training, held_out)

    def mask(self, part: Split) -> Mask:
        chosen = np.zeros(len(self.rows), bool)
        chosen[part.features.numpy()] = True
        return chosen


def numbers_of(
    table: Table, config: schema.Csv, task: schema.Task, marks: Mapping[str, str]
) -> Floats:
    """The labels (rows, outputs) of a table that has the columns: numbers, or 0 and 1. `marks` are
    those of the training table. Raises InputError for other cells."""
    kind = "number" if task.name == REGRESSION else "label, 0 or 1,"
    columns = [
        unmarked(table.cells(name, config.empty), marks.get(name, "")) for name in config.targets
    ]
    if task.name == MULTILABEL:
        columns = [
            replace(cells, column=cells.mapped(_truth, texts=True))
            if cells.strange.any()
            else cells
            for cells in columns
        ]
    for cells in columns:
        if fault := cells.fault(texts=False, gaps=False):
            classes = "; to learn the texts as classes, type task=classification"
            told = classes if cells.strange.any() and len(columns) == 1 else ""
            table.refuse([f"{fault}; write a {kind} there, or leave the rows out{told}"])
        wrong = ~np.isin(cells.numbers, (0, 1))
        if task.name == MULTILABEL and wrong.any():
            told = cells.counted(wrong, "is neither 0 nor 1", "are neither 0 nor 1")
            table.refuse([
                f"column {cells.name}: {told}; write 1 where a row has the label and 0 where not, "
                "or type task=regression"
            ])  # fmt: skip
    return np.stack([cells.numbers for cells in columns], 1)


def _truth(text: str) -> str:
    """1 for a text such as True, as pandas and spreadsheets write a label."""
    return {"true": "1", "false": "0"}.get(text.lower(), text)


def _own_validation(
    table: Table, config: schema.Csv, columns: Columns, known: _Labels, task: schema.Task,
    training: Groups | None,
) -> Split:  # fmt: skip
    """The rows of another table, prepared by what the training rows have taught. Raises InputError
    for other columns, for classes that the training table lacks, and for groups of its training
    rows."""
    table.require(config.targets, "data.target")
    table = _labelled(table, config)
    labels = _Labels.of(table, config, task, known).labels
    _require_columns(table, config)
    groups = _groups(table, config)
    if groups is not None and training is not None:
        trained = {training.names[number] for number in training.numbers.tolist()}
        shared = sorted(trained & set(groups.names))
        if shared:
            raise InputError(
                f"data.group={config.group}: the group {shared[0][:80]!r} is in the training set "
                f"and in data.val_path={table.path}; move its rows into one of them"
            )
    everywhere = {"": np.ones(len(labels), bool)}
    features = torch.from_numpy(columns.features(table, everywhere))
    return Split(features, labels, groups, _weights(table, config))


def _require_columns(table: Table, config: schema.Csv) -> None:
    table.require([config.group] if config.group else [], "data.group")
    table.require([config.weights] if config.weights else [], "data.weights")


def _groups(table: Table, config: schema.Csv) -> Groups | None:
    group = config.group
    return None if group is None else grouped(group, table.texts(group, "group", config))


def _weights(table: Table, config: schema.Csv) -> Tensor | None:
    """The weights of the rows, (rows,). Raises InputError for cells that are no weights."""
    if config.weights is None:
        return None
    cells = table.cells(config.weights, config.empty)
    if fault := cells.fault(texts=False, gaps=False):
        table.refuse([f"{fault}; write a weight there, a number from 0, or leave the rows out"])
    wrong = ~((cells.numbers >= 0) & (cells.numbers <= np.finfo(np.float32).max))
    if wrong.any():
        told = cells.counted(wrong, "is no weight", "are no weights")
        table.refuse([f"column {config.weights}: {told}; write numbers from 0 to 3e+38"])
    weights = torch.from_numpy(cells.numbers.astype(np.float32))  # polars' memory is read only
    if not weights.any():
        table.refuse([f"column {config.weights}: is 0 in all rows; write a weight above 0"])
    return weights


def _classes(targets: Sequence[str], path: Path, target: str) -> list[str]:
    """The distinct targets: sorted as numbers if all are numbers, else as texts."""
    classes = set(targets)
    if len(classes) < 2:
        raise InputError(
            f"{path}: column {target} has the one class {targets[0][:80]!r}; a classifier needs two"
        )
    texts = sorted(classes)
    values = dict(zip(texts, as_numbers(texts).tolist(), strict=True))
    if any(map(math.isnan, values.values())):
        return texts
    fraction = next((text for text, value in values.items() if not value.is_integer()), None)
    if fraction is not None:
        raise InputError(
            f"{path}: column {target} has numbers such as {fraction}, which are not classes; to "
            "predict the number, type task=regression, else name another column with "
            "data.target=COLUMN"
        )
    return sorted(classes, key=lambda text: (values[text], text))


def _class_doubts(table: Table, config: schema.Csv, targets: Sequence[str]) -> Iterator[str]:
    """Texts about classes that may be one, and about so many numbers that they may be a quantity.
    These are not faults: letters, for example, differ only in case."""
    counts, column = Counter(targets), f"column {config.targets[0]}"
    for told in alike(counts):
        yield (
            f"{column}: {told} look like one class, and are learned as classes of their own; if "
            "they are one, write it in one way"
        )
    spaced = text_counts(table.columns[config.targets[0]]) if targets else counts
    for name in sorted({text.strip() for text in spaced.keys() - counts.keys()} & spaced.keys()):
        ways = {text: count for text, count in spaced.items() if text.strip() == name}
        yield f"{column}: {listed(ways)} differ only in white space, and are read as {name!r}"
    if targets and (quantity := _quantity(table, config)):
        yield (
            f"{quantity}; each number is learned as a class of its own. To predict the number, "
            "type task=regression"
        )


def _quantity(table: Table, config: schema.Csv) -> str:
    """A text about labels that look like numbers to predict; "" for others."""
    cells = table.cells(config.targets[0], config.empty)
    if not is_quantity(cells):
        return ""
    numbers = unmarked(cells, cells.mark).numbers
    whole = "whole " if (numbers % 1 == 0).all() else ""
    how = f", {read_as(cells.mark)}," if cells.mark else ""
    return (
        f"column {cells.name}: has {len(np.unique(numbers)):,} different {whole}numbers{how} in "
        f"{len(numbers):,} rows, which looks like a quantity, not like classes"
    )


def _leaks(table: Table, config: schema.Csv, labels: _Labels, columns: Columns) -> Iterator[str]:
    """Texts about columns that tell the label: a copy, another unit, a finer code. They tell the
    label of each row where they are not empty, and are empty in a tenth of the rows at most."""
    for column in columns.columns if len(config.targets) == 1 else ():
        cells = table.cells(column.name, config.empty)
        known = ~cells.gaps if labels.texts else ~np.isnan(cells.numbers)
        count = int(known.sum())
        if count < max(ROWS_OF_CODE, KNOWN * len(known)):
            continue
        if labels.texts:
            tells = _tells_class(cells.column.filter(known), labels.labels.numpy()[known])
        else:
            numbers, other = cells.numbers[known], labels.labels[:, 0].numpy()[known]
            varied = bool(np.ptp(numbers) > 0 < np.ptp(other))
            tells = varied and abs(np.corrcoef(numbers, other)[0, 1]) > 1 - SAME
        if tells:
            where = "in every row" if count == len(known) else "in every row where it is not empty"
            yield (
                f"column {column.name}: tells {config.targets[0]} {where}; if people do not know "
                f"{column.name} before they know {config.targets[0]}, type "
                f"{typed('data.drop', [*config.drop, column.name])}"
            )


def _tells_class(column: "pl.Series", classes: NDArray[np.int64]) -> bool:
    """Whether each text stands for one class, several classes occur, and each text in ten rows."""
    import polars as pl

    pairs = pl.DataFrame({"text": column, "class": classes})
    for rows in (pairs.head(BEGINNING), pairs):  # which is enough to tell most columns
        different = rows["text"].n_unique()
        if different * ROWS_OF_CODE > len(pairs) or rows.n_unique() > different:
            return False
    return bool(np.ptp(classes) > 0)


def _doubts(
    table: Table, config: schema.Csv, targets: Sequence[str], columns: Columns
) -> Iterator[str]:
    """A text about a first line that may be a row: one that has a class above the classes, or
    numbers above all columns of numbers. This is no fault: some programs name columns by their
    numbers, in order."""
    names = as_numbers([c.name for c in columns.columns if isinstance(c, NumberColumn)])
    numbers = as_numbers(table.names)
    counted = numbers[np.isfinite(numbers)]
    if len(counted) and (counted % 1 == 0).all() and (np.diff(counted) == 1).all():
        return
    if set(targets) & {*config.targets} or (len(names) and not np.isnan(names).any()):
        shown = ", ".join(map(repr, table.names[:SHOWN]))
        yield (
            f"the first line, {shown}{', …' if table.names[SHOWN:] else ''}, looks like a row, and "
            "is read as the names of the columns; if it is a row, write a line of names above it"
        )
