"""Configurations that come with a folder, a bundle or a checkpoint, perhaps a stranger's: nothing
is written where their paths lead. Nothing here imports torch."""

import os
import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from kindling.config.overrides import key_of, parse
from kindling.config.schema import Config
from kindling.data.paths import has_data
from kindling.system.errors import InputError
from kindling.system.files import read_bounded, require_regular

# The keys of a configuration whose paths are written to.
WRITTEN = ("data.root", "logger.mlflow_file")


def require_own_paths(
    configs: Sequence[Config],
    folders: Sequence[Path],
    command: str | None = None,
    typed: Sequence[str] = (),
) -> None:
    """Raises InputError, with a line for each path that leads out of the first of `folders`, unless
    nothing would be written there, a run in one of the folders has written there before, or
    `typed`, the overrides of `command` for WRITTEN, have the same path."""
    had = {pair for config in configs for pair in _paths(config).items()}
    given = {(key_of(text), _value(text)) for text in typed}
    faults = [
        f"{key}={value}: {folders[0]} has another; leave it out" for key, value in given - had
    ]
    paths = dict.fromkeys(path for config in configs for path in _written(config, folders))
    for key, value in paths:
        if (key, value) not in given:
            remedy = "set it to null there"
            if command is not None:
                remedy = f"if you want that, type {command} {shlex.quote(f'{key}={value}')}"
            faults.append(
                f"{key}={value}: comes with {folders[-1]}, perhaps from a stranger, and would be "
                f"written to, outside {folders[0]}; {remedy}"
            )
    if faults:
        raise InputError("\n  ".join(faults))


def _value(text: str) -> Any:
    override = parse(text, [])
    return None if override is None else override.value()


def _paths(config: Config) -> dict[str, str | None]:
    return dict(zip(WRITTEN, (config.data.root, config.logger.mlflow_file), strict=True))


def _written(config: Config, folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """The keys and paths outside the folder that would be written to."""
    for key, path in _paths(config).items():
        if path is None or _inside(path, folders[0]):
            continue
        if key == "data.root":
            harmless = has_data(config.data)
        else:
            harmless = not config.logger.mlflow or _has_logged(folders, Path(path))
        if not harmless:
            yield key, path


def _inside(path: str, folder: Path) -> bool:
    root = os.path.realpath(folder)
    return os.path.commonpath([root, os.path.realpath(path)]) == root


def _has_logged(folders: Sequence[Path], database: Path) -> bool:
    """Whether a run of these folders is in a database of MLflow. No stranger can have put it there,
    so the path is the user's own."""
    with suppress(OSError, ValueError, sqlite3.Error, InputError):
        own = {
            read_bounded(file, 100).decode()
            for folder in folders
            for file in (folder / ".identity", *folder.glob("*/.identity"))
            if file.exists() and _inside(str(file), folder)  # not through a link to other runs
        }
        require_regular(database, database.stat())
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as known:
            rows = known.execute("SELECT value FROM tags WHERE key = 'kindling.id'")
            return any(value in own for (value,) in rows)
    return False
