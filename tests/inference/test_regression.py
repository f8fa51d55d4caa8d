"""Numbers after training, against scikit-learn, NumPy and plain torch."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from kindling.config.compose import compose
from kindling.config.measures import MULTILABEL, REGRESSION
from kindling.data.arrays import label_faults
from kindling.data.loader import Block
from kindling.data.sources.catalogue import open_source
from kindling.inference.committees.making import make_committee, summary
from kindling.inference.committees.members import read_request as read_committee
from kindling.inference.evaluation import evaluate, evaluate_path
from kindling.inference.export.export import export, open_safetensors, report
from kindling.inference.export.formats import FORMATS, FormatName, open_onnx, plan
from kindling.inference.inputs import read_inputs, read_request
from kindling.inference.model import load
from kindling.inference.prediction import PredictOutput, predict, predict_inputs, predict_request
from kindling.inference.regression import Interval, quantiles
from kindling.inference.samples import source_of, validation_of
from kindling.records import checkpoint
from kindling.records.folder import Run
from kindling.records.loading import Trained, open_trained
from kindling.reports.page import write_report
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.training.test_tasks import table


def train(folder: Path, outputs: int, *overrides: str) -> Run:
    path = table(folder, outputs)
    names = [f"y{n}" for n in range(outputs)]
    target = names[0] if outputs == 1 else f"[{','.join(names)}]"
    config = compose(
        "task=regression", "data=csv", f"data.path={path}", f"data.target={target}",
        "data.batch_size=16", "trainer.max_epochs=4", "model.hidden_sizes=[8]", "optimizer=adam",
        "optimizer.lr=0.02", "trainer.early_stopping_patience=null", *overrides,
    )  # fmt: skip
    return fit(config, folder / f"run{outputs}")


@pytest.fixture(scope="module", params=[(1, ""), (3, ""), (3, "task.loss=quantile")])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    outputs, loss = request.param
    return train(tmp_path_factory.mktemp("numbers"), outputs, *([loss] if loss else []))


def outputs_by_hand(trained: Trained, features: torch.Tensor) -> np.ndarray[Any, Any]:
    """The numbers, or the quantiles of each, in their unit, by the module itself: (N, numbers, 1 or
    3)."""
    scale = trained.targets
    assert scale is not None
    with torch.no_grad():
        outputs = trained.model(features).double().numpy()
    outputs = outputs.reshape(len(features), len(trained.labels), -1)
    found: np.ndarray[Any, Any] = (
        outputs * np.array(scale.deviations)[:, None] + np.array(scale.means)[:, None]
    )
    return found


def by_hand(trained: Trained, features: torch.Tensor) -> np.ndarray[Any, Any]:
    """The numbers, of quantiles the medians."""
    found = outputs_by_hand(trained, features)
    return found[..., found.shape[-1] // 2]


def intervals_by_hand(
    trained: Trained, features: torch.Tensor
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Beyond the outputs by the error of the right rank of the validation samples."""
    validation = validation_of(trained, source_of(trained))
    true = true_numbers(trained, validation.labels)
    said = outputs_by_hand(trained, validation.features)
    errors = np.sort(np.maximum(said.min(-1) - true, true - said.max(-1)), axis=0)
    margin = errors[math.ceil((len(errors) + 1) * 0.9 - 1e-9) - 1]
    said = outputs_by_hand(trained, features)
    return said.min(-1) - margin, said.max(-1) + margin


def true_numbers(trained: Trained, labels: torch.Tensor) -> np.ndarray[Any, Any]:
    assert trained.targets is not None
    return labels.double().numpy() * trained.targets.deviations + trained.targets.means


def told(run: Run, path: Path, csv_file: str | None = None) -> PredictOutput:
    return predict_request(read_request(run.folder, [path], "auto", csv_file, force=False))


def test_an_evaluation_has_the_measures_of_scikit_learn(run: Run) -> None:
    trained = open_trained(run.folder)
    source = source_of(trained)
    found = evaluate_path(run.folder, None)
    predicted = by_hand(trained, source.test.features)
    true = true_numbers(trained, source.test.labels)
    assert found.data == "csv"
    assert trained.targets is not None
    low, high = intervals_by_hand(trained, source.test.features)
    for place, number in enumerate(found.numbers):
        pair = true[:, place], predicted[:, place]
        mean = np.full(len(true), trained.targets.means[place])
        assert number.name == f"y{place}"
        assert number.r2 == pytest.approx(r2_score(*pair), abs=1e-5)
        assert number.rmse == pytest.approx(root_mean_squared_error(*pair), rel=1e-5)
        assert number.mae == pytest.approx(mean_absolute_error(*pair), rel=1e-5)
        assert number.mean_r2 == pytest.approx(r2_score(pair[0], mean), abs=1e-5)
        assert number.mean_rmse == pytest.approx(root_mean_squared_error(pair[0], mean), rel=1e-5)
        assert number.mean_mae == pytest.approx(mean_absolute_error(pair[0], mean), rel=1e-5)
        own = low[:, place], high[:, place]
        assert number.half_width == pytest.approx((own[1] - own[0]).mean() / 2, rel=1e-5)
        assert number.coverage == ((own[0] <= pair[0]) & (pair[0] <= own[1])).mean()
    validation = validation_of(trained, source)
    assert found.fitted_on == len(validation)
    assert ("mean width" in found.describe()) == (run.config.task.loss == "quantile")
    result: dict[str, Any] = dict(run.result)
    assert found.score == pytest.approx(result["test/r2"], rel=1e-5)
    assert found.loss == pytest.approx(result["test/loss"], rel=1e-5)
    content = json.loads(json.dumps(found.to_primitives()))
    assert content["interval"] == {"level": 0.9, "fitted_on": len(validation)}
    assert [each["rmse"] for each in content["numbers"]] == [n.rmse for n in found.numbers]
    first = found.numbers[0]
    text = found.describe()
    assert f"± {first.half_width:.5g}" in text
    assert f"{first.rmse:.5g}" in text
    assert f"{first.coverage:.2%}" in text


@pytest.mark.parametrize("samples", [9, 10, 19, 38, 99, 100, 1000])
def test_the_rank_of_the_interval(samples: int) -> None:
    """NumPy's quantile of this method is the order statistic of rank ceil(q n)."""
    errors = torch.rand(samples, 2, generator=torch.Generator().manual_seed(1)).double()
    level = min(1, math.ceil((samples + 1) * 0.9 - 1e-9) / samples)
    expected = np.quantile(errors.numpy(), level, axis=0, method="inverted_cdf")
    assert quantiles(errors, "run") == expected.tolist()


def test_the_interval_covers_what_it_promises() -> None:
    """Of 19 errors, the 18th: 90% of new ones are smaller, whatever their distribution."""
    numbers = np.random.default_rng(3)
    covered = []
    for _ in range(2000):
        errors = torch.from_numpy(numbers.standard_cauchy((19, 1))).abs()
        covered.append(abs(numbers.standard_cauchy()) <= quantiles(errors, "run")[0])
    assert np.mean(covered) == pytest.approx(0.9, abs=0.02)


def test_too_few_samples_have_no_interval() -> None:
    assert quantiles(torch.arange(9.0)[:, None], "run") == [8.0]
    with pytest.raises(InputError, match="run: has 8 held-out samples; an interval of 90% needs 9"):
        quantiles(torch.arange(8.0)[:, None], "run")


def test_without_held_out_samples_there_is_no_interval(tmp_path: Path) -> None:
    run = train(tmp_path, 1, "data.val_fraction=null")
    found = evaluate_path(run.folder, None)
    assert (found.numbers[0].half_width, found.numbers[0].coverage, found.fitted_on) == (None,) * 3
    assert "no interval: was trained with data.val_fraction=null" in found.describe()
    assert found.to_primitives()["interval"] is None
    np.savetxt(tmp_path / "a.csv", np.zeros((2, 5)), delimiter=",", header="x0,x1,x2,x3,x4",
               comments="")  # fmt: skip
    output = told(run, tmp_path / "a.csv", "-")
    assert output.text.splitlines()[0] == "file,row,predicted_y0,fault"
    assert any("no intervals are told: was trained with" in note for note in output.notes)


def test_other_rows_are_tested_in_their_unit(run: Run, tmp_path: Path) -> None:
    outputs = len(open_trained(run.folder).labels)
    lines = Path(run.config.data.path).read_text().splitlines()  # type: ignore[union-attr]
    own = tmp_path / "own.csv"
    own.write_text("\n".join(lines[:40]) + "\n")
    found = evaluate_path(run.folder, str(own))
    trained = open_trained(run.folder)
    rows = np.loadtxt(own, delimiter=",", skiprows=1)
    predicted = load(run.folder).predict(str(own)).reshape(len(rows), -1)
    assert found.true.numpy() == pytest.approx(rows[:, 5:], rel=1e-5, abs=1e-9)
    for place, number in enumerate(found.numbers):
        assert number.r2 == pytest.approx(r2_score(rows[:, 5 + place], predicted[:, place]))
    assert found.fitted_on == len(validation_of(trained, source_of(trained)))
    bad = tmp_path / "bad.csv"
    cells = lines[1].split(",")
    bad.write_text("\n".join([lines[0], lines[1], ",".join([*cells[:5], *["much"] * outputs])]))
    with pytest.raises(InputError, match=r"bad\.csv: column y0: .* is not a number") as error:
        evaluate_path(run.folder, str(bad))
    assert "\n" not in str(error.value)
    bad.write_text("\n".join(line.rpartition(",")[0] for line in lines[:9]))
    with pytest.raises(InputError, match=rf"no column .*y{outputs - 1}"):
        evaluate_path(run.folder, str(bad))
    for option, words in (({"top_k": 2}, "--top-k 2"), ({"calibrated": True}, "--calibrate")):
        with pytest.raises(InputError, match=f"{words}: .* has no classes; leave {words} out"):
            evaluate_path(run.folder, None, **option)
    with pytest.raises(InputError, match="--data digits: has labels for classification"):
        evaluate_path(run.folder, "digits")


def test_predictions_are_those_of_the_module_with_their_interval(run: Run, tmp_path: Path) -> None:
    trained = open_trained(run.folder)
    lines = Path(run.config.data.path).read_text().splitlines()  # type: ignore[union-attr]
    (tmp_path / "new.csv").write_text("\n".join(lines[:6]) + "\n")
    output = told(run, tmp_path / "new.csv", "-")
    rows = list(csv.DictReader(io.StringIO(output.text)))
    table_rows = np.loadtxt(tmp_path / "new.csv", delimiter=",", skiprows=1)
    assert trained.columns is not None
    (item,) = read_inputs([tmp_path / "new.csv"])
    features = torch.from_numpy(trained.columns.features(item))  # type: ignore[arg-type]
    expected = by_hand(trained, features)
    ends = intervals_by_hand(trained, features)
    for place, name in enumerate(trained.labels):
        said = np.array([[float(row[f"{part}_{name}"]) for part in ("predicted", "low", "high")]
                         for row in rows])  # fmt: skip
        assert said[:, 0] == pytest.approx(expected[:, place], rel=1e-5, abs=1e-6)
        for number, end in enumerate(ends, 1):
            assert said[:, number] == pytest.approx(end[:, place], rel=1e-5, abs=1e-6)
        true = [float(row[f"true_{name}"]) for row in rows]
        assert true == pytest.approx(table_rows[:, 5 + place])
    shown = told(run, tmp_path / "new.csv").text
    assert f"{float(rows[0]['predicted_y0']):.5g}" in shown
    score = r2_score(table_rows[:, 5], [float(row["predicted_y0"]) for row in rows])
    assert f"R² {score:.4f}, RMSE" in shown


def test_a_model_has_the_shapes_and_the_score_of_scikit_learn(run: Run) -> None:
    model = load(run.folder)
    path = str(run.config.data.path)  # type: ignore[union-attr]
    rows = np.loadtxt(path, delimiter=",", skiprows=1)[:, 5:]
    found = model.predict(path)
    outputs = rows.shape[1]
    assert found.shape == ((len(rows),) if outputs == 1 else rows.shape)
    assert found.dtype == np.float64
    true = rows[:, 0] if outputs == 1 else rows
    assert model.score(path, true) == pytest.approx(r2_score(true, found))
    with pytest.raises(InputError, match="has no probabilities; call predict"):
        model.predict_proba(path)
    with pytest.raises(InputError, match="must be numbers"):
        model.score(path, ["much"] * len(rows))
    with pytest.raises(InputError, match="must have a column for each of y0"):
        model.score(path, np.zeros((len(rows), outputs + 1)))


@pytest.mark.parametrize("format_", ["onnx", "torch", "safetensors"])
def test_an_exported_model_gives_numbers_in_their_unit(
    format_: FormatName, run: Run, tmp_path: Path
) -> None:
    done = export(plan(run.folder, format_, tmp_path / f"m{FORMATS[format_].suffix}", force=False))
    assert done.score == pytest.approx(run.result["test/r2"], rel=1e-4)
    trained = open_trained(run.folder)
    features = source_of(trained).test.features
    expected = outputs_by_hand(trained, features).reshape(len(features), -1)
    if format_ == "onnx":
        model = open_onnx(done.output)
        actual = model.logits(features.numpy())
        assert model.metadata.task == "regression"
        assert tuple(model.metadata.labels) == trained.labels
        assert [value.name for value in model.session.get_outputs()] == ["numbers"]
    elif format_ == "torch":
        actual = torch.export.load(done.output).module()(features).detach().numpy()
    else:
        actual = open_safetensors(done.output)[0](features).detach().numpy()
    assert actual.dtype == np.float64
    assert trained.targets is not None
    of_each = expected.shape[1] // len(trained.labels)
    assert np.abs((actual - expected) / np.repeat(trained.targets.deviations, of_each)).max() < 1e-5
    assert f"numbers float64 (N, {expected.shape[1]})" in report(done)
    assert f"R² {done.score:.4f}" in report(done)


@pytest.mark.parametrize("change", [None, {"means": [0.0] * 5, "deviations": [1.0] * 5}])
def test_a_checkpoint_with_another_scaling_is_refused(
    change: dict[str, Any] | None, run: Run, tmp_path: Path
) -> None:
    content = checkpoint.read(run.best_checkpoint)
    content["kindling"]["targets"] = change
    checkpoint.write(content, tmp_path / "a.ckpt")
    with pytest.raises(InputError, match=r"is not a checkpoint .*scaling of numbers does not fit"):
        open_trained(tmp_path / "a.ckpt")


@pytest.fixture(scope="module", params=["squared_error", "quantile"])
def members(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("members")
    path, found = table(folder, 3), []
    for seed in range(3):
        (folder / str(seed)).mkdir()
        own = (f"seed={seed}", "data.split_seed=1", f"data.path={path}",
               f"task.loss={request.param}")  # fmt: skip
        found.append(train(folder / str(seed), 3, *own))
    return found


def best_first(runs: list[Run]) -> list[Run]:
    """The order of the members of a committee."""
    return sorted(runs, key=lambda run: run.result["best"]["val/loss"] or 0)


@pytest.mark.slow
def test_a_committee_says_the_mean_and_how_far_its_members_differ(
    members: list[Run], tmp_path: Path
) -> None:
    request = read_committee([run.folder for run in members], folder=tmp_path / "committee")
    made = make_committee(request)
    each = [open_trained(run.folder) for run in best_first(members)]
    trained = open_trained(made.folder)
    source = source_of(trained)
    said = np.stack([by_hand(member, source.test.features) for member in each])
    found = evaluate(trained, source)
    assert found.predicted.numpy() == pytest.approx(said.mean(0), rel=1e-5, abs=1e-6)
    result: dict[str, Any] = dict(made.result)
    assert result["test/r2"] == pytest.approx(found.score)
    assert result["task"] == "regression"
    assert f"test R² {found.score:.4f}, loss" in summary(made)
    features = source.test.features.numpy()
    path = tmp_path / "x.csv"
    lines = Path(members[0].config.data.path).read_text().splitlines()  # type: ignore[union-attr]
    path.write_text("\n".join(lines[:8]) + "\n")
    predictions = predict_inputs(trained, read_inputs([path]))
    model = [load(run.folder).predict(str(path)) for run in members]
    spreads = np.array([each.guess.spreads for each in predictions])
    assert spreads == pytest.approx(np.std(model, axis=0), rel=1e-4, abs=1e-8)
    done = export(plan(made.folder, "onnx", tmp_path / "m.onnx", force=False))
    onnx = open_onnx(done.output)
    assert trained.targets is not None
    outputs = np.stack([outputs_by_hand(member, source.test.features) for member in each])
    outputs = outputs.reshape(*outputs.shape[:2], -1)
    deviations = np.repeat(trained.targets.deviations, outputs.shape[-1] // 3)
    for actual, expected in (
        (onnx.logits(features), outputs.mean(0)),
        (onnx.member_log_probabilities(features), outputs.transpose(1, 0, 2)),
    ):
        assert np.abs((actual - expected) / deviations).max() < 1e-5


def test_quantiles_and_numbers_are_no_committee(tmp_path: Path) -> None:
    runs = []
    for loss in ("huber", "quantile"):
        (tmp_path / loss).mkdir()
        path = table(tmp_path, 1)
        runs.append(train(tmp_path / loss, 1, f"data.path={path}", f"task.loss={loss}"))
    request = read_committee([run.folder for run in runs], folder=tmp_path / "committee")
    with pytest.raises(InputError, match="its number of outputs differs from that of"):
        make_committee(request)


@pytest.mark.parametrize("by", ["val/r2", "val/loss"])
def test_a_greedy_committee_is_no_worse_than_its_best_member(
    by: str, members: list[Run], tmp_path: Path
) -> None:
    request = read_committee(
        [run.folder for run in members], greedy=9, by=by, folder=tmp_path / "committee"
    )
    made: dict[str, Any] = dict(make_committee(request).result)
    known: list[dict[str, Any]] = [dict(run.result["best"]) for run in members]
    if by == "val/r2":
        assert made["best"][by] >= max(each[by] for each in known) - 1e-9
    else:
        assert made["best"][by] <= min(each[by] for each in known) + 1e-9
    with pytest.raises(InputError, match=r"--by val/acc: .* type --by val/r2"):
        read_committee([run.folder for run in members], by="val/acc", folder=tmp_path / "b")


@pytest.mark.slow
def test_a_report_shows_numbers_beside_the_true_ones(run: Run, tmp_path: Path) -> None:
    page = write_report([run.folder], tmp_path / "page.html").read_text()
    drawn = sorted(path.name for path in (tmp_path / "page").glob("*model*.png"))
    kinds = [*(["columns"] if run.config.data.name == "csv" else []), "errors", "predicted"]
    assert drawn == [f"run-model1-{kind}.png" for kind in kinds]
    found = evaluate_path(run.folder, None)
    assert "R², errors and interval of each number on the test set" in page
    assert f"± {found.numbers[0].half_width:.5g}" in page
    assert "predicted y0" in page
    kind = "red bars" if run.config.task.loss == "quantile" else "dashed"
    assert page.count(f"; {kind}: the 90% interval. ") == 2
    assert "accuracy" not in page.partition("<script")[0]


def test_loggers_show_no_confusion_matrix(tmp_path: Path) -> None:
    run = train(tmp_path, 3, "logger=tensorboard")
    assert run.result["status"] == "finished"
    assert list((run.folder / "tensorboard").iterdir())
    assert "cannot" not in (run.folder / "train.log").read_text()


@pytest.mark.parametrize("task", ["regression", "multilabel"])
def test_copies_are_averaged_in_the_unit(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers, or probabilities of labels, of a picture, of its half and of its quarter."""
    numbers = np.random.default_rng(1)
    x = numbers.random(size=(60, 6, 6)).astype(np.float32)
    y = x.mean((1, 2)) * 300 if task == "regression" else (x[:, :2, 0] > 0.5).astype(int)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    config = compose(
        f"task={task}", "data=npz", f"data.path={tmp_path / 'a.npz'}", "augmentation.shift=1",
        "trainer.max_epochs=2",
    )  # fmt: skip
    trained = open_trained(fit(config, tmp_path / "run").folder)

    class Paler:
        own = ()

        def __init__(self, *_: object) -> None: ...

        def __call__(self, block: Block, epoch: int, first: int) -> None:
            block.features.mul_(0.5 ** (first + 1))

    monkeypatch.setattr("kindling.inference.logits.Augmentation", Paler)
    found = predict(trained, x, copies=2)
    expected = np.mean([predict(trained, x * 0.5**n) for n in range(3)], 0)
    assert found == pytest.approx(expected, rel=1e-5)
    evaluated = evaluate_path(tmp_path / "run", None, copies=2)
    assert evaluated.augmented_copies == 2
    assert "are means over each sample and 2 augmented copies" in evaluated.describe()


@pytest.mark.parametrize("width", [0, 1, 3])
def test_arrays_have_numbers(width: int, tmp_path: Path) -> None:
    """y (N,), (N, 1) and (N, 3) in a file, from training to predictions."""
    numbers = np.random.default_rng(1)
    x = numbers.normal(size=(80, 4)).astype(np.float32)
    y = 1000 + 50 * (x @ numbers.normal(size=(4, max(1, width))))
    y = y[:, 0] if not width else y
    np.savez(tmp_path / "a.npz", x=x, y=y, x_test=x[:20], y_test=y[:20])
    config = compose(
        "task=regression", "data=npz", f"data.path={tmp_path / 'a.npz'}", "optimizer=adam",
        "optimizer.lr=0.05", "trainer.max_epochs=30", "trainer.early_stopping_patience=null",
    )  # fmt: skip
    source = open_source(config.data, config.task)
    assert source.labels == (("y",) if width < 2 else ("y0", "y1", "y2"))
    assert source.targets is not None
    restored = source.targets.restored(source.test.labels).numpy()
    assert restored == pytest.approx(y[:20].reshape(20, -1), rel=1e-5)
    model = load(fit(config, tmp_path / "run").folder)
    assert model.score(x[:20], y[:20]) > 0.9
    np.savez(tmp_path / "b.npz", x=x[:5], y=y[:5])
    found = predict_inputs(model.trained, read_inputs([tmp_path / "b.npz"], task=REGRESSION))
    assert np.array([each.true_class for each in found]) == pytest.approx(y[:5].reshape(5, -1))
    np.savez(tmp_path / "c.npz", x=x[:5], y=y[:4])
    with pytest.raises(InputError, match=r"c\.npz: y is \(4.* a row for each row of its samples"):
        evaluate_path(tmp_path / "run", str(tmp_path / "c.npz"))


@pytest.mark.parametrize(
    ("y", "task", "told"),
    [
        (np.array(["a", "b"]), REGRESSION, "y is of <U1, must be numbers"),
        (np.array([1.0, np.nan]), REGRESSION, "y[1] is nan, must be finite"),
        (np.ones((2, 2, 2)), REGRESSION, "y is (2, 2, 2), must be (2,) or (2, numbers)"),
        (np.ones((2, 0)), REGRESSION, "y is (2, 0), must be"),
        (b"junk", REGRESSION, "y is of bytes, must be numbers"),
        (np.array([[0, 1], [2, 0]]), MULTILABEL, "y[1, 0] is 2, must be 0 or 1"),
        (np.array([[0, 1], [1, 0]]), MULTILABEL, None),
        (np.array([True, False]), MULTILABEL, None),
    ],
)
def test_faults_of_labels(y: Any, task: str, told: str | None) -> None:
    found = label_faults("y", y, 2, task)
    assert found == [] if told is None else found[0].startswith(told)


@pytest.mark.parametrize("loss", ["squared_error", "quantile"])
def test_intervals_cover_what_they_promise(loss: str, tmp_path: Path) -> None:
    """The deviation grows with x. Only quantiles give wide intervals where it is large."""
    numbers = np.random.default_rng(4)
    x = numbers.uniform(size=(6000, 1)).astype(np.float32)
    y = x[:, 0] + (0.05 + x[:, 0]) * numbers.normal(size=len(x))
    np.savez(tmp_path / "a.npz", x=x, y=y)
    config = compose(
        "task=regression", f"task.loss={loss}", "data=npz", f"data.path={tmp_path / 'a.npz'}",
        "optimizer=adam", "optimizer.lr=0.01", "trainer.max_epochs=40",
    )  # fmt: skip
    model = load(fit(config, tmp_path / "run").folder)
    new = numbers.uniform(size=(4000, 1)).astype(np.float32)
    true = new[:, 0] + (0.05 + new[:, 0]) * numbers.normal(size=len(new))
    low, high = model.interval(new)
    assert low.shape == high.shape == model.predict(new).shape == true.shape
    within, narrow = (low <= true) & (true <= high), new[:, 0] < 0.3
    assert within.mean() == pytest.approx(0.9, abs=0.03)
    by_part = [within[narrow].mean(), within[new[:, 0] > 0.7].mean()]
    if loss == "quantile":
        assert by_part == pytest.approx([0.9, 0.9], abs=0.06)
        assert (high - low)[narrow].mean() < 0.5 * (high - low).mean()
    else:
        assert by_part[0] > 0.98
        assert high - low == pytest.approx(2 * (high - model.predict(new)))


@pytest.mark.parametrize("loss", ["squared_error", "quantile"])
def test_intervals_of_a_model_of_arrays(loss: str, tmp_path: Path) -> None:
    """They follow from held-out samples that the program gives."""
    numbers = np.random.default_rng(5)
    x = numbers.normal(size=(4000, 2)).astype(np.float32)
    y = 100 * (x @ [1, 2] + numbers.normal(size=len(x)))
    config = compose(
        "task=regression", f"task.loss={loss}", "data=arrays", "optimizer=adam",
        "optimizer.lr=0.01", "trainer.max_epochs=10",
    )  # fmt: skip
    model = load(fit(config, tmp_path / "run", data=(x[:1000], y[:1000])).folder)
    with pytest.raises(InputError, match=r"arrays of a program.*held_out=\(x, y\)"):
        model.interval(x)
    low, high = model.interval(x[2000:], held_out=(x[1000:2000], y[1000:2000]))
    assert ((low <= y[2000:]) & (y[2000:] <= high)).mean() == pytest.approx(0.9, abs=0.03)
    if loss == "squared_error":
        errors = np.sort(abs(model.predict(x[1000:2000]) - y[1000:2000]))
        assert (high - low) / 2 == pytest.approx(errors[900], rel=1e-6)  # the 901st of 1,000
    for given, told in {
        (5, 5): "has 5 held-out samples; an interval of 90% needs 9",
        (50, 40): "the held-out labels",
    }.items():
        with pytest.raises(InputError, match=told):
            model.interval(x, held_out=(x[: given[0]], y[: given[1]]))


def test_quantiles_that_cross_are_an_interval_all_the_same() -> None:
    """Its margins may be negative; an interval never ends before it begins."""
    low, high = torch.tensor([[1.0, 5.0], [2.0, 5.0]]), torch.tensor([[3.0, 5.0], [2.5, 9.0]])
    ends = Interval((-0.5, 1.0), 20).around(low, high)
    assert ends[0].tolist() == [[1.5, 4.0], [2.25, 4.0]]
    assert ends[1].tolist() == [[2.5, 6.0], [2.25, 10.0]]


def test_only_a_regression_has_intervals(finished: Run) -> None:
    with pytest.raises(InputError, match="has classes, and no intervals; call predict_proba"):
        load(finished.folder).interval(np.zeros((1, 28, 28)))
