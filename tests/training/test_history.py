"""A row and a line for each epoch."""

import csv
import logging

import pytest

from src.runs.folder import HISTORY
from tests.helpers.commands import Train


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
    with caplog.at_level(logging.INFO, "src"):
        run = train("checkpoint.monitor=val/f1")
    header, *lines = run.history_file.read_text().splitlines()
    assert header == ",".join([*HISTORY, "val/f1"])
    assert [float(line.rpartition(",")[2]) for line in lines] == [
        row["val/f1"] for row in run.history
    ]
    assert run.history[-1]["val/f1"] != run.history[-1]["val/acc"]
    told = [record.getMessage() for record in caplog.records]
    assert f"  f1 {run.history[1]['val/f1']:7.2%}  lr" in told[1]
    best, tested = run.result["best"], run.result
    assert f"best validation  F1 {best['val/f1']:.2%}, accuracy {best['val/acc']:.2%}" in told[-1]
    assert f"F1 {tested['test/f1']:.2%}, accuracy {tested['test/acc']:.2%}, loss" in told[-1]


def test_a_line_per_epoch_and_a_summary(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "src"):
        run = train()
    lines = [record.getMessage() for record in caplog.records]
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert [line.split()[1] for line in epochs] == ["0/2", "1/2", "2/2"]
    assert f"accuracy {run.result['test/acc']:.2%}" in lines[-1]
    assert str(run.folder) in lines[-1]
    assert epochs[-1] in run.log_file.read_text()
