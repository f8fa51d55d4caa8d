"""A model of a table beside what others would take: the most frequent class or the mean, a linear
model, and gradient boosting, all of scikit-learn with its defaults. Boosting that learns less than
the linear model gets a smaller rate, if that helps. Each is trained on the same rows and the same
features, and tested on the same rows."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kindling.config.measures import CLASSIFICATION
from kindling.data.sources.source import Source, Split
from kindling.data.tables.cells import Floats
from kindling.inference.logits import answer
from kindling.models.committee import Committee
from kindling.records.confidence import LEVEL, wilson
from kindling.records.loading import Trained
from kindling.system.terminal import progress

DRAWS = 2000  # of the bootstrap
SLOW = 0.02  # a fifth of scikit-learn's rate of gradient boosting
OWN, BOOSTING, LINEAR = "the model", "gradient boosting", "linear model"


@dataclass(frozen=True)
class Compared:
    """The score on the test rows and the ends of its interval of LEVEL; `less`: the score of the
    model less this one, and its interval over the same rows. None for the model itself."""

    name: str
    score: float
    low: float
    high: float
    less: tuple[float, float, float] | None = None


def compare(trained: Trained, source: Source) -> list[Compared]:
    """The model and the baselines on the test rows of the data of its training. Accuracy has
    Wilson's interval, without weights; R² and differences have that of the bootstrap over rows
    (Efron, 1979), by its percentiles."""
    task, test = trained.config.task.name, source.test
    said = answer(trained, test).values
    if task == CLASSIFICATION:
        own, true = said.argmax(1).numpy(), test.labels.numpy()
    else:
        own, true = map(_column, (said, trained.restored(test.labels)))
    rows, ends = len(test), [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    weights = np.ones(rows) if test.weights is None else test.weights.double().numpy()
    drawn = np.random.default_rng(0).multinomial(rows, np.full(rows, 1 / rows), DRAWS)
    shares: Floats = drawn * weights
    found: list[Compared] = []
    of_own = _scores(task, own, true, shares)
    for name, predicted in chain([(OWN, own)], _baselines(trained, source)):
        score = float(_scores(task, predicted, true, weights[None])[0])
        scores = _scores(task, predicted, true, shares)
        low, high = np.nanquantile(scores, ends).tolist()
        if task == CLASSIFICATION and test.weights is None:
            low, high = wilson(score, rows)
        less = None
        if found:
            below, above = np.nanquantile(of_own - scores, ends).tolist()
            less = (found[0].score - score, below, above)
        found.append(Compared(name, score, low, high, less))
    return found


def _scores(task: str, predicted: NDArray[Any], true: NDArray[Any], rows: Floats) -> Floats:
    """The score for each of several weightings of the rows, (draws, N)."""
    total = rows.sum(1)
    if task == CLASSIFICATION:
        found: Floats = rows @ (predicted == true) / total
        return found
    middle = true.mean()  # squares of large numbers would lose their differences
    true, predicted = true - middle, predicted - middle
    mean = rows @ true / total
    spread = rows @ true**2 - total * mean**2
    with np.errstate(divide="ignore", invalid="ignore"):
        found = 1 - rows @ (predicted - true) ** 2 / spread
    return np.where(spread > 0, found, np.nan)


def _column(numbers: Tensor) -> Floats:
    """(N,) of (N, 1)."""
    return numbers[:, 0].double().numpy()


def _baselines(trained: Trained, source: Source) -> Iterator[tuple[str, NDArray[Any]]]:
    """What each baseline predicts for the test rows."""
    from sklearn import dummy, ensemble, linear_model

    classes = trained.config.task.name == CLASSIFICATION
    models = {
        BOOSTING: ensemble.HistGradientBoostingClassifier(random_state=0),
        LINEAR: linear_model.LogisticRegression(max_iter=1000),
        "most frequent class": dummy.DummyClassifier(),
    } if classes else {
        BOOSTING: ensemble.HistGradientBoostingRegressor(random_state=0),
        LINEAR: linear_model.Ridge(),
        "the mean": dummy.DummyRegressor(),
    }  # fmt: skip

    def arrays(split: Split) -> tuple[NDArray[np.float32], NDArray[Any]]:
        numbers = split.labels.numpy() if classes else _column(trained.restored(split.labels))
        features = split.features
        if trained.lessons:  # those of the last member, a twin, which learned from the same rows
            assert isinstance(trained.model, Committee)
            features = trained.model.taken(len(trained.members) - 1, features)
        return features.flatten(1).numpy(), numbers

    features, labels = arrays(source.train)
    weights = None if source.train.weights is None else source.train.weights.numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged
        for model in progress(models.values(), "baselines trained"):
            model.fit(features, labels, sample_weight=weights)
        boosting, linear = (models[name] for name in (BOOSTING, LINEAR))
        if classes and boosting.score(features, labels) < linear.score(features, labels):
            # Of many small classes, it learns nothing by steps of the usual rate.
            slow = ensemble.HistGradientBoostingClassifier(random_state=0, learning_rate=SLOW)
            slow.fit(features, labels, sample_weight=weights)
            if slow.score(features, labels) > boosting.score(features, labels):
                models = {f"{BOOSTING}, rate {SLOW}": slow, **models}
                del models[BOOSTING]
    features = arrays(source.test)[0]
    for name, model in models.items():
        yield name, np.asarray(model.predict(features))
