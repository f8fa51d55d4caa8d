"""A trained model for your own programs: `load` a run, then predict arrays."""

import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kindling.data.tables import as_table, read_table
from kindling.inference.prediction import predict
from kindling.records.loading import Trained, open_trained
from kindling.records.lookup import MODEL, find
from kindling.system.arguments import as_path
from kindling.system.errors import InputError, parsing

Features = ArrayLike | Mapping[str, Sequence[Any]] | str | os.PathLike[str]


class Model:
    """A model with methods as in scikit-learn. Classes are numbers, the places of their names in
    `labels`.

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
        """The names of the classes."""
        return self.trained.labels

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return self.trained.shape

    def predict_proba(self, features: Features) -> NDArray[np.float64]:
        """The probability of each class, (N, classes)."""
        return predict(self.trained, self._prepared(features))

    def _prepared(self, features: Features) -> NDArray[Any]:
        columns = self.trained.columns
        if columns is None:
            return _array(features, "features")
        if isinstance(features, str | os.PathLike):
            table = read_table(Path(features))
        elif hasattr(features, "keys"):
            table = as_table(cast(Mapping[str, Sequence[Any]], features))
        else:
            raise InputError(
                f"{self.trained.checkpoint}: was trained on a table; give a DataFrame, a "
                "dictionary of columns, or the path of a .csv file with the columns "
                + ", ".join(column.name for column in columns.columns)[:200]
            )
        prepared = columns.features(table)
        table.tell()
        return prepared

    def predict(self, features: Features) -> NDArray[np.int64]:
        """The most probable class of each sample, (N,)."""
        best: NDArray[np.int64] = self.predict_proba(features).argmax(1)
        return best

    def score(self, features: Features, classes: ArrayLike) -> float:
        """The share of samples whose class (N,) is predicted. Classes are names, or numbers: of
        names that are all numbers, such as 1, 2 and 3, these names, otherwise places in `labels`.
        Raises InputError for classes of another shape and for unknown ones, too."""
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
