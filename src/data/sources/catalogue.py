"""Finds the data set that a configuration names.

A new data set needs a module in this folder, a section in src/config/schema.py, and a YAML file in
conf/data, all of its name. The module has a function `open_source(config) -> Source`. Two more are
optional, because they are faster: `describe(config) -> Description` for the shape and the classes,
and `training_set(config) -> tuple[Split, tuple[str, ...]]` for the labels, groups and class names.
"""

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

from src.config import schema
from src.data.paths import FOLDERS, data_root
from src.data.sources.folds import training_and_validation
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


def require_divisible(configs: Iterable[schema.Data]) -> None:
    """Raises InputError if samples with groups cannot be divided, or cannot be loaded. Does not
    look at data sets without groups."""
    different = {}
    for config in configs:
        if getattr(config, "group", None) is not None:
            fold = None if config.folds is None else 0  # all folds come from the same division
            of_all = config.model_copy(update={"fold": fold})
            different[of_all.model_dump_json()] = of_all
    for config in different.values():
        module = _module(config)
        if hasattr(module, "training_set"):
            train, labels = module.training_set(config)
        else:
            source = open_source(config)
            train, labels = source.train, source.labels
        training_and_validation(train, config, labels)


def at_hand(config: schema.Data) -> bool:
    """Whether `open_source` works without a download."""
    if config.name not in FOLDERS:
        return True
    folder = data_root(config.root) / FOLDERS[config.name]
    return folder.is_dir() and any(folder.iterdir())


def _module(config: schema.Data) -> ModuleType:
    return import_module(f"{__package__}.{FAMILIES.get(config.name, config.name)}")
