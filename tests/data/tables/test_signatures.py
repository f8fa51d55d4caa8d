"""Files of other kinds than their name says are refused by their first bytes, and told."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import zipfile
from pathlib import Path

import numpy as np
import polars
import pytest
from PIL import Image

from kindling.data.tables.reading import read_table
from kindling.system.errors import InputError
from tests.data.tables.test_frames import write_workbook

CSV = "x,y\n" + "".join(f"{n},{n % 3}\n" for n in range(300))
FRAME = polars.read_csv(CSV.encode())
SAVE = "save the table as CSV, Parquet or Excel"


def zipped(**parts: bytes | str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), content)
    return buffer.getvalue()


def made(write: str) -> bytes:
    """By a method of polars or a function of NumPy."""
    buffer = io.BytesIO()
    if write == "save":
        np.save(buffer, np.zeros((9, 2)))
    elif write == "savez":
        np.savez(buffer, x=np.zeros((9, 2)))
    elif write == "picture":
        Image.new("L", (9, 9)).save(buffer, "PNG")
    else:
        getattr(FRAME, write)(buffer)
    return buffer.getvalue()


def database() -> bytes:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("create table t (x, y)")
        return connection.serialize()


KINDS = {  # the bytes, and what is told of FILE under a name of text
    "zip": (zipped(t_csv=CSV), "is a ZIP archive; unpack it"),
    "broken zip": (zipped(t_csv=CSV)[:60], "is a ZIP archive; unpack it"),
    "bz2": (bz2.compress(CSV.encode()), "is a bzip2 archive; unpack it"),
    "xz": (lzma.compress(CSV.encode()), "is an xz archive; unpack it"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(60), "is a Zstandard archive; unpack it"),
    "7z": (b"7z\xbc\xaf\x27\x1c" + bytes(60), "is a 7-Zip archive; unpack it"),
    "rar": (b"Rar!\x1a\x07\x01" + bytes(60), "is a RAR archive; unpack it"),
    "feather": (made("write_ipc"), f"is a Feather file; {SAVE}"),
    "parquet": (made("write_parquet"), "is a Parquet file; rename it to t.parquet"),
    "ods": (zipped(mimetype="…", content_xml="<a/>"), f"is a file of LibreOffice; {SAVE}"),
    "docx": (zipped(word__document_xml="<a/>"), f"is a Word document; {SAVE}"),
    "xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(90), f"is a file of an old Excel; {SAVE}"),
    "npy": (
        made("save"),
        "is a NumPy array; write it by numpy.savez(FILE, x=…, y=…), and type python -m src.train "
        "data=npz",
    ),
    "npz": (
        made("savez"), "is a NumPy archive; type python -m src.train data=npz data.path=t.csv"
    ),
    "pickle": (pickle.dumps(CSV), f"is a pickle of Python; {SAVE}"),
    "sqlite": (database(), f"is an SQLite database; {SAVE}"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\n", f"is a PDF file; {SAVE}"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(60), f"is an HDF5 file; {SAVE}"),
    "picture": (made("picture"), f"is a picture; {SAVE}"),
    "html": (b"<!DOCTYPE html>\n<html><body>a,b", f"is a web page; {SAVE}"),
    "json": (json.dumps(FRAME.to_dicts()).encode(), f"is a JSON file; {SAVE}"),
    "json lines": (b'{"x": 1, "y": 2}\n{"x": 3, "y": 4}\n', f"is a JSON file; {SAVE}"),
    "json columns": (b'\xef\xbb\xbf{ "x": [1, 2], "y": [2, 3]}', f"is a JSON file; {SAVE}"),
}  # fmt: skip


def refused(path: Path, content: bytes, *, header_alone: bool) -> str:
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_table(path, header_alone=header_alone)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize("header_alone", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_kind_is_told(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, header_alone: bool
) -> None:
    """Under the names of each kind of table."""
    monkeypatch.chdir(tmp_path)
    content, told = KINDS[kind]
    assert refused(Path("t.csv"), content, header_alone=header_alone) == f"t.csv: {told}"
    what, _, cure = told.partition("; ")
    for name in ("t.arff", "t.zip", "t"):
        expected = f"{name}: {told}".replace("=t.csv", f"={name}")
        assert refused(Path(name), content, header_alone=header_alone) == expected
    for name, wanted in (("t.parquet", "a Parquet file"), ("t.xlsx", "an Excel workbook")):
        if kind == Path(name).suffix[1:]:
            continue
        expected = f"{name}: {what}, not {wanted}; {cure}".replace("=t.csv", f"={name}")
        assert refused(Path(name), content, header_alone=header_alone) == expected
    if not content.startswith(b"PK"):  # whose parts are not looked for there
        packed = refused(Path("t.csv.gz"), gzip.compress(content), header_alone=header_alone)
        assert packed.partition("; ")[0] == f"t.csv.gz: {what}"


def test_a_workbook_and_a_text_of_another_name(tmp_path: Path) -> None:
    book = tmp_path / "book.xlsx"
    write_workbook(book, [["x", "y"], [1, 2]])
    content = book.read_bytes()
    for name, wanted in (("t.csv", ""), ("t.parquet", ", not a Parquet file")):
        path = tmp_path / name
        expected = f"{path}: is an Excel workbook{wanted}; rename it to t.xlsx"
        assert refused(path, content, header_alone=True) == expected
    for text in (CSV.encode(), CSV.encode("utf-16"), "Köln,ü\n1,2\n".encode("cp1252")):
        for name, wanted in (("t.parquet", "a Parquet file"), ("t.xlsx", "an Excel workbook")):
            path = tmp_path / name
            expected = f"{path}: is a text file, not {wanted}; rename it to t.csv"
            assert refused(path, text, header_alone=True) == expected
    path = tmp_path / "t.xlsx"
    expected = f"{path}: is a gzip archive, not an Excel workbook; unpack it"
    assert refused(path, gzip.compress(content), header_alone=True) == expected


@pytest.mark.parametrize(
    "header", ["PAR1,PAR2", "BZh1,b", "[x],y", "%PDF,b", "{x},y", "<html5>,b", "PK,b", "Rar!,b"]
)
def test_names_of_columns_are_no_signatures(header: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\n1,2\n3,4\n")
    assert read_table(path).names == header.split(",")
