"""Finds the data set that a configuration names.

A new data set needs a module in this folder, a section in config/schema.py, and a YAML file in
conf/data, all of its name. The module has a function `open_source(config) -> Source`. Two more are
optional, because they are faster: `describe(config) -> Description` for the shape and the classes,
and `undecoded(config) -> Source` for the labels, the groups and the names of the classes.

A section whose `tasks` are more than classification has functions (config, task). Labels of a
regression are numbers (N, outputs), float64, in their own unit; those of several labels are 0 or 1,
float32.
"""

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

import torch

from kindling.config import schema
from kindling.config.measures import CLASSIFICATION, REGRESSION, outputs_of
from kindling.config.registry import is_lightning, location
from kindling.config.schema import OLD_TASK, Config
from kindling.data.sources.arrays import checked
from kindling.data.sources.folds import training_and_validation
from kindling.data.sources.source import Description, Source, Split, require_weight
from kindling.data.targets import Targets
from kindling.system.errors import InputError, reading

# Data sets that share a module.
FAMILIES = dict.fromkeys(("mnist", "fashion_mnist", "kmnist", "cifar10", "cifar100"), "published")


_open: WeakValueDictionary[object, Source] = WeakValueDictionary()  # those that somebody holds


def open_source(config: schema.Data, task: schema.Task = OLD_TASK) -> Source:
    """Loads the configured data set. Labels of a regression are standardised by those of the
    training samples. While somebody holds the source of the same file and settings, returns it.
    Raises InputError for missing, damaged or too large data."""
    stamp = _stamp(config)
    key = stamp and (stamp, config.model_dump_json(), task.model_dump_json())
    source = _open.get(key) if key else None
    if source is None:
        source = _opened(config, task)
        if key:
            _open[key] = source
    return source


def _stamp(config: schema.Data) -> object:
    """What changes with the content of the table of a configuration; None for other data."""
    if not isinstance(config, schema.Csv):
        return None
    found = []
    for path in filter(None, (config.path, config.val_path)):
        with reading(path):
            stat = Path(path).resolve().stat()
        found.append((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def _opened(config: schema.Data, task: schema.Task) -> Source:
    source: Source = _call("open_source", config, task)
    if where := location("data", config.name):
        source = checked(source, f"data={config.name}: open_source of {where}", task.name)
    if task.name != REGRESSION:
        return source
    splits = (source.train, source.validation, source.test)
    if not all(split.labels.isfinite().all() for split in splits if split is not None):
        raise InputError(f"data={config.name}: a label is not finite; correct it, or leave it out")
    train = source.train
    rows = Split(torch.arange(len(train)), train.labels, train.groups, train.weights)
    trained = training_and_validation(rows, config, source.labels, source.validation)[0]
    require_weight(trained.weights, config.name, "training")
    targets = Targets.learn(
        trained.labels.double(),
        source.labels,
        trained.weights,
        raw=not outputs_of(task.loss).standardised,
    )
    return replace(source.with_labels(targets.standardised), targets=targets)


def describe(config: schema.Data, task: schema.Task = OLD_TASK) -> Description:
    """The shape of a sample, and the number of classes. Raises InputError as `open_source`."""
    if hasattr(_module(config), "describe"):
        description: Description = _call("describe", config, task)
        return description
    source = _undecoded(config, task)
    return Description(source.shape, source.classes)


def require_divisible(configs: Iterable[Config]) -> None:
    """Raises InputError if samples with groups cannot be divided, or cannot be loaded, in every
    data set with groups: one alone would fail in its own trials. Ignores data sets without groups.
    """
    different = {}
    for config in configs:
        if getattr(config.data, "group", None) is not None:
            fold = None if config.data.folds is None else 0  # all folds come from one division
            of_all = config.data.model_copy(update={"fold": fold})
            different[of_all.model_dump_json()] = of_all, config.task
    faults = []
    for data, task in different.values():
        try:
            source = _undecoded(data, task)
            training_and_validation(source.train, data, source.labels, source.validation)
        except InputError as error:
            faults.append(error)
    if faults and len(faults) == len(different):
        raise faults[0]


def _undecoded(config: schema.Data, task: schema.Task) -> Source:
    if not hasattr(_module(config), "undecoded"):
        return open_source(config, task)
    source: Source = _call("undecoded", config, task)
    return source


def _call(function: str, config: schema.Data, task: schema.Task) -> Any:
    of_tasks = config.tasks != (CLASSIFICATION,)
    return getattr(_module(config), function)(config, *([task] if of_tasks else []))


def _module(config: schema.Data) -> ModuleType:
    if is_lightning("data", config.name):
        raise InputError(
            f"data={config.name}: is a LightningDataModule, whose samples only a LightningModule "
            "reads; choose other data"
        )
    own = f"{__package__}.{FAMILIES.get(config.name, config.name)}"
    return import_module(location("data", config.name) or own)
