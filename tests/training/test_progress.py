"""What people see while a run trains."""

import logging
import math
import os
import re
import shutil
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from kindling.config.compose import compose
from kindling.records.groups import GroupProgress, read_progress
from kindling.training import progress
from kindling.training.fit import fit, fit_stack
from kindling.training.progress import ProgressFile, Utilisation, _batches, _device_name
from tests.helpers.commands import SMALL, Train


def test_a_bar_on_request(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    train("trainer.progress_bar=true", "trainer.steps_per_call=3")
    bar = capsys.readouterr().err
    assert "epoch 1/2" in bar
    assert re.search(r"loss \d\.\d{4} acc \d+\.\d\d%", bar)
    train()
    assert "epoch" not in capsys.readouterr().err


def test_a_bar_of_a_stack_fits_and_says_that_it_shows_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "tqdm", partial(tqdm, ncols=80))
    overrides = ("trainer.progress_bar=true", "trainer.steps_per_call=3")
    configs = [compose(*SMALL, *overrides, f"seed={seed}") for seed in (0, 1)]
    fit_stack(configs, [tmp_path / "0", tmp_path / "1"], tmp_path / "stack")
    bars = re.split(r"[\r\n]", capsys.readouterr().err)
    whole = [bar for bar in bars if re.search(r"mean loss \d\.\d{4} acc \d+\.\d\d%$", bar.strip())]
    assert whole
    assert max(map(len, whole)) <= 80


def test_a_line_per_step(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kindling"):
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
    with caplog.at_level(logging.INFO, "kindling"):
        for _ in range(2):
            meter = Utilisation()
            meter.on_train_batch_end(trainer, module, None, None, 0)
            meter.on_train_batch_end(trainer, module, None, None, 1)
            meter.on_train_end(trainer, module)
    idle, busy = [r.getMessage() for r in caplog.records if r.name.startswith("kindling")]
    assert idle.startswith("GPU utilisation 30%; it waited for work: try larger blocks")
    assert busy == "GPU utilisation 90%"
    monkeypatch.delattr(torch.cuda, "utilization")
    meter = Utilisation()
    meter.on_train_batch_end(trainer, module, None, None, 0)
    assert (meter.mean, meter.readable) == (None, False)


class Watched(Callback):
    """Notes progress.json before each epoch and at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.noted = folder, list[GroupProgress | None]()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.noted.append(read_progress(self.folder))

    on_train_end = on_train_epoch_start


def test_a_file_tells_how_far_a_stack_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [compose(*SMALL, f"seed={seed}") for seed in (0, 1)]
    folders = [tmp_path / "4", tmp_path / "7"]
    state_folder = tmp_path / "state"
    for interval, epochs in ((0.0, [0, 1, 2]), (60.0, [0, 0, 0])):
        monkeypatch.setattr(ProgressFile, "INTERVAL", interval)
        watched = Watched(state_folder)
        runs = fit_stack(configs, folders, state_folder, callbacks=[watched])
        noted = [progress for progress in watched.noted if progress is not None]
        assert [progress.epoch for progress in noted] == epochs
        first, last = noted[0], noted[-1]
        assert (first.epochs, first.trials, first.training) == (2, [4, 7], 2)
        assert (first.device, first.monitor, first.process) == ("cpu", "val/acc", os.getpid())
        assert (first.best, first.epoch_seconds) == (None, None)
        if last.epoch:
            rows = [row for run in runs for row in run.history[1:]]
            assert last.best == max(row["val/acc"] or 0 for row in rows)
            assert last.seconds == pytest.approx(rows[-1]["seconds"], abs=0.5)
            assert last.epoch_seconds == pytest.approx(last.seconds - noted[1].seconds)
        assert not state_folder.exists()
        for run in runs:
            shutil.rmtree(run.folder)


class WatchedBatches(Callback):
    """Notes progress.json after each batch, before it is written again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.noted = folder, list[GroupProgress]()

    def on_train_batch_end(self, *_: object) -> None:
        noted = read_progress(self.folder)
        assert noted is not None
        self.noted.append(noted)


def test_an_epoch_tells_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And in the first one, when the last will have ended."""
    monkeypatch.setattr(ProgressFile, "INTERVAL", 0.0)
    watched = WatchedBatches(tmp_path / "run" / "checkpoints")
    keys = ("data.batch_size=32", "trainer.steps_per_call=5", "trainer.max_epochs=2")
    fit(compose(*SMALL, *keys), tmp_path / "run", callbacks=[watched])
    batches = watched.noted[0].batches
    assert batches == math.ceil(1150 / 32)
    found = [(noted.epoch, noted.batch) for noted in watched.noted]
    assert found == [(epoch, batch) for epoch in (0, 1) for batch in range(0, batches, 5)]
    assert watched.noted[1].batch_told == f", batch 5 of {batches}"
    assert watched.noted[0].epoch_seconds is None
    for noted in watched.noted[1:]:
        assert noted.epoch_seconds is not None
        assert noted.seconds_left is not None
        left = 2 - noted.epoch - noted.batch / batches
        assert noted.seconds_left <= left * noted.epoch_seconds


@pytest.mark.parametrize(
    ("first", "batches", "batch", "told"),
    [
        (0, 36, 5, 10 * 36 / 5),
        (6, 36, 11, 10 * 36 / 5),  # resumed within an epoch
        (36, 36, 5, 10 * 36 / 5),  # a LightningModule, which begins with the count of an epoch
        (36, 36, 36, 10.0),
        (0, math.inf, 5, None),  # a stream
    ],
)
def test_how_long_the_first_epoch_will_take(
    first: int, batches: float, batch: int, told: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds after it began."""
    written: list[float | None] = []
    monkeypatch.setattr(ProgressFile, "_write", lambda *given: written.append(given[-1]))
    plan = SimpleNamespace(batches_per_epoch=batch + 1 if math.isinf(batches) else batches)
    trainer: Any = SimpleNamespace(current_epoch=0, num_training_batches=batches)
    module: Any = SimpleNamespace(step_plan=plan, batches_done=first)
    history: Any = SimpleNamespace(seconds=0.0)
    file = ProgressFile(Path("state"), [], history, history)
    file.on_train_start(trainer, module)
    file.began, file.written = time.monotonic() - 10, 0.0
    module.batches_done = batch
    file.on_train_batch_end(trainer, module)
    assert written == [None, told if told is None else pytest.approx(told, rel=0.01)]
    assert _batches(trainer, module) == (0 if math.isinf(batches) else batches)


def test_a_run_that_fails_leaves_no_progress(train: Train, tmp_path: Path) -> None:
    class Broken(Callback):
        def on_train_epoch_end(self, *_: object) -> None:
            assert read_progress(tmp_path / "run" / "checkpoints") is not None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(compose(*SMALL), tmp_path / "run", callbacks=[Broken()])
    assert read_progress(tmp_path / "run" / "checkpoints") is None


def test_training_goes_on_without_a_file(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints" / "progress.json").mkdir(parents=True)
    assert fit(compose(*SMALL), tmp_path / "run").result["status"] == "finished"


def test_a_gpu_has_the_number_that_the_machine_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-a")
    assert _device_name(torch.device("cuda", 0)) == "cuda:3"
    assert _device_name(torch.device("cuda", 1)) == "cuda:GPU-a"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert _device_name(torch.device("cuda", 1)) == "cuda:1"
    assert _device_name(torch.device("cpu")) == "cpu"
