"""Arrays in .npz files: their values, and the message for each fault."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.model_selection import StratifiedGroupKFold

from kindling.config.compose import compose
from kindling.data.module import DataModule
from kindling.data.sources.catalogue import open_source
from kindling.data.sources.folds import training_and_validation
from kindling.data.sources.source import Source, Split, as_float
from kindling.inference.evaluation import evaluate_path
from kindling.inference.inputs import read_inputs, read_request
from kindling.inference.model import Model
from kindling.inference.prediction import predict_inputs
from kindling.inference.samples import picture_shape
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training.fit import fit

X, Y = np.zeros((4, 3)), np.array([0, 1, 0, 1])
PIXELS = np.zeros((4, 3), np.uint8)


def arrays(path: Path, *typed: str, **content: Any) -> Source:
    np.savez(path, **content)
    return open_source(compose("data=npz", f"data.path={path}", *typed).data)


def test_arrays_with_and_without_a_test_set(tmp_path: Path) -> None:
    x, y = np.arange(40, dtype=np.uint8).reshape(10, 2, 2), np.arange(10) % 2
    source = arrays(tmp_path / "a.npz", x=x, y=y)
    assert (source.shape, source.labels) == ((1, 2, 2), ("0", "1"))
    assert torch.bincount(source.test.labels).tolist() == [1, 1]
    again = arrays(tmp_path / "b.npz", x=x / 255, y=y, x_test=x[:3] / 255, y_test=y[:3])
    assert (again.train.features.dtype, len(again.train)) == (torch.float32, 10)
    assert torch.equal(again.test.features[:, 0], torch.from_numpy(x[:3] / 255).float())
    assert again.digest != source.digest


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"y": Y}, "has no array x, it has y; write it by"),
        ({"X": X, "Y": Y}, r"has no array x, it has X, Y; did you mean x\? write it by"),
        ({"x": X}, "has no array y"),
        ({"x": X, "y": Y[:3]}, r"y is \(3,\), must be \(4,\)"),
        ({"x": X[:, 0], "y": Y}, r"x is \(4,\), must be \(N, ...\)"),
        ({"x": X + np.nan, "y": Y}, r"x\[0\] has NaN or infinite values"),
        ({"x": np.full((4, 3), 1e300), "y": Y}, r"x\[0\] has NaN or infinite values"),
        ({"x": X.astype(object), "y": Y}, "cannot be read as .npz .*Object arrays"),
        ({"x": X, "y": Y + 1}, "y has 2 classes from 1 to 2, but no class 0; .*return_inverse"),
        ({"x": X, "y": Y * 10**9}, "y has 2 classes from 0 to 1000000000, but no class 1"),
        ({"x": X, "y": Y * 0}, "y has the one class 0"),
        *(
            ({"x": X, "y": y}, rf"y is of {kind}, must be whole numbers; write y = {cure}")
            for y, kind, cure in (
                (
                    Y * 1.0,
                    "float64",
                    r"numpy.unique.*, or to predict numbers, type task=regression",
                ),
                (np.array(list("abab")), "<U1", r"numpy.unique\(y, return_inverse=True\)\[1\]$"),
                (np.eye(2)[Y], "float64", r"y.argmax\(1\)$"),
            )
        ),
        ({"x": X, "y": np.eye(2, dtype=int)[Y]}, r"y is \(4, 2\), .*; if it is .* y.argmax\(1\)$"),
        ({"x": X, "y": Y, "x_test": X}, "has x_test, but no y_test"),
        ({"x": X, "y": Y, "y_val": Y}, "has y_val, but no x_val; .* to draw the validation set"),
        ({"x": X, "y": Y, "x_val": X, "y_val": Y + 1}, "y_val has the class 2, y has only 0 to 1"),
        ({"x": X, "y": Y, "x_val": X[:, :2], "y_val": Y}, r"x is \(4, 3\), x_val \(4, 2\)"),
        ({"x": X[:, None], "y": Y, "x_val": PIXELS[:, None], "y_val": Y}, "x_val of uint8; make"),
        *(
            ({"x": X, "y": Y, name: Y}, f"has {name}, which would not be used; rename it to one of")
            for name in (
                "sample_weight",
                "weights",
                "class_weight",
                "w_other",
                "X",
                "x_valid",
                "Y_VAL",
                "x_train",
            )
        ),
        ({"x": np.array([["a"]] * 4), "y": Y}, "x is of <U1, must be numbers"),
        (
            {"x": X, "y": Y, "x_test": X, "y_test": Y + 1},
            "y_test has the class 2, y has only 0 to 1",
        ),
        ({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, r"x is \(4, 3\), x_test \(4, 2\)"),
    ],
)
def test_faults_of_arrays(content: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told) as caught:
        arrays(tmp_path / "a.npz", **content)
    assert str(tmp_path / "a.npz") in str(caught.value)


def test_groups_of_arrays(tmp_path: Path) -> None:
    """Whole numbers are sorted as numbers, so the folds are those of scikit-learn with them."""
    stream = np.random.default_rng(0)
    who, y = stream.integers(5, 15, 40), np.arange(40) % 2
    x = np.arange(40.0)[:, None]  # the row of each sample
    for given in (who, who.astype(str)):
        np.savez(tmp_path / "a.npz", x=x, y=y, who=given)
        chosen = ("data=npz", f"data.path={tmp_path}/a.npz", "data.group=who", "data.folds=3")
        configs = [compose(*chosen, f"data.fold={fold}").data for fold in range(3)]
        train, test = (part.features[:, 0].int().numpy() for part in splits(configs[0]))
        assert not set(who[train]) & set(who[test])
        divider = StratifiedGroupKFold(3, shuffle=True, random_state=0)
        expected = [held for _, held in divider.split(train, y[train], who[train])]
        for config, held in zip(configs, expected, strict=True):
            validation = training_and_validation(open_source(config).train, config)[1]
            assert validation.features[:, 0].tolist() == train[held].tolist()


def splits(config: Any) -> tuple[Split, Split]:
    source = open_source(config)
    return source.train, source.test


WHO, TESTED = np.array(["a", "b", "c", "d"]), {"x_test": X, "y_test": Y}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({}, r"data\.group=who: there is no array who; add the group of each row of x"),
        (
            {"who": WHO, **TESTED},
            r"there is no array who_test; add the group of each row of x_test",
        ),
        ({"who": WHO[:3]}, r"who is \(3,\) of <U1, must be \(4,\) of whole numbers or texts"),
        ({"who": np.arange(4.0)}, r"who is \(4,\) of float64, must be \(4,\) of whole numbers"),
        (
            {"who": WHO, "who_val": np.array(list("efgd")), "x_val": X, "y_val": Y},
            "the group 'd' is in who and in who_val; move its samples into one of the two sets",
        ),
        (
            {"who": WHO, "who_test": WHO[::-1], **TESTED},
            "the group 'a' is in who and in who_test; move its samples into one of the two sets",
        ),
    ],
)
def test_faults_of_groups(content: dict[str, Any], told: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, **content)
    with pytest.raises(InputError, match=told):
        open_source(compose("data=npz", f"data.path={tmp_path}/a.npz", "data.group=who").data)


def test_groups_of_a_test_set(tmp_path: Path) -> None:
    others = np.array(["e", "f", "e", "f"])
    np.savez(tmp_path / "a.npz", x=X, y=Y, x_test=X, y_test=Y, who=WHO, who_test=others)
    train, test = splits(compose("data=npz", f"data.path={tmp_path}/a.npz", "data.group=who").data)
    assert (len(train), len(test)) == (4, 4)
    assert train.groups is not None
    assert [train.groups.names[n] for n in train.groups.numbers.tolist()] == WHO.tolist()


@pytest.mark.parametrize("parts", [("val",), ("test",), ("val", "test")])
@pytest.mark.parametrize("groups", [False, True])
def test_parts_of_their_own(parts: tuple[str, ...], groups: bool, tmp_path: Path) -> None:
    """Each part has its samples, and only what lacks is drawn from x."""
    content: dict[str, Any] = {"x": np.arange(40.0)[:, None], "y": np.arange(40) % 2}
    typed: list[str] = []
    for number, part in enumerate(parts, 1):
        rows = np.arange(number * 100.0, number * 100 + 6)
        content |= {f"x_{part}": rows[:, None], f"y_{part}": np.arange(6) // 3}
    if groups:
        typed = ["data.group=who"]
        content |= {
            f"who{x[1:]}": v[:, 0].astype(int) // 2 for x, v in [*content.items()] if x[0] == "x"
        }
    np.savez(tmp_path / "a.npz", **content)
    module = DataModule(compose("data=npz", f"data.path={tmp_path}/a.npz", *typed).data)
    module.setup()
    found = {
        "": module.train, "_val": module.validations[0], "_test": module.source.test
    }  # fmt: skip
    drawn = [found[""], *(found[f"_{part}"] for part in ("val", "test") if part not in parts)]
    together = torch.cat([split.features for split in drawn]).flatten()
    assert sorted(together.tolist()) == list(range(40))
    for part in parts:
        split = found[f"_{part}"]
        assert split.features[:, 0].tolist() == content[f"x_{part}"][:, 0].tolist()
        assert split.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert len(module.train) == (40 if len(parts) == 2 else 32)


@pytest.mark.parametrize("groups", [False, True])
def test_the_names_of_other_libraries(groups: bool, tmp_path: Path) -> None:
    """x_train and y_train are x and y, beside parts of their own."""
    content: dict[str, Any] = {}
    for number, part in enumerate(("train", "val", "test")):
        rows = np.arange(number * 100.0, number * 100 + 6)
        content |= {f"x_{part}": rows[:, None], f"y_{part}": np.arange(6) // 3}
        if groups:
            content[f"who_{part}"] = rows.astype(int)
    source = arrays(tmp_path / "a.npz", *["data.group=who"] * groups, **content)
    for number, split in enumerate((source.train, source.validation, source.test)):
        assert split is not None
        assert split.features[:, 0].tolist() == [number * 100.0 + n for n in range(6)]
        assert split.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert (split.groups is not None) == groups
    assert "not used" not in str(source.notes)


def test_other_arrays_are_told_and_old_runs_ignore_them(tmp_path: Path) -> None:
    names = {"names": np.array(["a"]), "ids": Y, "wine": Y}
    ((_, told),) = arrays(tmp_path / "a.npz", x=np.eye(20), y=np.arange(20) % 2, **names).notes
    assert "arrays that are not used: names, ids, wine; data.group=NAME takes one" in told
    old = arrays(
        tmp_path / "b.npz", "data.kind=null", x=np.zeros((20, 8, 8, 3), np.uint8),
        y=np.arange(20) % 2, x_val=X, y_val=Y, sample_weight=Y,
    )  # fmt: skip
    assert (old.shape, old.validation, old.arrays) == ((8, 8, 3), None, None)


STREAM = np.random.default_rng(0)
# Samples, data.kind, features by NumPy alone, and what is told.
READ: dict[str, tuple[Any, str, Callable[[Any], Any], str]] = {
    "table": (STREAM.normal(size=(30, 4)), "auto", lambda x: x, ""),
    "grey bytes": (
        STREAM.integers(0, 256, (30, 8, 8), np.uint8), "auto", lambda x: x[:, None] / 255, ""
    ),
    "colour bytes": (
        STREAM.integers(0, 256, (30, 3, 8, 8), np.uint8), "auto", lambda x: x / 255, ""
    ),
    "channels last": (
        STREAM.integers(0, 256, (30, 8, 9, 3), np.uint8), "auto",
        lambda x: x.transpose(0, 3, 1, 2) / 255, "with the channels last, made (3, 8, 9)",
    ),
    "channels last, transparent": (
        STREAM.integers(0, 256, (30, 8, 8, 4), np.uint8), "pictures",
        lambda x: x.transpose(0, 3, 1, 2) / 255, "",
    ),
    "channels last, floats": (
        STREAM.random((30, 8, 9, 1)), "auto", lambda x: x.transpose(0, 3, 1, 2), "made (1, 8, 9)"
    ),
    "channels last, standardised": (
        STREAM.normal(size=(30, 8, 9, 3)), "auto", lambda x: x.transpose(0, 3, 1, 2),
        "read as numbers, because floats of pictures go from 0 to 1",
    ),
    "kept last": (STREAM.normal(size=(30, 8, 9, 3)), "numbers", lambda x: x, ""),
    "standardised": (
        STREAM.normal(size=(30, 3, 8, 8)), "auto", lambda x: x, "read as numbers, because floats of"
    ),
    "time series": (
        STREAM.normal(size=(30, 2, 50)), "auto", lambda x: x[:, None], "read as numbers, because"
    ),
    "spectra": (STREAM.normal(size=(30, 50)) * 1e-4, "auto", lambda x: x, "trained on as"),
    "unscaled": (
        STREAM.normal(size=(30, 3)) * [1, 10, 1000], "auto", lambda x: x, "trained on as it is"
    ),
    "tokens": (
        STREAM.integers(0, 3, (30, 6)), "auto", lambda x: x, "tokens or categories, write them one-"
    ),
    "flags": (STREAM.random((30, 6)) > 0.5, "auto", lambda x: x, "x is bool (30, 6): read as"),
    "flat bytes": (
        STREAM.integers(0, 256, (30, 64), np.uint8), "auto", lambda x: x / 255,
        "read as bytes of pictures, divided by 255; for other numbers type data.kind=numbers",
    ),
    "bytes as numbers": (STREAM.integers(0, 9, (30, 6), np.uint8), "numbers", lambda x: x, ""),
    "counts": (STREAM.integers(-9, 9, (30, 2, 5, 5), np.int16), "auto", lambda x: x, "x is int16"),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_arrays_are_read_in_prediction_as_in_training(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Features and probabilities against NumPy: of the source, of a loaded model, of files."""
    x, kind, oracle, told = READ[name]
    y = np.arange(len(x)) % 2
    expected = np.asarray(oracle(x), np.float32)
    typed = ("data=npz", f"data.path={tmp_path}/a.npz", f"data.kind={kind}", "trainer=cpu")
    np.savez(tmp_path / "a.npz", x=x, y=y, x_val=x[:6], y_val=y[:6], x_test=x, y_test=y)
    with caplog.at_level("INFO", "kindling"):
        run = fit(
            compose(*typed, "model=logistic_regression", "trainer.max_epochs=1"), tmp_path / "run"
        )
    assert told in caplog.text
    assert bool(told) == ("a.npz: x" in caplog.text)
    source = open_source(run.config.data)
    for split, count in ((source.train, 30), (source.validation, 6), (source.test, 30)):
        assert split is not None
        assert np.allclose(as_float(split.features), expected[:count], rtol=1e-6)
    trained = open_trained(run.folder)
    weight, bias = (value.detach().double().numpy() for value in trained.model.parameters())
    logits = expected.reshape(30, -1).astype(float) @ weight.T + bias
    logits -= logits.max(1, keepdims=True)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = [Model(trained).predict_proba(x)]
    if name != "kept last":
        found.append(Model(trained).predict_proba(as_float(source.train.features).numpy()))
    for given in found:
        assert np.allclose(given, probabilities, rtol=1e-4, atol=1e-6)
    np.savez(tmp_path / "new.npz", x=x)
    request = read_request(run.folder, [tmp_path / "new.npz"], "auto", None, force=False)
    for row, prediction in zip(probabilities, predict_inputs(trained, request.inputs), strict=True):
        assert prediction.guess is not None
        assert prediction.guess.probability == pytest.approx(row.max(), rel=1e-4)
    np.savez(tmp_path / "new.npz", x=x, y=1 - y)
    tested = evaluate_path(run.folder, str(tmp_path / "new.npz"))
    assert tested.accuracy == pytest.approx((probabilities.argmax(1) == 1 - y).mean())


def test_a_model_of_numbers_takes_no_picture_files(tmp_path: Path) -> None:
    """Their pixels would be scaled otherwise than its samples were."""
    Image.new("L", (40, 40)).save(tmp_path / "a.png")
    for kind in ("numbers", "pictures"):
        x = np.random.default_rng(0).random((20, 28, 28))
        np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) % 2)
        chosen = ("data=npz", f"data.path={tmp_path}/a.npz", f"data.kind={kind}", "trainer=cpu")
        run = fit(compose(*chosen, "trainer.max_epochs=1"), tmp_path / kind)
        trained = open_trained(run.folder)
        if kind == "pictures":
            assert picture_shape(trained) == (28, 28)
        else:
            with pytest.raises(InputError, match=r"takes features of shape \(1, 28, 28\), not pic"):
                predict_inputs(trained, read_inputs([tmp_path / "a.png"]))


def test_a_model_refuses_arrays_of_the_other_kind(tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).random((20, 8, 8))
    np.savez(tmp_path / "a.npz", x=pictures, y=np.arange(20) % 2)
    chosen = ("data=npz", f"data.path={tmp_path}/a.npz")
    run = fit(compose(*chosen, "trainer=cpu", "trainer.max_epochs=1"), tmp_path / "run")
    trained = open_trained(run.folder)
    for wrong, told in ((pictures * 9, "goes from"), (np.zeros((2, 8, 8), int), "is of int64")):
        with pytest.raises(InputError, match=f"features {told}"):
            Model(trained).predict(wrong)
        np.savez(tmp_path / "new.npz", x=wrong)
        request = read_request(run.folder, [tmp_path / "new.npz"], "auto", None, force=False)
        with pytest.raises(InputError, match=f"new.npz: x {told}"):
            predict_inputs(trained, request.inputs)
    with pytest.raises(InputError, match=r"x goes from .*, or train on them with data\.kind=num"):
        arrays(tmp_path / "b.npz", "data.kind=pictures", x=pictures * 9, y=np.arange(20) % 2)
