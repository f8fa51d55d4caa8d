"""Finds the data set that a configuration names.

A new data set needs a module in this folder, a section in config/schema.py, and a YAML file in
conf/data, all of its name. The module has a function `open_source(config) -> Source`. Two more are
optional, because they are faster: `describe(config) -> Description` for the shape and the classes,
and `training_set(config) -> tuple[Split, Split | None, tuple[str, ...]]` for the labels and groups
of the training set and of a validation set of its own, and the names of the classes.
"""

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

from kindling.config import schema
from kindling.config.registry import is_lightning, place
from kindling.data.sources.folds import training_and_validation
from kindling.data.sources.source import Description, Source, Split
from kindling.system.errors import InputError

# Data sets that share a module.
FAMILIES = dict.fromkeys(("mnist", "fashion_mnist", "kmnist", "cifar10", "cifar100"), "published")


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
    train, _, labels = _training_set(config)
    return Description(train.shape, len(labels))


def require_divisible(configs: Iterable[schema.Data]) -> None:
    """Raises InputError if samples with groups cannot be divided, or cannot be loaded, in every
    data set with groups: one alone would fail in its own trials. Ignores data sets without groups.
    """
    different = {}
    for config in configs:
        if getattr(config, "group", None) is not None:
            fold = None if config.folds is None else 0  # all folds come from the same division
            of_all = config.model_copy(update={"fold": fold})
            different[of_all.model_dump_json()] = of_all
    faults = []
    for config in different.values():
        try:
            train, own, labels = _training_set(config)
            training_and_validation(train, config, labels, own)
        except InputError as error:
            faults.append(error)
    if faults and len(faults) == len(different):
        raise faults[0]


def _training_set(config: schema.Data) -> tuple[Split, Split | None, tuple[str, ...]]:
    module = _module(config)
    if hasattr(module, "training_set"):
        found: tuple[Split, Split | None, tuple[str, ...]] = module.training_set(config)
        return found
    source = open_source(config)
    return source.train, source.validation, source.labels


def _module(config: schema.Data) -> ModuleType:
    if is_lightning("data", config.name):
        raise InputError(
            f"data={config.name}: is a LightningDataModule, whose samples only a LightningModule "
            "reads; choose other data"
        )
    own = f"{__package__}.{FAMILIES.get(config.name, config.name)}"
    return import_module(place("data", config.name) or own)
