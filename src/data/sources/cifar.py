"""CIFAR-10 and CIFAR-100: colour pictures (N, 3, 32, 32) in pickled batches.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009. A pickle may hold plain
values and NumPy's arrays of numbers; nothing else that a pickle names is ever imported.
"""

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from src.config import schema
from src.data.sources.downloads import obtain, open_published, read_known
from src.data.sources.source import Description, Source, Split
from src.system.errors import InputError
from src.system.files import MIB

BATCH_LIMIT = 256 * MIB  # CIFAR-100's training batch has 155,249,918 bytes
# All names in the published files; numpy.core is where NumPy 1 had them.
ARRAY_PARTS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _CifarSet(NamedTuple):
    """Its name in torchvision.datasets, and the key of the labels in its batches."""

    dataset: str
    label_key: str
    classes: int


SETS = {
    "cifar10": _CifarSet("CIFAR10", "labels", 10),
    "cifar100": _CifarSet("CIFAR100", "fine_labels", 100),
}


class _ArraysAlone(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return ARRAY_PARTS[module, name]


def open_source(config: schema.Torchvision) -> Source:
    return open_published(config, _read)


def describe(config: schema.Torchvision) -> Description:
    return Description((3, 32, 32), SETS[config.name].classes)


def _read(name: str, root: Path) -> Source:
    """The batches below the root; uint8. The names of the files and their MD5 are torchvision's.
    Raises InputError for a missing or altered file, and as `obtain`."""
    from torchvision import datasets

    dataset, key, _ = SETS[name]
    known = getattr(datasets, dataset)
    meta = known.meta
    digests = {**dict(known.train_list + known.test_list), meta["filename"]: meta["md5"]}
    folder = obtain(name, dataset, digests, root)
    contents = {file: _unpickle(folder / file, digest, dataset) for file, digest in digests.items()}
    try:
        labels = tuple(str(label) for label in contents[meta["filename"]][meta["key"]])
        train = _split([contents[file] for file, _ in known.train_list], key, len(labels))
        test = _split([contents[file] for file, _ in known.test_list], key, len(labels))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{folder}: its batches are not {dataset}'s ({type(error).__name__}: {error}); move "
            "the folder away to have it downloaded again"
        ) from None
    return Source(name, train, test, labels)


def _split(batches: Sequence[dict[str, Any]], key: str, classes: int) -> Split:
    pixels = np.concatenate([batch["data"] for batch in batches])
    labels = np.array([label for batch in batches for label in batch[key]], np.int64)
    if pixels.dtype != np.uint8 or len(pixels) != len(labels):
        raise ValueError(f"{len(pixels)} pictures of {pixels.dtype}, {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels from {labels.min()} to {labels.max()} of {classes} classes")
    return Split(torch.from_numpy(pixels).view(-1, 3, 32, 32), torch.from_numpy(labels))


def _unpickle(path: Path, digest: str, title: str) -> Any:
    """Compares the content with its MD5 before any of the content is interpreted."""
    content = read_known(path, BATCH_LIMIT, digest, title)
    try:
        return _ArraysAlone(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a parser over what may be hostile bytes
        raise InputError(f"{path}: cannot be read as {title}'s pickle ({error})") from None
