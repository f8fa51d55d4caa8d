"""A configuration read from a file."""

from pathlib import Path

from src.config import schema
from src.config.schema import Config
from src.system.errors import InputError
from src.system.files import read_yaml


def read_config(path: Path) -> Config:
    """A configuration as a run folder holds it. Raises InputError when the file is none."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: is not a configuration")
    try:
        return schema.check(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
