"""Finds the data set that a configuration names.

A new data set needs a module in this folder, a section in src/config/schema.py, and a YAML file in
conf/data, all of its name. The module has a function `open_source(config) -> Source`, and may have
`describe(config) -> Description`, which tells shape and classes faster than by opening the data.
"""

from importlib import import_module
from types import ModuleType

from src.config import schema
from src.data.paths import FOLDERS, data_root
from src.data.sources.source import Description, Source

# Data sets that share a module.
FAMILIES = {"fashion_mnist": "mnist", "kmnist": "mnist", "cifar10": "cifar", "cifar100": "cifar"}


def open_source(config: schema.Data) -> Source:
    """Loads the configured data set. Raises InputError for missing, damaged or too large data."""
    source: Source = _module(config).open_source(config)
    return source


def describe(config: schema.Data) -> Description:
    """The shape of a sample, and the number of classes. Raises InputError as `open_source`."""
    module = _module(config)
    if hasattr(module, "describe"):
        description: Description = module.describe(config)
        return description
    source = open_source(config)
    return Description(source.shape, source.classes)


def at_hand(config: schema.Data) -> bool:
    """Whether `open_source` works without a download."""
    if config.name not in FOLDERS:
        return True
    folder = data_root(config.root) / FOLDERS[config.name]
    return folder.is_dir() and any(folder.iterdir())


def _module(config: schema.Data) -> ModuleType:
    return import_module(f"{__package__}.{FAMILIES.get(config.name, config.name)}")
