"""Predictions of a trained model, for pictures and arrays."""

import csv
import doctest
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from src.data.sources.catalogue import open_source
from src.data.sources.mnist import read_idx_set
from src.inference.drawings import prepare
from src.inference.evaluation import evaluate_path
from src.inference.inputs import read_inputs
from src.inference.prediction import classify, predict, predict_inputs
from src.inference.prediction_output import describe, to_csv
from src.runs.folder import Run
from src.runs.loading import open_trained
from src.system.errors import InputError
from tests.helpers.commands import Train
from tests.helpers.drawings import FIELD, LIGHT_ON_DARK, SEVEN, save_drawings, seven


def right(drawings: Path, run: Path) -> int:
    """The number of right predictions for the ten drawings; each polarity must be detected."""
    predictions = predict_inputs(open_trained(run), read_inputs([drawings]))
    assert [prediction.path.stem for prediction in predictions] == list("0123456789")
    for digit, prediction in enumerate(predictions):
        light = digit in LIGHT_ON_DARK
        assert prediction.polarity == ("light on dark" if light else "dark on light")
    guesses = [prediction.guess for prediction in predictions]
    return sum(guess is not None and guess.best == digit for digit, guess in enumerate(guesses))


def test_ten_drawings_by_the_default_run(
    default_run: Run, mnist_root: Path, tmp_path: Path
) -> None:
    """MNIST's own digits, inverted and enlarged, get the same predictions as the originals."""
    assert right(save_drawings(tmp_path / "drawings"), default_run.folder) >= 9

    test = read_idx_set("mnist", mnist_root).test
    digits, labels = test.features[:500, 0].numpy(), test.labels[:500].tolist()
    trained = open_trained(default_run.folder)

    def accuracy(prepared: list[Any]) -> float:
        guesses = classify(trained, np.stack(prepared))
        hits = [guess.best == label for guess, label in zip(guesses, labels, strict=True)]
        return float(np.mean(hits))

    plain = accuracy(list(digits))
    inverted = [prepare(Image.fromarray(255 - digit), FIELD).pixels for digit in digits]
    enlarged = [
        prepare(Image.fromarray(digit).resize((200, 200)), FIELD).pixels for digit in digits
    ]
    assert accuracy(inverted) > plain - 0.01
    assert accuracy(enlarged) > plain - 0.01


def test_ten_drawings_by_a_run_on_the_digits(train: Train, tmp_path: Path) -> None:
    """The digits are written differently, cut to their box and not centred; chance is 1 of 10."""
    run = train("trainer.max_epochs=10")
    assert right(save_drawings(tmp_path / "drawings"), run.folder) >= 6


def test_arrays_get_the_predictions_of_evaluate(train: Train, tmp_path: Path) -> None:
    run = train()
    test = open_source(run.config.data).test
    features, labels = test.features.numpy(), test.labels.numpy()
    np.savez(tmp_path / "floats.npz", x=features.astype(float), y=labels)
    np.savez(tmp_path / "bytes.npz", x=np.rint(features[:3, 0] * 255).astype(np.uint8))
    trained = open_trained(run.folder)
    names = ["bytes.npz", "floats.npz"]
    found = predict_inputs(trained, read_inputs([tmp_path / name for name in names]))
    assert [(item.path.name, item.row) for item in found[:4]] == [
        *(("bytes.npz", row) for row in range(3)),
        ("floats.npz", 0),
    ]
    hits = [item.guess is not None and item.guess.best == item.true_class for item in found[3:]]
    assert np.mean(hits) == evaluate_path(run.folder, None).accuracy
    probabilities = trained.model(test.features).softmax(-1).detach().numpy()
    for item, row in zip(found[3:], probabilities, strict=True):
        assert item.guess is not None
        best, second = np.argsort(row)[::-1][:2]
        assert (item.guess.best, item.guess.second) == (best, second)
        assert item.guess.probability == pytest.approx(row[best], abs=1e-5)
        assert item.guess.second_probability == pytest.approx(row[second], abs=1e-5)
    for exact, rounded in zip(found[3:6], found[:3], strict=True):
        assert exact.guess is not None
        assert rounded.guess is not None
        assert rounded.guess.probability == pytest.approx(exact.guess.probability, abs=0.01)
    text = describe(found, "0123456789")
    assert "and 262 more; --csv FILE writes every row" in text
    assert f"{sum(hits)} of 359 right, accuracy {np.mean(hits):.2%}" in text
    rows = list(csv.DictReader(io.StringIO(to_csv(found, "0123456789"))))
    assert len(rows) == 362
    assert (rows[3]["row"], rows[3]["label"], rows[0]["label"]) == ("0", str(labels[0]), "")
    assert sum(row["class"] == row["label"] for row in rows) == sum(hits)


def test_predict_gives_probabilities_as_its_docstring_shows(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of the docstring runs; a probability is the softmax of the model's logits."""
    run = train()
    (tmp_path / "runs").mkdir()
    shutil.copytree(run.folder, tmp_path / "runs" / "example")
    monkeypatch.chdir(tmp_path)
    (example,) = doctest.DocTestFinder().find(predict, globs={})
    assert doctest.DocTestRunner().run(example) == doctest.TestResults(0, len(example.examples))
    trained = open_trained(run.folder)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
    found = predict(trained, pixels)
    logits = trained.model(torch.from_numpy(pixels)[:, None] / 255).double()
    np.testing.assert_allclose(found, logits.softmax(-1).detach(), rtol=1e-5)
    np.testing.assert_array_equal(predict(trained, pixels[:, None]), found)
    np.testing.assert_allclose(predict(trained, pixels / 255), found, rtol=1e-5)
    guesses = [guess.probability for guess in classify(trained, pixels)]
    assert found.max(1).tolist() == guesses


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.zeros((5, 8, 8), np.uint8), r"features is \(5, 8, 8\), but .* takes \(N, 1, 28, 28\)"),
        (np.zeros((784,), np.uint8), r"features is \(784,\), must be"),
        (np.zeros((5, 28, 28), np.int64), "features is of int64, must be uint8"),
        (
            np.full((5, 28, 28), 2.0),
            "features goes from 2 to 2, floats of pictures must be from 0 to 1",
        ),
    ],
)
def test_predict_refuses_features_that_the_model_does_not_take(
    features: np.ndarray, message: str, train: Train
) -> None:
    with pytest.raises(InputError, match=message):
        predict(open_trained(train().folder), features)


def test_pictures_and_arrays_keep_their_order(train: Train, tmp_path: Path) -> None:
    trained = open_trained(train().folder)
    seven().save(tmp_path / "a.png")
    Image.new("L", (9, 9)).save(tmp_path / "b\n.png")
    np.savez(tmp_path / "c.npz", x=np.stack([SEVEN, SEVEN]).astype(np.uint8))
    order = ["c.npz", "a.png", "b\n.png", "c.npz"]
    found = predict_inputs(trained, read_inputs([tmp_path / name for name in order]))
    assert [item.path.name for item in found] == ["c.npz", *order[:3], "c.npz", "c.npz"]
    assert [item.polarity for item in found] == ["", "", "dark on light", "nothing", "", ""]
    assert [item.guess is None for item in found] == [False, False, False, True, False, False]
    first, picture = found[0].guess, found[2].guess
    assert first is not None
    assert picture is not None
    assert (first.best, first.second) == (picture.best, picture.second)
    assert first.probability == pytest.approx(picture.probability)
    lines = describe(found, "0123456789").splitlines()
    assert lines[5].split()[-5:] == ["–", "–", "–", "–", "nothing"]
    assert f"{tmp_path}/b\ufffd.png" in lines[5]  # no line of its own


def test_a_model_that_does_not_take_pictures(train: Train, tmp_path: Path) -> None:
    seven().save(tmp_path / "a.png")
    pictures = read_inputs([tmp_path / "a.png"])
    toy = open_trained(train("data=toy", "data.factor=4").folder)
    with pytest.raises(InputError, match=r"trained on data=toy; it takes features of shape \(2,\)"):
        predict_inputs(toy, pictures)
    colour = open_trained(train("data=synthetic", "data.shape=[3,8,8]").folder)
    with pytest.raises(InputError, match=r"npz file with x of \(N, 3, 8, 8\)$"):
        predict_inputs(colour, pictures)
    np.savez(tmp_path / "toy.npz", x=[[-1.2, 3.1], [2.7, -1.5]], y=[0, 1])
    found = predict_inputs(toy, read_inputs([tmp_path / "toy.npz"]))
    assert [item.guess and item.guess.best for item in found] == [0, 1]
    np.savez(tmp_path / "toy.npz", x=[[-1.2, 3.1, 0]])
    with pytest.raises(InputError, match=r"x is \(1, 3\), but .*best\.ckpt takes \(N, 2\)"):
        predict_inputs(toy, read_inputs([tmp_path / "toy.npz"]))
    np.savez(tmp_path / "toy.npz", x=[[-1.2, 3.1], [2.7, -1.5]], y=[0, 2])
    with pytest.raises(InputError, match="y goes from 0 to 2, must be from 0 to 1"):
        predict_inputs(toy, read_inputs([tmp_path / "toy.npz"]))


def test_other_fields(train: Train, tmp_path: Path) -> None:
    """Pictures are scaled to the shape that the model takes."""
    seven().save(tmp_path / "a.png")
    trained = open_trained(train("data=synthetic", "data.shape=[14,20]", "data.classes=3").folder)
    (found,) = predict_inputs(trained, read_inputs([tmp_path / "a.png"]))
    (expected,) = classify(trained, prepare(seven(), (14, 20)).pixels[None])
    assert found.guess == expected


def test_weights_that_are_not_finite(train: Train) -> None:
    trained = open_trained(train().folder)
    next(trained.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(InputError, match=r"best\.ckpt: its logits for the input are not finite"):
        classify(trained, SEVEN.astype(np.uint8)[None])


def test_equally_probable_classes_keep_their_order(train: Train) -> None:
    trained = open_trained(train("model=logistic_regression").folder)
    for parameter in trained.model.parameters():
        parameter.data.zero_()
    (guess,) = classify(trained, SEVEN.astype(np.uint8)[None])
    assert (guess.best, guess.second) == (0, 1)
    assert guess.probability == guess.second_probability == pytest.approx(0.1)
