"""How unlike an input is to what a model was trained on.

An input is compared with the training samples of the class that the model takes it for (Jiang et
al., To trust or not to trust a classifier, 2018): by its distance to the nearest, and by the angle
to the nearest. Held-out samples set the bounds of both, so that about one true sample of 200 is
called unlike.

With the default run on MNIST this finds all noise, and 57 % of the digits that lie on their side;
0.4 % of the test set are called unlike. At the same rate the energy of the logits (Liu et al. 2020)
finds 5 % of the noise and 15 % of those digits, and Mahalanobis' distance (Lee et al. 2018) 7 % of
those digits.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from src.config import schema
from src.data.sources.catalogue import at_hand
from src.data.sources.source import Split, as_float, held_out
from src.inference.evaluation import predict, source_of
from src.runs.loading import Trained
from src.system.errors import InputError

RATE = 0.005  # of true samples that are called unlike
LEAST, MOST = 200, 6000  # held-out samples to take the bounds from
VALUES = 2**26  # of the training samples that are compared with, at most: 256 MiB
CHUNK = 256
LEAST_PICTURE = 16  # pixels a side


class Likeness:
    """The training samples of each class, and the bounds of both distances."""

    def __init__(self, trained: Trained, training: Split, held: Split) -> None:
        """Raises InputError when too few samples were held out to take bounds from."""
        if len(held) < LEAST:
            raise InputError(f"{len(held)} held-out samples are too few, {LEAST} are needed")
        training = _thinned(training, VALUES // math.prod(training.shape))
        held = _thinned(held, MOST)
        samples = _flat(training.features)
        self.classes = [samples[training.labels == number] for number in range(trained.classes)]
        found = self._distances(held.features, predict(trained, held).argmax(-1))
        bounds = _bound(found).clamp(min=1e-3)  # above rounding
        self.bounds = bounds * _bound((found / bounds).amax(1))

    def unlikeness(self, features: Tensor, classes: Tensor) -> list[float]:
        """Of features (N, *shape) that were taken for classes (N,): above 1 where one of the
        distances is beyond its bound."""
        return (self._distances(features, classes) / self.bounds).amax(1).tolist()

    def _distances(self, features: Tensor, classes: Tensor) -> Tensor:
        """(N, 2): to the nearest sample, and on the unit sphere to the nearest in direction; as
        far as can be for a class without training samples."""
        farthest = torch.finfo(torch.float32).max
        found = torch.full((len(classes), 2), farthest)
        for number, samples in enumerate(self.classes):
            if not len(samples):
                continue
            squares = samples.square().sum(1)
            for rows in torch.split((classes == number).nonzero().squeeze(1), CHUNK):
                inputs = _flat(features[rows])
                own = inputs.square().sum(1, keepdim=True)
                products = inputs @ samples.T
                cosines = products / (own * squares).sqrt().clamp(min=1e-12)
                straight = (own + squares - 2 * products).amin(1)
                found[rows] = torch.stack([straight, 2 - 2 * cosines.amax(1)], 1)
        return found.nan_to_num(nan=farthest).clamp(min=0).sqrt()


def likeness_of(trained: Trained) -> Likeness:
    """Of a model to its own data set, where that is on this machine and quickly read.

    Raises InputError with the reason where there is none.
    """
    section = trained.config.data
    if isinstance(section, schema.ImageFolder):
        raise InputError("its folder of pictures would be decoded anew")
    if trained.data == section.name and not at_hand(section):
        raise InputError(f"data={trained.data} is not on this machine")
    source = source_of(trained)
    if (source.shape, source.labels) != (trained.shape, trained.labels):
        raise InputError(f"data={source.name} is not what it was trained on")
    training, validation = held_out(source.train, section.val_fraction, section.split_seed)
    return Likeness(trained, training, source.test if validation is training else validation)


def _bound(values: Tensor) -> Tensor:
    """What all but RATE of the rows keep."""
    return values.quantile(1 - RATE, 0, interpolation="higher")


def _flat(features: Tensor) -> Tensor:
    """(N, values), float32. Pictures are halved: a stroke is near one that is a pixel away."""
    values = as_float(features)
    if values.ndim == 4 and min(values.shape[2:]) >= LEAST_PICTURE:
        values = F.avg_pool2d(values, 3, 2, 1)
    return values.flatten(1)


def _thinned(split: Split, most: int) -> Split:
    """At most so many samples, evenly spread."""
    step = -(-len(split) // max(1, most))
    return split.take(torch.arange(0, len(split), step))
