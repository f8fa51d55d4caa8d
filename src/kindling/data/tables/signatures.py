"""Which kind of file stands where a table should be, by its first bytes. Imports no torch."""

import codecs
import re
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from kindling.config.written import typed
from kindling.system.errors import InputError
from kindling.system.installation import as_command

TEXT, PARQUET, WORKBOOK = "a text file", "a Parquet file", "an Excel workbook"
GZIP, ZIP, ARRAYS = "a gzip archive", "a ZIP archive", "a NumPy archive"
SUFFIX = {TEXT: ".csv", PARQUET: ".parquet", WORKBOOK: ".xlsx"}  # under which a file is read
ARCHIVES = (GZIP, ZIP, "a bzip2 archive", "an xz archive", "a Zstandard archive", "a 7-Zip archive",
            "a RAR archive")  # fmt: skip
SAVE = "save the table as CSV, Parquet or Excel"
SAMPLED = 512  # bytes
# No table of texts begins so.
SIGNATURES = {
    rb"\x1f\x8b": GZIP,
    rb"PK\x03\x04": ZIP,
    rb"BZh[1-9]1AY&SY": "a bzip2 archive",
    rb"\xfd7zXZ\x00": "an xz archive",
    rb"\x28\xb5\x2f\xfd": "a Zstandard archive",
    rb"7z\xbc\xaf\x27\x1c": "a 7-Zip archive",
    rb"Rar!\x1a\x07": "a RAR archive",
    rb"PAR1[\x00-\x08\x0e-\x1f]": PARQUET,
    rb"ARROW1\x00\x00": "a Feather file",
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "a file of an old Excel",
    rb"\x93NUMPY": "a NumPy array",
    rb"\x80[\x02-\x05]": "a pickle of Python",
    rb"\x89HDF\r\n": "an HDF5 file",
    rb"SQLite format 3\x00": "an SQLite database",
    rb"%PDF-\d": "a PDF file",
    rb"\x89PNG\r\n|\xff\xd8\xff": "a picture",
    rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype html|html[\s>])": "a web page",
    rb'(\xef\xbb\xbf)?\s*(\[\s*[\[{]|\{\s*")': "a JSON file",
}
# Of ZIP archives, by the name of a part.
PARTS = {
    r"xl/workbook\.\w+": WORKBOOK,
    r".*\.npy": ARRAYS,
    r"content\.xml": "a file of LibreOffice",
    r"word/.*": "a Word document",
}


def kind_of(file: IO[bytes]) -> str:
    """The kind of an open file, which is then at its beginning; "" for an unknown one."""
    file.seek(0)
    start = file.read(SAMPLED)
    file.seek(0)
    kinds = (kind for pattern, kind in SIGNATURES.items() if re.match(pattern, start))
    kind = next(kinds, "")
    if kind == ZIP:
        with suppress(zipfile.BadZipFile, OSError, ValueError), zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            parts = (k for p, k in PARTS.items() if any(re.fullmatch(p, name) for name in names))
            kind = next(parts, ZIP)
        file.seek(0)
    if kind or not start:
        return kind
    marked = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return TEXT if marked or not re.search(rb"[\x00-\x08\x0e-\x1f]", start) else ""


def require_kind(path: Path, file: IO[bytes], wanted: str) -> None:
    """Raises InputError, which says what to do, if the file is of another known kind."""
    kind = kind_of(file)
    if kind in (wanted, ""):
        return
    if kind in SUFFIX:
        cure = f"rename it to {path.stem}{SUFFIX[kind]}"
    elif kind in ARCHIVES:
        cure = "unpack it"
    elif kind == ARRAYS:
        cure = f"type {as_command('train')} data=npz {typed('data.path', str(path))}"
    elif kind == "a NumPy array":
        cure = f"write it by numpy.savez(FILE, x=…, y=…), and type {as_command('train')} data=npz"
    else:
        cure = SAVE
    expected = "" if wanted == TEXT else f", not {wanted}"
    raise InputError(f"{path}: is {kind}{expected}; {cure}")
