"""A trained model, tested again: loss, accuracy and mistakes, measures of classes, calibration."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import (
    brier_score_loss,
    precision_recall_fscore_support,
    roc_auc_score,
    top_k_accuracy_score,
)
from torch.nn import functional as F
from torchmetrics.functional.classification import multiclass_auroc

from kindling.config.compose import compose
from kindling.config.schema import Data
from kindling.data.paths import FOLDERS
from kindling.data.sources.source import Source, Split
from kindling.inference.evaluation import (
    bins,
    calibrate,
    ece_by_chance,
    evaluate,
    evaluate_path,
    fit_temperature,
    measure,
    score,
)
from kindling.inference.inputs import read_request
from kindling.inference.logits import compute_logits
from kindling.inference.prediction import predict_request
from kindling.inference.samples import source_of, validation_of
from kindling.inference.tables import table_of_measures
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.reports.page import write_report
from kindling.system.errors import InputError
from kindling.tasks.measures import BINS
from kindling.training.fit import fit
from tests.helpers.commands import Command, Train, require_told_without_torch
from tests.helpers.data_files import write_pictures


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=logistic_regression", "optimizer.lr=0.1"],
        ["model.hidden_sizes=[16,8]", "model.activation=tanh", "model.dropout=0.2"],
        ["trainer.precision=64"],
        ["trainer.precision=bf16-mixed"],
        ["data=synthetic", "data.shape=[3,4]", "data.classes=3"],
    ],
)
def test_any_model_opens_and_repeats_its_test(overrides: list[str], train: Train) -> None:
    run = train(*overrides)
    found = evaluate_path(run.folder, None)
    assert found.accuracy == run.result["test/acc"]
    assert found.loss == pytest.approx(run.result["test/loss"], rel=1e-2)
    assert evaluate_path(run.best_checkpoint, None).confusion.equal(found.confusion)


def test_measures_are_part_of_the_answer(train: Train) -> None:
    run = train()
    found = evaluate_path(run.folder, None, top_k=3)
    answer = json.loads(json.dumps(found.to_primitives()))
    assert answer["recall"]["per_class"] == pytest.approx(answer["per_class_accuracy"])
    assert answer["recall"]["weighted"] == pytest.approx(answer["accuracy"])
    assert (answer["top_k"], answer["f1"]["macro"]) == (3, found.measures.f1.macro)
    assert answer["top_k_accuracy"] >= answer["accuracy"]
    assert f"top-3 accuracy {found.measures.top_k_accuracy:.2%}\n" in found.describe()
    with pytest.raises(InputError, match="--top-k 11: the model has 10 classes"):
        evaluate_path(run.folder, None, top_k=11)


def test_each_accuracy_stands_beside_the_share_of_the_largest_class(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the summary, in the evaluation and in the report: 14 of 20 test samples are of class 1."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    y = np.arange(40) % 2
    test = np.arange(20) >= 6
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x[:20] + 3, y_test=test.astype(int))
    recipe = ("data=npz", f"data.path={tmp_path}/a.npz", "data.val_fraction=0.5")
    short = ("trainer=cpu", "trainer.max_epochs=1", "checkpoint.monitor=val/f1")
    with caplog.at_level("INFO", "kindling"):
        run = fit(compose(*recipe, *short, "checkpoint.mode=max"), tmp_path / "run")
    data = run.result["data"]
    assert data["test_most_frequent_class"] == 0.7
    share = f"{data['val_most_frequent_class']:.2%}"
    lines = {line.split("  ")[0]: line for line in caplog.text.splitlines()}
    assert (
        f"accuracy {run.result['best']['val/acc']:.2%} (largest class {share}), epoch"
        in (lines["best validation"])
    )
    tested = f"accuracy {run.result['test/acc']:.2%} (largest class 70.00%), loss "
    assert tested in lines["test"]
    found = evaluate_path(run.folder, None)
    assert tested in found.describe()
    assert found.to_primitives()["largest_class"] == 0.7
    page = write_report([run.folder], models=False).read_text()
    assert "<dt>largest class</dt><dd>70.00%</dd>" in page


def _table(folder: Path) -> tuple[list[str], list[str]]:
    rows = [f"{n % 3 + 1},{'' if n == 3 else n % 7},{n % 2}" for n in range(40)]
    (folder / "t.csv").write_text("\n".join(["a,b,kind", *rows]))
    keys = [
        "data=csv",
        f"data.path={folder}/t.csv",
        "data.target=kind",
        "data.encode=null",
        "data.fill=median",
    ]
    return keys, [f"{folder}/t.csv: 1 empty cell of column b filled with 3"]


def _arrays(folder: Path) -> tuple[list[str], list[str]]:
    x = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(folder / "a.npz", x=x, y=np.arange(40) % 2, ids=np.arange(40))
    unused = "arrays that are not used: ids; data.group=NAME takes one as the groups of samples"
    return ["data=npz", f"data.path={folder}/a.npz"], [f"{folder}/a.npz: {unused}"]


def _pictures(folder: Path) -> tuple[list[str], list[str]]:
    write_pictures(folder / "p", {"cat": 10, "dog": 10})
    (folder / "p" / "README.txt").write_text("mine")
    keys = ["data=image_folder", f"data.path={folder}/p", "data.size=8"]
    return keys, [f"{folder}/p: files that are not PNG or JPEG, left out: 1 (.txt 1)"]


@pytest.mark.parametrize("make", [_table, _arrays, _pictures])
@pytest.mark.parametrize("data", [None, "own"])
def test_the_evaluation_tells_once_what_the_training_told(
    make: Callable[[Path], tuple[list[str], list[str]]], data: str | None,
    tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    keys, expected = make(tmp_path)
    with caplog.at_level("INFO", "kindling"):
        config = compose(*keys, "trainer=cpu", "trainer.max_epochs=1")
        run = fit(config, tmp_path / "run")
        begun = [line for line in caplog.messages if line.startswith(f"{tmp_path}/")]
        caplog.clear()
        own = None if data is None else str(config.to_primitives()["data"]["path"])
        evaluate_path(run.folder, own, calibrated=True).describe()
    assert caplog.messages == expected == begun


def test_the_command_prints_the_notes_beside_its_result(tmp_path: Path, command: Command) -> None:
    keys, expected = _arrays(tmp_path)
    run = fit(compose(*keys, "trainer=cpu", "trainer.max_epochs=1"), tmp_path / "run")
    done = command("src.evaluate", str(run.folder), "--json")
    assert done.stderr.splitlines() == expected
    assert json.loads(done.stdout)["accuracy"] == run.result["test/acc"]


@pytest.mark.parametrize("others", [[], ["ids"], ["x_test", "y_test", "sample_weight"]])
def test_arrays_that_are_not_used_are_named(
    others: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By `predict` and by `evaluate --data`."""
    keys, _ = _arrays(tmp_path)
    run = fit(compose(*keys, "trainer=cpu", "trainer.max_epochs=1"), tmp_path / "run")
    new = tmp_path / "new.npz"
    more: dict[str, Any] = {name: np.ones(4) for name in others}
    np.savez(new, x=np.ones((4, 3)), y=np.arange(4) % 2, **more)
    expected = [f"{new}: arrays that are not used: {', '.join(others)}"] if others else []
    output = predict_request(read_request(run.folder, [new], "auto", None, force=False))
    assert [note for note in output.notes if str(new) in note] == expected
    caplog.clear()
    with caplog.at_level("INFO", "kindling"):
        evaluate_path(run.folder, str(new))
    assert caplog.messages == expected


def test_confusion_by_hand(train: Train) -> None:
    trained = open_trained(train("data=toy", "data.factor=4").folder)
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.zero_()
        list(trained.model.parameters())[-1].copy_(torch.tensor([0.0, 1.0]))  # always class 1
    split = Split(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))
    found = evaluate(trained, Source("toy", split, split, ("0", "1")))
    assert found.confusion.tolist() == [[0, 2], [0, 2]]
    assert (found.accuracy, found.per_class) == (0.5, [0.0, 1.0])
    assert found.loss == pytest.approx((1.3133 + 0.3133) / 2, abs=1e-4)
    only_ones = Split(torch.zeros(2, 2), torch.tensor([1, 1]))
    found = evaluate(trained, Source("toy", split, only_ones, ("0", "1")))
    assert found.per_class == [None, 1.0]
    assert "-" in found.describe()


@pytest.mark.parametrize("name", [*FOLDERS])
@pytest.mark.parametrize("there", [False, True])
def test_nothing_is_downloaded_where_a_foreign_run_says(
    name: str, there: bool, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """data.root of a run holds only if its data set is there, which no command would change."""
    root = tmp_path / "theirs"
    if there:
        (root / FOLDERS[name]).mkdir(parents=True)
        (root / FOLDERS[name] / "file").touch()
    asked = []

    def opened(section: Data, *_: object) -> Source:
        asked.append(section)
        raise InputError("is not read here")

    monkeypatch.setattr("kindling.inference.samples.open_source", opened)
    foreign = compose(f"data={name}", f"data.root={root}")
    trained = replace(open_trained(train().folder), config=foreign, data=name)
    with pytest.raises(InputError, match="is not read here"):
        source_of(trained)
    (section,) = asked
    assert section.model_dump() == foreign.data.model_dump() | {
        "root": str(root) if there else None
    }
    assert root.exists() == there


def test_data_of_another_shape(train: Train) -> None:
    run = train()
    with pytest.raises(
        InputError, match=r"takes features \(1, 28, 28\) of 10 classes, but data=toy"
    ):
        evaluate_path(run.folder, "toy")
    with pytest.raises(InputError, match="--data nowhere: must be one of"):
        evaluate_path(run.folder, "nowhere")


def test_classes_of_another_data_set_go_by_name(train: Train) -> None:
    """The model's classes are in another order, and have one that the data set lacks."""
    trained = open_trained(train().folder)
    order = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    plain = evaluate(trained, source_of(trained, "digits"))
    model = torch.nn.Sequential(trained.model, Reordered(order))
    labels = (*(str(number) for number in order.tolist()), "none")
    other = replace(trained, model=model, labels=labels)
    found = evaluate(other, source_of(other, "digits"))
    assert found.labels == labels
    assert found.accuracy == plain.accuracy
    assert torch.equal(found.confusion[:10, :10], plain.confusion[order][:, order])
    assert found.per_class[10] is None
    letters = replace(trained, labels=tuple("abcdefghij"))
    with pytest.raises(InputError, match="its classes are a, b, c, d, e, …, but data=digits"):
        evaluate(letters, source_of(letters, "digits"))


class Reordered(torch.nn.Module):
    """Logits in another order, and a further class that is never predicted."""

    def __init__(self, order: torch.Tensor) -> None:
        super().__init__()
        self.order = order

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        never = torch.full((len(logits), 1), -1000.0)
        return torch.cat([logits[:, self.order], never], 1)


def test_faults_of_the_command_line_cost_no_torch(train: Train, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    told = {
        (nowhere,): f"error: {nowhere}: there is no such file or folder",
        (str(train().folder), "--data", "nowhere"): "--data nowhere: must be one of",
        (str(train().folder), "--top-k", "0"): "--top-k 0: must be 1 or more",
    }
    require_told_without_torch("evaluate", told)


# --- measures, by hand and by scikit-learn --------------------------------------------------------


# Ten samples of three classes: [5, 1, 0], [1, 2, 1] and [0, 0, 0] of a class are predicted as each.
LABELS = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
PREDICTED = torch.tensor([0, 0, 0, 0, 0, 1, 0, 1, 1, 2])


def test_measures_of_ten_samples_by_hand() -> None:
    found = measure(torch.eye(3)[PREDICTED], LABELS)
    assert found.samples == (6, 4, 0)
    assert found.precision.per_class == pytest.approx((5 / 6, 2 / 3, 0.0))
    assert found.recall.per_class == pytest.approx((5 / 6, 1 / 2, 0.0))
    assert found.f1.per_class == pytest.approx((5 / 6, 4 / 7, 0.0))
    assert found.f1.macro == pytest.approx((5 / 6 + 4 / 7) / 3)
    assert found.f1.weighted == pytest.approx(0.6 * 5 / 6 + 0.4 * 4 / 7)
    # Of 6 · 4 pairs, class 0: 5 · 3 in order, 5 · 1 + 1 · 3 equal.
    assert found.auroc.per_class == pytest.approx(((15 + 8 / 2) / 24, (10 + 12 / 2) / 24, None))
    assert found.auroc.macro == pytest.approx((19 + 16) / 48)
    assert (found.top_k, found.top_k_accuracy) == (None, None)
    assert measure(torch.eye(3)[PREDICTED], LABELS, 1).top_k_accuracy == 0.7
    assert measure(torch.eye(3)[PREDICTED], LABELS, 3).top_k_accuracy == 1.0


@pytest.mark.filterwarnings("ignore:.*ill-defined")
@pytest.mark.parametrize("classes", [2, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_measures_are_those_of_other_libraries(classes: int, seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    logits = torch.randn(60, classes, generator=stream).double().mul(4).round()  # with equal ones
    labels = torch.randint(classes, (60,), generator=stream)
    labels[:classes] = torch.arange(classes)
    found, predicted = measure(logits, labels), logits.argmax(1)
    for average in ("macro", "weighted"):
        *expected, _ = precision_recall_fscore_support(labels, predicted, average=average)
        own = [getattr(each, average) for each in (found.precision, found.recall, found.f1)]
        assert own == pytest.approx(expected, rel=1e-12)
        probabilities = logits.softmax(1).numpy()
        area = roc_auc_score(
            labels, probabilities if classes > 2 else probabilities[:, 1],
            average=average, multi_class="ovr",
        )  # fmt: skip
        assert getattr(found.auroc, average) == pytest.approx(area, rel=1e-12)
    *expected, samples = precision_recall_fscore_support(labels, predicted)
    for measured, each in zip((found.precision, found.recall, found.f1), expected, strict=True):
        assert measured.per_class == pytest.approx(each.tolist(), rel=1e-12)
    assert found.samples == tuple(samples)
    areas = multiclass_auroc(logits.softmax(1), labels, classes, average="none")
    assert found.auroc.per_class == pytest.approx(areas.tolist(), rel=1e-6)
    distinct = logits + torch.rand(60, classes, generator=stream)
    if classes > 5:
        expected_accuracy = top_k_accuracy_score(labels, distinct, k=5)
        assert measure(distinct, labels).top_k == 5
        assert measure(distinct, labels).top_k_accuracy == pytest.approx(expected_accuracy)


def test_a_class_that_is_neither_there_nor_predicted_has_no_measure() -> None:
    found = measure(torch.eye(4)[PREDICTED], LABELS)
    for each in (found.precision, found.recall, found.f1, found.auroc):
        assert each.per_class[3] is None
    assert found.f1.macro == pytest.approx((5 / 6 + 4 / 7) / 3)
    one = measure(torch.eye(2)[[0, 0]], torch.tensor([0, 0]))
    assert (one.auroc.macro, one.auroc.weighted, one.auroc.per_class) == (None, None, (None, None))
    assert (one.f1.macro, one.f1.per_class) == (1.0, (1.0, None))


def test_probabilities_that_are_no_numbers_have_no_auroc() -> None:
    logits = torch.eye(3)[PREDICTED]
    logits[2] = torch.nan
    found = measure(logits, LABELS)
    assert found.auroc.per_class == (None, None, None)
    assert found.auroc.macro is None
    assert found.f1.macro == pytest.approx((5 / 6 + 4 / 7) / 3)  # torch.argmax of them is 0


@pytest.mark.parametrize("top_k", [-1, 0, 4])
def test_a_wrong_number_for_top_k_is_refused(top_k: int) -> None:
    with pytest.raises(InputError, match=rf"^--top-k {top_k}: .* type a number from 1 to 3$"):
        measure(torch.eye(3)[PREDICTED], LABELS, top_k)


def test_the_table_has_a_row_for_each_class_and_average() -> None:
    found = measure(torch.eye(3)[PREDICTED], LABELS, 2)
    assert found.top_k_accuracy == 0.7  # equal logits are no hit
    assert [" ".join(row).split() for row in table_of_measures(found, ["cat", "dog", "eel"])] == [
        ["class", "precision", "recall", "F1", "AUROC", "samples"],
        ["cat", "83.33%", "83.33%", "83.33%", "79.17%", "6"],
        ["dog", "66.67%", "50.00%", "57.14%", "66.67%", "4"],
        ["eel", "0.00%", "0.00%", "0.00%", "–", "0"],
        ["macro", "average", "50.00%", "44.44%", "46.83%", "72.92%", "10"],
        ["weighted", "average", "76.67%", "70.00%", "72.86%", "74.17%", "10"],
    ]


# --- calibration: scores by hand, and the temperature against a grid ------------------------------


# Ten samples of two classes, all predicted as class 0, with two confidences.
CONFIDENCE = torch.tensor([0.9] * 5 + [0.6] * 5, dtype=torch.float64)
SURE = torch.stack([CONFIDENCE.log(), (1 - CONFIDENCE).log()], 1)
TRUE = torch.tensor([0, 0, 0, 0, 1, 0, 0, 1, 1, 1])


def test_scores_by_hand() -> None:
    found = score(SURE, TRUE)
    assert found.ece == pytest.approx((abs(0.9 - 4 / 5) + abs(0.6 - 2 / 5)) / 2)
    squares = 2 * (4 * 0.1**2 + 0.9**2 + 2 * 0.4**2 + 3 * 0.6**2)
    assert found.brier == pytest.approx(squares / 10)
    assert found.brier == pytest.approx(2 * brier_score_loss(TRUE == 0, CONFIDENCE))
    likelihood = 4 * math.log(0.9) + math.log(0.1) + 2 * math.log(0.6) + 3 * math.log(0.4)
    assert found.loss == pytest.approx(-likelihood / 10)


def test_bins_by_hand() -> None:
    found = bins(SURE, TRUE)
    assert [(b, n) for b, n in enumerate(found.counts) if n] == [(8, 5), (13, 5)]
    assert (found.confidence[13], found.accuracy[13]) == pytest.approx((0.9, 0.8))
    assert (found.confidence[8], found.accuracy[8]) == pytest.approx((0.6, 0.4))
    assert (found.confidence[0], found.accuracy[0]) == (0, 0)


def test_the_bins_give_the_error() -> None:
    stream = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(2000, 7, generator=stream, dtype=torch.float64)
    labels = torch.randint(7, (2000,), generator=stream)
    found = bins(logits, labels)
    assert sum(found.counts) == 2000
    assert len(found.counts) == BINS
    distances = np.abs(np.subtract(found.confidence, found.accuracy))
    assert score(logits, labels).ece == pytest.approx(distances @ found.counts / 2000, abs=1e-6)


def test_certain_predictions() -> None:
    """Probabilities of exactly 1 stay probabilities."""
    found = score(torch.tensor([[1e4, 0.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1]))
    assert (found.ece, found.brier) == pytest.approx((0.25, 0.5))


@pytest.mark.slow
@pytest.mark.parametrize("true", [0.2, 1.0, 5.0])
def test_the_temperature_against_a_grid(true: float) -> None:
    """Labels are drawn from the probabilities at the temperature `true`."""
    stream = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(5000, 5, generator=stream, dtype=torch.float64)
    labels = torch.multinomial((logits / true).softmax(-1), 1, generator=stream).squeeze(1)
    found = fit_temperature(logits, labels)
    grid = np.exp(np.linspace(math.log(0.01), math.log(100), 2001))
    losses = [F.cross_entropy(logits / value, labels).item() for value in grid]
    assert found == pytest.approx(grid[int(np.argmin(losses))], rel=0.01)
    assert found == pytest.approx(true, rel=0.1)
    assert F.cross_entropy(logits / found, labels).item() <= min(losses) + 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_the_temperature_against_scipy(seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    count, classes = 5 + 40 * seed, 2 + seed
    logits = torch.randn(count, classes, generator=stream, dtype=torch.float64) * 3.0**seed / 9
    labels = (logits + 2 * torch.randn(count, classes, generator=stream)).argmax(1)
    best = minimize_scalar(
        lambda log: F.cross_entropy(logits / math.exp(log), labels).item(),
        bounds=(math.log(0.01), math.log(100)), method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    assert fit_temperature(logits, labels) == pytest.approx(math.exp(best.x), rel=1e-5)


@pytest.mark.parametrize("samples", [30, 300, 3000])
def test_a_calibrated_model_has_such_an_error_by_chance(samples: int) -> None:
    """Its classes are drawn from its own probabilities: 5% of the test sets have a larger error."""
    draw = np.random.default_rng(samples)
    logits = torch.from_numpy(draw.normal(size=(samples, 4)) * 2)
    shares = torch.softmax(logits, 1).numpy()
    drawn = (shares.cumsum(1)[:, None] < draw.random((samples, 400))[..., None]).sum(2).clip(0, 3)
    errors = [score(logits, torch.from_numpy(labels)).ece for labels in drawn.T]
    assert np.mean(np.array(errors) > ece_by_chance(logits)) == pytest.approx(0.05, abs=0.035)


def test_of_equal_logits_the_temperature_is_one() -> None:
    found = fit_temperature(torch.full((6, 3), 2.5), torch.arange(6) % 3)
    assert found == pytest.approx(1, abs=1e-12)


def test_a_temperature_at_its_bound() -> None:
    perfect = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert fit_temperature(perfect, torch.tensor([0, 1])) <= 0.1
    assert fit_temperature(perfect, torch.tensor([1, 0])) == pytest.approx(100, rel=1e-3)


def test_the_temperature_is_fitted_on_validation_alone(committee: Run) -> None:
    trained = open_trained(committee.folder)
    source = source_of(trained)
    tested = compute_logits(trained, source.test)
    found = calibrate(trained, source, tested, source.test.labels)
    validation = validation_of(trained, source)
    assert found.fitted_on == len(validation) == committee.result["data"]["val"]
    logits = compute_logits(trained, validation)
    assert found.temperature == fit_temperature(logits, validation.labels)
    assert found.before == score(tested, source.test.labels)
    assert found.after == score(tested / found.temperature, source.test.labels)
    assert found.before.loss == pytest.approx(committee.result["test/loss"])


def test_the_command(committee: Run, train: Train, command: Command) -> None:
    done = command("src.evaluate", str(committee.folder), "--calibrate")
    assert done.returncode == 0, done.stderr
    told = command("src.evaluate", str(committee.folder), "--calibrate", "--json")
    found = json.loads(told.stdout)["calibration"]
    lines = done.stdout.splitlines()
    assert lines[-5].split() == ["calibration", "ECE", "Brier", "loss"]
    for line, name in ((lines[-3], "before"), (lines[-2], "after")):
        scores = found[name]
        assert line.split()[-3:] == [
            f"{scores['ece']:.2%}", f"{scores['brier']:.4f}", f"{scores['loss']:.4f}",
        ]  # fmt: skip
    assert f"temperature {found['temperature']:.4f}" in lines[-2]
    assert lines[-1].endswith(f"fitted on {found['fitted_on']} validation samples")
    plain = command("src.evaluate", str(committee.folder), "--json")
    assert "calibration" not in json.loads(plain.stdout)


def test_a_run_without_a_validation_set(train: Train) -> None:
    trained = open_trained(train("data.val_fraction=null").folder)
    source = source_of(trained)
    with pytest.raises(InputError, match=r"data\.val_fraction=null, without a validation set"):
        calibrate(trained, source, torch.zeros(1, 10), torch.zeros(1).long())
