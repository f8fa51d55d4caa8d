"""A model beside baselines, against scikit-learn and SciPy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, r2_score
from sklearn.tree import DecisionTreeClassifier

from kindling.config.compose import compose
from kindling.inference.baselines import _scores, compare
from kindling.inference.samples import source_of
from kindling.records.confidence import wilson
from kindling.records.loading import open_trained
from kindling.training.fit import fit

DRAW = np.random.default_rng(5)
ROWS = 160


def _trained(tmp_path: Path, *overrides: str) -> Any:
    """A run of a table with two numbers and a text, of which two decide the label."""
    x, y = DRAW.normal(size=(2, ROWS))
    text = DRAW.choice(["red", "blue"], ROWS)
    label = x + (text == "red") + 0.3 * DRAW.normal(size=ROWS)
    if "task=regression" not in overrides:
        label = np.where(label > 0.5, "yes", "no")
    weight = DRAW.integers(1, 5, ROWS)
    rows = zip(x.round(3), y.round(3), text, label, weight, strict=True)
    lines = ["x,y,colour,label,weight", *(",".join(map(str, row)) for row in rows)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines))
    config = compose(
        "data=csv", f"data.path={path}", "data.target=label", "trainer=cpu",
        "trainer.max_epochs=4", *overrides,
    )  # fmt: skip
    run = fit(config, tmp_path / "run")
    trained = open_trained(run.folder)
    return run, trained, source_of(trained)


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_scores_are_those_of_scikit_learn(tmp_path: Path, task: str) -> None:
    run, trained, source = _trained(tmp_path, f"task={task}", "data.drop=[weight]")
    own, boosting, linear, simplest = compare(trained, source)
    assert own.less is None
    key = "test/acc" if task == "classification" else "test/r2"
    assert own.score == pytest.approx(run.result[key], abs=1e-6)
    x, x_test = source.train.features.numpy(), source.test.features.numpy()
    of_sklearn: tuple[Any, Any, Any]
    if task == "classification":
        y, y_test, measure = source.train.labels.numpy(), source.test.labels.numpy(), accuracy_score
        of_sklearn = (
            HistGradientBoostingClassifier(random_state=0),
            LogisticRegression(max_iter=1000),
            None,
        )
        assert simplest.score == np.bincount(y_test)[np.bincount(y).argmax()] / len(y_test)
        assert simplest.name == "most frequent class"
    else:
        y, y_test = (
            trained.restored(part.labels).numpy()[:, 0] for part in (source.train, source.test)
        )
        measure, of_sklearn = (
            r2_score,
            (HistGradientBoostingRegressor(random_state=0), Ridge(), None),
        )
        assert simplest.score == pytest.approx(r2_score(y_test, np.full(len(y_test), y.mean())))
    for found, model in zip((boosting, linear), of_sklearn, strict=False):
        expected = measure(y_test, model.fit(x, y).predict(x_test))
        assert found.score == pytest.approx(expected, abs=1e-9)
        assert found.low <= found.score <= found.high
        assert found.less is not None
        assert found.less[0] == pytest.approx(own.score - found.score)
        assert found.less[1] <= found.less[0] <= found.less[2]


def test_weights_of_rows_count(tmp_path: Path) -> None:
    run, trained, source = _trained(tmp_path, "data.weights=weight")
    own = compare(trained, source)[0]
    assert own.score == pytest.approx(run.result["test/acc"], abs=1e-6)
    said = trained.model(source.test.features).argmax(1)
    right = (said == source.test.labels).numpy()
    assert own.score == pytest.approx(np.average(right, weights=source.test.weights))
    assert not np.isclose(own.score, right.mean())  # so that the weights matter here
    linear = compare(trained, source)[2]
    assert source.train.weights is not None
    model = LogisticRegression(max_iter=1000)
    # Weights so unequal that the model without them answers otherwise.
    heavy = replace(source.train, weights=10.0 ** (source.train.labels * 6 - 3))
    for train, expected in ((source.train, linear), (heavy, None)):
        model.fit(train.features.numpy(), train.labels.numpy(), sample_weight=train.weights.numpy())
        answers = model.predict(source.test.features.numpy())
        share = np.average(answers == source.test.labels.numpy(), weights=source.test.weights)
        found = expected or compare(trained, replace(source, train=train))[2]
        assert found.score == pytest.approx(share)
    assert found.score != linear.score


def test_large_numbers_keep_their_differences() -> None:
    """As of years in seconds: R² is that of the numbers without what they share."""
    predicted, true = DRAW.normal(size=(2, 50))
    shares = np.ones((1, 50))
    (small,) = _scores("regression", predicted, true, shares)
    (large,) = _scores("regression", predicted + 2**40, true + 2**40, shares)
    assert large == pytest.approx(small, abs=1e-3)
    assert small == pytest.approx(r2_score(true, predicted))


def test_a_weighting_of_rows_is_as_repeated_rows() -> None:
    predicted, true = DRAW.normal(size=(2, 20))
    counts = DRAW.integers(0, 4, 20)
    again = r2_score(np.repeat(true, counts), np.repeat(predicted, counts))
    (found,) = _scores("regression", predicted, true, counts[None].astype(float))
    assert found == pytest.approx(again)
    (nothing,) = _scores("regression", predicted, true, np.eye(20)[:1])
    assert np.isnan(nothing)  # one row has no spread


@pytest.mark.parametrize("share", [0.55, 0.8, 0.95])
def test_the_interval_covers_as_often_as_it_says(share: float) -> None:
    """Over test sets of 60 rows: within 3.5 points of 95%."""
    found = DRAW.binomial(60, share, 600) / 60
    covered = [low <= share <= high for low, high in (wilson(each, 60) for each in found)]
    assert abs(np.mean(covered) - 0.95) < 0.035


class Overshooting(DecisionTreeClassifier):  # type: ignore[misc]
    """As gradient boosting with many small classes: at most rates, it learns nothing."""

    learns_at: float = 0.02

    def __init__(self, random_state: int = 0, learning_rate: float = 0.1) -> None:
        super().__init__(random_state=random_state)
        self.learning_rate = learning_rate

    def predict(self, X: Any, check_input: bool = True) -> Any:  # noqa: N803
        learned = super().predict(X, check_input)
        return learned if self.learning_rate == self.learns_at else 0 * learned


@pytest.mark.parametrize("learns_at", [0.1, 0.02, 0.0])
def test_boosting_that_learns_nothing_gets_a_smaller_rate(
    learns_at: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, trained, source = _trained(tmp_path, "data.drop=[weight]")
    monkeypatch.setattr(Overshooting, "learns_at", learns_at)
    monkeypatch.setattr("sklearn.ensemble.HistGradientBoostingClassifier", Overshooting)
    _, boosting, linear, _ = compare(trained, source)
    told = "gradient boosting, rate 0.02" if learns_at == 0.02 else "gradient boosting"
    assert (boosting.name, linear.name) == (told, "linear model")
    tree = DecisionTreeClassifier(random_state=0).fit(source.train.features, source.train.labels)
    first = float((source.test.labels == 0).float().mean())
    learned = tree.score(source.test.features, source.test.labels)
    assert boosting.score == pytest.approx(learned if learns_at else first)
