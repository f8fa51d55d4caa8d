"""Regression and several labels: every way of a step against plain torch in float64, and the
measures against scikit-learn."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    f1_score,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
    root_mean_squared_error,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from kindling.config.compose import compose
from kindling.config.schema import Config, Csv
from kindling.data.module import DataModule
from kindling.data.sources.catalogue import open_source
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training.fit import fit, fit_stack
from tests.helpers.kills import Killed, die_after_writing
from tests.helpers.steps import STEPS
from tests.helpers.weights import same, weights

ROWS = 240


def pinball(outputs: Tensor, labels: Tensor) -> Tensor:
    """Of each label, the quantiles of 5, 50 and 95 %."""
    quantiles = outputs.new_tensor([0.05, 0.5, 0.95])
    errors = labels[:, :, None] - outputs.view(len(outputs), -1, 3)
    return torch.maximum(quantiles * errors, (quantiles - 1) * errors).mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared_error": F.mse_loss,
    "huber": lambda outputs, labels: F.huber_loss(outputs, labels, delta=0.3),
    "quantile": pinball,
    "binary_cross_entropy": F.binary_cross_entropy_with_logits,
}


def table(folder: Path, outputs: int, *, labels: bool = False) -> Path:
    """Rows of five features, and columns y0, y1, … that depend on them; of very different units."""
    numbers = np.random.default_rng(outputs)
    x = numbers.normal(size=(ROWS, 5)) * [1, 10, 0.1, 1, 1] + [0, 5, 0, 0, -3]
    y = np.tanh(x @ numbers.normal(size=(5, outputs))) + 0.1 * numbers.normal(size=(ROWS, outputs))
    y = (
        (y > 0).astype(int)
        if labels
        else y * [1e4, 1e-3, 1, 7][:outputs] + [5e4, 0, 1, 1][:outputs]
    )
    names = [f"x{n}" for n in range(5)] + [f"y{n}" for n in range(outputs)]
    path = folder / f"{outputs}{labels}.csv"
    rows = [",".join(map(repr, row)) for row in np.hstack([x, y]).tolist()]
    path.write_text("\n".join([",".join(names), *rows]) + "\n")
    return path


def config_of(folder: Path, loss: str, outputs: int, *overrides: str) -> Config:
    """Training on all rows but those of the test, all in one batch."""
    labels = loss == "binary_cross_entropy"
    path = table(folder, outputs, labels=labels)
    target = f"y{0}" if outputs == 1 else f"[{','.join(f'y{n}' for n in range(outputs))}]"
    return compose(
        f"task={'multilabel' if labels else 'regression'}", f"task.loss={loss}",
        *(["task.delta=0.3"] if loss == "huber" else []),
        "data=csv", f"data.path={path}", f"data.target={target}", "data.val_fraction=null",
        "data.batch_size=1000", "trainer.max_epochs=12", "model.hidden_sizes=[8]",
        "model.activation=tanh", "trainer.early_stopping_patience=null",
        "checkpoint.every_n_epochs=1", "data.encode=null", "data.fill=null",
        *overrides,
    )  # fmt: skip


def by_hand(config: Config, loss: str, optimizer: Any) -> tuple[nn.Module, list[float]]:
    """The same training by plain torch, and its losses before each step."""
    source = open_source(config.data, config.task)
    torch.manual_seed(config.seed)
    outputs = source.classes * (3 if loss == "quantile" else 1)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs)).double()
    torch.manual_seed(config.seed)
    single = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, outputs))
    model.load_state_dict(single.state_dict())
    steps, losses = optimizer(model.parameters()), []
    for _ in range(config.trainer.max_epochs):
        found = LOSSES[loss](model(source.train.features.double()), source.train.labels.double())
        steps.zero_grad()
        found.backward()  # type: ignore[no-untyped-call]
        steps.step()
        losses.append(found.item())
    return model, losses


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_is_that_of_plain_torch(
    loss: str, outputs: int, optimizer: str, step: str, tmp_path: Path
) -> None:
    config = config_of(
        tmp_path, loss, outputs, f"optimizer={optimizer}", "optimizer.lr=0.05",
        f"trainer.step={step}", "scheduler=none",
    )  # fmt: skip
    make = (lambda p: SGD(p, 0.05)) if optimizer == "sgd" else (lambda p: Adam(p, 0.05))
    model, losses = by_hand(config, loss, make)
    run = fit(config, tmp_path / "run")
    assert run.result["step"] == step
    for (name, value), trained in zip(
        model.state_dict().items(), weights(run).values(), strict=True
    ):
        torch.testing.assert_close(trained.double(), value, rtol=0, atol=2e-5, msg=name)
    assert [row["train/loss"] for row in run.history[1:]] == pytest.approx(losses, abs=1e-5)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("monitor", ["val/r2", "val/rmse", "val/mae"])
@pytest.mark.parametrize("loss", ["squared_error", "quantile"])
def test_measures_of_numbers_are_those_of_scikit_learn(
    monitor: str, outputs: int, loss: str, tmp_path: Path
) -> None:
    """In the unit of the labels, with quantiles of the medians. The R² of several numbers is that
    of their standardised values."""
    mode = "max" if monitor == "val/r2" else "min"
    config = config_of(
        tmp_path, loss, outputs, f"checkpoint.monitor={monitor}",
        f"checkpoint.mode={mode}", "optimizer=adam", "optimizer.lr=0.05", "data.val_fraction=0.3",
        "data.batch_size=16",
    )  # fmt: skip
    run = fit(config, tmp_path / "run")
    trained, source = open_trained(run.folder), open_source(config.data, config.task)
    assert trained.targets == source.targets
    assert trained.targets is not None
    with torch.no_grad():
        said = trained.model(source.test.features)
    found = said[:, 1::3] if loss == "quantile" else said
    scale = trained.targets
    labels, guesses = (
        scale.restored(each).numpy() for each in (source.test.labels, found)
    )  # fmt: skip
    assert isinstance(config.data, Csv)
    own = np.loadtxt(config.data.path, delimiter=",", skiprows=1)[:, 5:]
    distance = np.abs(own[:, None] - labels[None]).max(-1) / np.abs(own).max()
    assert (distance.min(0) < 1e-6).all()
    standardised = (source.test.labels.numpy(), found.numpy())
    expected = {
        "val/r2": r2_score(*standardised, multioutput="variance_weighted"),
        "val/rmse": root_mean_squared_error(labels, guesses),
        "val/mae": mean_absolute_error(labels, guesses),
    }
    result: dict[str, Any] = dict(run.result)
    name = monitor.replace("val", "test")
    assert result[name] == pytest.approx(expected[monitor], rel=1e-5)
    assert result["test/r2"] == pytest.approx(expected["val/r2"], rel=1e-5)
    of_test = LOSSES[loss](said.double(), source.test.labels.double())
    assert result["test/loss"] == pytest.approx(of_test.item())
    values = [row[monitor] for row in run.history[1:]]
    assert result["best"][monitor] == (max if mode == "max" else min)(values)  # type: ignore[type-var]


@pytest.mark.parametrize("monitor", ["val/acc", "val/f1", "val/auroc"])
def test_measures_of_labels_are_those_of_scikit_learn(monitor: str, tmp_path: Path) -> None:
    config = config_of(
        tmp_path, "binary_cross_entropy", 3, f"checkpoint.monitor={monitor}",
        "checkpoint.mode=max", "optimizer=adam", "data.val_fraction=0.3", "data.batch_size=16",
    )  # fmt: skip
    run = fit(config, tmp_path / "run")
    source = open_source(config.data, config.task)
    with torch.no_grad():
        found = open_trained(run.folder).model(source.test.features)
    labels, guesses = source.test.labels.numpy(), (found > 0).numpy()
    expected = {
        "val/acc": (labels == guesses).mean(),
        "val/f1": f1_score(labels, guesses, average="macro"),
        "val/auroc": roc_auc_score(labels, found.numpy(), average="macro"),
    }
    result: dict[str, Any] = dict(run.result)
    assert result[monitor.replace("val", "test")] == pytest.approx(expected[monitor], abs=1e-6)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_killed_run_ends_as_an_undisturbed_one(
    loss: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle of an epoch, of whose batches the checkpoint has the sums."""
    config = config_of(
        tmp_path, loss, 3, f"trainer.step={step}", "data.batch_size=16", "data.val_fraction=0.2",
        "optimizer=adam", "checkpoint.every_n_steps=7", "trainer.steps_per_call=3",
        "trainer.max_epochs=3",
    )  # fmt: skip
    whole = fit(config, tmp_path / "whole")
    undo = die_after_writing(monkeypatch)
    with pytest.raises(Killed):
        fit(config, tmp_path / "killed")
    undo()
    resumed = fit(config, tmp_path / "killed", resume=True)
    assert len(whole.history) == 4
    assert same(whole, resumed)
    assert whole.result["best"] == resumed.result["best"]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["auto", "closed_form", "vmap"])
@pytest.mark.parametrize("loss", LOSSES)
def test_fused_trials_have_the_bits_of_single_runs(loss: str, step: str, tmp_path: Path) -> None:
    """Trials of other rates, seeds and, but for vmap, widths."""
    hand = random.Random(loss)
    configs = [
        config_of(
            tmp_path, loss, 2, f"trainer.step={step}", f"seed={n % 2}", "data.batch_size=16",
            "data.val_fraction=0.2", f"optimizer.lr={hand.choice([0.01, 0.03])}",
            f"model.hidden_sizes=[{8 if step == 'vmap' else hand.choice([3, 8, 20])}]",
        )
        for n in range(3)
    ]  # fmt: skip
    folders = [tmp_path / f"stack{n}" for n in range(3)]
    stacked = fit_stack(configs, folders, state_folder=tmp_path / "state")
    for config, run in zip(configs, stacked, strict=True):
        alone = fit(config, tmp_path / f"alone{run.folder.name}")
        assert run.result["stacked"] == 3
        if step == "auto":
            assert same(run, alone)
        else:  # products side by side round otherwise
            assert [row["val/loss"] for row in run.history] == pytest.approx(
                [row["val/loss"] for row in alone.history], rel=1e-4
            )


def test_folds_of_numbers_are_of_equal_size(tmp_path: Path) -> None:
    config = config_of(tmp_path, "squared_error", 1, "data.folds=3", "data.fold=1")
    data = DataModule(config.data, task=config.task)
    data.setup()
    rows = len(data.train)
    assert len(data.validations[0]) in (rows // 3, rows // 3 + 1)
    assert fit(config, tmp_path / "run").result["data"]["val"] == len(data.validations[0])
    labels = data.train.labels[data.rows[1]]
    assert labels.mean().item() == pytest.approx(0, abs=1e-6)
    assert labels.double().std(correction=0).item() == pytest.approx(1, abs=1e-6)


def faulty(folder: Path, cells: list[str], *overrides: str) -> str:
    rows = "\n".join(f"{n % 7},{cell}" for n, cell in enumerate(cells))
    (folder / "t.csv").write_text(f"x,y\n{rows}\n")
    config = compose("data=csv", f"data.path={folder / 't.csv'}", "data.target=y", *overrides)
    with pytest.raises(InputError) as caught:
        fit(config, folder / f"run{len([*folder.iterdir()])}")
    return str(caught.value)


def test_labels_that_do_not_fit_the_task(tmp_path: Path) -> None:
    texts = faulty(tmp_path, ["red", "blue", "red", "green"] * 10, "task=regression")
    assert "column y: 40 of 40 cells are not numbers" in texts
    assert "type task=classification" in texts
    assert "10 of 40 cells are empty" in faulty(
        tmp_path, ["1.5", "", "2.5", "3"] * 10, "task=regression", "data.encode=null"
    )
    assert "beyond ±3.4e+38" in faulty(tmp_path, ["1.5", "inf", "2.5", "3"] * 10, "task=regression")
    constant = faulty(tmp_path, ["3"] * 40, "task=regression")
    assert "the label y of all" in constant
    assert "is 3, so there is nothing to learn" in constant
    other = faulty(tmp_path, ["0", "1", "2", "1"] * 10, "task=multilabel")
    assert "column y: 10 of 40 cells are neither 0 nor 1" in other
    assert "task=regression" in faulty(tmp_path, ["0.5", "1.25", "2", "1"] * 10)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["task=regression"], "task=regression: data=digits has labels for classification"),
        (
            ["data=diabetes", "checkpoint.monitor=val/acc"],
            "checkpoint.monitor=val/acc: is no measure of task=regression, must be one of val/r2",
        ),
        (["data=diabetes", "trainer.label_smoothing=0.1"], "type trainer.label_smoothing=0"),
        (["data=diabetes", "trainer.class_weights=balanced"], "type trainer.class_weights=null"),
        (["data=diabetes", "data.sampler=balanced"], "type data.sampler=null"),
        (["task.loss=huber"], "task.loss=huber"),
        (["data=diabetes", "task.delta=0"], "task.delta=0"),
        (["data=csv", "data.path=x", "data.target=[a,b]"], "type task=multilabel"),
    ],
)
def test_settings_that_do_not_fit_the_task(overrides: list[str], told: str) -> None:
    with pytest.raises(InputError) as caught:
        compose("data=digits", *overrides)
    assert told in str(caught.value)


def test_a_regression_of_equal_predictions_has_an_r2_of_zero(tmp_path: Path) -> None:
    """Always answering the mean of the labels."""
    config = compose("data=diabetes", "optimizer.lr=1e-12", "trainer.max_epochs=1", "optimizer=sgd")
    run: Run = fit(config, tmp_path / "run")
    value: Any = run.history[1]["val/r2"]
    assert not math.isnan(value)
    assert value < 0.2
