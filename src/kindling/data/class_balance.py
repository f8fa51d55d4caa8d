"""Rare classes: the weights of the classes in the loss, and orders that draw all classes alike."""

import torch
from torch import Tensor

from kindling.config.written import written
from kindling.data.loader import random_stream
from kindling.data.sources.source import Source, Split
from kindling.system.errors import InputError

BALANCED = "balanced"


def class_weights(
    setting: list[float] | str | None, train: Split, source: Source
) -> tuple[float, ...] | None:
    """The weight of each class in the loss; None if `trainer.class_weights` is null.

    `balanced` gives samples / (classes · samples of the class) in the training split, as scikit-
    learn's compute_class_weight. Raises InputError when the number of weights is not the number of
    classes, and for `balanced` when the training split has no sample of a class.
    """
    if setting is None:
        return None
    if setting == BALANCED:
        counts = _counts(train, source, "trainer.class_weights")
        return tuple((len(train) / (source.classes * counts)).tolist())
    if len(setting) != source.classes:
        labels = ", ".join(source.labels[:10]) + (", …" if source.labels[10:] else "")
        raise InputError(
            f"trainer.class_weights={written(list(setting[:10]))}"
            f"{f' and {len(setting) - 10} more' if setting[10:] else ''}: has {len(setting)} "
            f"weights, but data={source.name} has {source.classes} classes ({labels}); type one "
            "weight for each class, or trainer.class_weights=balanced"
        )
    return tuple(float(weight) for weight in setting)


class BalancedOrder:
    """As many samples as an epoch has, drawn with replacement: each class with the same
    probability, and each sample of a class with the same probability. This is torch's
    WeightedRandomSampler with weights 1 / samples of the class. Depends only on (seed, epoch)."""

    def __init__(self, seed: int, train: Split, source: Source) -> None:
        """Raises InputError when the training split has no sample of a class."""
        self.seed = seed
        self.counts = _counts(train, source, "data.sampler").long()
        self.by_class = torch.argsort(train.labels, stable=True)
        self.first = self.counts.cumsum(0) - self.counts

    def __call__(self, epoch: int, samples: int) -> Tensor:
        stream = random_stream(self.seed, epoch)
        classes = torch.randint(len(self.counts), (samples,), generator=stream)
        fractions = torch.rand(samples, generator=stream, dtype=torch.float64)
        places = (fractions * self.counts[classes]).long()
        return self.by_class[self.first[classes] + places]


def _counts(train: Split, source: Source, key: str) -> Tensor:
    """The samples of each class, (classes,) float64. Raises InputError if a class has none."""
    missing = train.empty_classes(source.labels)
    if missing:
        more = f" and {len(missing) - 10} more classes" if missing[10:] else ""
        raise InputError(
            f"{key}={BALANCED}: the training set has no sample of {', '.join(missing[:10])}{more}; "
            f"add samples, try another data.split_seed or data.val_fraction, or type {key}=null"
        )
    return torch.bincount(train.labels, minlength=source.classes).double()
