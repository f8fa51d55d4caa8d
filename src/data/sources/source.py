"""What a source gives: splits of features and labels, and what is known of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from src.data.tables import Columns
from src.system.errors import InputError

DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class Split:
    """Features (N, *shape) as uint8 or float32, labels (N,) as int64."""

    features: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return tuple(self.features.shape[1:])

    def take(self, chosen: Tensor | slice) -> "Split":
        """The samples of those indices (int64), of a mask (bool), or a view of a slice."""
        if isinstance(chosen, Tensor) and chosen.dtype == torch.int64:
            # Less than half the time of [] with indices.
            return Split(self.features.index_select(0, chosen), self.labels.index_select(0, chosen))
        return Split(self.features[chosen], self.labels[chosen])

    def to(self, device: torch.device) -> "Split":
        return Split(self.features.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Source:
    """A data set: what is trained on, and a test set that nothing but the final test touches.

    `labels` are the names of classes 0, 1, …. `instead_of` names the data set that could not be
    had, with the reason. Of files that anybody may change, `digest` tells their content apart;
    `skipped` were broken.
    """

    name: str
    train: Split
    test: Split
    labels: tuple[str, ...]
    instead_of: str | None = None
    digest: str | None = None
    skipped: int = 0
    columns: Columns | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.train.shape

    @property
    def classes(self) -> int:
        return len(self.labels)


def as_float(features: Tensor) -> Tensor:
    """uint8 scaled to [0, 1] exactly as torchvision's ToTensor does; floats as they are."""
    if features.dtype == torch.uint8:
        return features.to(torch.float32).div_(255)
    return features


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


def with_test(everything: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """A data set that has no test set as (train, test), drawn with `seed` from each class by
    itself: a rounded `fraction` of it, and never all. Order within is the original.

    Raises InputError when no class has enough samples to give one.
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
    """The classes that no sample of the split is of."""
    counts = torch.bincount(split.labels, minlength=len(labels)).tolist()
    return [label for label, count in zip(labels, counts, strict=True) if not count]
