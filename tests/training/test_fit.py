"""A run from configuration to folder: its files, its numbers, its faults."""

import logging
import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from kindling.config import schema
from kindling.config.compose import compose
from kindling.config.faults import options
from kindling.data.sources.toy import toy
from kindling.models.mlp import Mlp
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.commands import SMALL, Train


def test_the_run_folder(train: Train) -> None:
    run = train("trainer.max_epochs=3", "optimizer.lr=0.1")
    files = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    assert files == {
        ".hydra/config.yaml",
        ".hydra/overrides.yaml",
        "history.csv",
        "result.json",
        "train.log",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "checkpoints/previous.ckpt",
    }
    assert run.config == compose(*SMALL, "trainer.max_epochs=3", "optimizer.lr=0.1")


def test_raschkas_toy_to_the_printed_digit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kindling"):
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


def test_a_folder_that_holds_a_run_is_left_alone(train: Train) -> None:
    run = train()
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="holds a run already"):
        fit(compose(*SMALL), run.folder)
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}


def test_a_run_without_a_folder_gets_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = compose("data=toy", "trainer=cpu", "trainer.max_epochs=1")
    runs = [fit(config) for _ in range(2)]
    assert runs[0].folder != runs[1].folder
    for run in runs:
        assert Run(tmp_path / run.folder).result["status"] == "finished"
        assert re.fullmatch(r"runs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d\.\d{6}", str(run.folder))
    with pytest.raises(InputError, match="lacks the folder of the run; name the folder"):
        fit(config, resume=True)
    with pytest.raises(InputError, match="fit takes a configuration"):
        fit("data=toy")  # type: ignore[arg-type]


OFFLINE = ("digits", "toy", "synthetic")  # of the data; test_data.py has the others
SHIPPED = [
    f"{group}={choice}"
    for group in schema.GROUPS
    for choice in options(group)
    if (group != "data" or choice in OFFLINE) and choice != "own"  # in test_own.py
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
