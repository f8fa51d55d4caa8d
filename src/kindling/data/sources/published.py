"""Published data sets, found below data.root, or downloaded there by torchvision.

MNIST, Fashion-MNIST and KMNIST: pictures (N, 1, 28, 28) in IDX files. CIFAR-10 and CIFAR-100:
colour pictures (N, 3, 32, 32) in pickled batches; Krizhevsky: Learning Multiple Layers of Features
from Tiny Images, 2009. A pickle may hold plain values and NumPy's arrays of numbers; nothing else
that a pickle names is ever imported.
"""

import hashlib
import io
import logging
import math
import os
import pickle
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kindling.config import schema
from kindling.data.paths import FOLDERS, data_root, named_root
from kindling.data.sources.digits import digits
from kindling.data.sources.source import DIGITS, Description, Source, Split
from kindling.system.errors import InputError, parsing, reading
from kindling.system.files import open_regular
from kindling.system.units import MIB

log = logging.getLogger(__name__)

# MD5 of the uncompressed files; LeCun, Cortes, Burges: the MNIST database.
MNIST_FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
LARGEST = 256 * MIB  # CIFAR-100's training batch has 155,249,918 bytes
PART = 4 * MIB
TIMEOUT = 20  # seconds; torchvision's download would wait for ever on a silent network
# All names in the published files; numpy.core is where NumPy 1 had them.
ARRAY_PARTS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


@dataclass(frozen=True)
class IdxSet:
    """A data set's name in torchvision.datasets, its classes, and known MD5s of its files."""

    dataset: str
    labels: tuple[str, ...]
    digests: Mapping[str, str] = field(default_factory=dict)


SETS = {
    "mnist": IdxSet("MNIST", DIGITS, MNIST_FILES),
    "fashion_mnist": IdxSet(  # photographs of clothing; Xiao, Rasul, Vollgraf, 2017
        "FashionMNIST",
        (
            "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
            "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
        ),
    ),
    "kmnist": IdxSet(  # characters of cursive Japanese, by their sounds; Clanuwat and others, 2018
        "KMNIST", ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    ),
}  # fmt: skip
# The names in torchvision.datasets, and the keys of the labels in the batches.
CIFAR_SETS = {"cifar10": ("CIFAR10", "labels"), "cifar100": ("CIFAR100", "fine_labels")}


class UnavailableError(Exception):
    """A data set that is not on this machine and cannot be downloaded now."""


def open_source(config: schema.Mnist | schema.Torchvision) -> Source:
    read = _read_cifar if config.name in CIFAR_SETS else read_idx_set
    fallback = getattr(config, "fallback", None) is not None
    return open_published(config.name, config.root, read, fallback)


def describe(config: schema.Mnist | schema.Torchvision) -> Description:
    if config.name in CIFAR_SETS:
        return Description((3, 32, 32), 100 if config.name == "cifar100" else 10)
    return Description((1, 28, 28), len(SETS[config.name].labels))


def open_published(
    name: str, named: str | None, read: Callable[[str, Path], Source], fallback: bool = False
) -> Source:
    """The result of `read(name, root)`, or of an unavailable data set the fallback, the digits.
    `named` is data.root. Raises InputError as `read`, and where there is no fallback or the user
    named the root."""
    root, folder = data_root(named), FOLDERS[name]
    try:
        return read(name, root)
    except UnavailableError as error:
        if fallback and named_root(named) is None:
            return replace(digits(), instead_of=f"{name}, because {error}")
        raise InputError(
            f"data={name}: {error}. Either put its files, unpacked, into {root / folder} or "
            f"name the folder that has {folder} with data.root=FOLDER or DATA_ROOT=FOLDER; or type "
            "data=digits, which needs no download"
        ) from None


def obtain(name: str, dataset: str, files: Iterable[str], root: Path) -> Path:
    """The folder of a data set's files, downloaded by torchvision when none of them is there; a
    folder with any of the files is never written.

    Raises InputError for a root that cannot be written, UnavailableError when the download fails.
    """
    folder = root / FOLDERS[name]
    if not any((folder / file).exists() for file in files):
        download(dataset, FOLDERS[name], root)
    return folder


def download(dataset: str, folder: str, root: Path) -> None:
    """Downloads beside the target and renames, so that the root never holds half a data set."""
    created = [parent for parent in (root, *root.parents) if not parent.exists()]
    target = root / folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".download-", dir=root))
    except OSError as error:
        raise InputError(
            f"data.root={root}: cannot be written ({error.strerror}); type data.root=FOLDER "
            f"with a folder that can, or that has {folder} already"
        ) from None
    usual_timeout = socket.getdefaulttimeout()
    try:
        from torchvision import datasets

        log.info("downloading %s to %s", dataset, root)
        socket.setdefaulttimeout(TIMEOUT)
        getattr(datasets, dataset)(str(beside), download=True)
        for archive in (beside / folder).glob("*.gz"):
            archive.unlink()
        target.parent.mkdir(exist_ok=True)
        try:
            (beside / folder).rename(target)
        except OSError:
            if not target.exists():  # otherwise another run was faster
                raise
    except (OSError, RuntimeError, HTTPException) as error:
        # The last of torchvision's lines has the reason; the others have its attempts.
        last = str(error).strip().rpartition("\n")[2].strip(" <>")
        reason = last.removeprefix("urlopen error ")[:100] or type(error).__name__
        raise UnavailableError(f"the download failed ({reason})") from None
    finally:
        socket.setdefaulttimeout(usual_timeout)
        shutil.rmtree(beside, ignore_errors=True)
        for parent in created:
            if not any(parent.iterdir()):
                parent.rmdir()


def _read_known(path: Path, digest: str | None, title: str) -> bytearray:
    """The content of a file, of which at most LARGEST bytes are read. Raises InputError when the
    file cannot be read or its MD5 is not `digest`."""
    md5 = hashlib.md5(usedforsecurity=False)
    # One part is hashed while the next one is read.
    with reading(path), open_regular(path) as file, ThreadPoolExecutor(1) as hashing:
        content = bytearray(min(os.fstat(file.fileno()).st_size, LARGEST + 1))
        known, size = memoryview(content), 0
        while size < len(content) and (read := file.readinto(known[size : size + PART])):
            hashing.submit(md5.update, known[size : size + read])
            size += read
    content = content[:size] if size < len(content) else content
    found = md5.hexdigest()
    if digest not in (None, found):
        raise InputError(
            f"{path}: is not {title}'s file: its MD5 is {found}, expected {digest}. It was left "
            "as it is; replace it, or move it away to have it downloaded again"
        )
    return content


def read_idx_set(name: str, root: Path) -> Source:
    """Four files below the root; uint8. Raises InputError for an altered file, and as `obtain`."""
    which = SETS[name]
    folder, title = obtain(name, which.dataset, MNIST_FILES, root), which.dataset

    def split(prefix: str) -> Split:
        images, labels = (
            read_idx(folder / name, which.digests.get(name), title)
            for name in MNIST_FILES
            if name.startswith(prefix)
        )
        if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1] or not len(labels):
            raise InputError(
                f"{folder}: its {prefix} files hold pictures {tuple(images.shape)} and labels "
                f"{tuple(labels.shape)}, expected (N, 28, 28) and (N,); move them away to have "
                f"{title} downloaded again"
            )
        if labels.max() >= len(which.labels):
            raise InputError(
                f"{folder / f'{prefix}-labels-idx1-ubyte'}: has the label {labels.max()}, must be "
                f"from 0 to {len(which.labels) - 1}"
            )
        return Split(images.unsqueeze(1), labels.long())

    return Source(name, split("train"), split("t10k"), which.labels)


def read_idx(path: Path, digest: str | None, title: str) -> Tensor:
    """The array of an IDX file of bytes, in the shape that its header gives.

    The header has two zeros, 8 for unsigned bytes, the number of dimensions, and the size of each
    dimension in four bytes, the highest byte first (LeCun's page of MNIST). Raises InputError for
    any other content, and when the MD5 is not `digest`.
    """
    content = _read_known(path, digest, title)
    dimensions = content[3] if len(content) > 3 and content[:3] == b"\0\0\x08" else 0
    header = 4 + 4 * dimensions
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    if not dimensions or len(content) != header + math.prod(sizes):
        raise InputError(
            f"{path}: is not a complete IDX file of bytes: it has {len(content):,} bytes, and its "
            f"header gives the shape {tuple(sizes)}. It was left as it is; replace it, or move "
            "it away to have it downloaded again"
        )
    values = np.frombuffer(content, np.uint8, offset=header)
    return torch.from_numpy(values.reshape(sizes))


def _read_cifar(name: str, root: Path) -> Source:
    """The batches below the root; uint8. The names of the files and their MD5 are torchvision's.
    Raises InputError for a missing or altered file, and as `obtain`."""
    from torchvision import datasets

    dataset, key = CIFAR_SETS[name]
    known = getattr(datasets, dataset)
    meta = known.meta
    digests = {**dict(known.train_list + known.test_list), meta["filename"]: meta["md5"]}
    folder = obtain(name, dataset, digests, root)
    contents = {file: _unpickle(folder / file, digest, dataset) for file, digest in digests.items()}
    try:
        labels = tuple(str(label) for label in contents[meta["filename"]][meta["key"]])
        train = _cifar_split([contents[file] for file, _ in known.train_list], key, len(labels))
        test = _cifar_split([contents[file] for file, _ in known.test_list], key, len(labels))
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{folder}: its batches are not {dataset}'s ({type(error).__name__}: {error}); move "
            "the folder away to have it downloaded again"
        ) from None
    return Source(name, train, test, labels)


def _cifar_split(batches: Sequence[dict[str, Any]], key: str, classes: int) -> Split:
    pixels = np.concatenate([batch["data"] for batch in batches])
    labels = np.array([label for batch in batches for label in batch[key]], np.int64)
    if pixels.dtype != np.uint8 or len(pixels) != len(labels):
        raise ValueError(f"{len(pixels)} pictures of {pixels.dtype}, {len(labels)} labels")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels from {labels.min()} to {labels.max()} of {classes} classes")
    return Split(torch.from_numpy(pixels).view(-1, 3, 32, 32), torch.from_numpy(labels))


class _ArraysAlone(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAY_PARTS:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return ARRAY_PARTS[module, name]


def _unpickle(path: Path, digest: str, title: str) -> Any:
    """Compares the content with its MD5 before any of the content is interpreted."""
    content = io.BytesIO(_read_known(path, digest, title))
    with parsing(f"{path}: cannot be read as {title}'s pickle"):
        return _ArraysAlone(content, encoding="latin1").load()
