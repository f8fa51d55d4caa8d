"""A trained model for your own programs: `load` a run, then predict arrays."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from src.inference.prediction import predict
from src.runs.loading import Trained, open_trained
from src.runs.lookup import MODEL, find
from src.system.errors import InputError


class Model:
    """A model with methods as in scikit-learn. Classes are numbers, the places of their names in
    `labels`."""

    def __init__(self, trained: Trained) -> None:
        self.trained = trained

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.trained.labels

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return self.trained.shape

    def predict_proba(self, features: ArrayLike) -> NDArray[np.float64]:
        """The probability of each class, (N, classes), for features (N, *shape): uint8 from 0 to
        255, or floats, of pictures from 0 to 1. Grey pictures may be (N, H, W). Raises InputError
        for other features."""
        return predict(self.trained, np.asarray(features))

    def predict(self, features: ArrayLike) -> NDArray[np.int64]:
        """The most probable class of each sample, (N,)."""
        best: NDArray[np.int64] = self.predict_proba(features).argmax(1)
        return best

    def score(self, features: ArrayLike, classes: ArrayLike) -> float:
        """The share of samples whose class (N,) is predicted. Raises InputError for classes of
        another shape, too."""
        found, wanted = self.predict(features), np.asarray(classes)
        if found.shape != wanted.shape:
            raise InputError(f"the classes are {wanted.shape}, must be {found.shape}")
        return float((found == wanted).mean())

    def __repr__(self) -> str:
        return f"Model({str(self.trained.checkpoint)!r})"


def load(run: "str | os.PathLike[Any]") -> Model:
    """The best weights of a run, named by its folder, its name or `latest`, or a checkpoint file.
    Raises InputError for anything else."""
    return Model(open_trained(find(str(Path(run)), MODEL)))
