"""A data set in memory: its splits of features and labels, and facts about them."""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kindling.config.written import typed
from kindling.data.arrays import ArrayReading
from kindling.data.tables.columns import Columns
from kindling.data.targets import Targets
from kindling.system.errors import InputError

log = logging.getLogger(__name__)

DIGITS = tuple("0123456789")
COPIES = 2  # how often a resident data set lies in memory while its splits are drawn


@dataclass(frozen=True)
class Description:
    """The shape of one sample, and the number of outputs of a model."""

    shape: tuple[int, ...]
    classes: int


@dataclass(frozen=True)
class Groups:
    """The group of each sample. Samples of one group never come into different splits."""

    setting: str  # as typed, such as data.group=patient
    names: Sequence[str]
    numbers: Tensor  # (N,) int64, places in `names`

    def take(self, chosen: Tensor | slice) -> "Groups":
        return Groups(self.setting, self.names, self.numbers[chosen])

    def sizes(self) -> Tensor:
        """The samples of each group, (groups,)."""
        return torch.bincount(self.numbers, minlength=len(self.names))

    def called(self, number: int) -> str:
        """A group for a message."""
        return repr(self.names[number][:80])


def require_weight(weights: Tensor | None, data: str, part: str) -> None:
    """Raises InputError if none of the samples of a part has a weight."""
    if weights is not None and not weights.any():
        raise InputError(
            f"data={data}: all {len(weights):,} {part} samples have the weight 0; give one of them "
            "a weight, or type another data.split_seed"
        )


def grouped(group: object, names: Sequence[str]) -> Groups:
    """The groups of samples, from data.group and the name of each one's group. The groups are
    sorted as numbers if all are finite numbers, else as texts."""
    distinct = sorted(set(names))
    with suppress(ValueError):
        values = {name: float(name) for name in distinct}
        if all(map(math.isfinite, values.values())):
            distinct.sort(key=lambda name: values[name])
    number_of = {name: number for number, name in enumerate(distinct)}
    numbers = torch.tensor([number_of[name] for name in names], dtype=torch.int64)
    return Groups(typed("data.group", group), distinct, numbers)


@dataclass(frozen=True)
class Split:
    """Features (N, *shape) as uint8 or float32. Labels: classes (N,) as int64, or numbers
    (N, outputs), of a regression standardised, as float32."""

    features: Tensor
    labels: Tensor
    groups: Groups | None = None
    weights: Tensor | None = None  # (N,) float32, of the samples in losses and scores; None: all 1

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.features.shape[1:])

    def take(self, chosen: Tensor | slice) -> "Split":
        """The samples that int64 indices, a bool mask or a slice choose. A slice copies nothing."""
        groups = None if self.groups is None else self.groups.take(chosen)
        weights = None if self.weights is None else self.weights[chosen]
        features, labels = self.features, self.labels
        if isinstance(chosen, Tensor) and chosen.dtype == torch.int64:
            # index_select takes less than half the time of [] with indices.
            features, labels = (part.index_select(0, chosen) for part in (features, labels))
        else:
            features, labels = features[chosen], labels[chosen]
        return Split(features, labels, groups, weights)

    def to(self, device: torch.device) -> "Split":
        """The samples on a device, without groups: such a split is not divided again."""
        weights = None if self.weights is None else self.weights.to(device)
        return Split(self.features.to(device), self.labels.to(device), None, weights)

    @property
    def strata(self) -> Tensor:
        """The class of each sample, (N,) int64; without classes, 0."""
        labels = torch.as_tensor(self.labels)  # an extension's may be of any integers, or NumPy's
        if labels.is_floating_point() or labels.dim() > 1:
            return torch.zeros(len(self), dtype=torch.int64)
        return labels.long()

    @cached_property  # all trials of a stack ask for it
    def most_frequent(self) -> float | None:
        """The share of the most frequent class: the accuracy of always answering this class. None
        without classes."""
        if self.labels.dtype != torch.int64:
            return None
        return int(torch.bincount(self.labels).max()) / len(self)

    def empty_classes(self, names: Sequence[str]) -> list[str]:
        """The names of the classes without a sample; `names` are those of all classes."""
        if self.labels.dtype != torch.int64:
            return []
        counts = torch.bincount(self.labels, minlength=len(names)).tolist()
        return [name for name, count in zip(names, counts, strict=True) if not count]


@dataclass(frozen=True)
class Source:
    """A data set. Without `validation`, the validation set is drawn from `train`; only the final
    test uses `test`."""

    name: str
    train: Split
    test: Split
    labels: tuple[str, ...]  # names of classes 0, 1, …, of labels, or of the numbers
    validation: Split | None = None  # a validation set of the user's own
    instead_of: str | None = None  # the data set that was not available, and why
    digest: str | None = None  # of the user's own files, which may change between runs
    validation_digest: str | None = None  # of a validation set in a file of its own
    skipped: int = 0  # the number of broken files
    columns: Columns | None = None  # how a table's rows become features
    arrays: ArrayReading | None = None  # how arrays become features; None: they are features
    targets: Targets | None = None  # how numbers were standardised
    notes: Sequence[tuple[int, str]] = ()  # levels of logging, and what was done with the data

    def tell(self) -> None:
        """Logs the notes."""
        for level, text in self.notes:
            log.log(level, "%s", text)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.train.shape

    @property
    def classes(self) -> int:
        """The number of outputs of a model."""
        return len(self.labels)

    def with_labels(self, change: Callable[[Tensor], Tensor]) -> "Source":
        """The source with other labels."""
        splits = {
            name: replace(split, labels=change(split.labels))
            for name in ("train", "validation", "test")
            if (split := getattr(self, name)) is not None
        }
        return replace(self, **splits)


def as_float(features: Tensor) -> Tensor:
    """Scales uint8 to [0, 1] exactly as torchvision's ToTensor; leaves floats unchanged."""
    if features.dtype == torch.uint8:
        return features.to(torch.float32).div_(255)
    return features


def float_copy(features: Tensor) -> Tensor:
    """`as_float`, but never in the same memory: a model may change its inputs in place."""
    return features.clone() if features.is_floating_point() else as_float(features)


def split_off_validation(train: Split, fraction: float | None, seed: int) -> tuple[Split, Split]:
    """Splits the training set at random into (train, validation), both in the original order. If
    `fraction` is None, both are the whole set. Raises InputError when a split would be empty, and
    for groups as `split_off_groups`."""
    if fraction is None:
        return train, train
    if train.groups is not None:
        return split_off_groups(train, train.groups, fraction, seed, "data.val_fraction")
    count = round(len(train) * fraction)
    if not 0 < count < len(train):
        raise InputError(
            f"data.val_fraction={fraction}: the validation set would have {count} of "
            f"{len(train)} samples; type data.val_fraction=null to validate on the training set"
        )
    permutation = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    is_validation = torch.zeros(len(train), dtype=torch.bool)
    is_validation[permutation[:count]] = True
    return _apart(train, is_validation)


def split_off_test(everything: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """Splits a data set at random into (train, test), both in the original order.

    The test set gets `fraction` of the samples of each class, rounded; at least one sample of each
    class stays in the training set. Raises InputError when the test set would be empty, and for
    groups as `split_off_groups`.
    """
    if everything.groups is not None:
        return split_off_groups(everything, everything.groups, fraction, seed, "data.test_fraction")
    stream = torch.Generator().manual_seed(seed)
    is_test = torch.zeros(len(everything), dtype=torch.bool)
    strata = everything.strata
    for label in torch.unique(strata):
        members = (strata == label).nonzero().squeeze(1)
        count = min(round(len(members) * fraction), len(members) - 1)
        is_test[members[torch.randperm(len(members), generator=stream)[:count]]] = True
    if len(torch.unique(strata)) == len(everything) > 1:
        raise InputError(
            f"each of the {len(everything)} samples has a class of its own, so no class can be "
            "learnt; name the classes by another column or array"
        )
    if not is_test.any():
        raise InputError(
            f"data.test_fraction={fraction}: the test set would have none of {len(everything)} "
            "samples; type a larger fraction, for example data.test_fraction=0.5"
        )
    return _apart(everything, is_test)


def _apart(split: Split, held_out: Tensor) -> tuple[Split, Split]:
    return split.take(~held_out), split.take(held_out)


def split_off_groups(
    split: Split, groups: Groups, fraction: float, seed: int, key: str
) -> tuple[Split, Split]:
    """Splits off whole groups, with about `fraction` of the samples of each class.

    Takes a group, in a random order, if that brings the shares of the classes closer to `fraction`
    in the sum of squares, and leaves a sample of each class. Raises InputError, which names the
    setting `key`, if there is only one group, or if no group can be taken.
    """
    sizes, total = groups.sizes(), len(split)
    present = sizes.nonzero().squeeze(1)
    if len(present) == 1:
        raise InputError(
            f"{groups.setting}: all {total} samples are of group {groups.called(int(present))}, "
            "which is not divided; choose groups of which there are two or more"
        )
    classes, labels = torch.unique(split.strata, return_inverse=True)
    counts = torch.zeros(len(sizes), len(classes), dtype=torch.float64)
    counts.index_put_((groups.numbers, labels), torch.ones(total).double(), accumulate=True)
    shares = (counts / counts.sum(0)).numpy()  # of each class that a group has
    taken, chosen = np.zeros(len(classes)), np.zeros(len(sizes), dtype=bool)
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed))
    for group in order.tolist():
        more = taken + shares[group]
        closer = ((more - fraction) ** 2).sum() < ((taken - fraction) ** 2).sum()
        if closer and more.max() < 1 - 0.5 / total:
            taken, chosen[group] = more, True
    if not chosen.any():
        least = int(present[sizes[present].argmin()])
        raise InputError(
            f"{key}={fraction}: {groups.setting} has no group that can be held out, because each "
            "is too large or has all samples of a class; the smallest group, "
            f"{groups.called(least)}, has {int(sizes[least])} of {total} samples; type a larger "
            f"{key}, or choose smaller groups"
        )
    return _apart(split, torch.from_numpy(chosen)[groups.numbers])
