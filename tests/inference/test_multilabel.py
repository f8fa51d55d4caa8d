"""Several labels after training, against scikit-learn and plain torch."""

import csv
import io
import json
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, precision_recall_fscore_support, roc_auc_score
from torch.nn import functional as F

from kindling.config.compose import compose
from kindling.config.schema import Multilabel as Section
from kindling.inference.committees.making import _badness_of_mean, make_committee, select
from kindling.inference.committees.members import read_request as read_committee
from kindling.inference.evaluation import evaluate_path
from kindling.inference.export.export import export
from kindling.inference.export.formats import open_onnx, plan
from kindling.inference.inputs import read_inputs, read_request
from kindling.inference.model import load
from kindling.inference.prediction import PredictOutput, predict_inputs, predict_request
from kindling.inference.samples import source_of
from kindling.models.committee import Committee
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.reports.page import write_report
from kindling.system.errors import InputError
from kindling.tasks.multilabel import Multilabel
from kindling.training.fit import fit
from tests.training.test_tasks import table


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("labels")
    path = table(folder, 3, labels=True)
    config = (
        "task=multilabel", "data=csv", f"data.path={path}", "data.target=[y0,y1,y2]",
        "data.batch_size=16", "trainer.max_epochs=3", "model.hidden_sizes=[8]", "optimizer=adam",
        "data.split_seed=1", "logger=tensorboard",
    )  # fmt: skip
    return [fit(compose(*config, f"seed={seed}"), folder / str(seed)) for seed in range(3)]


def probabilities(run: Run, features: torch.Tensor) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        found: np.ndarray[Any, Any] = open_trained(run.folder).model(features).sigmoid().numpy()
    return found


def told(run: Run, path: Path, csv_file: str | None = None) -> PredictOutput:
    return predict_request(read_request(run.folder, [path], "auto", csv_file, force=False))


def test_an_evaluation_has_the_measures_of_scikit_learn(runs: list[Run]) -> None:
    run = runs[0]
    test = source_of(open_trained(run.folder)).test
    found = evaluate_path(run.folder, None)
    shares, labels = probabilities(run, test.features), test.labels.numpy().astype(int)
    predicted = shares > 0.5
    assert found.score == pytest.approx((predicted == labels).mean())
    assert found.score == pytest.approx(run.result["test/acc"])
    assert found.exact_match == accuracy_score(labels, predicted)
    most = labels.mean(0) > 0.5
    assert found.baseline == pytest.approx((labels == most).mean())
    expected = precision_recall_fscore_support(labels, predicted, zero_division=0)
    for name, values in zip(("precision", "recall", "f1"), expected, strict=False):
        assert getattr(found.measures, name).per_class == pytest.approx(values)
        assert getattr(found.measures, name).macro == pytest.approx(values.mean())
    assert found.measures.auroc.per_class == pytest.approx(
        roc_auc_score(labels, shares, average=None)
    )
    assert found.measures.samples == tuple(labels.sum(0))
    content = json.loads(json.dumps(found.to_primitives()))
    assert content["exact_match"] == found.exact_match
    assert content["f1"]["per_label"] == list(found.measures.f1.per_class)
    text = found.describe()
    assert f"accuracy of labels {found.score:.2%}" in text
    assert f"all labels right {found.exact_match:.2%}" in text
    assert f"{found.measures.f1.per_class[1]:.2%}" in text


def test_predictions_name_the_labels(runs: list[Run], tmp_path: Path) -> None:
    run = runs[0]
    lines = Path(run.config.data.path).read_text().splitlines()  # type: ignore[union-attr]
    (tmp_path / "new.csv").write_text("\n".join(lines[:30]) + "\n")
    output = told(run, tmp_path / "new.csv", "-")
    rows = list(csv.DictReader(io.StringIO(output.text)))
    model, path = load(run.folder), str(tmp_path / "new.csv")
    shares, decided = model.predict_proba(path), model.predict(path)
    assert np.array_equal(decided, shares > 0.5)
    assert decided.dtype == np.int64
    for place, name in enumerate(model.labels):
        said = [float(row[f"probability_{name}"]) for row in rows]
        assert said == pytest.approx(shares[:, place], abs=1e-6)
        assert [int(row[f"predicted_{name}"]) for row in rows] == decided[:, place].tolist()
    true = np.loadtxt(path, delimiter=",", skiprows=1)[:, 5:]
    assert model.score(path, true) == (decided == true).mean()
    shown = told(run, tmp_path / "new.csv").text
    named = [
        ", ".join(f"{n} {share:.2%}" for n, share in zip(model.labels, row, strict=True)
                  if share > 0.5) or "none"
        for row in shares
    ]  # fmt: skip
    assert named[0] in shown
    assert f"accuracy of labels {(decided == true).mean():.2%}" in shown
    with pytest.raises(InputError, match=r"the labels\[0, 1\] is 2, must be 0 or 1"):
        model.score(path, true + np.array([0, 2 - true[0, 1], 0]) * (np.arange(29) == 0)[:, None])


def test_wrong_tables_are_refused_in_a_line(runs: list[Run], tmp_path: Path) -> None:
    lines = Path(runs[0].config.data.path).read_text().splitlines()  # type: ignore[union-attr]
    bad = tmp_path / "bad.csv"
    bad.write_text("\n".join([lines[0], lines[1].rpartition(",")[0] + ",2"]))
    with pytest.raises(InputError, match=r"column y2: .*neither 0 nor 1") as error:
        evaluate_path(runs[0].folder, str(bad))
    assert "\n" not in str(error.value)
    (tmp_path / "classes" / "a").mkdir(parents=True)
    with pytest.raises(InputError, match=r"classes: has a class for each folder.*task=multilabel"):
        evaluate_path(runs[0].folder, str(tmp_path / "classes"))


@pytest.mark.slow
def test_a_committee_says_the_mean_of_the_probabilities(runs: list[Run], tmp_path: Path) -> None:
    request = read_committee([run.folder for run in runs], folder=tmp_path / "committee")
    made = make_committee(request)
    trained = open_trained(made.folder)
    test = source_of(trained).test
    best_first = sorted(runs, key=lambda run: run.result["best"]["val/loss"] or 0)
    said = np.stack([probabilities(run, test.features) for run in best_first])
    assert isinstance(trained.model, Committee)
    with torch.no_grad():
        mean = trained.model(test.features).sigmoid().numpy()
    assert mean == pytest.approx(said.mean(0), abs=1e-6)
    found = evaluate_path(made.folder, None)
    assert found.score == ((said.mean(0) > 0.5) == test.labels.numpy()).mean()
    assert made.result["test/acc"] == found.score
    path = Path(runs[0].config.data.path)  # type: ignore[union-attr]
    predictions = predict_inputs(trained, read_inputs([path]))
    each = [load(run.folder).predict_proba(str(path)) for run in runs]
    spreads = np.array([one.guess.spreads for one in predictions])
    assert spreads == pytest.approx(np.std(each, axis=0), abs=1e-6)
    onnx = open_onnx(export(plan(made.folder, "onnx", tmp_path / "m.onnx", force=False)).output)
    assert onnx.metadata.task == "multilabel"
    features = test.features.numpy()
    assert onnx.logits(features) == pytest.approx(said.mean(0), abs=1e-5)
    assert onnx.member_log_probabilities(features) == pytest.approx(
        said.transpose(1, 0, 2), abs=1e-5
    )


def test_greedy_selection_of_labels_by_brute_force() -> None:
    """The badness is that of plain torch, and no choice of picks is better than the best of all."""
    task = Multilabel(Section(name="multilabel", loss="binary_cross_entropy"), 2)
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    numbers = torch.Generator().manual_seed(2)
    said = torch.rand(3, 3, 2, generator=numbers, dtype=torch.float64)
    for by in ("val/loss", "val/acc"):
        badness = partial(_badness_of_mean, task, labels, by)
        for mean in said:
            loss = F.binary_cross_entropy(mean, labels.double()).item()
            right = ((mean > 0.5) == (labels > 0.5)).double().mean().item()
            assert badness(mean) == pytest.approx(loss if by == "val/loss" else -right)
        picks = select(said, 4, badness)
        votes = [each for n in range(1, 5) for each in product(range(3), repeat=n)]
        first = min(range(3), key=lambda place: badness(said[place]))
        assert picks[0] == first
        assert badness(said[picks].mean(0)) <= badness(said[first]) + 1e-12
        assert (
            badness(said[picks].mean(0)) >= min(badness(said[[*v]].mean(0)) for v in votes) - 1e-9
        )


def test_no_probability_of_a_committee_underflows() -> None:
    """One member is certain, far beyond what float32 can say of a probability."""
    task = Multilabel(Section(name="multilabel", loss="binary_cross_entropy"), 2)
    said = torch.tensor([[[200.0, -300.0], [150.0, -0.5]]])
    exact = said.double().sigmoid().mean(1)
    assert task.mean(said, [1, 1]).isfinite().all()
    assert task.mean(said, [1, 1])[0, 1].sigmoid().item() == pytest.approx(exact[0, 1].item())
    plain = torch.randn(5, 3, 2, dtype=torch.float64)
    votes = torch.tensor([1.0, 2, 4], dtype=torch.float64)
    torch.testing.assert_close(
        task.mean(plain, [1, 2, 4]).sigmoid(),
        (plain.sigmoid() * votes[:, None] / 7).sum(1),
    )


def test_a_report_shows_the_labels(runs: list[Run], tmp_path: Path) -> None:
    page = write_report([runs[0].folder], tmp_path / "page.html").read_text()
    assert [path.name for path in (tmp_path / "page").glob("*-labels.png")]
    found = evaluate_path(runs[0].folder, None)
    assert f"{found.score:.2%} of the labels of 48 test samples are right" in page
    assert f"{found.measures.f1.per_class[0]:.1%}" in page
