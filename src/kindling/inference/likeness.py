"""How unlike an input is to the samples that a model was trained on.

An input is compared with the training samples of its predicted class (Jiang et al., To Trust Or
Not To Trust A Classifier, 2018): by the distance to the nearest one, and by the smallest angle.
Held-out samples set the bounds of both, so that about one true sample of 200 is called unlike.

With the default run on MNIST all noise and 57 % of sideways digits are called unlike, and 0.4 % of
the test set. At the same rate, the energy of the logits (Liu et al. 2020) finds 5 % of the noise
and 15 % of the sideways digits; Mahalanobis' distance (Lee et al. 2018) finds 7 % of these digits.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from kindling.config import schema
from kindling.data.paths import at_hand
from kindling.data.sources.folds import training_and_validation
from kindling.data.sources.source import Split, as_float
from kindling.inference.logits import compute_logits
from kindling.inference.samples import source_of
from kindling.records.loading import Trained
from kindling.system.errors import InputError
from kindling.system.terminal import progress
from kindling.tasks import classification

RATE = 0.005  # of true samples that are called unlike
LEAST, MOST = 200, 6000  # held-out samples that set the bounds
VALUES = 2**26  # at most, of all training samples together: 256 MiB
CHUNK = 256
LEAST_PICTURE = 16  # pixels per side


class Likeness:
    """The training samples of each class, and the bounds of both distances."""

    def __init__(self, trained: Trained, training: Split, validation: Split) -> None:
        """Raises InputError when fewer than LEAST samples were held out."""
        if len(validation) < LEAST:
            raise InputError(f"{len(validation)} held-out samples are too few, {LEAST} are needed")
        training = _thinned(training, VALUES // math.prod(training.shape))
        validation = _thinned(validation, MOST)
        samples = _flat(training.features)
        self.classes = [samples[training.labels == number] for number in range(trained.classes)]
        predicted = classification.decide(compute_logits(trained, validation))
        distances = self._distances(validation.features, predicted)
        bounds = _bound(distances).clamp(min=1e-3)  # above rounding
        self.bounds = bounds * _bound((distances / bounds).amax(1))

    def unlikeness(self, features: Tensor, classes: Tensor) -> list[float]:
        """Values (N,) for features (N, *shape) of classes (N,): above 1 beyond a bound."""
        return (self._distances(features, classes) / self.bounds).amax(1).tolist()

    def _distances(self, features: Tensor, classes: Tensor) -> Tensor:
        """Distances (N, 2) to the nearest sample of the class, as they are and on the unit sphere.
        For a class without training samples they are the largest float32."""
        farthest = torch.finfo(torch.float32).max
        distances = torch.full((len(classes), 2), farthest)
        for number, samples in enumerate(progress(self.classes, "classes compared")):
            if not len(samples):
                continue
            squares = samples.square().sum(1)
            for rows in torch.split((classes == number).nonzero().squeeze(1), CHUNK):
                inputs = _flat(features[rows])
                input_squares = inputs.square().sum(1, keepdim=True)
                products = inputs @ samples.T
                cosines = products / (input_squares * squares).sqrt().clamp(min=1e-12)
                nearest = (input_squares + squares - 2 * products).amin(1)
                distances[rows] = torch.stack([nearest, 2 - 2 * cosines.amax(1)], 1)
        return distances.nan_to_num(nan=farthest).clamp(min=0).sqrt()


def likeness_of(trained: Trained) -> Likeness:
    """The likeness to the training data of the model. Raises InputError with the reason if these
    data are not on this machine, or are slow to read."""
    section = trained.config.data
    if isinstance(section, schema.ImageFolder):
        raise InputError("all pictures of its folder would have to be decoded again")
    if trained.data == section.name and not at_hand(section):
        raise InputError(f"data={trained.data} is not on this machine")
    source = source_of(trained)
    if (source.shape, source.labels) != (trained.shape, trained.labels):
        raise InputError(f"data={source.name} is not the data set it was trained on")
    training, validation = training_and_validation(source.train, section, own=source.validation)
    return Likeness(trained, training, source.test if validation is training else validation)


def _bound(values: Tensor) -> Tensor:
    """A bound for each column: a share RATE of the rows is above the bound."""
    return values.quantile(1 - RATE, 0, interpolation="higher")


def _flat(features: Tensor) -> Tensor:
    """(N, values), float32. Pictures are halved, so that strokes a pixel apart are near."""
    values = as_float(features)
    if values.ndim == 4 and min(values.shape[2:]) >= LEAST_PICTURE:
        values = F.avg_pool2d(values, 3, 2, 1)
    return values.flatten(1)


def _thinned(split: Split, most: int) -> Split:
    """At most `most` samples, evenly spread."""
    step = -(-len(split) // max(1, most))
    return split.take(torch.arange(0, len(split), step))
