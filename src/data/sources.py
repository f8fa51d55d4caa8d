"""Data sets: each one function from its configuration to tensors in memory.

A new data set is a function here, a section in src/config.py and a YAML in conf/data.
"""

import hashlib
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from src import config as schema
from src.errors import InputError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split:
    """Features (N, *shape) as uint8 or float32, labels (N,) as int64."""

    features: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> "Split":
        return Split(self.features[indices], self.labels[indices])

    def to(self, device: torch.device) -> "Split":
        return Split(self.features.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Source:
    """A data set: what is trained on, and a test set that nothing but the final test touches.

    `instead_of` names the data set that could not be had, with the reason.
    """

    name: str
    train: Split
    test: Split
    classes: int
    instead_of: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.train.features.shape[1:])


class UnavailableError(Exception):
    """A data set that cannot be had here and now."""


def as_float(features: Tensor) -> Tensor:
    """uint8 scaled to [0, 1] exactly as torchvision's ToTensor does; floats as they are."""
    if features.dtype == torch.uint8:
        return features.to(torch.float32).div_(255)
    return features


def open_source(config: schema.Data) -> Source:
    """Loads the configured data set, or its fallback where it cannot be had.

    Raises InputError for damaged files, a root that cannot be written, and for a data set
    without fallback that cannot be had.
    """
    match config:
        case schema.Mnist():
            root = Path(config.root or os.environ.get("DATA_ROOT") or "data")
            try:
                return mnist(root)
            except UnavailableError as error:
                if config.fallback is None:
                    raise InputError(
                        f"data=mnist: {error}. Either put the four raw files into "
                        f"{root / 'MNIST/raw'} or name the folder that has MNIST/raw with "
                        "data.root=FOLDER or DATA_ROOT=FOLDER; or type data=digits, which "
                        "needs no download"
                    ) from None
                return replace(digits(), instead_of=f"mnist, for {error}")
        case schema.Digits():
            return digits()
        case schema.Toy():
            return toy(config.factor)
        case schema.Synthetic():
            return synthetic(config)


# --- MNIST -----------------------------------------------------------------------------------

# MD5 of the uncompressed files; LeCun, Cortes, Burges: the MNIST database.
MNIST_FILES = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
MNIST_BYTES = {"images": 47_040_016, "labels": 60_008}


def mnist(root: Path) -> Source:
    """The four files under root/MNIST/raw, downloaded first where there is none of them.

    Features (N, 1, 28, 28), uint8. A folder that has any of the files is read and never written.
    Raises InputError for a missing or altered file and an unwritable root, UnavailableError when
    the download fails.
    """
    raw = root / "MNIST" / "raw"
    if not any((raw / name).exists() for name in MNIST_FILES):
        _download_mnist(root)
    parts = {name: _read_idx(raw / name, digest) for name, digest in MNIST_FILES.items()}

    def split(prefix: str) -> Split:
        images, labels = parts[f"{prefix}-images-idx3-ubyte"], parts[f"{prefix}-labels-idx1-ubyte"]
        return Split(images[16:].view(-1, 1, 28, 28), labels[8:].long())

    return Source("mnist", split("train"), split("t10k"), classes=10)


def _read_idx(path: Path, digest: str) -> Tensor:
    """The bytes of one file, known by their digest; so the header needs no reading."""
    try:
        with path.open("rb") as file:
            content = bytearray(file.read(MNIST_BYTES["images"] + 1))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != digest:
        raise InputError(
            f"{path}: is not MNIST's file: its MD5 is {found}, expected {digest}. It was left as "
            "it is; replace it, or move it away to have it downloaded again"
        )
    return torch.frombuffer(content, dtype=torch.uint8)


def _download_mnist(root: Path) -> None:
    """Downloads beside the target and renames, so that root never holds half a data set."""
    created = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".download-", dir=root))
    except OSError as error:
        raise InputError(
            f"data.root={root}: cannot be written ({error.strerror}); type data.root=FOLDER with "
            "a folder that can, or that has MNIST/raw already"
        ) from None
    try:
        from torchvision.datasets import MNIST

        log.info("downloading MNIST to %s", root)
        with _timeout(20):
            MNIST(str(beside), download=True)
        for archive in (beside / "MNIST" / "raw").glob("*.gz"):
            archive.unlink()
        (root / "MNIST").mkdir(exist_ok=True)
        try:
            (beside / "MNIST" / "raw").rename(root / "MNIST" / "raw")
        except OSError:
            if not (root / "MNIST" / "raw").exists():  # else another run was faster
                raise
    except (OSError, RuntimeError) as error:
        raise UnavailableError(f"the download failed ({str(error).splitlines()[0]})") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        for folder in created:
            if not any(folder.iterdir()):
                folder.rmdir()


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """torchvision's download waits for ever on a silent network."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


# --- data that needs no download -------------------------------------------------------------


def digits() -> Source:
    """scikit-learn's 1,797 handwritten digits of 8×8, scaled to (1, 28, 28) in [0, 1], float32.

    The digit fills the middle 20×20 pixels, as in MNIST; scaled to the whole picture it has twice
    MNIST's energy, and recipes made for MNIST diverge. Every fifth sample is the test set.
    UCI's "Optical recognition of handwritten digits".
    """
    from sklearn.datasets import load_digits

    content = load_digits()
    small = torch.from_numpy(content.images).float().div_(16).unsqueeze(1)
    middle = torch.nn.functional.interpolate(small, size=(20, 20), mode="bilinear")
    features = torch.nn.functional.pad(middle, (4, 4, 4, 4))
    everything = Split(features, torch.from_numpy(content.target).long())
    is_test = torch.arange(len(everything)) % 5 == 4
    return Source("digits", everything.take(~is_test), everything.take(is_test), classes=10)


def toy(factor: int) -> Source:
    """Raschka's five training and two test points ("PyTorch in One Hour"), features (N, 2).

    factor > 1 gives that many noisy copies of each set (normal, standard deviation 0.1, from a
    stream of their own); factor 1 gives the printed points.
    """
    train = Split(
        torch.tensor([[-1.2, 3.1], [-0.9, 2.9], [-0.5, 2.6], [2.3, -1.1], [2.7, -1.5]]),
        torch.tensor([0, 0, 0, 1, 1]),
    )
    test = Split(torch.tensor([[-0.8, 2.8], [2.6, -1.6]]), torch.tensor([0, 1]))
    if factor > 1:
        noise = torch.Generator().manual_seed(123)

        def repeat(split: Split) -> Split:
            features = split.features.repeat(factor, 1)
            features += 0.1 * torch.randn(features.shape, generator=noise)
            return Split(features, split.labels.repeat(factor))

        train, test = repeat(train), repeat(test)
    return Source("toy", train, test, classes=2)


def synthetic(config: schema.Synthetic) -> Source:
    """Standard normal features (N, *shape), uniform random labels; the same on every machine."""
    stream = torch.Generator().manual_seed(0)

    def draw(samples: int) -> Split:
        features = torch.randn(samples, *config.shape, generator=stream)
        return Split(features, torch.randint(config.classes, (samples,), generator=stream))

    return Source(
        "synthetic", draw(config.samples), draw(config.test_samples), classes=config.classes
    )


# --- splits ----------------------------------------------------------------------------------


def held_out(train: Split, fraction: float | None, seed: int) -> tuple[Split, Split]:
    """The training set as (train, validation), drawn with `seed`; order within is the original.

    With fraction None nothing is held out and validation is the training set itself. Raises
    InputError when either part would be empty.
    """
    if fraction is None:
        return train, train
    validation = round(len(train) * fraction)
    if not 0 < validation < len(train):
        raise InputError(
            f"data.val_fraction={fraction}: of {len(train)} samples {validation} would be held "
            "out; type data.val_fraction=null to hold out none"
        )
    stream = torch.Generator().manual_seed(seed)
    permutation = torch.randperm(len(train), generator=stream)
    mask = np.zeros(len(train), dtype=bool)
    mask[permutation[:validation].numpy()] = True
    is_validation = torch.from_numpy(mask)
    return train.take(~is_validation), train.take(is_validation)
