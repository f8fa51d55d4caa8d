"""The user's own table: a .csv file with a header, whose column data.target names the classes.

data/tables.py reads the file and turns its columns into features.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from kindling.config import schema
from kindling.data.cells import Mask, alike, as_numbers, listed
from kindling.data.sources.folds import training_and_validation
from kindling.data.sources.source import COPIES, Groups, Source, Split, grouped, split_off_test
from kindling.data.tables import Columns, NumberColumn, Table, learn_columns, read_table
from kindling.system.errors import InputError, all_at_once
from kindling.system.files import sha256
from kindling.system.resources import require_memory

# More whole numbers than MANY, with fewer than FEW rows each, are rather a quantity than classes.
MANY, FEW = 20, 10
SHOWN = 5  # names of columns, in a message
TEXT_COST = 12  # bytes of memory for each byte of a table, while it is read


def open_source(config: schema.Csv) -> Source:
    """Features (N, width), float32, standardised and encoded by what the training samples show; the
    notes say what was done with the table, and what is doubtful. Raises InputError with all faults
    of the table."""
    path = Path(config.path)
    table = _read(path, "data.path")
    table.require([config.target], "data.target")
    table.require(config.drop, "data.drop")
    table.require([config.group] if config.group else [], "data.group")
    try:
        targets = table.texts(config.target, "class", config)
        labels = _classes(targets, path, config.target)
        number_of = {label: number for number, label in enumerate(labels)}
        classes = torch.tensor([number_of[target] for target in targets])
        rows = Split(torch.arange(len(targets)), classes, _groups(table, config))
        # Splits of row numbers: the columns are learned from the training rows alone.
        splits = split_off_test(rows, config.test_fraction, config.split_seed)
        training = splits[0]
        held_out = {"test part: ": splits[1]}
        if config.val_path is None:
            training, held_out["validation part: "] = training_and_validation(
                training, config, labels
            )
    except InputError as error:
        faults = [str(error)]
        try:
            learn_columns(table, config, np.ones(len(table.lines), bool))
        except InputError as more:
            faults.append(str(more))
        raise all_at_once(faults, "nothing was read") from None

    def mask(part: Split) -> Mask:
        chosen = np.zeros(len(targets), bool)
        chosen[part.features.numpy()] = True
        return chosen

    columns = learn_columns(table, config, mask(training))
    require_memory(
        f"data.path={path}: as {columns.width:,} features of each row it needs",
        4 * COPIES * len(targets) * columns.width,
        "fewer rows, or leave out columns of text by data.drop",
    )
    parts = {name: mask(part) for name, part in held_out.items()}
    features = torch.from_numpy(columns.features(table, parts))
    train, test = (Split(features[rows.features], rows.labels, rows.groups) for rows in splits)
    for doubt in _doubts(table, config, targets, columns):
        table.note(doubt)
    source = Source(
        config.name, train, test, tuple(labels), digest=sha256(path), columns=columns,
        notes=table.notes,
    )  # fmt: skip
    if config.val_path is None:
        return source
    other = _read(Path(config.val_path), "data.val_path")
    validation = _own_validation(other, config, columns, number_of, train.groups)
    return replace(
        source, validation=validation, validation_digest=sha256(other.path),
        notes=[*table.notes, *other.notes],
    )  # fmt: skip


def _read(path: Path, key: str) -> Table:
    """The table that the setting `key` names. Raises InputError if it does not fit into memory."""
    size = path.stat().st_size if path.is_file() else 0
    require_memory(f"{key}={path}: it needs", TEXT_COST * size, "fewer rows")
    return read_table(path)


def _own_validation(
    table: Table, config: schema.Csv, columns: Columns, number_of: Mapping[str, int],
    training: Groups | None,
) -> Split:  # fmt: skip
    """The rows of another table, prepared by what the training rows have taught. Raises InputError
    for other columns, for classes that the training table lacks, and for groups of its training
    rows."""
    table.require([config.target], "data.target")
    targets = table.texts(config.target, "class", config)
    unknown = sorted(set(targets) - set(number_of))
    if unknown:
        raise InputError(
            f"data.val_path={table.path}: column {config.target} has the class "
            f"{unknown[0][:80]!r}, which data.path={config.path} lacks; add rows of this class "
            "there, or leave them out here"
        )
    table.require([config.group] if config.group else [], "data.group")
    groups = _groups(table, config)
    if groups is not None and training is not None:
        known = {training.names[number] for number in training.numbers.tolist()}
        shared = sorted(known & set(groups.names))
        if shared:
            raise InputError(
                f"data.group={config.group}: the group {shared[0][:80]!r} is in the training set "
                f"and in data.val_path={table.path}; move its rows into one of them"
            )
    labels = torch.tensor([number_of[target] for target in targets])
    everywhere = {"": np.ones(len(targets), bool)}
    return Split(torch.from_numpy(columns.features(table, everywhere)), labels, groups)


def _groups(table: Table, config: schema.Csv) -> Groups | None:
    group = config.group
    return None if group is None else grouped(group, table.texts(group, "group", config))


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
            f"{path}: column {target} has numbers such as {fraction}, which are not classes; name "
            "another column with data.target=COLUMN"
        )
    return sorted(classes, key=lambda text: (values[text], text))


def _doubts(
    table: Table, config: schema.Csv, targets: Sequence[str], columns: Columns
) -> Iterator[str]:
    """Texts about classes that may be one, about so many numbers that they may be a quantity, and
    about a first line that may be a row: one that has a class, or numbers above all columns of
    numbers. These are not faults: letters, for example, differ only in case, and some programs name
    columns by their numbers, in order."""
    counts, column = Counter(targets), f"column {config.target}"
    for told in alike(counts):
        yield (
            f"{column}: {told} look like one class, and are learned as classes of their own; if "
            "they are one, write it in one way"
        )
    spaced = Counter(table.columns[config.target])
    for name in sorted({text.strip() for text in spaced.keys() - counts.keys()} & spaced.keys()):
        ways = {text: count for text, count in spaced.items() if text.strip() == name}
        yield f"{column}: {listed(ways)} differ only in white space, and are read as {name!r}"
    if len(counts) > MANY and len(targets) < FEW * len(counts):
        numbers = as_numbers([*counts])
        if not np.isnan(numbers).any():
            yield (
                f"{column}: has {len(counts):,} different whole numbers in {len(targets):,} rows, "
                "which looks like a quantity, not like classes; each number is learned as a class "
                "of its own. To predict ranges, write a column of their names, such as low, middle "
                "and high, and type data.target=NAME"
            )
    names = as_numbers([c.name for c in columns.columns if isinstance(c, NumberColumn)])
    numbers = as_numbers(table.names)
    counted = numbers[~np.isnan(numbers)]
    if len(counted) and (counted % 1 == 0).all() and (np.diff(counted) == 1).all():
        return
    if set(counts) & set(table.names) or (len(names) and not np.isnan(names).any()):
        shown = ", ".join(map(repr, table.names[:SHOWN]))
        yield (
            f"the first line, {shown}{', …' if table.names[SHOWN:] else ''}, looks like a row, and "
            "is read as the names of the columns; if it is a row, write a line of names above it"
        )
