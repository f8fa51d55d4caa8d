"""What extensions bring: data sets, commands, configurations and readers of pictures.

An installed package names a module under the entry point group `kindling.extensions`. The module
registers what it brings when it is imported, and does not import torch: modules and functions that
need torch are named in texts, and are imported when they are used.
"""

import functools
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from kindling.config.section import DataSection

GROUP = "kindling.extensions"
# The extension in the same wheel. A checkout that is not installed has no entry points.
OWN = "kindling_digits.extension"

DATA_SECTIONS: list[type[DataSection]] = []
DATA_MODULES: dict[str, str] = {}  # by data.name
DATA_FOLDERS: dict[str, str] = {}  # by data.name, of what is downloaded
COMMANDS: dict[str, str] = {}  # modules by the name of the command
CONFIG_FOLDERS: list[Path] = []
PICTURE_READERS = {"whole": "kindling.inference.pictures"}  # modules by DataSection.pictures


def register_data(section: type[DataSection], module: str, folder: str | None = None) -> None:
    """A data set with the default of `section.name`. The module has the functions that
    data/sources/catalogue.py lists. `folder` is where the data are downloaded, below data.root."""
    (name,) = get_args(section.model_fields["name"].annotation)
    DATA_SECTIONS.append(section)
    DATA_MODULES[name] = module
    if folder is not None:
        DATA_FOLDERS[name] = folder


def register_command(name: str, module: str) -> None:
    """`kindling NAME` calls `main` of the module; its docstring is the help."""
    COMMANDS[name] = module


def register_configs(folder: Path) -> None:
    """A folder as conf/, with a folder for each group."""
    CONFIG_FOLDERS.append(folder)


def register_pictures(name: str, module: str) -> None:
    """A module as inference/pictures.py, for data sets whose `pictures` is the name."""
    PICTURE_READERS[name] = module


@functools.cache
def load_extensions() -> None:
    modules = {point.value for point in entry_points(group=GROUP)}
    if find_spec(OWN.partition(".")[0]):
        modules.add(OWN)
    for module in sorted(modules):
        import_module(module)
