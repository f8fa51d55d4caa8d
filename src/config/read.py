"""A configuration read from a file."""

from pathlib import Path

from src.config.faults import check
from src.config.schema import Config
from src.system.errors import InputError
from src.system.files import read_yaml


def read_config(path: Path) -> Config:
    """The configuration in a run folder's file. Raises InputError for any other file."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: is not a configuration")
    try:
        return check(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
