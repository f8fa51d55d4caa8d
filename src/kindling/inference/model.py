"""A trained model for your own programs: `load` a run, then predict arrays."""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from kindling.config.measures import CLASSIFICATION, MULTILABEL, REGRESSION
from kindling.config.section import InMemory
from kindling.data.arrays import columns_of
from kindling.data.tables.reading import read_table
from kindling.data.tables.table import as_table
from kindling.inference import multilabel, regression
from kindling.inference.logits import answer
from kindling.inference.prediction import predict
from kindling.inference.samples import as_split, features_of, labels_of
from kindling.records.loading import Trained, open_trained
from kindling.records.lookup import MODEL, find
from kindling.system.arguments import as_path
from kindling.system.errors import InputError, parsing
from kindling.tasks.regression import r2

Features = ArrayLike | Mapping[str, Sequence[Any]] | str | os.PathLike[str]


class Model:
    """A model with methods as in scikit-learn. Classes are numbers, the places of their names in
    `labels`; numbers of a regression are in their own unit.

    Features are (N, *shape): uint8 from 0 to 255, or floats, of pictures from 0 to 1. Grey pictures
    may be (N, H, W). A model that was trained on a table takes a table with the same columns: a
    pandas DataFrame, a dictionary of columns, or the path of a .csv file. All methods raise
    InputError for other features.
    """

    def __init__(self, trained: Trained) -> None:
        if not isinstance(trained, Trained):
            raise InputError('a Model is made by load, such as load("runs/mine")')
        self.trained = trained

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, of the labels, or of the numbers."""
        return self.trained.labels

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return self.trained.shape

    def predict_proba(self, features: Features) -> NDArray[np.float64]:
        """The probability of each class, (N, classes), or of each label, (N, labels). Raises
        InputError for a regression, which has none."""
        if self.trained.targets is not None:
            raise InputError(
                f"{self.trained.checkpoint}: was trained with task=regression, which has no "
                "probabilities; call predict"
            )
        return predict(self.trained, self.prepared(features))

    def prepared(self, features: Features) -> NDArray[Any]:
        """The features (N, …) that the model takes. Raises InputError for what it does not take."""
        columns = self.trained.columns
        if columns is None:
            return _array(features, "features")
        if isinstance(features, str | os.PathLike):
            table = read_table(Path(features))
        elif hasattr(features, "keys") or hasattr(features, "to_dict"):  # as DataFrames have
            table = as_table(cast(Mapping[str, Sequence[Any]], features))
        else:
            raise InputError(
                f"{self.trained.checkpoint}: was trained on a table; give a DataFrame, a "
                "dictionary of columns, or the path of a table with the columns "
                + ", ".join(columns.names)[:200]
            )
        prepared = columns.features(table)
        table.tell()
        return prepared

    def predict(self, features: Features) -> NDArray[Any]:
        """The most probable class of each sample, (N,); of several labels, 1 for each that the
        sample has, else 0, (N, labels); the numbers of a regression, (N, outputs), of one (N,)."""
        answers = predict(self.trained, self.prepared(features))
        return DECIDE[self.trained.config.task.name](answers)

    def interval(
        self, features: Features, held_out: tuple[Features, ArrayLike] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of a regression the ends of an interval around each number of `predict`, in the same
        shape; inference/regression.py says which. `held_out` are features and numbers of samples
        that the model was not trained on, at least 9. By default, the data set of the training is
        opened for those that it held out; arrays of a program have no file to open. Raises
        InputError without enough of them, and for another task."""
        trained = self.trained
        if trained.targets is None:
            raise InputError(
                f"{trained.checkpoint}: has classes, and no intervals; call predict_proba"
            )
        given = features_of(trained, "features", self.prepared(features))
        found = answer(trained, as_split(trained, given))
        samples = None
        if held_out is None and isinstance(trained.config.data, InMemory):
            raise InputError(
                f"{trained.checkpoint}: was trained on arrays of a program, which no file has; "
                "call interval(features, held_out=(x, y)) with samples that it was not trained on"
            )
        if held_out is not None:
            if not isinstance(held_out, tuple | list) or len(held_out) != 2:
                raise InputError("held_out: must be features and numbers, held_out=(x, y)")
            x, y = held_out
            known = features_of(trained, "the held-out features", self.prepared(x))
            numbers = _array(y, "the held-out labels")
            numbers = labels_of(trained, "the held-out labels", numbers, len(known))
            samples = as_split(trained, known, numbers)
        ends = regression.interval_of(trained, held_out=samples).around(*found.ends)
        low, high = (regression.decide(end.numpy()) for end in ends)
        return low, high

    def score(self, features: Features, labels: ArrayLike) -> float:
        """How well labels of the shape of `predict` are predicted. Of classes, the share of samples
        whose class is predicted. Classes are names, or numbers: of names that are all numbers, such
        as 1, 2 and 3, these names, otherwise places in `labels`. Of several labels, the share of
        them that is right; of a regression, R², of several numbers their mean, as scikit-learn's
        r2_score. Raises InputError for labels of another shape and for unknown ones, too."""
        task = self.trained.config.task.name
        if task == CLASSIFICATION:
            return self._accuracy(features, labels)
        found, given = self.predict(features), _array(labels, "the labels")
        wanted = labels_of(self.trained, "the labels", given, len(found))
        if task == MULTILABEL:
            return float((found == wanted).mean())
        return fmean(r2(torch.from_numpy(columns_of(found)), torch.from_numpy(wanted)))

    def _accuracy(self, features: Features, classes: ArrayLike) -> float:
        found, wanted = self.predict(features), _array(classes, "the classes")
        if found.shape != wanted.shape:
            raise InputError(f"the classes are {wanted.shape}, must be {found.shape}")
        known: Sequence[float | str] = self.labels
        allowed = f"names: {', '.join(self.labels)[:200]}"
        if wanted.dtype.kind in "biuf":
            known = _numbers(self.labels) or range(len(self.labels))
            allowed = f"numbers from {min(known):g} to {max(known):g}, or {allowed}"
        place_of: dict[Any, int] = {each: place for place, each in enumerate(known)}
        values = wanted.tolist()
        numbers = [place_of.get(each) if isinstance(each, Hashable) else None for each in values]
        if None in numbers:
            raise InputError(
                f"the classes have {values[numbers.index(None)]!r:.80}, must be {allowed}"
            )
        return float((found == np.array(numbers)).mean())

    def __repr__(self) -> str:
        return f"Model({str(self.trained.checkpoint)!r})"


DECIDE: dict[str, Callable[[NDArray[np.float64]], NDArray[Any]]] = {
    CLASSIFICATION: lambda probabilities: probabilities.argmax(1),
    REGRESSION: regression.decide,
    MULTILABEL: multilabel.decide,
}


def load(run: "str | os.PathLike[Any]", *, model: Any = None) -> Model:
    """The best weights of a run, named by its folder, its name or `latest`, or a checkpoint file.
    A run that was trained by `fit(config, model=…)` needs a module of the same class, or a function
    that makes one; the module itself keeps its weights. Raises InputError for anything else."""
    return Model(open_trained(find(str(as_path(run, "load(run)")), MODEL), model))


def _array(values: Any, name: str) -> NDArray[Any]:
    with parsing(f"{name} cannot be read as an array"):  # rows of different lengths, for example
        return np.asarray(values)


def _numbers(labels: Sequence[str]) -> list[float] | None:
    """The values of names that are different numbers; None if they are not."""
    try:
        values = [float(label) for label in labels]
    except ValueError:
        return None
    return values if len(set(values)) == len(values) else None
