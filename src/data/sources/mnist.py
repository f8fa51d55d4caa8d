"""MNIST and the sets that were made in its likeness: pictures (N, 1, 28, 28) in IDX files."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from src.data.sources.downloads import Published, read_known
from src.data.sources.source import DIGITS, Source, Split
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
    """`data`: its name in the configuration; `digests`: MD5 of the files where it is known."""

    data: str
    published: Published
    labels: tuple[str, ...]
    digests: dict[str, str] = field(default_factory=dict)


FASHION_MNIST = IdxSet(
    "fashion_mnist",
    Published("FashionMNIST", "FashionMNIST/raw", tuple(MNIST_FILES)),
    (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
)  # fmt: skip
KMNIST = IdxSet(
    "kmnist",
    Published("KMNIST", "KMNIST/raw", tuple(MNIST_FILES)),
    ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
)
MNIST = IdxSet("mnist", Published("MNIST", "MNIST/raw", tuple(MNIST_FILES)), DIGITS, MNIST_FILES)


def mnist(root: Path) -> Source:
    """The four files under root/MNIST/raw, as `read_idx_set`."""
    return read_idx_set(MNIST, root)


def fashion_mnist(root: Path) -> Source:
    """Photographs of clothing; Xiao, Rasul, Vollgraf, 2017. As `read_idx_set`."""
    return read_idx_set(FASHION_MNIST, root)


def kmnist(root: Path) -> Source:
    """Ten characters of cursive Japanese, named by their sounds; Clanuwat and others, 2018. As
    `read_idx_set`."""
    return read_idx_set(KMNIST, root)


def read_idx_set(which: IdxSet, root: Path) -> Source:
    """Four files under the root, downloaded first where there is none of them; uint8.

    A folder that has any of the files is read and never written. Raises InputError for a missing
    or altered file and an unwritable root, UnavailableError when the download fails.
    """
    folder, title = which.published.obtain(root), which.published.dataset

    def split(prefix: str) -> Split:
        images, labels = (
            read_idx(folder / name, which.digests.get(name), title)
            for name in which.published.files
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

    return Source(which.data, split("train"), split("t10k"), which.labels)


def read_idx(path: Path, digest: str | None, title: str) -> Tensor:
    """The array of an IDX file of bytes, in the shape that its header gives.

    Two zeros, 8 for unsigned bytes, the number of dimensions, the size of each in four bytes, the
    highest first, and the values (LeCun's page of MNIST). Raises InputError for anything else,
    and where the MD5 is another than `digest`.
    """
    content = read_known(path, IDX_LIMIT, digest, title)
    dimensions = content[3] if len(content) > 3 and content[:3] == b"\0\0\x08" else 0
    header = 4 + 4 * dimensions
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    if not dimensions or len(content) != header + math.prod(sizes):
        raise InputError(
            f"{path}: is no whole IDX file of bytes, it has {len(content):,} of them and its "
            f"header gives the shape {tuple(sizes)}. It was left as it is; replace it, or move "
            "it away to have it downloaded again"
        )
    if not math.prod(sizes):
        return torch.zeros(sizes, dtype=torch.uint8)
    return torch.frombuffer(content, dtype=torch.uint8, offset=header).view(sizes)
