"""The estimator beside scikit-learn's MLPClassifier at equal settings: `fit` of few, some and many
rows, a search over 40 fits, and the probabilities of a row and of a million."""

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier

from benchmarks.measure import interleave, ratio, report
from benchmarks.settings import Settings
from kindling.inference.estimator import KindlingClassifier

OURS, THEIRS = "KindlingClassifier", "MLPClassifier"
FITS = {  # rows, columns, classes, batch size and epochs
    "150 rows": (150, 4, 3, 100, 50),
    "2,000 rows": (2000, 20, 2, 100, 50),
    "60,000 rows": (60_000, 784, 10, 100, 10),
}
SEARCHED = {"lr": [0.003, 0.01], "hidden_sizes": [(8,), (16,), (32,), (64,)]}
FOLDS, JOBS = 5, 2
CALLS, MANY = 200, 1_000_000

Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]


def run(settings: Settings) -> tuple[str, str]:
    contenders: dict[str, Callable[[], float]] = {}
    for told, (rows, columns, classes, batch, epochs) in FITS.items():
        x, y = _samples(rows, columns, classes)
        for name, make in (OURS, _ours), (THEIRS, _theirs):
            contenders[f"fit {told}, {name}"] = partial(_fit, make(batch, epochs), x, y)
    few, some = _samples(*FITS["150 rows"][:3]), _samples(*FITS["2,000 rows"][:3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        batch = FITS["2,000 rows"][3]
        fitted = {OURS: _ours(batch, 5).fit(*some), THEIRS: _theirs(batch, 5).fit(*some)}
    many = np.resize(some[0], (MANY, some[0].shape[1]))
    for name, make in (OURS, _ours), (THEIRS, _theirs):
        contenders[f"search of 40 fits, {name}"] = partial(
            _search, make(*FITS["150 rows"][3:]), *few
        )
        contenders[f"a row, {name}"] = partial(_rows, fitted[name], some[0][:1], CALLS)
        contenders[f"a million rows, {name}"] = partial(_rows, fitted[name], many, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        seconds = interleave(contenders, settings.rounds)
    tasks = dict.fromkeys(told.rpartition(", ")[0] for told in contenders)
    ratios = {
        f"{task}: {THEIRS}/{OURS}": ratio(seconds, f"{task}, {THEIRS}", f"{task}, {OURS}")
        for task in tasks
    }
    return report("estimator", seconds, ratios)


def _samples(rows: int, columns: int, classes: int) -> Arrays:
    """Of classes that overlap a little."""
    stream = np.random.default_rng(0)
    labels = stream.integers(classes, size=rows)
    centres = stream.normal(size=(classes, columns))
    features = centres[labels] + stream.normal(size=(rows, columns))
    return features.astype(np.float32), labels


def _ours(batch: int, epochs: int) -> KindlingClassifier:
    patience = "trainer.early_stopping_patience=null"
    return KindlingClassifier((32,), max_epochs=epochs, batch_size=batch, overrides=[patience])


def _theirs(batch: int, epochs: int) -> MLPClassifier:
    return MLPClassifier(
        (32,), learning_rate_init=0.01, alpha=0.0, max_iter=epochs, batch_size=batch,
        n_iter_no_change=epochs, random_state=0,
    )  # fmt: skip


def _fit(model: Any, x: NDArray[np.float32], y: NDArray[np.int64]) -> float:
    began = time.perf_counter()
    model.fit(x, y)
    return time.perf_counter() - began


def _search(model: Any, x: NDArray[np.float32], y: NDArray[np.int64]) -> float:
    """By two processes, which live on from call to call."""
    theirs = {"lr": "learning_rate_init", "hidden_sizes": "hidden_layer_sizes"}
    own = isinstance(model, KindlingClassifier)
    grid = {name if own else theirs[name]: values for name, values in SEARCHED.items()}
    return _fit(GridSearchCV(model, grid, cv=FOLDS, n_jobs=JOBS, refit=False), x, y)


def _rows(model: Any, x: NDArray[np.float32], calls: int) -> float:
    """Seconds of a call."""
    began = time.perf_counter()
    for _ in range(calls):
        model.predict_proba(x)
    return (time.perf_counter() - began) / calls
