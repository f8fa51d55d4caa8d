"""What people see while a run trains."""

import logging
import re

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from src.training.progress import Utilisation
from tests.helpers.commands import Train


def test_a_bar_on_request(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    train("trainer.progress_bar=true", "trainer.steps_per_call=3")
    bar = capsys.readouterr().err
    assert "epoch 1/2" in bar
    assert re.search(r"loss \d\.\d{4} acc \d+\.\d\d%", bar)
    train()
    assert "epoch" not in capsys.readouterr().err


def test_a_line_per_step(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "src"):
        train("trainer.log_every_step=true", "trainer.accumulate_grad_batches=5")
    steps = [r.getMessage() for r in caplog.records if "step 0" in r.getMessage()]
    assert [line[:29] for line in steps[:4]] == [
        "epoch 001/002 | step 001/003 ",
        "epoch 001/002 | step 002/003 ",
        "epoch 001/002 | step 003/003 ",
        "epoch 002/002 | step 001/003 ",
    ]
    assert len(steps) == 6


def test_an_idle_gpu_gets_advice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The callback with a made-up meter: it is given no GPU here."""
    readings = iter([20, 40, 90, 90])
    monkeypatch.setattr(torch.cuda, "utilization", lambda _device: next(readings))
    monkeypatch.setattr(Utilisation, "INTERVAL", 0.0)
    trainer, module = Trainer(logger=False), LightningModule()
    with caplog.at_level(logging.INFO, "src"):
        for _ in range(2):
            meter = Utilisation()
            meter.on_train_batch_end(trainer, module, None, None, 0)
            meter.on_train_batch_end(trainer, module, None, None, 1)
            meter.on_train_end(trainer, module)
    idle, busy = [r.getMessage() for r in caplog.records if r.name.startswith("src")]
    assert idle.startswith("GPU utilisation 30 %; it waited for work: try larger blocks")
    assert busy == "GPU utilisation 90 %"
    monkeypatch.delattr(torch.cuda, "utilization")
    meter = Utilisation()
    meter.on_train_batch_end(trainer, module, None, None, 0)
    assert (meter.mean, meter.readable) == (None, False)
