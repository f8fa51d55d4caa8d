"""A data set in memory: its splits of features and labels, and facts about them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from src.data.tables import Columns
from src.system.errors import InputError

DIGITS = tuple("0123456789")
COPIES = 2  # how often a resident data set lies in memory while its splits are drawn


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
        """The samples that int64 indices, a bool mask or a slice choose. A slice copies nothing."""
        if isinstance(chosen, Tensor) and chosen.dtype == torch.int64:
            # index_select takes less than half the time of [] with indices.
            return Split(self.features.index_select(0, chosen), self.labels.index_select(0, chosen))
        return Split(self.features[chosen], self.labels[chosen])

    def to(self, device: torch.device) -> "Split":
        return Split(self.features.to(device), self.labels.to(device))

    def empty_classes(self, names: Sequence[str]) -> list[str]:
        """The names of the classes without a sample; `names` are those of all classes."""
        counts = torch.bincount(self.labels, minlength=len(names)).tolist()
        return [name for name, count in zip(names, counts, strict=True) if not count]


@dataclass(frozen=True)
class Source:
    """A data set. The validation set is drawn from `train`; only the final test uses `test`."""

    name: str
    train: Split
    test: Split
    labels: tuple[str, ...]  # names of classes 0, 1, …
    instead_of: str | None = None  # the data set that was not available, and why
    digest: str | None = None  # of the user's own files, which may change between runs
    skipped: int = 0  # the number of broken files
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


def split_off_validation(train: Split, fraction: float | None, seed: int) -> tuple[Split, Split]:
    """Splits the training set at random into (train, validation), both in the original order. If
    `fraction` is None, both are the whole set. Raises InputError when a split would be empty."""
    if fraction is None:
        return train, train
    count = round(len(train) * fraction)
    if not 0 < count < len(train):
        raise InputError(
            f"data.val_fraction={fraction}: the validation set would have {count} of "
            f"{len(train)} samples; type data.val_fraction=null to validate on the training set"
        )
    stream = torch.Generator().manual_seed(seed)
    permutation = torch.randperm(len(train), generator=stream)
    mask = np.zeros(len(train), dtype=bool)
    mask[permutation[:count].numpy()] = True
    is_validation = torch.from_numpy(mask)
    return train.take(~is_validation), train.take(is_validation)


def split_off_test(everything: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Splits a data set at random into (train, test), both in the original order.

    The test set gets `fraction` of the samples of each class, rounded; at least one sample of each
    class stays in the training set. Raises InputError when the test set would be empty.
    """
    stream = torch.Generator().manual_seed(seed)
    is_test = torch.zeros(len(everything), dtype=torch.bool)
    for label in torch.unique(everything.labels):
        members = (everything.labels == label).nonzero().squeeze(1)
        count = min(round(len(members) * fraction), len(members) - 1)
        is_test[members[torch.randperm(len(members), generator=stream)[:count]]] = True
    if not is_test.any():
        raise InputError(
            f"data.test_fraction={fraction}: the test set would have none of {len(everything)} "
            "samples; type a larger fraction, for example data.test_fraction=0.5"
        )
    return everything.take(~is_test), everything.take(is_test)
