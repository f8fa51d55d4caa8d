"""A loaded model in a user's program."""

from pathlib import Path

import numpy as np
import pytest
import torch

import kindling
from src.data.sources.catalogue import open_source
from src.inference.model import load
from src.runs.folder import Run
from src.system.errors import InputError


def test_probabilities_classes_and_accuracy(finished: Run) -> None:
    model = load(finished.folder)
    test = open_source(finished.config.data).test
    x, y = test.features.numpy(), test.labels.numpy()
    with torch.no_grad():
        logits = model.trained.model(test.features.float().div(255) if x.dtype == np.uint8 else
                                     test.features)  # fmt: skip
    expected = logits.double().softmax(1).numpy()
    assert np.allclose(model.predict_proba(x), expected, atol=1e-6)
    assert np.array_equal(model.predict(x), expected.argmax(1))
    assert model.score(x, y) == pytest.approx(finished.result["test/acc"])
    assert model.labels == tuple("0123456789")
    assert model.shape == tuple(test.shape)
    assert str(finished.folder) in repr(model)


def test_wrong_arrays(finished: Run) -> None:
    model = load(str(finished.folder))
    with pytest.raises(InputError, match="the classes are"):
        model.score(np.zeros((3, *model.shape), np.uint8), [1, 2])
    with pytest.raises(InputError, match="features"):
        model.predict(np.zeros((3, 5), np.uint8))
    with pytest.raises(InputError, match="nix"):
        load("nix")


def test_a_name_stands_in_place_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = kindling.compose("data=digits", "trainer.max_epochs=1", "trainer=cpu", "name=mine")
    run = kindling.fit(config, "runs/a")
    assert isinstance(run, kindling.Run)
    for text in ("mine", "latest", "runs/a"):
        assert kindling.load(text).trained.checkpoint == Path("runs/a/checkpoints/best.ckpt")
