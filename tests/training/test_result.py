"""What result.json and the summary say about a run."""

import logging
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import sklearn.datasets
import torch

from kindling.config.compose import compose
from kindling.data.sources import published
from kindling.data.sources.published import UnavailableError
from kindling.data.sources.source import Source
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training import result as results
from kindling.training.fit import fit
from kindling.training.loggers.base import Loggers
from kindling.training.module import StackModule
from kindling.training.result import (
    NOTHING_LEARNT,
    REMEDY,
    RISEN,
    UNEQUAL,
    UNEQUAL_CLASSES,
    _risen,
    logging_to,
)
from tests.helpers.commands import SMALL, Train


def test_the_result_agrees_with_history_and_checkpoint(train: Train) -> None:
    run = train("trainer.max_epochs=4", "optimizer.lr=0.5", "scheduler=none")
    result, rows = run.result, run.history[1:]
    best = max(rows, key=lambda row: row["val/acc"] or 0)
    assert result["status"] == "finished"
    assert result["best"]["epoch"] == best["epoch"]
    assert result["best"]["val/acc"] == best["val/acc"] == run.monitored
    assert result["last"]["val/loss"] == rows[-1]["val/loss"]
    assert (result["epochs"], result["steps"], result["parameters"]) == (4, 48, 25_450)
    sizes = {key: result["data"][key] for key in ("name", "train", "val", "test")}
    assert sizes == {"name": "digits", "train": 1150, "val": 288, "test": 359}
    assert result["config_hash"] == run.config.hash()
    assert set(result["seconds"]) == {"setup", "fit", "test"}
    assert result["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert result["stacked"] == 1
    assert torch.load(run.best_checkpoint, weights_only=True)["epoch"] + 1 == best["epoch"]
    assert torch.load(run.last_checkpoint, weights_only=True)["epoch"] + 1 == 4


def test_accumulated_batches_and_memory_are_reported(train: Train) -> None:
    run = train("trainer.accumulate_grad_batches=3", "data.batch_size=50")
    assert run.result["effective_batch_size"] == 150
    assert 2**26 < run.result["peak_memory_bytes"] < 2**36
    assert "effective batch size 150: 50 on each of 1 device(s), 3 accumulated" in (
        run.log_file.read_text()
    )


def test_the_fallback_is_told_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str, root: Path) -> Source:
        raise UnavailableError("the download failed (no network)")

    monkeypatch.setattr(published, "read_idx_set", fail)
    monkeypatch.delenv("DATA_ROOT", raising=False)
    with caplog.at_level(logging.INFO, "kindling"):
        run = fit(compose("trainer=cpu", "trainer.max_epochs=1"), tmp_path / "run")
    reason = "mnist, because the download failed (no network)"
    assert run.result["data"]["instead_of"] == reason
    assert f"training on digits instead of {reason}; to stop" in caplog.records[0].getMessage()
    assert f"instead of {reason}" in caplog.records[-1].getMessage()
    assert reason in run.log_file.read_text()
    assert open_trained(run.folder).data == "digits"


def test_a_run_that_hardly_learns_says_what_to_type(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    features, labels = sklearn.datasets.load_iris(return_X_y=True)
    np.savez(tmp_path / "a.npz", x=features, y=labels)
    few = ["data=npz", f"data.path={tmp_path}/a.npz", "trainer=cpu", "trainer.max_epochs=3"]
    default = ["optimizer=sgd", "optimizer.lr=0.5", "data.batch_size=100"]
    with caplog.at_level("INFO", "kindling"):
        fit(compose(*few, *default), tmp_path / "default")
    assert "type experiment=few_samples" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "kindling"):
        fit(compose("data=toy", "trainer=cpu"), tmp_path / "toy")
        fit(compose(*few, *default, f"start_from={tmp_path}/default"), tmp_path / "tuned")
    assert "few_samples" not in caplog.text


def test_a_diverged_run_is_advised_about_its_rate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not about the number of its steps, which is small because it diverged."""
    with caplog.at_level("INFO", "kindling"):
        run = fit(compose(*SMALL, "optimizer.lr=1e6", "optimizer=sgd"), tmp_path / "run")
    assert run.result["status"] == "diverged"
    assert f"diverged at step {run.result['diverged_step']}; {REMEDY}" in caplog.text
    assert "few_samples" not in caplog.text


@pytest.mark.parametrize("keep", ["all", "1"])
def test_a_monitor_that_was_never_a_number_is_told(
    keep: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the AUROC of validation samples of one class; also by what wants the best weights."""
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(64, 4)), np.arange(64) % 2
    parts: Any = {"x": x, "y": y, "x_val": x, "y_val": y * 0, "x_test": x, "y_test": y}
    np.savez(tmp_path / "one.npz", **parts)
    data = ("data=npz", f"data.path={tmp_path}/one.npz", "trainer=cpu", "trainer.max_epochs=2")
    monitor = ("checkpoint.monitor=val/auroc", "checkpoint.mode=max", f"checkpoint.keep={keep}")
    with caplog.at_level("INFO", "kindling"):
        run = fit(compose(*data, *monitor), tmp_path / "run")
    assert run.result["status"] == "finished"
    told = (
        "val/auroc was no number in any epoch, so no epoch is the best, and none was tested; "
        "train with another checkpoint.monitor, such as val/loss"
    )
    assert f" {told}\n" in caplog.text
    with pytest.raises(InputError) as caught:
        open_trained(run.folder)
    assert str(caught.value) == f"{run.folder}: has no weights: {told}"


@pytest.mark.parametrize("settings", [("optimizer=sgd", 30), ("optimizer=adam", 3)])
def test_a_run_whose_loss_only_rose_is_advised_about_its_rate(
    settings: tuple[str, float], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "kindling"):
        run = fit(compose(*SMALL, settings[0], f"optimizer.lr={settings[1]}"), tmp_path / "run")
    before, *after = (row["val/loss"] for row in run.history)
    assert run.result["status"] == "finished"
    assert before is not None
    assert min(loss for loss in after if loss is not None) > 1.01 * before
    assert f"{RISEN}; {REMEDY}" in caplog.text
    assert "few_samples" not in caplog.text


@pytest.mark.parametrize(
    ("before", "after", "risen"),
    [(2.0, [2.1, 2.03], True), (2.0, [2.1, 2.01], False), (-1.0, [-3.0], False),
     (-1.0, [-0.9], True), (None, [2.0], False), (2.0, [None], False), (0.0, [0.0], False)],
)  # fmt: skip
def test_a_risen_loss(before: float | None, after: list[float | None], risen: bool) -> None:
    """Of losses below zero too, as of a likelihood."""
    run = SimpleNamespace(history=[{"val/loss": loss} for loss in [before, *after]])
    assert _risen(cast(Run, run)) == risen


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["optimizer.lr=1e-9"], "50.00%); python -m src.lr_find with the same settings shows"),
        (["optimizer.lr=1e-9", "checkpoint.monitor=val/f1", "checkpoint.mode=max"], None),
        (["optimizer.lr=1e-9", "trainer.class_weights=balanced"], None),
        (["optimizer.lr=0.1"], None),
    ],
)
def test_a_run_that_learns_nothing_says_so(
    settings: list[str], told: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of four samples for training and four for validation each class has two."""
    labels = np.arange(10) % 2
    np.savez(tmp_path / "a.npz", x=np.stack([labels, 1 - labels], 1).astype(float), y=labels)
    recipe = ("data.val_fraction=0.5", "data.test_fraction=0.2", "data.split_seed=1")
    data = ("data=npz", f"data.path={tmp_path}/a.npz", *recipe, "trainer=cpu")
    with caplog.at_level("INFO", "kindling"):
        run = fit(compose(*data, "model=logistic_regression", *settings), tmp_path / "run")
    assert run.result["data"]["val_most_frequent_class"] == 0.5
    assert (NOTHING_LEARNT in caplog.text) == bool(told)
    assert (told or "") in caplog.text


def test_a_run_that_ignores_a_rare_class_is_advised_about_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another learning rate would not help."""
    labels = (np.arange(200) % 20 == 0).astype(int)
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(200, 2)), y=labels)
    data = ("data=npz", f"data.path={tmp_path}/a.npz", "trainer=cpu", "optimizer=adam")
    with caplog.at_level("INFO", "kindling"):
        run = fit(compose(*data, "optimizer.lr=0.01", "data.val_fraction=0.5"), tmp_path / "run")
    assert (run.result["data"]["val_most_frequent_class"] or 0) > UNEQUAL
    assert f"{NOTHING_LEARNT} (" in caplog.text
    assert UNEQUAL_CLASSES in caplog.text
    assert "lr_find" not in caplog.text


@pytest.mark.slow
def test_the_phases_do_not_overlap(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening the loggers counts as setup, though Lightning does that when it fits."""

    def open_slowly(self: Loggers, *_: object) -> None:
        time.sleep(1)
        self.seconds = 1.0

    monkeypatch.setattr(Loggers, "on_fit_start", open_slowly)
    monkeypatch.setattr(StackModule, "on_test_epoch_start", lambda _: time.sleep(1))
    began = time.perf_counter()
    seconds = train().result["seconds"]
    assert min(seconds["setup"], seconds["test"]) > 1
    assert sum(seconds.values()) <= time.perf_counter() - began


def test_lines_go_to_every_run_and_to_the_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [Run(tmp_path / name) for name in ("a", "b", "absent")]
    for run in runs[:2]:
        run.folder.mkdir()
    ours = logging.getLogger("kindling")
    level, handlers = ours.level, list(ours.handlers)
    with logging_to(runs):
        logging.getLogger("kindling.training").info("epoch %d", 1)
        logging.getLogger("other").warning("noise")
    assert (ours.level, ours.handlers) == (level, handlers)
    for run in runs[:2]:
        (line,) = run.log_file.read_text().splitlines()
        assert line.endswith("[INFO] epoch 1")
    assert not runs[2].folder.exists()
    assert [record.getMessage() for record in caplog.records] == ["epoch 1", "noise"]


def test_lines_of_a_stack_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a single run's at once, a warning too, and those of a stack when time has passed."""
    now = [100.0]
    monkeypatch.setattr(results, "time", SimpleNamespace(monotonic=lambda: now[0]))
    runs = [Run(tmp_path / name) for name in "ab"]
    for run in runs:
        run.folder.mkdir()

    def lines(run: Run) -> list[str]:
        text = run.log_file.read_text() if run.log_file.exists() else ""
        return [line.rpartition("]")[2].strip() for line in text.splitlines()]

    ours = logging.getLogger("kindling.training")
    with logging_to(runs[:1]):
        ours.info("alone")
        assert lines(runs[0]) == ["alone"]
    with logging_to(runs):
        ours.info("first")
        assert [lines(run) for run in runs] == [["alone"], []]
        ours.warning("second")
        assert [lines(run) for run in runs] == [["alone", "first", "second"], ["first", "second"]]
        ours.info("third")  # writing took no time, so far as the clock tells
        assert lines(runs[1]) == ["first", "second", "third"]
    with logging_to(runs):
        ours.info("fourth")
        now[0] += 1
        ours.info("fifth")
        assert lines(runs[1])[3:] == ["fourth", "fifth"]
    with logging_to(runs), suppress(ZeroDivisionError):
        ours.info("sixth")
        raise ZeroDivisionError
    assert [lines(run)[-1] for run in runs] == ["sixth", "sixth"]
