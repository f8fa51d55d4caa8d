"""Checks of data.root and data.path before torch is imported."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from src.data.folders import class_folders
from src.data.tables import read_header
from src.system.errors import InputError
from src.system.files import kind

FOLDERS = {  # of the published data sets, below data.root; each is downloaded there if it is absent
    "mnist": "MNIST/raw",
    "mnist_and_none": "MNIST/raw",
    "fashion_mnist": "FashionMNIST/raw",
    "kmnist": "KMNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
}


def named_root(root: str | None) -> tuple[Path, str] | None:
    """The folder that data.root or else DATA_ROOT names, and the setting as it was typed."""
    if root is not None:
        return Path(root), f"data.root={root}"
    found = os.environ.get("DATA_ROOT")
    return (Path(found), f"DATA_ROOT={found}") if found else None


def data_root(root: str | None) -> Path:
    """The folder of the published data sets: the named one, or `data`."""
    named = named_root(root)
    return Path("data") if named is None else named[0]


def path_faults(data: Mapping[str, Any]) -> list[str]:
    """A text for each fault of the section's folders and files, found without reading the data.
    Absent keys and wrong types are left to the schema."""
    name, path = data.get("name"), data.get("path")
    try:
        if name in FOLDERS:
            return list(_root_faults(data, str(name)))
        if isinstance(path, str) and path:
            return list(_file_faults(data, str(name), Path(path)))
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
        table = read_header(path)
        for key in ("target", "group", "drop"):
            given = data.get(key)
            names = given if isinstance(given, list) else [given]
            yield from table.missing([str(n) for n in names if n not in (None, "")], f"data.{key}")
