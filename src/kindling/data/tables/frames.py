"""Tables of .parquet and .xlsx files, by polars. Imports no torch."""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from kindling.data.tables.cells import as_column
from kindling.system.errors import InputError, parsing, reading
from kindling.system.extras import missing
from kindling.system.files import open_regular
from kindling.system.resources import require_memory

if TYPE_CHECKING:
    import polars as pl

FRAMES = (".parquet", ".xlsx")
CELL = 16  # bytes of memory of a cell; a longer text takes more
GROWTH = 100  # a workbook may unpack to so many times its size


def read_frame(path: Path, *, header_alone: bool) -> tuple[list[str], list["pl.Series"]]:
    """The names of the columns, and the columns, without rows if `header_alone`. Raises InputError
    for other files, for columns of lists, without the reader of workbooks, and if the table does
    not fit into memory."""
    workbook = path.suffix.lower() == ".xlsx"
    for fault in missing(str(path), "tables", ("fastexcel",)) if workbook else ():
        raise InputError(fault)
    with reading(path), open_regular(path) as file:  # polars would wait for a pipe
        size = path.stat().st_size
        if workbook and zipfile.is_zipfile(file):
            with parsing(f"{path}: is not a workbook"), zipfile.ZipFile(file) as parts:
                if sum(part.file_size for part in parts.infolist()) > GROWTH * size:
                    raise InputError(f"{path}: unpacks to more than {GROWTH} times its size")
    import polars

    try:
        if workbook:  # its first sheet
            frame = polars.read_excel(path, infer_schema_length=None)
        else:
            lazy = polars.scan_parquet(path)
            width = len(lazy.collect_schema())
            rows = 0 if header_alone else lazy.select(polars.len()).collect().item()
            needed = f"{path}: its {rows:,} rows of {width:,} columns need"
            require_memory(needed, CELL * rows * width, "fewer rows")
            frame = lazy.head(rows).collect()
    except (InputError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of its library is no Exception
        if type(error).__name__ != "PanicException" and not isinstance(error, Exception):
            raise
        kind = "an Excel workbook" if workbook else "a Parquet file"
        raise InputError(f"{path}: cannot be read as {kind} ({str(error)[:200]})") from None
    nested = [name for name, kind in frame.schema.items() if kind.is_nested()]
    if nested:
        raise InputError(
            f"{path}: column {nested[0]} has lists, and a cell is one text or number; write the "
            "parts as columns of their own, or leave the column out"
        )
    columns = frame.clear() if header_alone else frame
    return frame.columns, [as_column(column.name, column) for column in columns]
