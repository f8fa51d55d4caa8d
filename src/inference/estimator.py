"""A classifier of scikit-learn, trained by `fit` like any run."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from src.config.compose import compose
from src.config.overrides import quoted
from src.inference.model import Model
from src.runs.loading import open_trained
from src.system.errors import InputError
from src.training import random_state
from src.training.fit import fit


class KindlingClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A network for tables of numbers, which works in pipelines and searches of scikit-learn.

    Without hidden layers it is a logistic regression. `overrides` sets any other key, as typed on
    the command line, such as `["model.dropout=0.2", "scheduler=cosine"]`. `folder` is that of the
    run; without it, the files of the run are removed after the training. Inputs should be scaled,
    for example by StandardScaler.

    After `fit`: `classes_`, `n_features_in_`, `model_` (a Model), `history_` (a row for each epoch,
    as in history.csv), `n_iter_` (the number of epochs).
    """

    def __init__(
        self,
        hidden_sizes: Sequence[int] | int = (32,),
        *,
        lr: float = 0.01,
        optimizer: Literal["sgd", "adam", "adamw"] = "adam",
        weight_decay: float = 0.0,
        max_epochs: int = 50,
        batch_size: int = 100,
        val_fraction: float | None = None,
        random_state: int | np.random.RandomState | None = 0,
        overrides: Sequence[str] | str = (),
        folder: str | Path | None = None,
    ) -> None:
        """`val_fraction` of the samples choose the best epoch; None: its loss on all samples."""
        self.hidden_sizes = hidden_sizes
        self.lr = lr
        self.optimizer = optimizer
        self.weight_decay = weight_decay
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.val_fraction = val_fraction
        self.random_state = random_state
        self.overrides = overrides
        self.folder = folder

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:  # noqa: N803, scikit-learn's names
        """Trains on X (N, features) and the classes y (N,), numbers or texts. Raises ValueError for
        other arrays, and with all faults of the settings."""
        features, classes = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(classes)
        self.classes_, numbers = np.unique(classes, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has the one class {self.classes_[0]}; this classifier needs two or more"
            )
        with tempfile.TemporaryDirectory() as temporary:
            data = Path(temporary) / "data.npz"
            # A run has a test set; nobody reads its metrics here.
            np.savez(data, x=features, y=numbers, x_test=features[:1], y_test=numbers[:1])
            folder = Path(temporary, "run") if self.folder is None else Path(self.folder)
            settings = self._settings(data)
            streams = random_state.capture()  # `fit` seeds them
            try:
                run = fit(compose(*settings), folder)
                self.model_ = Model(open_trained(run.folder))
            except InputError as error:
                raise ValueError(str(error)) from error
            finally:
                random_state.restore(streams)
            self.history_ = run.history
        self.n_iter_ = len(self.history_) - 1
        return self

    def _settings(self, data: Path) -> list[str]:
        given = self.hidden_sizes
        sizes = ",".join(map(str, [given] if isinstance(given, int | np.integer) else given))
        fraction = "null" if self.val_fraction is None else self.val_fraction
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31)
        return [
            "data=npz", f"data.path={quoted(str(data))}", f"data.val_fraction={fraction}",
            f"data.batch_size={self.batch_size}",
            *([f"model.hidden_sizes=[{sizes}]"] if sizes else ["model=logistic_regression"]),
            f"optimizer={self.optimizer}", f"optimizer.lr={self.lr}",
            f"optimizer.weight_decay={self.weight_decay}",
            "checkpoint.monitor=val/loss", "checkpoint.mode=min",
            f"trainer.max_epochs={self.max_epochs}", f"seed={seed}",
            *([self.overrides] if isinstance(self.overrides, str) else self.overrides),
        ]  # fmt: skip

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """The probability of each class of `classes_`, (N, classes)."""
        check_is_fitted(self)
        features = validate_data(self, X, dtype=np.float32, reset=False)
        return self.model_.predict_proba(features)

    def predict(self, X: ArrayLike) -> NDArray[Any]:  # noqa: N803
        """The most probable class of each sample, (N,)."""
        numbers = self.predict_proba(X).argmax(1)
        classes: NDArray[Any] = self.classes_[numbers]
        return classes
