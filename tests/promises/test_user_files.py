"""Whole runs on the user's own files: recipe, evaluation, prediction, export."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from kindling.config.compose import compose
from kindling.data.sources.catalogue import open_source
from kindling.inference.evaluation import evaluate_path
from kindling.inference.export.export import export
from kindling.inference.export.formats import plan
from kindling.inference.inputs import read_inputs
from kindling.inference.prediction import describe_predictions, predict_inputs
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.data_files import ROWS, write_pictures


def test_explicit_settings_override_the_recipe_for_few_samples() -> None:
    own = ["data=csv", "data.path=a", "data.target=b"]
    default, chosen = compose(*own), compose(*own, "optimizer=sgd", "trainer.max_epochs=3")
    assert (default.optimizer.name, default.scheduler.name) == ("adam", "none")
    assert (chosen.optimizer.name, chosen.trainer.max_epochs) == ("sgd", 3)
    assert compose(*own, "experiment=mlp_tuned").optimizer.name == "adamw"
    assert compose().optimizer.name == "sgd"


def _run_on(kind: str, root: Path) -> tuple[Any, Path, Callable[[], Any]]:
    """A trained run, a file to predict, and a function that changes the run's data."""
    common = ["trainer=cpu", "trainer.max_epochs=3", "data.batch_size=8", "optimizer.lr=0.05"]
    if kind == "csv":
        path = root / "t.csv"
        path.write_text(f"a,b,kind\n{ROWS}\n")
        chosen = ["data=csv", "data.target=kind"]
        (root / "new.csv").write_text("b,kind,other,a\n10,red,x,1\n90,blue,y,3\n")
        return (
            fit(compose(*chosen, f"data.path={path}", *common), root / "run"),
            root / "new.csv",
            partial(path.write_text, f"a,b,kind\n{ROWS}\n7,7,red\n"),
        )
    path = root / "pictures"
    write_pictures(path, {"cat": 12, "dog": 12})
    run = fit(
        compose("data=image_folder", "data.size=8", f"data.path={path}", *common), root / "run"
    )
    return run, path / "cat" / "0.png", (path / "dog" / "3.png").unlink


@pytest.mark.parametrize("kind", ["csv", "image_folder"])
def test_a_run_knows_its_data(kind: str, tmp_path: Path) -> None:
    run, new, change = _run_on(kind, tmp_path)
    trained = open_trained(run.folder)
    labels = {"csv": ("blue", "red"), "image_folder": ("cat", "dog")}[kind]
    assert trained.labels == labels
    found = evaluate_path(run.folder, None)
    assert found.accuracy == run.result["test/acc"]
    assert found.to_primitives()["labels"] == list(labels)
    predictions = predict_inputs(trained, read_inputs([new]))
    text = describe_predictions(predictions, trained.labels)
    assert any(label in text.splitlines()[2].split() for label in labels)
    if kind == "csv":
        assert [prediction.true_class for prediction in predictions] == [1, 0]
        assert "of 2 right" in text
    else:
        assert len(predictions) == 1
        assert predictions[0].polarity == ""
    done = export(plan(run.folder, "safetensors", None, force=False))
    assert tuple(done.metadata.labels) == labels
    assert done.metadata.columns == trained.columns
    change()
    with pytest.raises(InputError, match=r"content of data\.path=.* has changed"):
        evaluate_path(run.folder, None)
    config = run.config
    more = config.model_copy(
        update={"trainer": config.trainer.model_copy(update={"max_epochs": 5})}
    )
    with pytest.raises(InputError, match=r"ckpt: the content of data\.path=.* has changed"):
        fit(more, run.folder, resume=True)


def test_a_model_of_photographs_uses_the_whole_picture(tmp_path: Path) -> None:
    run, new, _ = _run_on("image_folder", tmp_path)
    trained = open_trained(run.folder)
    (prediction,) = predict_inputs(trained, read_inputs([new]))
    source = open_source(run.config.data)
    with Image.open(new) as image:
        pixels = np.asarray(image.resize((8, 8), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    features = torch.from_numpy(pixels.copy()).float().div(255).unsqueeze(0)
    expected = trained.model(features).softmax(-1)[0]
    assert source.shape == (3, 8, 8)
    assert prediction.guess is not None
    assert prediction.guess.probability == pytest.approx(expected.max().item(), rel=1e-5)


def test_a_table_that_does_not_fit_the_run(tmp_path: Path) -> None:
    run, new, _ = _run_on("csv", tmp_path)
    trained = open_trained(run.folder)
    new.write_text("a,kind\n1,red\n")
    with pytest.raises(InputError, match="there is no column b; it has a, kind"):
        predict_inputs(trained, read_inputs([new]))
    new.write_text("a,b,kind\n1,1,green\n")
    with pytest.raises(InputError, match="has the class 'green'"):
        predict_inputs(trained, read_inputs([new]))
