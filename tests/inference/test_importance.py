"""Which columns a model needs, against scikit-learn's permutation importance."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.inspection import permutation_importance

from kindling.config.compose import compose
from kindling.inference import importance
from kindling.inference.importance import importances
from kindling.inference.samples import source_of
from kindling.plots.pictures import intervals
from kindling.plots.samples import Sample
from kindling.records.loading import open_trained
from kindling.reports import model_pictures
from kindling.training.fit import fit

ROWS = 400


def _trained(tmp_path: Path, task: str, columns: int = 3) -> Any:
    """The label follows from `strong` and a little from `weak`, not from `useless`."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(ROWS, columns)).round(3)
    label = x[:, 0] + 0.3 * x[:, 1] + 0.1 * draw.normal(size=ROWS)
    names = ["strong", "weak", "useless", *(f"more{n}" for n in range(columns - 3))]
    if task != "regression":
        label = (label > 0).astype(int)
    path = tmp_path / "t.csv"
    rows = [",".join([*map(str, row), str(y)]) for row, y in zip(x, label, strict=True)]
    path.write_text("\n".join([",".join([*names, "y"]), *rows]))
    config = compose(
        "data=csv", f"data.path={path}", "data.target=y", f"task={task}", "trainer=cpu",
        "trainer.max_epochs=8", "data.encode=onehot",
    )  # fmt: skip
    trained = open_trained(fit(config, tmp_path / "run").folder)
    return trained, source_of(trained)


class _Model:
    """For scikit-learn: features to classes or standardised numbers."""

    def __init__(self, trained: Any, task: str) -> None:
        self.trained, self.task = trained, task
        self._estimator_type = "classifier" if task == "classification" else "regressor"

    def fit(self, x: Any, y: Any) -> None:
        raise NotImplementedError

    def score(self, x: Any, y: Any) -> float:
        with torch.no_grad():
            said = self.trained.model(torch.from_numpy(x)).numpy()
        if self.task == "classification":
            return float((said.argmax(1) == y).mean())
        return float(1 - ((said - y) ** 2).sum() / ((y - y.mean(0)) ** 2).sum())


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_it_is_scikit_learns(tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many exchanges, so that both draw about the same mean."""
    trained, source = _trained(tmp_path, task)
    monkeypatch.setattr(importance, "REPEATS", 200)
    found = importances(trained, source)
    assert [each.column for each in found] == ["strong", "weak", "useless"]
    x, y = source.test.features.numpy(), source.test.labels.numpy()
    model = _Model(trained, task)
    theirs = permutation_importance(model, x, y, n_repeats=200, random_state=0)
    means = dict(zip(["strong", "weak", "useless"], theirs.importances_mean, strict=True))
    for each in found:
        assert each.mean == pytest.approx(means[each.column], abs=0.03), each.column
        low, high = each.interval
        assert low < each.mean < high
    assert abs(found[2].mean) < 0.05 < found[0].interval[0]


def test_the_interval_is_that_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, with exchanges of our own: what each row loses on average, and the deviation of that
    among rows."""
    trained, source = _trained(tmp_path, "classification")
    monkeypatch.setattr(importance, "REPEATS", 200)
    strong = importances(trained, source)[0]
    assert len(strong.lost) == 200
    x, y = source.test.features.numpy(), source.test.labels.numpy()
    draw = np.random.default_rng(9)

    def right(features: Any) -> Any:
        with torch.no_grad():
            return trained.model(torch.from_numpy(features)).numpy().argmax(1) == y

    lost = np.zeros((200, len(y)))
    for number in range(200):
        changed = x.copy()
        changed[:, 0] = draw.permutation(changed[:, 0])
        lost[number] = right(x).astype(float) - right(changed)
    half = 1.96 * lost.mean(0).std(ddof=1) / np.sqrt(len(y))
    low, high = strong.interval
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)
    assert (low + high) / 2 == pytest.approx(lost.mean(), abs=0.02)


def test_wide_tables_and_pictures_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, source = _trained(tmp_path, "classification")
    monkeypatch.setattr(importance, "MOST_COLUMNS", 2)
    assert importances(trained, source) == []
    assert [*model_pictures._of_columns(trained, source, "name")] == []
    monkeypatch.undo()
    (picture,) = model_pictures._of_columns(trained, source, "name")
    assert "of its accuracy when the cells of one of its columns" in picture.caption
    monkeypatch.setattr(model_pictures, "MOST_IMPORTANT", 2)
    (picture,) = model_pictures._of_columns(trained, source, "name")
    assert "one of the 2 columns that it needs most" in picture.caption
    # A column whose exchange makes the answers better.
    worse = [Sample("noise", [-0.3, 0.1], -0.1, (-0.4, 0.2)), *picture.content[0]]
    low, high = intervals(worse, *picture.content[1:]).axes[0].get_xlim()
    assert low < -0.4
    assert high > 0.2
    figure = intervals(*picture.content)
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["strong", "weak"]
