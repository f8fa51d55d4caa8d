"""The user's own table: a .csv file with a header, whose column data.target names the classes.

src/data/tables.py reads the file and turns its columns into features.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from src.config import schema
from src.config.written import printable
from src.data.sources.folds import training_and_validation
from src.data.sources.source import COPIES, Source, Split, grouped, split_off_test
from src.data.tables import learn_columns, read_table
from src.system.errors import InputError, all_at_once
from src.system.files import sha256
from src.system.resources import require_memory

TEXT_COST = 12  # bytes of memory for each byte of a table, while it is read


def open_source(config: schema.Csv) -> Source:
    """Features (N, width), float32, standardised and encoded by what the training samples show.
    Raises InputError with all faults of the table."""
    path = Path(config.path)
    size = path.stat().st_size if path.is_file() else 0
    require_memory(f"data.path={path}: it needs", TEXT_COST * size, "fewer rows")
    table = read_table(path)
    table.require([config.target], "data.target")
    table.require(config.drop, "data.drop")
    if config.group is not None:
        table.require([config.group], "data.group")
    trained_on = np.zeros(len(table.rows), bool)
    try:
        targets = table.texts(config.target, "class")
        labels = _classes(targets, path, config.target)
        number_of = {label: number for number, label in enumerate(labels)}
        classes = torch.tensor([number_of[target] for target in targets])
        groups = None
        if config.group is not None:
            groups = grouped("data.group", config.group, table.texts(config.group, "group"))
        rows = Split(torch.arange(len(targets)), classes, groups)
        # Splits of row numbers: the columns are learned from the training rows alone.
        splits = split_off_test(rows, config.test_fraction, config.split_seed)
        training, _ = training_and_validation(splits[0], config, labels)
    except InputError as error:
        faults = [str(error)]
        try:
            learn_columns(table, config, ~trained_on)
        except InputError as more:
            faults.append(str(more))
        raise all_at_once(faults, "nothing was read") from None
    trained_on[training.features.numpy()] = True
    columns = learn_columns(table, config, trained_on)
    require_memory(
        f"data.path={path}: as {columns.width:,} features of each row it needs",
        4 * COPIES * len(targets) * columns.width,
        "fewer rows, or leave out columns of text by data.drop",
    )
    features = torch.from_numpy(columns.features(table))
    train, test = (Split(features[rows.features], rows.labels, rows.groups) for rows in splits)
    names = tuple(printable(label) for label in labels)
    return Source(config.name, train, test, names, digest=sha256(path), columns=columns)


def _classes(targets: Sequence[str], path: Path, target: str) -> list[str]:
    """The distinct targets: sorted as numbers if all are numbers, else as texts."""
    classes = set(targets)
    if len(classes) < 2:
        raise InputError(
            f"{path}: column {target} has the one class {targets[0][:80]!r}; a classifier needs two"
        )
    try:
        values = {text: float(text) for text in classes}
    except ValueError:
        return sorted(classes)
    fraction = next((text for text, value in values.items() if not value.is_integer()), None)
    if fraction is not None:
        raise InputError(
            f"{path}: column {target} has numbers such as {fraction}, which are not classes; name "
            "another column with data.target=COLUMN"
        )
    return sorted(classes, key=lambda text: (values[text], text))
