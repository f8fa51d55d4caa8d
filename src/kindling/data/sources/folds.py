"""The folds of a cross-validation: parts of the training set, each the validation set of trials."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kindling.config import schema
from kindling.data.sources.source import Groups, Split, split_off_validation
from kindling.system.errors import InputError


class Folds:
    """The samples of a training set, divided into parts of about equal size."""

    def __init__(self, train: Split, count: int, seed: int, names: Sequence[str] = ()) -> None:
        """Each class is divided too: parts have its samples in equal numbers, to one sample. Groups
        are not divided, so then the numbers are only as equal as the groups allow. Raises
        InputError when a class, by one of `names`, has fewer samples than there are parts, when
        there are fewer groups than parts, when a group is larger than a part, when a part gets no
        group, and when all samples of a class are in one part."""
        from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold  # slow to import

        labels = train.strata.numpy()
        classes, sizes = np.unique(labels, return_counts=True)
        if sizes.min() < count:
            rare, fewest = int(classes[sizes.argmin()]), int(sizes.min())
            least = f"type data.folds={fewest} or less" if fewest > 1 else "add samples"
            one = f"class {names[rare] if names else rare} has"
            if len(classes) == 1:
                one = "there are"
            raise InputError(
                f"data.folds={count}: {one} only {fewest} of {len(labels)} training samples; "
                f"{least}"
            )
        groups = train.groups
        if groups is not None:
            _require_small(groups, count)
        kind = StratifiedKFold if groups is None else StratifiedGroupKFold
        numbers = None if groups is None else groups.numbers.numpy()
        divided = kind(count, shuffle=True, random_state=seed).split(labels, labels, numbers)
        self.train, self.part_of = train, torch.empty(len(labels), dtype=torch.int64)
        for number, (_, chosen) in enumerate(divided):
            self.part_of[torch.from_numpy(chosen)] = number
        self.sizes = torch.bincount(self.part_of, minlength=count)
        if groups is not None:
            if not self.sizes.all():  # scikit-learn looks at the classes before the sizes
                raise InputError(
                    f"data.folds={count}: fold {int(self.sizes.argmin())} would have no group of "
                    f"{groups.setting}; type fewer folds, or another data.split_seed"
                )
            self._require_all_classes(count, groups, names)

    def _require_all_classes(self, count: int, groups: Groups, names: Sequence[str]) -> None:
        """Raises InputError if the samples outside of a part lack a class."""
        for label in torch.bincount(self.train.strata).nonzero().squeeze(1).tolist():
            parts = self.part_of[self.train.strata == label]
            if (parts == parts[0]).all():
                name = names[label] if names else label
                raise InputError(
                    f"data.folds={count}: fold {int(parts[0])} has all {len(parts)} samples of "
                    f"class {name}, so its trial would train without them; add groups of "
                    f"{groups.setting} with this class, or leave the class out"
                )

    @property
    def training_samples(self) -> int:
        """The samples of the smallest training set."""
        return len(self.train) - int(self.sizes.max())

    def training_rows(self, fold: int) -> Tensor:
        """The rows (n,) of the samples outside of a fold."""
        return (self.part_of != fold).nonzero().squeeze(1)

    def validation(self, fold: int) -> Split:
        return self.train.take(self.part_of == fold)


def _require_small(groups: Groups, count: int) -> None:
    """Raises InputError if there are fewer groups than parts, or if a group is larger than a part.
    With as many groups as parts, each group is a part, of at most half of the samples."""
    sizes, total = groups.sizes(), len(groups.numbers)
    number = int((sizes > 0).sum())
    if number < count:
        remedy = f"type data.folds={number} or less" if number > 1 else "choose smaller groups"
        raise InputError(
            f"data.folds={count}: {groups.setting} has only {number} "
            f"group{'s' if number > 1 else ''} in the training set; {remedy}"
        )
    largest = int(sizes.argmax())
    size = int(sizes[largest])
    if size > (total // 2 if number == count else math.ceil(total / count)):
        fewer = next((n for n in range(count - 1, 1, -1) if size <= math.ceil(total / n)), None)
        remedy = "choose smaller groups" if fewer is None else f"type data.folds={fewer}"
        raise InputError(
            f"data.folds={count}: the group {groups.called(largest)} of {groups.setting} has "
            f"{size} of {total} training samples, more than a fold; {remedy}"
        )


def training_and_validation(
    train: Split, config: schema.Data, names: Sequence[str] = (), own: Split | None = None
) -> tuple[Split, Split]:
    """The samples of a training set that a run of this configuration trains on, and those that the
    run is validated on: `own`, if the data have a validation set. Raises InputError when one of the
    two would be empty, when the training set would be divided beside `own`, and as Folds."""
    if own is not None:
        has = "the data have a validation set of their own"
        if config.folds is not None:
            raise InputError(
                f"data.folds={config.folds}: {has}, and folds would not use it; type "
                "data.folds=null data.fold=null, or add its samples to the training set"
            )
        if config.val_fraction is None:
            raise InputError(
                f"data.val_fraction=null: {has}; leave data.val_fraction out, or remove that set "
                "to validate on the training set"
            )
        return train, own
    if config.folds is None or config.fold is None:
        return split_off_validation(train, config.val_fraction, config.split_seed)
    folds = Folds(train, config.folds, config.split_seed, names)
    return train.take(folds.training_rows(config.fold)), folds.validation(config.fold)


def training_samples(
    train: Split, config: schema.Data, names: Sequence[str] = (), own: Split | None = None
) -> int:
    """The samples of an epoch of a run of this configuration. Raises InputError as
    training_and_validation."""
    rows = Split(torch.arange(len(train)), train.labels, train.groups)
    if config.folds is not None and own is None:
        return Folds(rows, config.folds, config.split_seed, names).training_samples
    return len(training_and_validation(rows, config, names, own)[0])
