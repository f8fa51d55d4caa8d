"""A trained model, tested again: loss, accuracy and mistakes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from src.data.sources.source import Source, Split
from src.inference.evaluation import describe, evaluate, evaluate_path, source_of
from src.runs.loading import open_trained
from src.system.errors import InputError
from tests.helpers.commands import Train, require_told_without_torch


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


def test_measures_are_part_of_the_answer(train: Train) -> None:
    run = train()
    found = evaluate_path(run.folder, None, top_k=3)
    answer = json.loads(json.dumps(found.to_primitives()))
    assert answer["recall"]["per_class"] == pytest.approx(answer["per_class_accuracy"])
    assert answer["recall"]["weighted"] == pytest.approx(answer["accuracy"])
    assert (answer["top_k"], answer["f1"]["macro"]) == (3, found.measures.f1.macro)
    assert answer["top_k_accuracy"] >= answer["accuracy"]
    assert f"top-3 accuracy {found.measures.top_k_accuracy:.2%}\n" in describe(found)
    with pytest.raises(InputError, match="--top-k 11: the model has 10 classes"):
        evaluate_path(run.folder, None, top_k=11)


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


def test_data_of_another_shape(train: Train) -> None:
    run = train()
    with pytest.raises(
        InputError, match=r"takes features \(1, 28, 28\) of 10 classes, but data=toy"
    ):
        evaluate_path(run.folder, "toy")
    with pytest.raises(InputError, match="--data nowhere: must be one of"):
        evaluate_path(run.folder, "nowhere")


def test_classes_of_another_data_set_go_by_name(train: Train) -> None:
    """The model's classes are in another order, and have one that the data set lacks."""
    trained = open_trained(train().folder)
    order = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    plain = evaluate(trained, source_of(trained, "digits"))
    model = torch.nn.Sequential(trained.model, Reordered(order))
    labels = (*(str(number) for number in order.tolist()), "none")
    other = replace(trained, model=model, labels=labels)
    found = evaluate(other, source_of(other, "digits"))
    assert found.labels == labels
    assert found.accuracy == plain.accuracy
    assert torch.equal(found.confusion[:10, :10], plain.confusion[order][:, order])
    assert found.per_class[10] is None
    letters = replace(trained, labels=tuple("abcdefghij"))
    with pytest.raises(InputError, match="its classes are a, b, c, d, e, …, but data=digits"):
        evaluate(letters, source_of(letters, "digits"))


class Reordered(torch.nn.Module):
    """Logits in another order, and a further class that is never predicted."""

    def __init__(self, order: torch.Tensor) -> None:
        super().__init__()
        self.order = order

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        never = torch.full((len(logits), 1), -1000.0)
        return torch.cat([logits[:, self.order], never], 1)


def test_faults_of_the_command_line_cost_no_torch(train: Train, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    told = {
        (nowhere,): f"error: {nowhere}: there is no such file or folder",
        (str(train().folder), "--data", "nowhere"): "--data nowhere: must be one of",
        (str(train().folder), "--top-k", "0"): "--top-k 0: must be 1 or more",
    }
    require_told_without_torch("evaluate", told)
