"""Data sets: each one function from its configuration to splits, a module per family.

A new data set is a function, a section in src/config/schema.py, a YAML in conf/data and a case
here.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from src.config import schema
from src.data.paths import FOLDERS, named_root
from src.data.sources.cifar import cifar10, cifar100
from src.data.sources.downloads import UnavailableError
from src.data.sources.embedded import digits, synthetic, toy
from src.data.sources.mnist import fashion_mnist, kmnist, mnist
from src.data.sources.source import Source
from src.data.sources.user_files import read_files
from src.system.errors import InputError

PUBLISHED: dict[str, Callable[[Path], Source]] = {
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "kmnist": kmnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
}


def open_source(config: schema.Data) -> Source:
    """Loads the configured data set, or its fallback where it cannot be had.

    Raises InputError for damaged or missing files, a root that cannot be written, and for a data
    set that cannot be had and has no fallback, or whose folder somebody named.
    """
    match config:
        case schema.Mnist() | schema.Torchvision():
            return _published(config)
        case schema.Digits():
            return digits()
        case schema.Toy():
            return toy(config.factor)
        case schema.Synthetic():
            return synthetic(config)
        case schema.ImageFolder() | schema.Npz() | schema.Csv():
            return read_files(config)


def at_hand(config: schema.Data) -> bool:
    """Whether `open_source` will read files, or make the data, without a download."""
    if not isinstance(config, schema.Mnist | schema.Torchvision):
        return True
    folder = _root(config) / FOLDERS[config.name]
    return folder.is_dir() and any(folder.iterdir())


def _root(config: schema.Mnist | schema.Torchvision) -> Path:
    named = named_root(config.root)
    return Path("data") if named is None else named[0]


def _published(config: schema.Mnist | schema.Torchvision) -> Source:
    root, folder = _root(config), FOLDERS[config.name]
    try:
        return PUBLISHED[config.name](root)
    except UnavailableError as error:
        unnamed = named_root(config.root) is None
        if isinstance(config, schema.Mnist) and config.fallback is not None and unnamed:
            return replace(digits(), instead_of=f"mnist, for {error}")
        raise InputError(
            f"data={config.name}: {error}. Either put its files, unpacked, into {root / folder} or "
            f"name the folder that has {folder} with data.root=FOLDER or DATA_ROOT=FOLDER; or type "
            "data=digits, which needs no download"
        ) from None
