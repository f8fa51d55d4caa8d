"""Small tables, and what their columns are taken for."""

from typing import Any

import numpy as np

from kindling.config.compose import compose
from kindling.config.schema import Csv
from kindling.data.tables.cells import as_text
from kindling.data.tables.columns import Columns
from kindling.data.tables.learning import learn_columns
from kindling.data.tables.table import Table, as_table

ROWS = 60
DRAW = np.random.default_rng(0)
NUMBERS = DRAW.normal(size=ROWS).round(3)


def learn(columns: dict[str, Any], *overrides: str) -> tuple[Columns, Table, list[str]]:
    """What all rows teach, the table, and the lines about its columns without the header."""
    config = compose("data=csv", "data.path=a.csv", "data.target=y", *overrides).data
    assert isinstance(config, Csv)
    rows = len(next(iter(columns.values())))
    table = as_table({"y": [n % 2 for n in range(rows)], **columns})
    found = learn_columns(table, config, np.ones(rows, bool))
    (told,) = (text for _, text in table.notes if "its columns:" in text)
    return found, table, told.splitlines()[2:]


def texts_of(table: Table) -> dict[str, list[str]]:
    """The text of each cell, white space around it included."""
    return {name: [*map(as_text, column)] for name, column in table.columns.items()}
