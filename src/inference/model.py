"""A trained model for your own programs: `load` a run, then predict arrays."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from src.data.tables import as_table, read_table
from src.inference.prediction import predict
from src.runs.loading import Trained, open_trained
from src.runs.lookup import MODEL, find
from src.system.errors import InputError

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
            return np.asarray(features)
        if isinstance(features, str | os.PathLike):
            return columns.features(read_table(Path(features)))
        if not hasattr(features, "keys"):
            raise InputError(
                f"{self.trained.checkpoint}: was trained on a table; give a DataFrame, a "
                "dictionary of columns, or the path of a .csv file with the columns "
                + ", ".join(column.name for column in columns.columns)[:200]
            )
        return columns.features(as_table(cast(Mapping[str, Sequence[Any]], features)))

    def predict(self, features: Features) -> NDArray[np.int64]:
        """The most probable class of each sample, (N,)."""
        best: NDArray[np.int64] = self.predict_proba(features).argmax(1)
        return best

    def score(self, features: Features, classes: ArrayLike) -> float:
        """The share of samples whose class (N,) is predicted. Classes are numbers or names. Raises
        InputError for classes of another shape and for unknown ones, too."""
        found, wanted = self.predict(features), np.asarray(classes)
        if found.shape != wanted.shape:
            raise InputError(f"the classes are {wanted.shape}, must be {found.shape}")
        known: Sequence[object] = (
            range(len(self.labels)) if wanted.dtype.kind in "biuf" else self.labels
        )
        unknown = sorted(set(wanted.tolist()) - set(known), key=str)
        if unknown:
            raise InputError(
                f"the classes have {unknown[0]!r}, must be numbers from 0 to "
                f"{len(self.labels) - 1}, or names: {', '.join(self.labels)[:200]}"
            )
        numbers = [known.index(each) for each in wanted.tolist()]
        return float((found == np.array(numbers)).mean())

    def __repr__(self) -> str:
        return f"Model({str(self.trained.checkpoint)!r})"


def load(run: "str | os.PathLike[Any]") -> Model:
    """The best weights of a run, named by its folder, its name or `latest`, or a checkpoint file.
    Raises InputError for anything else."""
    return Model(open_trained(find(str(Path(run)), MODEL)))
