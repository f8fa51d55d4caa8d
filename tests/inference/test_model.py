"""A loaded model in a user's program."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kindling
from kindling.commands import confirm
from kindling.data.sources.catalogue import open_source
from kindling.data.tables.columns import NumberColumn, TextColumn
from kindling.inference.evaluation import evaluate_path
from kindling.inference.export.export import export
from kindling.inference.export.formats import plan
from kindling.inference.model import load
from kindling.records import checkpoint
from kindling.records.bundle import open_bundle, write_bundle
from kindling.records.comparison import side_by_side
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.reports.page import write_report
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.own import RECIPE, Net, X, Y, make, plain, recipe


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


ROWS: dict[str, list[Any]] = {
    "age": [20.0, 60.0, 25.0, 55.0, None, 61.5],
    "city": ["Rome", "Oslo", "Rome", "Oslo", "Rome", None],
}


@pytest.fixture(scope="module")
def on_table(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A model of a table with a column of numbers, one of texts, and empty cells."""
    folder = tmp_path_factory.mktemp("table")
    hand = np.random.default_rng(0)
    rows = ["old,age,city"]
    for number in range(60):
        age, city = hand.integers(18, 80), "Rome" if number % 3 else "Oslo"
        rows.append(f"{'yes' if age > 45 else 'no'},{'' if number == 7 else age},{city}")
    (folder / "t.csv").write_text("\n".join(rows))
    config = kindling.compose(
        "data=csv", f"data.path={folder / 't.csv'}", "data.target=old", "data.encode=onehot",
        "data.fill=median", "trainer=cpu", "trainer.max_epochs=30",
    )  # fmt: skip
    return kindling.fit(config, folder / "run")


def test_a_table_is_prepared_as_in_training(on_table: Run, tmp_path: Path) -> None:
    """A dictionary, an object like a DataFrame and a file agree with the numbers by hand."""

    class Frame:
        """As much of a DataFrame as is used, with pandas' way of missing values."""

        def keys(self) -> list[str]:
            return ["city", "more", "age"]

        def __getitem__(self, name: str) -> list[object]:
            values = {**ROWS, "more": list("abcdef")}[name]
            return [float("nan") if value is None else value for value in values]

    model = load(on_table.folder)
    assert model.trained.columns is not None
    age, city = model.trained.columns.columns
    assert isinstance(age, NumberColumn)
    assert isinstance(city, TextColumn)
    assert age.fill is not None
    assert city.categories == ["Oslo", "Rome"]
    features = np.array([
        [(age.fill if a is None else a) - age.mean, (c or city.fill) == "Oslo", c == "Rome"]
        for a, c in zip(ROWS["age"], ROWS["city"], strict=True)
    ])  # fmt: skip
    features[5, 2] = city.fill == "Rome"
    features[:, 0] /= age.deviation
    with torch.no_grad():
        inputs = torch.from_numpy(features).float()
        expected = model.trained.model(inputs).double().softmax(1).numpy()
    cells = [["" if v is None else str(v) for v in column] for column in ROWS.values()]
    (tmp_path / "new.csv").write_text(
        "\n".join(["age,city", *map(",".join, zip(*cells, strict=True))])
    )
    for table in (ROWS, Frame(), tmp_path / "new.csv", str(tmp_path / "new.csv")):
        assert np.allclose(model.predict_proba(table), expected, atol=1e-6)  # type: ignore[arg-type]
    assert model.labels == ("no", "yes")
    names = [model.labels[number] for number in expected.argmax(1)]
    assert model.score(ROWS, names) == model.score(ROWS, expected.argmax(1)) == 1
    assert model.score(ROWS, ["no"] * 6) == names.count("no") / 6


def test_wrong_tables_and_classes(on_table: Run, finished: Run) -> None:
    model = load(on_table.folder)
    with pytest.raises(InputError, match=r"was trained on a table; .* with the columns age, city"):
        model.predict([[26.8, 1, 0]])
    with pytest.raises(InputError, match="there is no column city"):
        model.predict({"age": [1, 2]})
    with pytest.raises(InputError, match="one or more; they have age 2, city 1"):
        model.predict({"age": [1, 2], "city": ["Rome"]})
    for table, told in (
        ({"age": [], "city": []}, "one or more; they have age 0, city 0$"),
        ({}, "one or more; they have none$"),
        ({"age": 5, "city": "Rome"}, "column age is 5, must be a list of values"),
        ({"age": [5], "city": "Rome"}, "column city is 'Rome', must be a list of values"),
    ):
        with pytest.raises(InputError, match=told):
            model.predict(table)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the table: column age: 1 of 2 cells is not a number"):
        model.predict({"age": [1, "old"], "city": ["Rome", "Oslo"]})
    pictures = np.zeros((2, 28, 28), np.uint8)
    with pytest.raises(InputError, match="the classes have 11, must be numbers from 0 to 9, or na"):
        load(finished.folder).score(pictures, [1, 11])
    with pytest.raises(InputError, match="the classes have 'one'"):
        load(finished.folder).score(pictures, ["1", "one"])


@pytest.mark.parametrize(
    ("names", "given", "same"),
    [
        (["1", "2", "3"], [1, 1, 3, 2], ["1", "1", "3", "2"]),
        (["1", "2"], [1.0, 2.0, 1.0], ["1", "2", "1"]),
        (["10", "20", "30"], np.array([30, 10], np.int16), ["30", "10"]),
        (["-1", "1"], [1, -1, 1], ["1", "-1", "1"]),
        (["0", "1"], [True, False], ["1", "0"]),
        (["0", "1", "2"], [2, 1], ["2", "1"]),
        (["cat", "dog"], [1, 0, 0], ["dog", "cat", "cat"]),
        (["1", "one"], [1, 0], ["one", "1"]),
        (["1", "1.0"], [1, 0], ["1.0", "1"]),
    ],
)
def test_numbers_are_names_where_names_are_numbers(
    names: list[str], given: Any, same: list[str], finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any answers of the model: numbers and names of the same classes have the same score."""
    trained = replace(open_trained(finished.folder), labels=tuple(names))
    model = kindling.Model(trained)
    for answers in itertools.product(range(len(names)), repeat=len(given)):
        found = np.array(answers)
        monkeypatch.setattr(model, "predict", lambda _, found=found: found)
        expected = sum(names[a] == n for a, n in zip(answers, same, strict=True)) / len(same)
        assert model.score(None, given) == model.score(None, same) == expected  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the classes have 99, must be numbers from"):
        model.score(None, [99] * len(given))  # type: ignore[arg-type]


PATHS = (3, None, b"x", ["a"], np.int64(3), "", object())


def test_odd_arguments_are_told_in_a_line(finished: Run, tmp_path: Path) -> None:
    config, model = finished.config, load(finished.folder)
    pictures = np.zeros((2, *model.shape), np.uint8)
    told: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
        *((kindling.compose, (odd,), {}, "compose takes texts, such as")
          for odd in (None, 3, ["seed=1"], {"seed": 1}, b"seed=1", Path("a"))),
        *((kindling.sweep, (odd,), {}, "sweep takes texts, such as")
          for odd in (None, 3, ["seed=1"], {"seed": 1}, b"seed=1", Path("a"))),
        *((kindling.sweep, ("seed=1,2",), {"folder": odd}, "sweep(…, folder=…): got ")
          for odd in PATHS if odd is not None),
        *((kindling.fit, (odd,), {}, "fit takes a configuration: ")
          for odd in (None, 3, "seed=1", {"seed": 1}, [config])),
        *((kindling.fit, (config, odd), {}, "fit(config, folder): got ")
          for odd in PATHS if odd is not None),
        *((kindling.fit, (config, tmp_path / "a"), {"callbacks": odd},
           "callbacks: ") for odd in (3, None, [3], [object], "x")),
        *((load, (odd,), {}, "load(run): got ") for odd in PATHS),
        *((kindling.Run, (odd,), {}, "Run(folder): got ") for odd in PATHS),
        *((kindling.Model, (odd,), {}, "a Model is made by load, such as load(")
          for odd in (None, "runs/a", finished)),
        *((method, (odd,), {}, "features")
          for method in (model.predict, model.predict_proba)
          for odd in (None, 3, "abc", [], [[1, 2], [3]], {"a": [1]}, object(), Path("x"),
                      np.zeros((2, 1, 8, 8), complex), np.array(["a"]))),
        *((model.score, (pictures, odd), {}, "the classes ")
          for odd in (None, 3, "a", ["a", "b"], [1.5, 2], [[1, 2]], [None, 1], [1, "b"], {"a": 1},
                      object(), [np.nan, 1], [1, {}], [[1], 2])),
    ]  # fmt: skip
    for function, arguments, named, start in told:
        with pytest.raises(InputError) as caught:
            function(*arguments, **named)
        assert str(caught.value).startswith(start), (function, arguments, named)
        assert len(str(caught.value)) < 300
    assert not list(tmp_path.iterdir())


def test_paths_are_texts_or_paths(finished: Run) -> None:
    for folder in (finished.folder, str(finished.folder)):
        assert kindling.Run(folder).result == finished.result  # type: ignore[arg-type]
        assert load(folder).labels == load(finished.folder).labels


# --- a model and arrays of a program ------------------------------------------------------------


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of a module and arrays, which tests must not change."""
    folder = tmp_path_factory.mktemp("own") / "run"
    fit(recipe(), folder, model=make, data=(X, Y))
    return folder


@pytest.mark.parametrize("given", [Net(), Net, make])
def test_the_module_of_the_program_opens_its_run(given: Any, own: Path) -> None:
    """And keeps its own weights."""
    before = given.last.weight.clone() if isinstance(given, Net) else None
    for path in (own, own / "checkpoints" / "best.ckpt"):
        model = load(path, model=given)
        assert (model.labels, model.shape) == (("high", "low"), (4,))
        with torch.no_grad():
            logits = model.trained.model(torch.from_numpy(X)).double()
        assert np.allclose(model.predict_proba(X), logits.softmax(1).numpy(), atol=1e-6)
        assert model.score(X, Y) > 0.8
    assert before is None or torch.equal(given.last.weight, before)
    assert not model.trained.model.training


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            None,
            r"^{}: its model was made in a Python program; there, call {}, whose trained\.model "
            r"is the torch module\. Commands take the models of extensions$",
        ),
        (plain, r"^{}: was not trained with a model of class Sequential; call {}$"),
        (Net(4, 3), r"does not fit the given model \(last.weight is \(2, 8\)"),
        (Net(3), r"does not fit the given model \(first.weight is \(8, 4\)"),
        (3, "^model: is int, must be a module"),
        (torch.nn.Linear, r"model=Linear: cannot be made for samples of shape \[4\] \(TypeError: "),
        (torch.nn.LazyLinear(2), "has lazy parameters"),
    ],
)  # fmt: skip
def test_another_module_does_not_open_it(given: Any, told: str, own: Path) -> None:
    call = rf"kindling.load\('{own}', model=Net\)"
    with pytest.raises(InputError, match=told.format(own, call)) as caught:
        load(own, model=given)
    assert "\n" not in str(caught.value)


def test_a_run_of_the_configuration_takes_no_module(finished: Run) -> None:
    with pytest.raises(InputError, match=r"its model is model=.*; leave out model=…"):
        load(finished.folder, model=Net)


def test_commands_say_what_to_call(own: Path, tmp_path: Path) -> None:
    call = "its model was made in a Python program; there, call kindling.load"
    for opens in (
        lambda: evaluate_path(own, None),
        lambda: export(plan(own, "onnx", tmp_path / "m.onnx", force=False)),
        lambda: fit(recipe("data=digits", f"start_from={own}"), tmp_path / "run"),
    ):
        with pytest.raises(InputError, match=call):
            opens()
    fit(recipe(), tmp_path / "arrays", data=(X, Y))
    with pytest.raises(InputError, match=r"was trained on arrays of a Python program, .*score"):
        evaluate_path(tmp_path / "arrays", None)
    np.savez(tmp_path / "a.npz", x=X, y=np.searchsorted(["high", "low"], Y))
    found = evaluate_path(tmp_path / "arrays", str(tmp_path / "a.npz"))
    assert found.accuracy == load(tmp_path / "arrays").score(X, Y)
    bundle = tmp_path / "b.zip"
    write_bundle([own], bundle)
    with pytest.raises(InputError, match=r"b.zip: data=arrays: is in the memory of a Python"):
        open_bundle(bundle, tmp_path / "opened")


def test_a_hostile_folder_names_no_code(own: Path, tmp_path: Path) -> None:
    """The name of the class is compared, and never imported."""
    content = torch.load(own / "checkpoints" / "best.ckpt", weights_only=True)
    content["kindling"]["config"]["model"]["class_name"] = "os.system"
    checkpoint.write(content, tmp_path / "best.ckpt")
    with pytest.raises(InputError, match="its model was made in a Python program"):
        load(tmp_path / "best.ckpt")
    with pytest.raises(InputError, match="was not trained with a model of class Net"):
        load(tmp_path / "best.ckpt", model=Net)


@pytest.mark.slow
def test_what_needs_no_model_reads_such_folders(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = fit(recipe("seed=1"), tmp_path / "other", model=make, data=(X, Y))
    told = side_by_side([own, other.folder])
    assert "the weights are not compared, because a model is in the memory of a program" in told
    monkeypatch.chdir(tmp_path)
    page = write_report([own, other.folder])
    assert "model.class_name" in page.read_text()
    sweep = tmp_path / "sweep"
    kindling.sweep(*RECIPE, "trainer.max_epochs=1", model=make, data=(X, Y), folder=sweep)
    monkeypatch.setattr("sys.argv", ["confirm", str(sweep)])
    with pytest.raises(InputError, match="model=own: is in the memory of a Python program"):
        confirm.main()
