"""Tables: what is learned from their columns, and the message for each fault."""

import csv
import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
import torch
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from src.config.compose import compose
from src.data.sources.catalogue import open_source
from src.data.sources.folds import training_and_validation
from src.data.sources.source import Source, Split, split_off_test, split_off_validation
from src.data.tables import NumberColumn, TextColumn, read_table
from src.inference.evaluation import evaluate_path
from src.inference.inputs import read_inputs
from src.inference.prediction import predict_inputs
from src.runs.loading import open_trained
from src.system.errors import InputError
from src.training.fit import fit
from tests.helpers.data_files import ROWS


def table(path: Path, text: str, *overrides: str) -> Source:
    path.write_text(text)
    chosen = ["data=csv", f"data.path={path}", "data.target=kind", *overrides]
    return open_source(compose(*chosen).data)


def test_a_table_is_standardised_by_its_training_samples(tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv", f"a,b,kind\n{ROWS}\n")
    assert (source.labels, source.shape) == (("blue", "red"), (2,))
    assert (len(source.train), len(source.test)) == (16, 4)
    trained_on, validated = split_off_validation(source.train, 0.2, 0)
    np.testing.assert_allclose(trained_on.features.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(trained_on.features.std(0, correction=0), 1, rtol=1e-5)
    assert abs(float(validated.features.mean())) > 1e-3
    columns = source.columns
    assert columns is not None
    numbers = [column for column in columns.columns if isinstance(column, NumberColumn)]
    raw = source.test.features.double() * torch.tensor([column.deviation for column in numbers])
    raw += torch.tensor([column.mean for column in numbers])
    np.testing.assert_allclose(raw[:, 1], 10 * raw[:, 0] ** 2, rtol=1e-4, atol=1e-3)


def test_numeric_classes_are_sorted_as_numbers(tmp_path: Path) -> None:
    rows = "\n".join(f"{n},{(n % 3) * 5}" for n in range(12))
    source = table(tmp_path / "t.csv", f"a,kind\n{rows}\n")
    assert source.labels == ("0", "5", "10")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty; its first line must name the columns"),
        ("a,kind\n", "has no row below its header"),
        ("a;kind\n1;x\n", "has only one column, 'a;kind'"),
        (
            "a,b,kind\n1,,x\n2,3,y\n",
            "column b: 1 of 2 cells is empty (line 2); type data.fill=median",
        ),
        ("a,b,kind\n1,NA,x\n2,3,y\n", "column b: 1 of 2 cells is empty (line 2: 'NA'); type"),
        ("a,b,kind\n1,2,x\n2,3,\n", "column kind: 1 of 2 cells is empty (line 3); write a class"),
        (
            "a,b,kind\n1,2,x\n2,m,y\n3,,z\n",
            "1 of 3 cells is not a number (line 3: 'm'), 1 of 3 cells",
        ),
        (
            "a,b,kind\n1,2,x\n2,m,y\n4,4,z\n",
            "(line 3: 'm'); write numbers there, or type data.drop=[b]",
        ),
        ("a,b,kind\n1,inf,x\n2,1,y\n", "column b: 1 of 2 cells is not finite (line 2: 'inf')"),
        ("a,b,kind\n1,1e39,x\n2,1,y\n", "column b: 1 of 2 cells is not finite (line 2: '1e39')"),
        ("a,b,kind\n1,2\n2,1,y\n", "line 2: has 2 of 3 cells"),
        ("a,a,kind\n1,2,x\n", "has two columns a"),
        (",a,kind\n1,2,x\n", "column 1 has no name"),
        ("a,kind\n1,x\n2,x\n", "column kind has the one class 'x'"),
        ("a,kind\n1,0.5\n2,1\n", "column kind has numbers such as 0.5, which are not classes"),
        ("a,kin\n1,x\n", "data.target=kind: there is no such column; did you mean kin?"),
        ('a,kind\n1,"x\n', "is not a table in UTF-8"),
    ],
)
def test_faults_of_tables(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        table(tmp_path / "t.csv", text)
    assert told in str(caught.value)
    assert str(tmp_path / "t.csv") in str(caught.value)


def test_faults_of_columns_are_a_line_each_and_what_to_type(tmp_path: Path) -> None:
    rows = [f"Name {n},{'MF'[n % 2]},{n if n % 3 else ''},{'' if n == 4 else 'S'},{n},{n % 2}"
            for n in range(300)]  # fmt: skip
    text = "\n".join(["name,sex,age,port of call,fare,kind", *rows])
    with pytest.raises(InputError) as caught:
        table(tmp_path / "t.csv", text)
    path, call = tmp_path / "t.csv", "'data.drop=[\"port of call\"]'"
    assert str(caught.value).splitlines() == [
        f"{path}: 4 faults",
        "  column name: 300 of 300 cells are not numbers (the first in line 2: 'Name 0'); 300 "
        "different texts are more than data.encode=onehot takes (100); type data.drop=[name]",
        "  column sex: 300 of 300 cells are not numbers (the first in line 2: 'M'); "
        "type data.encode=onehot, or type data.drop=[sex]",
        "  column age: 100 of 300 cells are empty (the first in line 2); "
        "type data.fill=median, or type data.drop=[age]",
        "  column port of call: 299 of 300 cells are not numbers (the first in line 2: 'S'), "
        "1 of 300 cells is empty (line 6); "
        f"type data.encode=onehot data.fill=most_frequent, or type {call}",
        "  all together: type data.encode=onehot data.fill=median data.drop=[name]",
    ]
    together = ["data.encode=onehot", "data.fill=median", "data.drop=[name]"]
    source = table(path, text, *together)
    assert source.shape == (2 + 1 + 1 + 1,)
    assert table(path, text, 'data.drop=[name,sex,age,"port of call"]').shape == (1,)
    with pytest.raises(InputError, match="leaves no column"):
        table(path, text, 'data.drop=[name,sex,age,"port of call",fare]')


def _mixed_table(path: Path) -> tuple[list[list[str]], str]:
    """Rows of a number with gaps, a text with gaps, and a class; and the text of their file."""
    stream = np.random.default_rng(0)
    rows = [
        [
            "" if stream.random() < 0.2 else f"{stream.integers(0, 9)}",
            "" if stream.random() < 0.1 else str(stream.choice(["red", "green", "a, b"])),
            "xy"[number % 2],
        ]
        for number in range(200)
    ]
    rows[7][1], rows[100][1] = "once", "twice"
    text = "\n".join(",".join(f'"{cell}"' for cell in row) for row in [["n", "t", "kind"], *rows])
    path.write_text(text)
    return rows, text


@pytest.mark.parametrize("fill", ["mean", "median", "most_frequent"])
def test_columns_are_learned_as_by_scikit_learn(fill: str, tmp_path: Path) -> None:
    rows, text = _mixed_table(tmp_path / "t.csv")
    source = table(tmp_path / "t.csv", text, "data.encode=onehot", f"data.fill={fill}")
    rows_of = [(n, t, "xy".index(kind)) for n, t, kind in rows]
    whole = Split(torch.arange(len(rows)), torch.tensor([kind for *_, kind in rows_of]))
    train, test = split_off_test(whole, 0.2, seed=0)
    learning = split_off_validation(train, 0.2, 0)[0].features
    numbers = np.array([[float(n) if n else np.nan] for n, *_ in rows])
    texts = np.array([[t or None] for _, t, _ in rows], object)
    first = make_pipeline(SimpleImputer(strategy=fill), StandardScaler())
    second = make_pipeline(
        SimpleImputer(missing_values=None, strategy="most_frequent"),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    )
    first.fit(numbers[learning])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        second.fit(texts[learning])
        expected = np.hstack([first.transform(numbers), second.transform(texts)])
    assert source.shape == expected.shape[1:]
    for part, found in ((train, source.train), (test, source.test)):
        np.testing.assert_allclose(found.features, expected[part.features], rtol=1e-5, atol=1e-6)


def test_learned_columns_are_stored_with_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _mixed_table(tmp_path / "t.csv")
    chosen = ["data=csv", f"data.path={tmp_path}/t.csv", "data.target=kind", "data.encode=onehot"]
    config = compose(*chosen, "data.fill=median", "trainer=cpu", "trainer.max_epochs=1")
    trained = open_trained(fit(config, tmp_path / "run").folder)
    assert trained.columns == open_source(config.data).columns
    new = tmp_path / "new.csv"
    new.write_text("t,n\n,3\ngreen,\nblue,3\n?,3\n")
    caplog.clear()
    found = predict_inputs(trained, read_inputs([new]))
    assert f"{new}: column t: 1 of 4 cells is a text (line 4: 'blue') that training" in caplog.text
    assert len(found) == 4
    assert found[0].guess == found[3].guess
    assert trained.columns is not None
    number, text = trained.columns.columns
    assert isinstance(number, NumberColumn)
    assert isinstance(text, TextColumn)
    features = trained.columns.features(read_table(new))
    one_hot = [[float(c == t) for c in text.categories] for t in (text.fill, "green", "blue")]
    np.testing.assert_array_equal(features[:3, 1:], one_hot)
    assert features[1, 0] == pytest.approx((number.fill - number.mean) / number.deviation)  # type: ignore[operator]
    new.write_text("t,n\ngreen,many\n")
    with pytest.raises(
        InputError, match=r"column n: 1 of 1 cells is not a number .*; correct that"
    ):
        predict_inputs(trained, read_inputs([new]))


def test_faults_of_columns_and_classes_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        table(tmp_path / "t.csv", "a,kind\n,x\n2,\n")
    assert "column a: 1 of 2 cells is empty" in str(caught.value)
    assert "column kind: 1 of 2 cells is empty" in str(caught.value)


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_a_table_trains_well_by_default(name: str, tmp_path: Path) -> None:
    bunch = getattr(sklearn.datasets, f"load_{name}")()
    rows = [[*x, bunch.target_names[y]] for x, y in zip(bunch.data, bunch.target, strict=True)]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*bunch.feature_names, "kind"], *rows])
    config = compose("data=csv", f"data.path={tmp_path}/t.csv", "data.target=kind", "trainer=cpu")
    source = open_source(config.data)
    baseline = LogisticRegression(max_iter=1000).fit(source.train.features, source.train.labels)
    expected = baseline.score(source.test.features, source.test.labels)
    result = fit(config, tmp_path / "run").result
    one = 1 / len(source.test)  # of iris a sample is more than three points
    assert (result["test/acc"] or 0) > expected - max(0.03, one) - 1e-6


def patients(path: Path, rows: int = 60, groups: int = 12) -> list[str]:
    """Writes a table with a column of groups, which begin with p; returns the group of each row."""
    stream = np.random.default_rng(0)
    names = [f"p{stream.integers(0, groups)}" for _ in range(rows)]
    lines = [f"{n},{name},{'xy'[n % 2]}" for n, name in enumerate(names)]
    path.write_text("\n".join(["a,patient,kind", *lines]))
    return names


def test_groups_never_straddle_train_validation_and_test(tmp_path: Path) -> None:
    names, file = patients(tmp_path / "t.csv"), tmp_path / "t.csv"
    chosen = ["data=csv", f"data.path={file}", "data.target=kind", "data.group=patient"]
    folds = [["data.folds=3", f"data.fold={fold}"] for fold in range(3)]
    held: list[set[str]] = []
    for keys in ([], *folds):
        config = compose(*chosen, *keys).data
        source = open_source(config)
        assert source.columns is not None
        (column,) = source.columns.columns  # the group is no feature
        assert isinstance(column, NumberColumn)
        training, validation = training_and_validation(source.train, config)
        found = [
            [names[round(float(value) * column.deviation + column.mean)] for value in part.features]
            for part in (training, validation, source.test)
        ]
        first, second, third = map(set, found)
        assert sorted([*first, *second, *third]) == sorted(set(names))
        assert sum(map(len, found)) == len(names)
        held.append(second)
    assert sorted(itertools.chain(*held[1:])) == sorted(set(names) - third)


def test_a_model_does_not_know_the_group(tmp_path: Path) -> None:
    """A file to predict may have the column of groups, or lack it."""
    patients(tmp_path / "t.csv")
    chosen = ["data=csv", f"data.path={tmp_path}/t.csv", "data.target=kind", "data.group=patient"]
    config = compose(*chosen, "trainer=cpu", "trainer.max_epochs=1")
    run = fit(config, tmp_path / "run")
    trained = open_trained(run.folder)
    assert trained.shape == (1,)
    found = []
    for name, rows in (("with", "patient,a\nnobody,3\n,50\n"), ("without", "b,a\n0,3\n0,50\n")):
        (tmp_path / f"{name}.csv").write_text(rows)
        found.append(predict_inputs(trained, read_inputs([tmp_path / f"{name}.csv"])))
    assert [row.guess for row in found[0]] == [row.guess for row in found[1]]
    assert evaluate_path(run.folder, None).accuracy == run.result["test/acc"]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["data.group=patent"], "data.group=patent: there is no such column; did you mean patient"),
        (["data.group=all"], "data.group=all: all 60 samples are of group 'x', which is not"),
        (["data.group=gap"], "column gap: 1 of 60 cells is empty (line 2); write a group there"),
        (["data.group=patient", "data.folds=13", "data.fold=0"],
         "data.folds=13: data.group=patient has only 10 groups in the training set; type "
         "data.folds=10 or less"),
        (["data.group=half", "data.folds=5", "data.fold=0"],
         "data.folds=5: the group 'h' of data.group=half has 25 of 48 training samples, more than "
         "a fold; choose smaller groups"),
    ],
)  # fmt: skip
def test_faults_of_groups(overrides: list[str], told: str, tmp_path: Path) -> None:
    names = patients(tmp_path / "t.csv")
    text = "\n".join(
        ["a,patient,kind,all,gap,half"]
        + [
            f"{n},{name},{'xy'[n % 2]},x,{n or ''},{'h' if n < 25 else n}"
            for n, name in enumerate(names)
        ]
    )
    with pytest.raises(InputError) as caught:
        table(tmp_path / "t.csv", text, "data.drop=[patient,all,gap,half]", *overrides)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
