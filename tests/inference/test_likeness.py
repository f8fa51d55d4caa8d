"""Inputs unlike what a model was trained on are found; true ones are not called so."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import font_manager
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from kindling.config.compose import compose
from kindling.data.sources import published
from kindling.data.sources.catalogue import open_source
from kindling.data.sources.published import read_idx_set
from kindling.data.sources.source import Split
from kindling.inference.inputs import PredictRequest, read_inputs
from kindling.inference.likeness import Likeness, likeness_of
from kindling.inference.logits import compute_logits
from kindling.inference.prediction import predict_request
from kindling.records.folder import Run
from kindling.records.loading import Trained, open_trained
from kindling.system.errors import InputError
from kindling_digits.drawings import prepare
from tests.helpers.commands import Train
from tests.helpers.drawings import draw

FIELD = (28, 28)
HAND = np.random.default_rng(0)


def unlike(trained: Trained, likeness: Likeness, features: NDArray[np.uint8]) -> float:
    """The share of features (N, 28, 28) that are called unlike."""
    inputs = torch.from_numpy(features).view(-1, 1, 28, 28)
    classes = compute_logits(trained, Split(inputs, torch.zeros(len(inputs)))).argmax(-1)
    return float(np.mean(np.array(likeness.unlikeness(inputs, classes)) > 1))


def prepared(images: list[Image.Image]) -> NDArray[np.uint8]:
    return np.stack([prepare(image, FIELD).pixels for image in images])


def letters(texts: str) -> list[Image.Image]:
    found = []
    for style in ("normal", "italic"):
        path = font_manager.findfont(font_manager.FontProperties(family="DejaVu Sans", style=style))
        for text in texts:
            image = Image.new("L", (200, 200))
            font = ImageFont.truetype(path, 120)
            ImageDraw.Draw(image).text((100, 100), text, 255, font=font, anchor="mm")
            found.append(image)
    return found


def blurred(side: int) -> list[Image.Image]:
    """Noise like that of a blurred photograph."""
    levels = [HAND.integers(0, 256, (side, side), dtype=np.uint8) for _ in range(50)]
    return [Image.fromarray(each).resize((200, 150), Image.Resampling.BICUBIC) for each in levels]


@pytest.mark.slow
def test_unlike_inputs_for_a_run_on_mnist(default_run: Run, mnist_root: Path) -> None:
    trained = open_trained(default_run.folder)
    likeness = likeness_of(trained)
    digits = read_idx_set("mnist", mnist_root).test.features[:, 0].numpy()

    # True ones, which the bounds were not taken from, and digits of another hand.
    assert unlike(trained, likeness, digits) <= 0.01
    enlarged = [Image.fromarray(255 - digit).resize((200, 200)) for digit in digits[:200]]
    assert unlike(trained, likeness, prepared(enlarged)) <= 0.01
    drawn = [
        draw(digit, (300, 300), (60, 30, 200, 270), pen, slant=0.1, tremble=0.02, seed=digit)
        for digit in range(10)
        for pen in (9, 20, 36)
    ]
    assert unlike(trained, likeness, prepared(drawn)) == 0

    # Others.
    noise = HAND.integers(0, 256, (100, 28, 28), dtype=np.uint8)
    assert unlike(trained, likeness, noise) == 1
    photographs = [Image.fromarray(HAND.integers(0, 256, (90, 90), dtype=np.uint8))] * 10
    assert unlike(trained, likeness, prepared(photographs)) == 1
    assert unlike(trained, likeness, prepared(blurred(8))) > 0.85
    assert unlike(trained, likeness, 255 - digits[:200]) == 1
    assert unlike(trained, likeness, np.zeros((1, 28, 28), np.uint8)) == 1
    two = np.concatenate([digits[:200], digits[200:400]], 2)
    assert unlike(trained, likeness, prepared([Image.fromarray(each) for each in two])) > 0.8
    assert unlike(trained, likeness, prepared(letters("ABEFHKMNRTWXaefhkmtwx"))) > 0.3
    # Of those on their side a 0 looks like a 0 still, a 6 like others.
    side = np.rot90(digits[:500], axes=(1, 2))
    assert unlike(trained, likeness, np.ascontiguousarray(side)) > 0.45


def test_each_data_set_has_bounds_of_its_own(train: Train) -> None:
    """Test samples are within the bounds and noise is not, for pictures and for points."""
    for overrides in ((), ("data=toy", "data.factor=400")):
        run = train(*overrides, "trainer.max_epochs=4")
        trained = open_trained(run.folder)
        test = open_source(run.config.data).test
        likeness = likeness_of(trained)
        classes = compute_logits(trained, test).argmax(-1)
        true = np.array(likeness.unlikeness(test.features, classes))
        assert np.mean(true > 1) <= 0.01
        strange = torch.rand_like(test.features) + 1
        assert min(likeness.unlikeness(strange, classes)) > 1


def test_distances_by_hand(train: Train) -> None:
    """Unlikeness is the larger of both distances over their bounds, within the class."""
    trained = open_trained(train("data=toy", "data.factor=4").folder)
    samples = Split(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([0, 1]))
    held = Split(torch.tensor([[-3.0, 3.0]]).repeat(200, 1), torch.zeros(200))
    likeness = Likeness(trained, samples, held)
    likeness.bounds = torch.tensor([2.0, 0.5])
    inputs = torch.tensor([[3.0, 0.0], [6.0, 8.0], [0.0, 2.0], [0.0, 0.0]])
    found = likeness.unlikeness(inputs, torch.tensor([0, 0, 1, 1]))
    angle = (2 - 2 * 0.6) ** 0.5
    expected = [max(4 / 2, angle / 0.5), 5 / 2, 0, max(2 / 2, 2**0.5 / 0.5)]
    assert found == pytest.approx(expected, abs=1e-3)


def test_strokes_a_pixel_apart_are_near(train: Train) -> None:
    def line(column: int) -> torch.Tensor:
        picture = torch.zeros(1, 1, 28, 28)
        picture[..., column] = 1
        return picture

    trained = open_trained(train().folder)
    likeness = Likeness(
        trained,
        Split(line(14), torch.tensor([0])),
        Split(line(14).repeat(200, 1, 1, 1), torch.zeros(200)),
    )
    likeness.bounds = torch.ones(2)
    here, beside, away = likeness.unlikeness(
        torch.cat([line(14), line(15), line(20)]), torch.zeros(3)
    )
    assert here == pytest.approx(0, abs=1e-3)
    assert 0 < beside < 0.8 * away


def test_no_comparison_without_the_data(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prediction is the same, the reason is given, and nothing is downloaded."""
    few = open_trained(train("data=toy", "data.factor=20").folder)
    with pytest.raises(InputError, match="40 held-out samples are too few, 200 are needed"):
        likeness_of(few)

    monkeypatch.setattr(published, "download", lambda *_: pytest.fail("a download"))
    absent = compose("data=mnist", f"data.root={tmp_path / 'nothing'}")
    trained = replace(few, data="mnist", config=absent)
    with pytest.raises(InputError, match="data=mnist is not on this machine"):
        likeness_of(trained)

    samples = np.random.default_rng(0).normal(size=(2000, 3))
    np.savez(tmp_path / "mine.npz", x=samples, y=(samples[:, 0] > 0).astype(int))
    np.savez(tmp_path / "new.npz", x=np.array([[0.1, 0.2, 0.3], [50, 50, 50]]))
    run = train("data=npz", f"data.path={tmp_path / 'mine.npz'}", "optimizer.lr=0.1").folder
    request = PredictRequest(run, read_inputs([tmp_path / "new.npz"]), [], None)
    compared = predict_request(request)
    assert compared.notes == []
    assert [line.split()[-1] for line in compared.text.splitlines()[4:6]] != ["unlike", "unlike"]
    assert compared.text.splitlines()[5].endswith("  unlike")
    assert compared.text.splitlines()[6].startswith("1 of 2 is unlike: farther from every")
    np.savez(tmp_path / "mine.npz", x=samples + 1, y=(samples[:, 0] > 0).astype(int))
    alone = predict_request(request)
    (note,) = alone.notes
    assert note.startswith(
        "inputs unlike the training data are not marked: the content of data.path="
    )
    assert "unlike" not in alone.text
    classes = [
        [line.split()[1] for line in each.text.splitlines()[4:6]] for each in (compared, alone)
    ]
    assert classes[0] == classes[1]
