"""Checks of data.root and data.path before torch is imported."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kindling.config.registry import DATA_FOLDERS
from kindling.config.schema import Data
from kindling.data.folders import class_folders
from kindling.data.tables.reading import read_table
from kindling.system.colour import note_name
from kindling.system.errors import InputError
from kindling.system.files import kind

FOLDERS = {  # of the published data sets, below data.root; each is downloaded there if it is absent
    "mnist": "MNIST/raw",
    "fashion_mnist": "FashionMNIST/raw",
    "kmnist": "KMNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    **DATA_FOLDERS,
}


def named_root(root: str | None) -> tuple[Path, str] | None:
    """The folder that data.root or else DATA_ROOT names, and the setting as it was typed."""
    note_name(root or os.environ.get("DATA_ROOT", ""))
    if root is not None:
        return Path(root), f"data.root={root}"
    found = os.environ.get("DATA_ROOT")
    return (Path(found), f"DATA_ROOT={found}") if found else None


def data_root(root: str | None) -> Path:
    """The folder of the published data sets: the named one, or `data`."""
    named = named_root(root)
    return Path("data") if named is None else named[0]


def at_hand(data: Data) -> bool:
    """Whether nothing is downloaded, because the data set is there or is no published one."""
    if data.name not in FOLDERS:
        return True
    with suppress(OSError, ValueError):
        return any((data_root(data.root) / FOLDERS[data.name]).iterdir())
    return False


def has_data(data: Data) -> bool:
    """Whether nothing is downloaded to data.root."""
    return data.root is None or at_hand(data)


def path_faults(data: Mapping[str, Any]) -> list[str]:
    """A text for each fault of the section's folders and files, found without reading the data.
    Absent keys and wrong types are left to the schema."""
    name, path = str(data.get("name")), data.get("path")
    for key in ("path", "val_path"):
        note_name(data.get(key))
    note_name(Path.cwd())
    try:
        if name in FOLDERS:
            return list(_root_faults(data, name))
        if isinstance(path, str) and path:
            return list(_file_faults(data, name, Path(path)))
    except InputError as error:
        return [str(error)]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return [f"data.{'root' if name in FOLDERS else 'path'}: cannot be read ({reason})"]
    return []


def _root_faults(data: Mapping[str, Any], name: str) -> Iterator[str]:
    root, folder = data.get("root"), FOLDERS[name]
    named = named_root(root) if root is None or isinstance(root, str) else None
    if named is None:
        return
    path, given = named
    instead = ", or leave it out" if data.get("fallback") else ", or make it first"
    if not path.exists():
        yield f"{given}: there is no such folder; name the folder that has {folder}{instead}"
    elif not path.is_dir():
        yield f"{given}: is not a folder; name the folder that has {folder}"
    elif data.get("fallback") and not (path / folder).is_dir():
        yield (
            f"{given}: has no {folder}; name the folder that has, or type data={name} to have it "
            "downloaded there"
        )


def _file_faults(data: Mapping[str, Any], name: str, path: Path) -> Iterator[str]:
    if not path.exists():
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        yield f"data.path={path}: there is no such file or folder{where}"
    elif name == "image_folder":
        if path.is_dir():
            class_folders(path)
        else:
            yield f"data.path={path}: is a file; name the folder that has one for each class"
    elif path.is_dir():
        yield (
            f"data.path={path}: is a folder; name a file, or type data=image_folder for pictures "
            "in folders"
        )
    elif not path.is_file():
        yield f"data.path={path}: is {kind(path.stat())}, must be a file"
    elif name == "csv":
        yield from _table_faults(data, path, ("target", "group", "weights", "drop"))
        other = data.get("val_path")
        if isinstance(other, str) and not Path(other).is_file():
            yield f"data.val_path={other}: there is no such file; name a .csv file"
        elif isinstance(other, str):
            yield from _table_faults(data, Path(other), ("target", "group", "weights"))


def _table_faults(data: Mapping[str, Any], path: Path, keys: Sequence[str]) -> Iterator[str]:
    table = read_table(path, header_alone=True)
    for key in keys:
        given = data.get(key)
        names = given if isinstance(given, list) else [given]
        lacking = table.missing([str(n) for n in names if n not in (None, "")], f"data.{key}")
        yield from (f"{path}: {text}" for text in lacking)
