"""A row and a line for each epoch."""

import csv
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer

from kindling.config.compose import compose
from kindling.records.folder import Row, Run
from kindling.training import history
from kindling.training.fit import fit_stack
from tests.helpers.commands import SMALL, Train
from tests.helpers.tasks import HISTORY


def test_the_history_begins_before_training(train: Train) -> None:
    run = train("trainer.max_epochs=3", "optimizer.lr=0.1", "scheduler.milestones=[2]")
    with run.history_file.open() as file:
        assert next(csv.reader(file)) == list(HISTORY)
    rows = run.history
    assert [row["epoch"] for row in rows] == [0, 1, 2, 3]
    assert [row["step"] for row in rows] == [0, 12, 24, 36]  # 1,150 samples, batches of 100
    assert [row["lr"] for row in rows] == [None, 0.1, 0.1, pytest.approx(0.02)]
    assert (rows[0]["train/loss"], rows[0]["train/acc"], rows[0]["seconds"]) == (None, None, 0.0)
    assert 0.02 < float(rows[0]["val/acc"] or 0) < 0.25
    assert float(rows[3]["val/acc"] or 0) > 0.6
    seconds = [float(row["seconds"] or 0) for row in rows]
    assert seconds == sorted(seconds)


def test_a_monitored_measure_has_a_column_and_a_part_of_the_line(
    train: Train, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kindling"):
        run = train("checkpoint.monitor=val/f1")
    header, *lines = run.history_file.read_text().splitlines()
    assert header == ",".join([*HISTORY, "val/f1"])
    assert [float(line.rpartition(",")[2]) for line in lines] == [
        row["val/f1"] for row in run.history
    ]
    assert run.history[-1]["val/f1"] != run.history[-1]["val/acc"]
    told = [record.getMessage() for record in caplog.records]
    (first,) = [line for line in told if line.startswith("epoch 1/")]
    assert f"  f1 {run.history[1]['val/f1']:7.2%}  lr" in first
    best, tested = run.result["best"], run.result
    assert f"best validation  F1 {best['val/f1']:.2%}, accuracy {best['val/acc']:.2%}" in told[-1]
    assert (
        f"F1 {tested['test/f1']:.2%}, accuracy {tested['test/acc']:.2%} (largest class " in told[-1]
    )


def test_a_line_per_epoch_and_a_summary(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kindling"):
        run = train()
    lines = [record.getMessage() for record in caplog.records]
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert [line.split()[1] for line in epochs] == ["0/2", "1/2", "2/2"]
    assert f"accuracy {run.result['test/acc']:.2%}" in lines[-1]
    assert str(run.folder) in lines[-1]
    assert epochs[-1] in run.log_file.read_text()


@pytest.mark.parametrize("share", [1e9, 1e-9])
def test_rows_of_a_stack_are_written_together(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each epoch if a share of the time allows it; else after a trial has ended, and at the
    end. The rows are the same."""
    written: list[tuple[str, list[object]]] = []
    append = Run.append_history

    def noted(run: Run, rows: Sequence[Row]) -> None:
        written.append((run.folder.name, [row["epoch"] for row in rows]))
        append(run, rows)

    monkeypatch.setattr(Run, "append_history", noted)
    monkeypatch.setattr(history, "FILES_SHARE", share)
    common = (*SMALL, "trainer.max_epochs=4", "trainer.early_stopping_patience=1")
    configs = [compose(*common, f"optimizer.lr={rate}") for rate in (0.1, 1e-12)]
    runs = fit_stack(configs, [tmp_path / "0", tmp_path / "1"], tmp_path / "stack")
    by_trial = [[epochs for name, epochs in written if name == number] for number in "01"]
    if share < 1:
        assert by_trial == [[[0, 1, 2, 3], [4]], [[0, 1, 2]]]
    else:
        assert by_trial == [[[0], [1], [2], [3], [4]], [[0], [1], [2]]]
    for run, epochs in zip(runs, (4, 2), strict=True):
        assert [row["epoch"] for row in run.history] == [*range(epochs + 1)]


def test_a_run_that_fails_has_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "FILES_SHARE", 1e-9)

    class Fails(Callback):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            if trainer.current_epoch == 2:
                raise ZeroDivisionError

    configs = [compose(*SMALL, "trainer.max_epochs=4", f"seed={seed}") for seed in (0, 1)]
    folders = [tmp_path / "0", tmp_path / "1"]
    with pytest.raises(ZeroDivisionError):
        fit_stack(configs, folders, tmp_path / "stack", callbacks=[Fails()])
    # The callback fails before the row of epoch 3 is made.
    assert [[row["epoch"] for row in Run(folder).history] for folder in folders] == [
        [0, 1, 2], [0, 1, 2],
    ]  # fmt: skip
