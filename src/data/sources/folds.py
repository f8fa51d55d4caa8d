"""The folds of a cross-validation: parts of the training set, each the validation set of trials."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from src.config import schema
from src.data.sources.source import Split, split_off_validation
from src.system.errors import InputError


class Folds:
    """The samples of a training set, divided into parts of about equal size."""

    def __init__(self, train: Split, count: int, seed: int, names: Sequence[str] = ()) -> None:
        """Each class is divided too: parts have its samples in equal numbers, to one sample. Raises
        InputError, with the class by one of `names`, when a class has fewer samples than there are
        parts."""
        labels = train.labels.numpy()
        classes, sizes = np.unique(labels, return_counts=True)
        if sizes.min() < count:
            rare, fewest = int(classes[sizes.argmin()]), int(sizes.min())
            least = f"type data.folds={fewest} or less" if fewest > 1 else "add samples"
            raise InputError(
                f"data.folds={count}: class {names[rare] if names else rare} has only {fewest} of "
                f"{len(labels)} training samples; {least}"
            )
        self.train, self.part_of = train, torch.from_numpy(_divided(labels, count, seed))
        self.sizes = torch.bincount(self.part_of, minlength=count)

    @property
    def training_samples(self) -> int:
        """The samples of the smallest training set."""
        return len(self.train) - int(self.sizes.max())

    def training_rows(self, fold: int) -> Tensor:
        """The rows (n,) of the samples outside of a fold."""
        return (self.part_of != fold).nonzero().squeeze(1)

    def validation(self, fold: int) -> Split:
        return self.train.take(self.part_of == fold)


def _divided(labels: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    from sklearn.model_selection import StratifiedKFold  # slow to import, and seldom needed

    parts = np.empty(len(labels), np.int64)
    divider = StratifiedKFold(count, shuffle=True, random_state=seed)
    for number, (_, chosen) in enumerate(divider.split(labels, labels)):
        parts[chosen] = number
    return parts


def training_and_validation(
    train: Split, config: schema.Data, names: Sequence[str] = ()
) -> tuple[Split, Split]:
    """The samples of a training set that a run of this configuration trains on, and those that the
    run is validated on. Raises InputError when one of the two would be empty, and as Folds."""
    if config.folds is None or config.fold is None:
        return split_off_validation(train, config.val_fraction, config.split_seed)
    folds = Folds(train, config.folds, config.split_seed, names)
    return train.take(folds.training_rows(config.fold)), folds.validation(config.fold)
