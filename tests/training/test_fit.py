"""A run from configuration to folder: its files, its numbers, its faults."""

import csv
import json
import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Timer

from src.config import schema
from src.config.compose import compose
from src.config.faults import check, options
from src.data.sources import mnist
from src.data.sources.downloads import UnavailableError
from src.data.sources.source import Source
from src.data.sources.toy import toy
from src.inference.evaluation import evaluate_path
from src.models.mlp import Mlp
from src.runs.folder import HISTORY, Run
from src.runs.loading import open_trained
from src.system.errors import InputError
from src.training.classifier import Classifier
from src.training.fit import fit
from src.training.history import History
from src.training.metrics import EpochMetrics
from src.training.progress import Utilisation
from src.training.result import summary
from tests.helpers.commands import SMALL, Train


def test_the_run_folder(train: Train) -> None:
    run = train("trainer.max_epochs=3", "optimizer.lr=0.1")
    files = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    assert files == {
        ".hydra/config.yaml",
        "history.csv",
        "result.json",
        "train.log",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "checkpoints/previous.ckpt",
    }
    assert run.config == compose(*SMALL, "trainer.max_epochs=3", "optimizer.lr=0.1")


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


def test_monitoring_the_loss_keeps_the_least(train: Train) -> None:
    run = train(
        "trainer.max_epochs=4",
        "optimizer.lr=1.5",
        "scheduler=none",
        "checkpoint.monitor=val/loss",
        "checkpoint.mode=min",
    )
    losses = [float(row["val/loss"] or 0) for row in run.history[1:]]
    assert run.monitored == min(losses)
    saved = torch.load(run.best_checkpoint, weights_only=True)["epoch"]
    assert losses[saved] == min(losses)


def test_checkpoints_every_n_epochs(train: Train) -> None:
    run = train("trainer.max_epochs=5", "checkpoint.every_n_epochs=2")
    assert torch.load(run.last_checkpoint, weights_only=True)["epoch"] == 4  # the end, always
    assert torch.load(run.checkpoints / "previous.ckpt", weights_only=True)["epoch"] == 3
    accuracies = [row["val/acc"] for row in run.history[1:]]
    assert run.result["best"]["epoch"] == accuracies.index(run.monitored) + 1


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("every", [1, 2, 3, 9])
@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([0.5, NAN, 0.4, 0.3], 4),
        ([NAN, 0.5, NAN, 0.6], 2),
        ([0.5, INF, -INF, 0.6], 1),
        ([0.3, 0.2, 0.2, NAN], 2),
        ([NAN, NAN, INF, NAN], None),
    ],
)
def test_no_number_at_all_is_never_the_best(
    values: list[float], best: int | None, every: int, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best epoch is that of the weights which are kept and tested, however often the state is
    written."""
    named, given = Classifier._named, iter([1.0, *values])

    def spoilt(self: Classifier, part: str, metrics: EpochMetrics) -> dict[int, dict[str, float]]:
        found = named(self, part, metrics)
        return {0: found[0] | {"val/loss": next(given)}} if part == "val" else found

    monkeypatch.setattr(Classifier, "_named", spoilt)
    run = train(
        "trainer.max_epochs=4", "checkpoint.monitor=val/loss", "checkpoint.mode=min",
        f"checkpoint.every_n_epochs={every}",
    )  # fmt: skip
    result = run.result
    assert (result["status"], result["best"]["epoch"]) == ("finished", best)
    assert run.best_checkpoint.exists() == (best is not None)
    if best is None:
        assert (result["test/acc"], math.isnan(run.monitored)) == (None, True)
    else:
        assert run.monitored == values[best - 1]
        assert torch.load(run.best_checkpoint, weights_only=True)["epoch"] == best - 1
        assert evaluate_path(run.folder, None).accuracy == result["test/acc"]
    assert "accuracy" in summary(run) or best is None


def test_checkpoints_hold_primitives_and_tensors_alone(train: Train) -> None:
    content = torch.load(train().best_checkpoint, weights_only=True)
    assert content["kindling"]["shape"] == [1, 28, 28]
    assert json.dumps(content["kindling"])


def test_a_line_per_epoch_and_a_summary(train: Train, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "src"):
        run = train()
    lines = [record.getMessage() for record in caplog.records]
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert [line.split()[1] for line in epochs] == ["0/2", "1/2", "2/2"]
    assert f"accuracy {run.result['test/acc']:.2%}" in lines[-1]
    assert str(run.folder) in lines[-1]
    assert epochs[-1] in run.log_file.read_text()


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


def test_raschkas_toy_to_the_printed_digit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "src"):
        run = fit(compose("experiment=raschka_toy"), tmp_path / "run")
    losses = [
        r.getMessage().rpartition(" ")[2]
        for r in caplog.records
        if "train loss" in r.getMessage() and "step" in r.getMessage()
    ]
    assert losses == ["0.75", "0.65", "0.44", "0.13", "0.03", "0.00"]
    trained = open_trained(run.last_checkpoint)
    assert isinstance(trained.model, Mlp)
    with torch.no_grad():
        logits = trained.model(toy(1).train.features)
    expected = [
        [2.8569, -4.1618],
        [2.5382, -3.7548],
        [2.0944, -3.1820],
        [-1.4814, 1.4816],
        [-1.7176, 1.7342],
    ]
    assert torch.allclose(logits, torch.tensor(expected), rtol=0, atol=5.1e-5)
    probabilities = [
        [0.9991, 0.0009],
        [0.9982, 0.0018],
        [0.9949, 0.0051],
        [0.0491, 0.9509],
        [0.0307, 0.9693],
    ]
    assert torch.allclose(logits.softmax(1), torch.tensor(probabilities), rtol=0, atol=5.1e-5)
    assert (run.result["last"]["train/acc"], run.result["test/acc"]) == (1.0, 1.0)


def test_a_profile_lies_in_the_run_folder(train: Train) -> None:
    run = train("trainer.profiler=simple")
    assert (
        "[Strategy]SingleDeviceStrategy.training_step"
        in (run.folder / "fit-profile.txt").read_text()
    )
    run = train("trainer.profiler=pytorch", "trainer.step=autograd")
    assert "aten::" in (run.folder / "fit-profile.txt").read_text()  # the slowest
    (trace, *_) = run.folder.glob("fit-profile*.trace.json")
    assert "aten::addmm" in {
        event["name"] for event in json.loads(trace.read_text())["traceEvents"]
    }


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


def test_accumulated_batches_and_memory_are_reported(train: Train) -> None:
    run = train("trainer.accumulate_grad_batches=3", "data.batch_size=50")
    assert run.result["effective_batch_size"] == 150
    assert 2**26 < run.result["peak_memory_bytes"] < 2**36
    assert "effective batch size 150: 50 on each of 1 device(s), 3 accumulated" in (
        run.log_file.read_text()
    )


def test_max_time_ends_a_run_early(train: Train) -> None:
    run = train("trainer.max_epochs=100000", "trainer.max_time='00:00:00:01'")
    assert 1 <= run.result["epochs"] < 100_000
    assert (run.result["status"], run.result["stopped"]) == ("finished", "max_time")
    values = run.config.to_primitives()
    values["trainer"]["max_epochs"] *= 2
    more = fit(check(values), run.folder, resume=True)
    assert more.result["epochs"] == run.result["epochs"]  # its time is over


@pytest.mark.parametrize("blocks", [0, 1, 5, 6, 7, 12])
def test_a_part_of_an_epoch_is_no_whole_one(
    blocks: int, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is over after so many blocks and one more. An epoch has six: five of two batches, the
    last of one."""
    clock = iter([*[0.0] * blocks, *[99.0] * 100])
    monkeypatch.setattr(History, "seconds", property(lambda self: self.earlier_seconds))
    trained, now = History.on_train_batch_end, 0.0
    monkeypatch.setattr(Timer, "time_elapsed", lambda *_: now)

    def tick(self: History, *arguments: Any) -> None:
        nonlocal now
        now = self.earlier_seconds = next(clock)
        trained(self, *arguments)

    monkeypatch.setattr(History, "on_train_batch_end", tick)
    run = train(
        "trainer.max_epochs=9", "trainer.max_time='00:00:00:50'", "trainer.steps_per_call=2",
        "data.drop_last=true",
    )  # fmt: skip
    result, (whole, rest) = run.result, divmod(blocks + 1, 6)
    steps = 11 * whole + 2 * rest
    assert (result["epochs"], result["steps"]) == (whole, steps)
    assert result["stopped"] == "max_time"
    assert [row["step"] for row in run.history[1:]] == [
        *(11 * epoch for epoch in range(1, whole + 1)),
        *([steps] if rest else []),
    ]
    assert result["last"]["epoch"] == whole + bool(rest)
    samples = whole * result["data"]["train"] + 200 * rest
    assert result["samples_per_second"] == pytest.approx(samples / 99)


def test_the_fallback_is_told_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str, root: Path) -> Source:
        raise UnavailableError("the download failed (no network)")

    monkeypatch.setattr(mnist, "read_idx_set", fail)
    monkeypatch.delenv("DATA_ROOT", raising=False)
    with caplog.at_level(logging.INFO, "src"):
        run = fit(compose("trainer=cpu", "trainer.max_epochs=1"), tmp_path / "run")
    reason = "mnist, because the download failed (no network)"
    assert run.result["data"]["instead_of"] == reason
    assert f"Training on digits instead of {reason}" in caplog.records[0].getMessage()
    assert f"instead of {reason}" in caplog.records[-1].getMessage()
    assert reason in run.log_file.read_text()
    assert open_trained(run.folder).data == "digits"


def test_a_batch_larger_than_the_split_is_an_error(tmp_path: Path) -> None:
    config = compose(*SMALL, "data.batch_size=2000", "data.drop_last=true")
    with pytest.raises(InputError, match=r"type data\.batch_size=1150 or less"):
        fit(config, tmp_path / "run")
    result = Run(tmp_path / "run").result
    assert result["status"] == "failed"
    assert "data.batch_size=2000" in result["error"]


def test_a_folder_that_holds_a_run_is_left_alone(train: Train) -> None:
    run = train()
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="holds a run already"):
        fit(compose(*SMALL), run.folder)
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}


OFFLINE = ("digits", "toy", "synthetic")  # of the data; test_data.py has the others
SHIPPED = [
    f"{group}={choice}"
    for group in schema.GROUPS
    for choice in options(group)
    if group != "data" or choice in OFFLINE
]


@pytest.mark.parametrize("choice", SHIPPED)
def test_every_shipped_choice_trains_a_step(choice: str, tmp_path: Path) -> None:
    compose(choice)
    # Small stand-ins for what a choice needs and a test machine lacks.
    offline = [] if choice.startswith("data=") else ["data=digits"]
    if choice.startswith("experiment=raschka_toy"):
        offline = ["data=toy"]
    if choice in ("trainer=cuda", "trainer=mps", "trainer=ddp", "experiment=raschka_toy_ddp"):
        offline += ["trainer.accelerator=cpu", "trainer.devices=1"]
    config = compose(choice, *offline, "trainer.max_epochs=1", "trainer.progress_bar=false")
    run = fit(config, tmp_path / "run")
    assert run.result["steps"] >= 1
    assert run.result["status"] == "finished"


def test_fit_takes_callbacks_of_its_caller(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    class Watch(Callback):
        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            seen.append((trainer.global_step, float(trainer.callback_metrics["val/acc"])))

    run = fit(compose(*SMALL), tmp_path / "run", callbacks=[Watch()])
    assert [step for step, _ in seen] == [row["step"] for row in run.history[1:]]
    accuracies = [row["val/acc"] for row in run.history[1:]]
    assert [accuracy for _, accuracy in seen] == pytest.approx(accuracies)
