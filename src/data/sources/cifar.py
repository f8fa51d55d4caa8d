"""CIFAR-10 and CIFAR-100: colour pictures (N, 3, 32, 32) in pickled batches.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009. What a pickle names is
never looked up: it may hold plain values and NumPy's arrays of numbers alone.
"""

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from src.data.sources.downloads import Published, read_known
from src.data.sources.source import Source, Split
from src.system.errors import InputError
from src.system.files import MIB

BATCH_LIMIT = 256 * MIB  # CIFAR-100's training batch has 155,249,918 bytes
# Of what the published files name; numpy.core is where NumPy 1 had it.
ARRAY_PARTS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArraysAlone(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return ARRAY_PARTS[module, name]


def cifar10(root: Path) -> Source:
    """root/cifar-10-batches-py, as `_read`."""
    return _read("cifar10", "CIFAR10", root, "labels")


def cifar100(root: Path) -> Source:
    """root/cifar-100-python with its hundred fine labels, as `_read`."""
    return _read("cifar100", "CIFAR100", root, "fine_labels")


def _read(data: str, dataset: str, root: Path, key: str) -> Source:
    """Downloaded first where none of the files is there; uint8.

    The names of the files and their MD5 are torchvision's. A folder that has any of the files is
    read and never written. Raises InputError for a missing or altered file and an unwritable root,
    UnavailableError when the download fails.
    """
    from torchvision import datasets

    known = getattr(datasets, dataset)
    meta = known.meta
    digests = {**dict(known.train_list + known.test_list), meta["filename"]: meta["md5"]}
    folder = Published(dataset, known.base_folder, tuple(digests)).obtain(root)
    contents = {name: _unpickle(folder / name, digest, dataset) for name, digest in digests.items()}
    try:
        labels = tuple(str(name) for name in contents[meta["filename"]][meta["key"]])
        train = _split([contents[name] for name, _ in known.train_list], key, len(labels))
        test = _split([contents[name] for name, _ in known.test_list], key, len(labels))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{folder}: its batches are not {dataset}'s ({type(error).__name__}: {error}); move "
            "the folder away to have it downloaded again"
        ) from None
    return Source(data, train, test, labels)


def _split(batches: Sequence[dict[str, Any]], key: str, classes: int) -> Split:
    pixels = np.concatenate([batch["data"] for batch in batches])
    labels = np.array([label for batch in batches for label in batch[key]], np.int64)
    if pixels.dtype != np.uint8 or len(pixels) != len(labels):
        raise ValueError(f"{len(pixels)} pictures of {pixels.dtype}, {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels from {labels.min()} to {labels.max()} of {classes} classes")
    return Split(torch.from_numpy(pixels).view(-1, 3, 32, 32), torch.from_numpy(labels))


def _unpickle(path: Path, digest: str, title: str) -> Any:
    """The content is compared before any of it is interpreted, and never again read."""
    content = read_known(path, BATCH_LIMIT, digest, title)
    try:
        return _ArraysAlone(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a parser over what may be hostile bytes
        raise InputError(f"{path}: cannot be read as {title}'s pickle ({error})") from None
