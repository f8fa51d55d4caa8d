"""Opening a run again: the model, its numbers, and what is no run."""

from pathlib import Path

import pytest
import torch

from src.data.sources.catalogue import open_source
from src.data.sources.source import Source, Split
from src.inference.evaluation import describe, evaluate, evaluate_path
from src.runs.loading import open_trained
from src.system.errors import InputError
from tests.helpers.commands import Train


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
    assert "-" in describe(found)


def test_the_state_is_plain_torch(train: Train) -> None:
    """Saved as a state_dict, restored into a fresh network, loaded with weights only."""
    run = train()
    trained = open_trained(run.folder)
    content = torch.load(run.best_checkpoint, weights_only=True)["state_dict"]
    for name, value in trained.model.state_dict().items():
        assert torch.equal(content[f"model.{name}"], value)
    features = open_source(run.config.data).test.features[:5]
    assert trained.model(features).shape == (5, 10)


def test_opening_leaves_the_random_stream_alone(train: Train) -> None:
    run = train()
    state = torch.get_rng_state()
    open_trained(run.folder)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder"):
        open_trained(tmp_path)
    with pytest.raises(InputError, match="there is no such file or folder"):
        open_trained(tmp_path / "nothing.ckpt")


@pytest.mark.parametrize("cut", [0, 1, 100, 5000, -1])
def test_a_damaged_checkpoint(cut: int, train: Train) -> None:
    run = train()
    content = run.best_checkpoint.read_bytes()
    run.best_checkpoint.write_bytes(content[:cut])
    with pytest.raises(InputError, match=r"best\.ckpt: is damaged or not a checkpoint"):
        open_trained(run.folder)


def test_a_foreign_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "foreign.ckpt"
    torch.save({"state_dict": {"weight": torch.zeros(2)}}, path)
    with pytest.raises(
        InputError, match=r"not a checkpoint of this project \(it has no checksum\)"
    ):
        open_trained(path)


def test_data_of_another_shape(train: Train) -> None:
    run = train()
    with pytest.raises(
        InputError, match=r"takes features \(1, 28, 28\) of 10 classes, but data=toy"
    ):
        evaluate_path(run.folder, "toy")
    with pytest.raises(InputError, match="data=nowhere: must be one of"):
        evaluate_path(run.folder, "nowhere")
