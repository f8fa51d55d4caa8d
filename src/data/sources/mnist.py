"""MNIST, Fashion-MNIST and KMNIST: pictures (N, 1, 28, 28) in IDX files."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from src.config import schema
from src.data.sources.downloads import obtain, open_published, read_known
from src.data.sources.source import DIGITS, Description, Source, Split
from src.system.errors import InputError
from src.system.files import MIB

# MD5 of the uncompressed files; LeCun, Cortes, Burges: the MNIST database.
MNIST_FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
IDX_LIMIT = 64 * MIB  # the largest file has 47,040,016 bytes


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


def open_source(config: schema.Mnist | schema.Torchvision) -> Source:
    return open_published(config, read_idx_set)


def describe(config: schema.Mnist | schema.Torchvision) -> Description:
    return Description((1, 28, 28), len(SETS[config.name].labels))


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
    content = read_known(path, IDX_LIMIT, digest, title)
    dimensions = content[3] if len(content) > 3 and content[:3] == b"\0\0\x08" else 0
    header = 4 + 4 * dimensions
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    if not dimensions or len(content) != header + math.prod(sizes):
        raise InputError(
            f"{path}: is not a complete IDX file of bytes: it has {len(content):,} bytes, and its "
            f"header gives the shape {tuple(sizes)}. It was left as it is; replace it, or move "
            "it away to have it downloaded again"
        )
    if not math.prod(sizes):
        return torch.zeros(sizes, dtype=torch.uint8)
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).view(sizes)
