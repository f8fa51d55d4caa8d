"""A data set in memory: its splits of features and labels, and facts about them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from src.data.tables import Columns
from src.system.errors import InputError

DIGITS = tuple("0123456789")
COPIES = 2  # of a resident data set in memory, while its splits are drawn


@dataclass(frozen=True)
class Description:
    """The shape of one sample, and the number of classes."""

    shape: tuple[int, ...]
    classes: int


@dataclass(frozen=True)
class Split:
    """Features (N, *shape) as uint8 or float32, labels (N,) as int64."""

    features: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.features.shape[1:])

    def take(self, chosen: Tensor | slice) -> "Split":
        """The samples at indices (int64), of a mask (bool), or of a slice, which copies nothing."""
        if isinstance(chosen, Tensor) and chosen.dtype == torch.int64:
            # index_select takes less than half the time of [] with indices.
            return Split(self.features.index_select(0, chosen), self.labels.index_select(0, chosen))
        return Split(self.features[chosen], self.labels[chosen])

    def to(self, device: torch.device) -> "Split":
        return Split(self.features.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Source:
    """A data set: a training set, which the validation set is drawn from, and a test set, which
    only the final test uses."""

    name: str
    train: Split
    test: Split
    labels: tuple[str, ...]  # names of classes 0, 1, …
    instead_of: str | None = None  # the data set that was not available, and why
    digest: str | None = None  # of the user's own files, which may change between runs
    skipped: int = 0  # broken files
    columns: Columns | None = None  # how a table's rows become features

    @property
    def shape(self) -> tuple[int, ...]:
        return self.train.shape

    @property
    def classes(self) -> int:
        return len(self.labels)


def as_float(features: Tensor) -> Tensor:
    """Scales uint8 to [0, 1] exactly as torchvision's ToTensor; leaves floats unchanged."""
    if features.dtype == torch.uint8:
        return features.to(torch.float32).div_(255)
    return features


def held_out(train: Split, fraction: float | None, seed: int) -> tuple[Split, Split]:
    """Splits the training set into (train, validation) at random, in the original order; without a
    fraction both are the whole set. Raises InputError when a part would be empty."""
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


def with_test(everything: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Splits a data set without a test set into (train, test) at random.

    Each class gives the test set a rounded `fraction` of its samples, never all of them. Both parts
    keep the original order. Raises InputError when the test set would be empty.
    """
    stream = torch.Generator().manual_seed(seed)
    is_test = torch.zeros(len(everything), dtype=torch.bool)
    for label in torch.unique(everything.labels):
        members = (everything.labels == label).nonzero().squeeze(1)
        count = min(round(len(members) * fraction), len(members) - 1)
        is_test[members[torch.randperm(len(members), generator=stream)[:count]]] = True
    if not is_test.any():
        raise InputError(
            f"data.test_fraction={fraction}: of {len(everything)} samples none would be tested; "
            "type a larger one, for example data.test_fraction=0.5"
        )
    return everything.take(~is_test), everything.take(is_test)


def without_samples(split: Split, labels: Sequence[str]) -> list[str]:
    """The classes without a sample in the split."""
    counts = torch.bincount(split.labels, minlength=len(labels)).tolist()
    return [label for label, count in zip(labels, counts, strict=True) if not count]
