"""Tables: what is learned from their columns, and the message for each fault."""

import csv
import itertools
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import sklearn.datasets
import torch
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from kindling.config.compose import compose
from kindling.config.faults import check
from kindling.config.schema import Config
from kindling.config.written import written
from kindling.data.module import DataModule
from kindling.data.sources import csv as source
from kindling.data.sources.catalogue import open_source
from kindling.data.sources.folds import training_and_validation
from kindling.data.sources.source import Source, Split, split_off_test, split_off_validation
from kindling.data.tables.cells import as_column
from kindling.data.tables.columns import Columns, NumberColumn, TextColumn
from kindling.data.tables.reading import read_table
from kindling.data.tables.table import Table, as_table
from kindling.inference.evaluation import evaluate_path
from kindling.inference.inputs import read_inputs
from kindling.inference.prediction import predict_inputs
from kindling.inference.samples import samples_of
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.data_files import ROWS

DRAWN = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def every_warning() -> Iterator[None]:
    """PyTorch gives some warnings once in each process: another test may have had them."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def table(path: Path, text: str, *overrides: str) -> Source:
    path.write_text(text)
    chosen = ["data=csv", f"data.path={path}", "data.target=kind", *overrides]
    return open_source(compose(*chosen).data)


STRICT = ("data.encode=null", "data.fill=null")  # texts and empty cells are faults


def test_a_table_is_standardised_by_its_training_samples(tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv", f"a,b,kind\n{ROWS}\n", *STRICT)
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


def test_a_large_table_keeps_no_cells_and_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of numbers, texts, gaps and dates."""
    names, kinds = ["ash", "elm ", "oak", ""], ["red", "blue", "green"]
    rows = [
        f"{number * 7 % 23 / 4},{names[number * 5 % 4]},{['', number][number % 3 > 0]},"
        f"2024-{1 + number % 12:02}-{1 + number % 27:02},{kinds[number * 11 % 3]}"
        for number in range(90)
    ]
    text = "\n".join(["size,tree,age,planted,kind", *rows])
    usual = table(tmp_path / "t.csv", text)
    monkeypatch.setattr("kindling.data.tables.table.MOST_KEPT", 0)
    large = table(tmp_path / "t.csv", text + "\n")  # another file, which is read anew
    cells = as_table({"a": [1, 2]})
    assert cells.cells("a", []) is not cells.cells("a", [])
    assert usual.columns == large.columns
    assert usual.notes == large.notes
    for one, other in ((usual.train, large.train), (usual.test, large.test)):
        assert torch.equal(one.features, other.features)
        assert torch.equal(one.labels, other.labels)


def test_a_table_for_validation_is_prepared_by_what_training_taught(tmp_path: Path) -> None:
    """All training rows train, and teach the columns; the rows of the other table validate."""
    other = "kind,text,b,a\nred,u,5,100\nblue,v,,7\nred,w,1,0\n"
    (tmp_path / "v.csv").write_text(other)
    rows = "\n".join(f"{n},{n % 7},{'uv'[n % 2]},{'red' if n % 3 else 'blue'}" for n in range(20))
    (tmp_path / "t.csv").write_text(f"a,b,text,kind\n{rows}\n")
    chosen = (
        "data=csv", f"data.path={tmp_path}/t.csv", f"data.val_path={tmp_path}/v.csv",
        "data.target=kind", "data.encode=onehot", "data.fill=median", "trainer=cpu",
        "trainer.max_epochs=2", "data.batch_size=4",
    )  # fmt: skip
    run = fit(compose(*chosen), tmp_path / "run")
    source = open_source(run.config.data)
    assert [run.result["data"][part] for part in ("train", "val", "test")] == [16, 3, 4]
    trained = open_trained(run.folder).columns
    assert trained is not None
    first = trained.columns[0]
    assert isinstance(first, NumberColumn)
    values = source.train.features[:, 0].double() * first.deviation + first.mean
    kept = values.round().int().numpy()
    assert len(set(kept)) == 16
    raw = np.array([[100, 5], [7, np.median(kept % 7)], [0, 1]])
    expected = np.hstack([
        (raw - [kept.mean(), (kept % 7).mean()]) / [kept.std(), (kept % 7).std()],
        [[1, 0], [0, 1], [0, 0]],
    ])  # fmt: skip
    assert source.validation is not None
    np.testing.assert_allclose(source.validation.features, expected, rtol=1e-5)
    assert source.validation.labels.tolist() == [1, 0, 1]
    (tmp_path / "v.csv").write_text(other.replace("100", "101"))
    with pytest.raises(InputError, match="validation_digest: it was"):
        fit(run.config.model_copy(update={"trainer": run.config.trainer.model_copy(
            update={"max_epochs": 3})}), tmp_path / "run", resume=True)  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "typed", "told"),
    [
        ("a,b,kind\n1,2,green\n", (), "column kind has the class 'green', which data.path="),
        ("a,kind\n1,red\n", (), "v.csv: there is no column b"),
        ("a,b,kind\nx,2,red\n", (), "v.csv: column a: 1 of 1 cell is not a number"),
        ("a,b,kind\n3,2,red\n", ("data.group=a",), "the group '3' is in the training set and in"),
        ("a,b\n1,2\n", (), "data.target=kind: there is no such column"),
        (None, (), "v.csv: cannot be read"),
        ("a,b,kind\n1,2,red\n", ("data.folds=2", "data.fold=0"), "data.folds=2 would not use"),
        ("a,b,kind\n1,2,red\n", ("data.val_fraction=null",), "would validate on the training set"),
    ],
)
def test_faults_of_a_table_for_validation(
    rows: str | None, typed: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    if rows is not None:
        (tmp_path / "v.csv").write_text(rows)
    data = "\n".join(f"{n},{n},{'red' if n % 2 else 'blue'}" for n in (*range(10), *range(10)))
    with pytest.raises(InputError, match=told):
        table(
            tmp_path / "t.csv", f"a,b,kind\n{data}\n", f"data.val_path={tmp_path}/v.csv",
            "data.split_seed=1", *typed,
        )  # fmt: skip


def test_numeric_classes_are_sorted_as_numbers(tmp_path: Path) -> None:
    rows = "\n".join(f"{n},{(n % 3) * 5}" for n in range(12))
    source = table(tmp_path / "t.csv", f"a,kind\n{rows}\n")
    assert source.labels == ("0", "5", "10")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty; its first line must name the columns"),
        ("a,kind\n", "has no row below its header"),
        ("a:kind\n1:x\n", "has only one column, 'a:kind'"),
        (
            "a,b,kind\n1,,x\n2,3,y\n",
            "column b: 1 of 2 cells is empty (line 2); type data.encode=auto data.fill=auto, or",
        ),
        ("a,b,kind\n1,NA,x\n2,3,y\n", "column b: 1 of 2 cells is empty (line 2: 'NA'); type"),
        (
            "a,b,kind\n1,x,NA\n2,3,y\n3,4,y\n",
            "column kind: 1 of 3 cells is empty (line 2: 'NA'); write a class there, or leave the "
            'rows out; if \'NA\' is a class, type \'data.empty=["?",na,"N/A","n/a","NaN",',
        ),
        (
            "a,b,kind\n1,-,x\n2,3,y\n3,4,x\n",
            "(line 2: '-'); type data.encode=auto data.fill=auto, or type data.drop=[b]",
        ),
        ("a,b,kind\n1,1_25,x\n2,12_5,y\n", "column b: 2 of 2 cells are not numbers (the first"),
        ("a,b,kind\n1,١٢,x\n2,５,y\n", "column b: 2 of 2 cells are not numbers (the first"),
        ("a,b,kind\n1,2,x\n2,3,\n", "column kind: 1 of 2 cells is empty (line 3); write a class"),
        (
            "a,b,kind\n1,2,x\n2,m,y\n3,,z\n",
            "1 of 3 cells is not a number (line 3: 'm'), 1 of 3 cells",
        ),
        (
            "a,b,kind\n1,2,x\n2,m,y\n4,4,z\n",
            "(line 3: 'm'); type data.encode=auto data.fill=auto, or type data.drop=[b]",
        ),
        ("a,b,kind\n1,inf,x\n2,1,y\n", "column b: 1 of 2 cells is beyond ±3.4e+38 (line 2: 'inf')"),
        ("a,b,kind\n1,1e39,x\n2,1,y\n", "b: 1 of 2 cells is beyond ±3.4e+38 (line 2: '1e39')"),
        ("a,b,kind\n1,2\n2,1,y\n", "line 2: has 2 of 3 cells"),
        ("a,kind\n1,x\n2,x\n", "column kind has the one class 'x'"),
        ("a,kind\n1,0.5\n2,1\n", "column kind has numbers such as 0.5, which are not classes"),
        ("a,kin\n1,x\n", "data.target=kind: there is no such column; did you mean kin?"),
        ("5.1,setosa\n1,x\n", "column; it has 5.1, setosa; the first line must name columns"),
        ('a,kind\n1,"x\n', "is not a table (a quote has no end)"),
    ],
)
def test_faults_of_tables(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        table(tmp_path / "t.csv", text, *STRICT)
    assert told in str(caught.value)
    assert str(tmp_path / "t.csv") in str(caught.value)


def test_faults_of_columns_are_a_line_each_and_what_to_type(tmp_path: Path) -> None:
    rows = [f"{'MF'[n % 2]},{n if n % 3 else ''},{n},{n % 2}" for n in range(300)]
    text = "\n".join(["port of call,age,fare,kind", *rows])
    with pytest.raises(InputError) as caught:
        table(tmp_path / "t.csv", text, *STRICT)
    path, call = tmp_path / "t.csv", "'data.drop=[\"port of call\"]'"
    assert str(caught.value).splitlines() == [
        f"{path}: 2 faults",
        "  column port of call: 300 of 300 cells are not numbers (the first in line 2: 'M'); "
        f"type data.encode=auto data.fill=auto, or type {call}",
        "  column age: 100 of 300 cells are empty (the first in line 2); "
        "type data.encode=auto data.fill=auto, or type data.drop=[age]",
    ]
    assert table(path, text, "data.encode=onehot", "data.fill=median").shape == (2 + 1 + 1,)
    assert table(path, text, *STRICT, 'data.drop=[age,"port of call"]').shape == (1,)
    with pytest.raises(InputError, match="leaves no column"):
        table(path, text, 'data.drop=[age,"port of call",fare]')


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


def test_learned_columns_are_stored_with_the_model(tmp_path: Path) -> None:
    _mixed_table(tmp_path / "t.csv")
    chosen = ["data=csv", f"data.path={tmp_path}/t.csv", "data.target=kind", "data.encode=onehot"]
    config = compose(*chosen, "data.fill=median", "trainer=cpu", "trainer.max_epochs=1")
    trained = open_trained(fit(config, tmp_path / "run").folder)
    assert trained.columns == open_source(config.data).columns
    new = tmp_path / "new.csv"
    new.write_text("t,n\n,3\ngreen,\nred,3\n?,3\n")
    inputs = read_inputs([new])
    found = predict_inputs(trained, inputs)
    assert isinstance(inputs[0], Table)
    assert [text for _, text in inputs[0].notes] == [
        f"{new}: 1 empty cell of column n filled with 3.5; 1 empty cell and 1 cell '?' of column t "
        "read as empty, filled with a, b"
    ]
    assert len(found) == 4
    assert found[0].guess == found[3].guess
    assert trained.columns is not None
    number, text = trained.columns.columns
    assert isinstance(number, NumberColumn)
    assert isinstance(text, TextColumn)
    features = trained.columns.features(read_table(new))
    one_hot = [[float(c == t) for c in text.categories] for t in (text.fill, "green", "red")]
    np.testing.assert_array_equal(features[:3, 1:], one_hot)
    assert features[1, 0] == pytest.approx((number.fill - number.mean) / number.deviation)  # type: ignore[operator]
    new.write_text("t,n\ngreen,many\n")
    with pytest.raises(InputError, match=r"column n: 1 of 1 cell is not a number .*; correct that"):
        predict_inputs(trained, read_inputs([new]))


def test_faults_of_columns_and_classes_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        table(tmp_path / "t.csv", "a,kind\n,x\n2,\n", *STRICT)
    assert "column a: 1 of 2 cells is empty" in str(caught.value)
    assert "column kind: 1 of 2 cells is empty" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_a_table_trains_well_by_default(name: str, tmp_path: Path) -> None:
    bunch = getattr(sklearn.datasets, f"load_{name}")()
    rows = [[*x, bunch.target_names[y]] for x, y in zip(bunch.data, bunch.target, strict=True)]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*bunch.feature_names, "kind"], *rows])
    found, expected = [], []
    for seed in range(4):
        config = compose(
            "data=csv", f"data.path={tmp_path}/t.csv", "data.target=kind", "trainer=cpu",
            f"data.split_seed={seed}",
        )  # fmt: skip
        source = open_source(config.data)
        baseline = LogisticRegression(max_iter=1000).fit(source.train.features, source.train.labels)
        expected.append(baseline.score(source.test.features, source.test.labels))
        found.append(fit(config, tmp_path / str(seed)).result["test/acc"] or 0)
    assert np.mean(found) > np.mean(expected) - 0.03


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
        (["data.group=gap", "data.empty=[1,7]", "data.fill=median"],
         "column gap: 3 of 60 cells are empty (the first in line 2); write a group there, or leave "
         "the rows out; if '1' or '7' is a group, type data.empty=[]"),
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


def told(source: Source) -> str:
    """The notes of a table, without its path."""
    return "\n".join(text.split(".csv: ", 1)[1] for _, text in source.notes)


def lines(names: Sequence[str], columns: Iterable[Iterable[object]]) -> str:
    rows = zip(*columns, strict=True)
    return "\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)])


def training_rows(source: Source, rows: int) -> np.ndarray:
    """The rows that a table of classes 0, 1, 0, 1, … is trained on."""
    whole = Split(torch.arange(rows), torch.arange(rows) % 2)
    train, _ = split_off_test(whole, 0.2, seed=0)
    return split_off_validation(train, 0.2, 0)[0].features.numpy()


def test_numbers_of_all_scales_are_standardised_as_by_scikit_learn(tmp_path: Path) -> None:
    """Also numbers that are constant but for rounding. Bytes, nanoseconds and farads are units."""
    stream = np.random.default_rng(0)
    scales = 10.0 ** np.arange(-36, 37, 3)
    varied = [scale * stream.normal(stream.normal(), 1, 200) for scale in scales]
    noises = (0, 1e-16, 1e-15, 1e-14)
    noisy = [
        value * (1 + noise * stream.normal(size=200))
        for value in (1.0, 14.62, -3e5, 1e-9, 1e9)
        for noise in noises
    ]
    shares = stream.dirichlet(np.ones(7), 200).sum(1)
    columns = [*varied, *noisy, shares, np.zeros(200), 1 + 1e-7 * stream.normal(size=200)]
    names = [f"c{number}" for number in range(len(columns))]
    cells = [[repr(float(value)) for value in column] for column in columns]
    text = lines([*names, "kind"], [*cells, ["xy"[n % 2] for n in range(200)]])
    source = table(tmp_path / "t.csv", text, *STRICT)
    rows = training_rows(source, 200)
    numbers = np.stack(columns, 1)
    oracle = StandardScaler().fit(numbers[rows])
    assert source.columns is not None
    learned = [c for c in source.columns.columns if isinstance(c, NumberColumn)]
    expected = [
        1.0 if scale == 1 and not first < len(varied) else scale
        for first, scale in enumerate(oracle.scale_)
    ]
    np.testing.assert_allclose([c.deviation for c in learned], expected, rtol=1e-12)
    assert sum(c.deviation == 1 for c in learned) >= len(noisy)
    for number, column in enumerate(learned):
        assert (column.low, column.high) == (
            numbers[rows, number].min(),
            numbers[rows, number].max(),
        )
        if number < len(varied):  # as NumPy computes them, to the last bit
            assert (column.mean, column.deviation) == (
                numbers[rows, number].mean(), numbers[rows, number].std()
            )  # fmt: skip
    scaled = oracle.transform(numbers).astype(np.float32)
    train, test = split_off_test(Split(torch.arange(200), torch.arange(200) % 2), 0.2, seed=0)
    for part, found in ((train, source.train), (test, source.test)):
        np.testing.assert_allclose(found.features, scaled[part.features], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("unit", [2.0**-120, 2.0**-50, 2.0**50, 2.0**120])
def test_a_unit_changes_no_bit_of_the_features(unit: float, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(5, 2, 60)
    found = []
    for scale in (1.0, unit):
        cells = [repr(float(value * scale)) for value in values]
        source = table(
            tmp_path / "t.csv", lines(["a", "kind"], [cells, ["xy"[n % 2] for n in range(60)]])
        )
        found.append(torch.cat([source.train.features, source.test.features]))
    assert torch.equal(*found)


def test_numbers_beyond_those_of_training_are_told_by_column(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    kinds = ["xy"[n % 2] for n in range(100)]
    columns = {
        "a": stream.uniform(-1, 1, 100),
        "b": np.full(100, 14.62),
        "c": stream.normal(size=100),
    }
    text = lines([*columns, "kind"], [*columns.values(), kinds])
    source = table(tmp_path / "t.csv", text, *STRICT)
    rows = training_rows(source, 100)
    outside = sorted({*range(100)} - {*rows.tolist()})
    _, test = split_off_test(Split(torch.arange(100), torch.arange(100) % 2), 0.2, seed=0)
    first = int(test.features[0])
    columns["a"][outside[0]] = columns["a"][first] = 9
    columns["b"][first] = 15
    columns["b"][outside[-1]] += 1e-12  # rounding
    text = lines([*columns, "kind"], [*columns.values(), kinds])
    source = table(tmp_path / "t.csv", text, *STRICT)
    (line,) = (text for level, text in source.notes if level == logging.WARNING)
    low, high = columns["a"][rows].min(), columns["a"][rows].max()
    assert line.startswith(
        f"{tmp_path}/t.csv: test part: numbers that training did not see: column b, always 14.62 "
        f"in training: 1 of 20 cells is beyond (line {first + 2}: '15.0'); "
    ), line
    assert f"column a, {low:g} to {high:g} in training: " in line
    new = as_table({"a": [0.0, 99, -99], "b": [14.62, 14.62 + 1e-11, 14.63], "c": [0, 0, 0]})
    assert source.columns is not None
    source.columns.features(new)
    assert [text for _, text in new.notes] == [
        "the table: numbers that training did not see: column b, always 14.62 in training: 1 of 3 "
        f"cells is beyond (line 3: '14.63'); column a, {low:g} to {high:g} in training: 2 of 3 "
        "cells are beyond (the first in line 2: '99')"
    ]
    huge = as_table({"a": ["3e38"], "b": [14.62], "c": [0]})
    small = NumberColumn(name="a", fill=None, mean=0.0, deviation=1e-9)
    with pytest.raises(
        InputError, match="column a: 1 of 1 cell is too large beside the numbers of"
    ):
        Columns(columns=[small]).features(huge)


@pytest.mark.parametrize("word", ["NA", "Na", "None", "nan", "?", "-999", "null", "unknown"])
@pytest.mark.parametrize("empty", [None, [], ["NA", "unknown", -999]])
def test_one_rule_for_words_that_may_be_gaps(
    word: str, empty: list[object] | None, tmp_path: Path
) -> None:
    """In a feature and in the classes, in a file, a dictionary, and for a new file."""
    default = ["?", "NA", "na", "N/A", "n/a", "NaN", "nan", "NULL", "null"]
    words = default if empty is None else [*map(str, empty)]
    keys = [] if empty is None else [f"data.empty={written([*map(str, empty)])}"]
    cells = [word if n % 10 == 3 else "EU" if n % 3 else "US" for n in range(100)]
    kinds = ["xy"[n % 2] for n in range(100)]
    path = tmp_path / "t.csv"
    keys += ["data.encode=onehot", "data.fill=median"]
    source = table(path, lines(["region", "kind"], [cells, kinds]), *keys)
    assert source.columns is not None
    (region,) = source.columns.columns
    assert isinstance(region, TextColumn)
    gap = word in words
    assert region.categories == sorted({"EU", "US"} | (set() if gap else {word}))
    filling = f"10 cells {word!r} of column region read as empty, filled with EU"
    assert (filling in told(source)) == gap
    assert ("is a text, type data.empty=[" in told(source).replace("'data", "data")) == gap
    both = [read_table(path), as_table({"region": cells})]
    features = [source.columns.features(each) for each in both]
    np.testing.assert_array_equal(features[0], features[1])
    for each in both:
        assert any(filling in text for _, text in each.notes) == gap
    swapped = lines(["a", "kind"], [range(100), cells])
    if gap:
        with pytest.raises(
            InputError, match=r"column kind: 10 of 100 cells are empty .*data\.empty="
        ):
            table(path, swapped, *keys)
    else:
        assert table(path, swapped, *keys).labels == tuple(sorted({"EU", "US", word}))


def test_values_of_python_that_are_gaps(tmp_path: Path) -> None:
    cells = ["EU" if n % 3 else "US" for n in range(30)]
    kinds = ["xy"[n % 2] for n in range(30)]
    text = lines(["region", "a", "kind"], [cells, np.random.default_rng(0).normal(size=30), kinds])
    filled, strict = (
        table(tmp_path / "t.csv", text, "data.encode=onehot", f"data.fill={fill}").columns
        for fill in ("median", "null")
    )
    assert filled is not None
    assert strict is not None
    for gap in (None, float("nan"), np.datetime64("NaT"), ""):
        values = {"region": ["US", gap, gap], "a": [gap, 0.5, 0.25]}
        new = as_table(values)
        filled.features(new)
        assert [text for _, text in new.notes] == [
            f"the table: 2 empty cells of column region filled with EU; 1 empty cell of column a "
            f"filled with {filled.columns[1].filling}"
        ]
        with pytest.raises(InputError) as caught:
            strict.features(as_table(values))
        assert "column region: 2 of 3 cells are empty (the first in line 2)" in str(caught.value)
        assert "column a: 1 of 3 cells is empty (line 1)" in str(caught.value)
    with pytest.raises(
        InputError, match=r"column region: 1 of 1 cell is a text \(line 1: 'None'\)"
    ):
        filled.features(as_table({"region": ["None"], "a": [1]}))


@pytest.mark.parametrize("spelled", ["True", "TRUE", "true"])
def test_truth_values_are_one_text_in_every_spelling(spelled: str, tmp_path: Path) -> None:
    no = {"True": "False", "TRUE": "FALSE", "true": "false"}[spelled]
    cells = [spelled if n % 3 else no for n in range(30)]
    text = lines(["a", "kind"], [cells, ["xy"[n % 2] for n in range(30)]])
    columns = table(tmp_path / "t.csv", text, "data.encode=onehot").columns
    assert columns is not None
    expected = columns.features(as_table({"a": [spelled, no]}))
    for yes_and_no in ([True, False], [np.True_, np.False_], ["TRUE", "False"], ["true", "FALSE"]):
        np.testing.assert_array_equal(columns.features(as_table({"a": yes_and_no})), expected)
    for other in ("tRUE", "yes", 1, "T"):
        with pytest.raises(
            InputError, match=r"column a: 1 of 2 cells is a text .* training did not"
        ):
            columns.features(as_table({"a": [spelled, other]}))


def test_texts_that_training_did_not_see(tmp_path: Path) -> None:
    """Refused by column in a prediction; in the other parts of a training run they are told."""
    dates = [f"2024-01-{1 + n % 5:02}" for n in range(100)]
    kinds = ["xy"[n % 2] for n in range(100)]
    path = tmp_path / "t.csv"
    keys = ["data.encode=onehot", "data.fill=median"]
    rows = training_rows(table(path, lines(["day", "kind"], [dates, kinds]), *keys), 100)
    _, test = split_off_test(Split(torch.arange(100), torch.arange(100) % 2), 0.2, seed=0)
    tested = test.features.tolist()
    validated = sorted({*range(100)} - {*rows.tolist(), *tested})
    for row in (*tested[:3], validated[0]):
        dates[row] = "2025-12-31"
    source = table(path, lines(["day", "kind"], [dates, kinds]), *keys)
    for part, row, count, of in (("validation", validated[0], 1, 16), ("test", tested[0], 3, 20)):
        are = "are texts" if count > 1 else "is a text"
        assert f"{part} part: column day: {count} of {of} cells {are} (" in told(source)
        assert (
            f"line {row + 2}: '2025-12-31') that training did not see: '2025-12-31' ({count}); "
            in told(source)
        )
    zero = (source.test.features == 0).all(1)
    assert zero.nonzero().squeeze(1).tolist() == [0, 1, 2]
    assert source.columns is not None
    new = {"day": ["2024-01-01", "2026-01-01", "2026-01-02", "2026-01-01", None]}
    with pytest.raises(InputError) as caught:
        source.columns.features(as_table(new))
    assert str(caught.value) == (
        "the table: column day: 3 of 5 cells are texts (the first in line 2: '2026-01-01') that "
        "training did not see: '2026-01-01' (2), '2026-01-02' (1); correct that, or leave the rows "
        f"out, or empty the cells to have {source.columns.columns[0].filling!r} read"
    )


@pytest.mark.parametrize(
    ("names", "warned"),
    [
        (("Yes", "yes"), "column kind: 'Yes' (10) and 'yes' (10) look like one class, and are"),
        (("1", "1.0"), "column kind: '1' (10) and '1.0' (10) look like one class"),
        (("\u00e9", "e\u0301"), "column kind: 'e\\u0301' (10) and '\\xe9' (10) look like one"),
        (("a\u200cb", "ab"), "column kind: 'ab' (10) and 'a\\u200cb' (10) look like one class"),
        (("a\u200cb", "a\u200db"), "column kind: 'a\\u200cb' (10) and 'a\\u200db' (10) look like"),
        (("a b", "a\u00a0b"), "column kind: 'a b' (10) and 'a\\xa0b' (10) look like one class"),
        (("yes ", "no"), ""),
        (("a\u0000b", "a\u0001b"), ""),
    ],
)
def test_names_of_classes_are_kept_and_doubtful_ones_told(
    names: tuple[str, str], warned: str, tmp_path: Path
) -> None:
    text = lines(
        ["a", "kind"], [np.random.default_rng(0).normal(size=20), [names[n % 2] for n in range(20)]]
    )
    source = table(tmp_path / "t.csv", text)
    assert source.labels == tuple(sorted(name.strip() for name in names))
    assert warned in told(source) if warned else "kind" not in told(source)


def test_white_space_that_joins_two_spellings_is_told(tmp_path: Path) -> None:
    kinds = [("no", "yes", "yes ")[n % 3] for n in range(30)]
    source = table(
        tmp_path / "t.csv", lines(["a", "kind"], [np.random.default_rng(0).normal(size=30), kinds])
    )
    assert source.labels == ("no", "yes")
    assert (
        "column kind: 'yes' (10), 'yes ' (10) differ only in white space, and are read as 'yes'"
        in told(source)
    )


ROW_NUMBERS = "column id: numbers the rows; if the number says nothing, type data.drop=[id]"
A_ROW = "looks like a row, and is read as the names of the columns"


@pytest.mark.parametrize(
    ("header", "first", "warned"),
    [
        ("id,a,kind", range(20), ROW_NUMBERS),
        ("id,a,kind", range(1, 21), ROW_NUMBERS),
        ("id,a,kind", range(1000, 1020), ROW_NUMBERS),
        ("id,a,kind", [*range(19), 18], ""),
        ("id,a,kind", [n + 0.5 for n in range(20)], ""),
        ("id,a,kind", range(20, 0, -1), ""),
        ("5.1,3.5,kind", [n % 7 for n in range(20)], A_ROW),
        ("b,a,x", [n % 7 for n in range(20)], A_ROW),  # x is a class
        ("x,y,kind", [n % 7 for n in range(20)], ""),  # classes above numbers
        ("0,1,kind", [n % 7 for n in range(20)], ""),
        ("1,2,kind", [n % 7 for n in range(20)], ""),
        ("1990,a,kind", [n % 7 for n in range(20)], ""),
    ],
)
def test_columns_that_number_the_rows_and_headers_that_are_rows(
    header: str, first: Sequence[float], warned: str, tmp_path: Path
) -> None:
    columns = [first, np.random.default_rng(0).normal(size=20), ["xy"[n % 2] for n in range(20)]]
    names = header.split(",")
    target = f"data.target={names[-1]}"
    source = table(tmp_path / "t.csv", lines(names, columns), target, *STRICT)
    found = [text for level, text in source.notes if level == logging.WARNING]
    assert warned in "".join(found)
    assert bool(found) == bool(warned)


@pytest.mark.parametrize(
    ("first", "classes", "rows", "warned"),
    [
        (25, 214, 442, True), (25, 21, 630, True), (25, 20, 60, False), (0, 21, 209, True),
        (0, 21, 210, False), (1, 21, 210, False), (2, 21, 210, True),
    ],
)  # fmt: skip
def test_many_whole_numbers_are_a_quantity_rather_than_classes(
    first: int, classes: int, rows: int, warned: bool, tmp_path: Path
) -> None:
    """Unless they number classes: from 0 or 1, with ten rows each."""
    a = np.random.default_rng(0).normal(size=rows)
    source = table(
        tmp_path / "t.csv", lines(["a", "kind"], [a, [first + n % classes for n in range(rows)]])
    )
    expected = (
        f"column kind: has {classes} different whole numbers in {rows} rows, which looks like a"
    )
    assert (expected in told(source)) == warned
    letters = lines(["a", "kind"], [a, [f"c{n % classes}" for n in range(rows)]])
    assert "quantity" not in told(table(tmp_path / "t.csv", letters))


def test_a_column_may_be_called_inf(tmp_path: Path) -> None:
    rows = lines(["inf", "nan", "y"], [[*range(9)] * 4, [n * n for n in range(36)], [*"ab"] * 18])
    assert "looks like a row" not in told(table(tmp_path / "t.csv", rows, "data.target=y"))


def test_a_run_of_before_learns_as_it_did(tmp_path: Path) -> None:
    """Without data.empty: gap words in any case, and of a class none; constant columns by their
    ends alone; and nothing more is stored, so that the run can be resumed."""
    cells = ["Na" if n % 10 == 3 else "EU" if n % 3 else "US" for n in range(100)]
    noisy = [14.62 + 1e-12 * (n % 3) for n in range(100)]
    numbers = ["nAN" if n == 5 else n / 4 for n in range(100)]
    kinds = [("NA", "y")[n % 2] for n in range(100)]
    path = tmp_path / "t.csv"
    path.write_text(
        lines(["region", "b", "c", "d", "kind"], [cells, noisy, numbers, [0.1] * 100, kinds])
    )
    values = compose(
        "data=csv",
        f"data.path={path}",
        "data.target=kind",
        "data.encode=onehot",
        "data.fill=median",
    ).to_primitives()
    del values["data"]["empty"]
    data = DataModule(check(values).data)
    data.setup()
    source = data.source
    rows = training_rows(source, 100)
    assert source.labels == ("NA", "y")
    b = np.array(noisy)[rows]
    c = np.array([np.nan if n == 5 else n / 4 for n in range(100)])[rows]
    median = float(np.nanmedian(c))
    c = np.where(np.isnan(c), median, c)
    expected = [
        {"name": "region", "fill": "EU", "categories": ["EU", "US"]},
        {"name": "b", "fill": float(np.median(b)), "mean": float(b.mean()),
         "deviation": float(b.std())},
        {"name": "c", "fill": median, "mean": float(c.mean()), "deviation": float(c.std())},
        {"name": "d", "fill": 0.1, "mean": float(np.full(len(rows), 0.1).mean()), "deviation": 1.0},
    ]  # fmt: skip
    assert data.origin()["columns"] == {"columns": expected}
    stored = Columns.model_validate({"columns": expected})
    assert stored == source.columns
    new = as_table({"region": ["nA"], "b": [14.62], "c": ["Null"], "d": [5]})
    old = stored.features(new)
    assert old[0, :2].tolist() == [1, 0]
    assert old[0, 3] == pytest.approx((median - c.mean()) / c.std())


@pytest.mark.parametrize(
    ("task", "column", "tells"),
    [
        ("classification", lambda label: label, True),
        ("classification", lambda label: {"a": 7, "b": 8}[label], True),  # a code
        ("classification", lambda label: label if DRAWN.random() > 0.1 else "a", False),
        ("classification", lambda label: f"{label}{DRAWN.integers(3)}", True),  # a finer one
        ("classification", lambda _: DRAWN.integers(10**6), False),
        ("classification", lambda label: label if DRAWN.random() > 0.03 else "", True),
        ("classification", lambda label: label if DRAWN.random() > 0.4 else "", False),
        ("classification", lambda label: "x" if label == "a" else "", False),
        ("regression", lambda label: 3 - 2.5 * label, True),  # another unit
        ("regression", lambda label: label + DRAWN.normal() / 1000, False),
        ("regression", lambda label: label**3, False),
    ],
)  # fmt: skip
def test_a_column_that_tells_the_label_is_told(
    task: str, column: Callable[[Any], object], tells: bool, tmp_path: Path
) -> None:
    """As after a join: training on it would give a model that is right only where it knows."""
    labels = DRAWN.choice(["a", "b"], 60) if task == "classification" else DRAWN.normal(size=60)
    rows = [f"{DRAWN.normal():.4f},{column(label)},{label}" for label in labels.tolist()]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["x,other,y", *rows]))
    config = compose("data=csv", f"data.path={path}", "data.target=y", f"task={task}")
    notes = [text for _, text in open_source(config.data, config.task).notes]
    told = [text for text in notes if "tells y in every row" in text]
    assert bool(told) == tells
    assert all("column other:" in text and "type data.drop=[other]" in text for text in told)


def test_a_column_that_knows_one_class_alone_tells_nothing(tmp_path: Path) -> None:
    """It is empty in the few rows of the other class."""
    rows = [f"{DRAWN.normal():.4f},{'' if n < 4 else 'pq'[n % 2]},{int(n < 4)}" for n in range(80)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["x,other,y", *rows]))
    config = compose("data=csv", f"data.path={path}", "data.target=y")
    notes = [text for _, text in open_source(config.data, config.task).notes]
    assert not [text for text in notes if "tells y" in text]


@pytest.mark.parametrize("seed", range(40))
def test_the_first_rows_spare_only_work(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a column tells the class, by sets of all pairs."""
    draw = np.random.default_rng(seed)
    monkeypatch.setattr(source, "BEGINNING", 20)
    texts = draw.choice([*"abcdefgh"], draw.integers(30, 120))
    texts[: draw.integers(0, 60)] = "a"
    classes = np.isin(texts, [*"abc"]).astype(np.int64)
    if seed % 2:
        classes[draw.integers(len(classes))] ^= 1
    pairs = {*zip(texts.tolist(), classes.tolist(), strict=True)}
    tells = len(pairs) == len({*texts.tolist()}) <= len(texts) / 10 and len({*classes}) > 1
    assert source._tells_class(as_column("a", texts), classes) == tells


@pytest.mark.parametrize("at_once", [1, 3, 4096])
@pytest.mark.parametrize("seed", range(4))
def test_parts_of_rows_in_the_memory_of_all(
    seed: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "AT_ONCE", at_once)
    stream = torch.Generator().manual_seed(seed)
    rows = torch.randn(int(torch.randint(2, 30, (), generator=stream)), 3, generator=stream)
    chosen = torch.rand(len(rows), generator=stream) < 0.6
    some, others = chosen.nonzero().squeeze(1), (~chosen).nonzero().squeeze(1)
    kept = rows.clone()
    first, second = source._apart(rows, some, others)
    assert torch.equal(first, kept[some])
    assert torch.equal(second, kept[others])
    assert first.data_ptr() == rows.data_ptr()


# The ways in which people write 1234.5, by the marks of data/tables/cells.py.
WAYS: dict[str, tuple[Callable[[float], str], str]] = {
    "commas": (lambda n: f"{n:,.1f}", "read without commas"),
    "%": (lambda n: f"{n:.1f} %", "read without %"),
    "decimal commas": (
        lambda n: f"{n:.1f}".replace(".", ","),
        "read with decimal commas",
    ),
    "a currency": (lambda n: f"€{n:,.1f}", "read without a currency"),
}


def labelled(path: Path, labels: Iterable[object]) -> Path:
    path.write_text("\n".join(["a,kind", *(f'{n % 7},"{y}"' for n, y in enumerate(labels))]))
    return path


@pytest.mark.parametrize("mark", WAYS)
def test_numbers_to_predict_are_read_as_those_of_features(mark: str, tmp_path: Path) -> None:
    """In training, in a table for validation, and in new rows, as training read them."""
    write, how = WAYS[mark]
    numbers, others = [(1000 + 37 * n) / 2 for n in range(60)], [1500.5, 2000.5, 1234.5]

    def config(name: str, as_text: Callable[[float], object]) -> Config:
        path = labelled(tmp_path / f"{name}.csv", map(as_text, numbers))
        val = labelled(tmp_path / f"{name}_val.csv", map(as_text, others))
        return compose(
            "experiment=few_samples", "data=csv", f"data.path={path}", f"data.val_path={val}",
            "data.target=kind", "task=regression", "trainer.max_epochs=1",
        )  # fmt: skip

    plain, written_so = config("plain", str), config("marked", write)
    usual, marked = (open_source(each.data, each.task) for each in (plain, written_so))
    assert (marked.targets, marked.shape) == (usual.targets, usual.shape)
    for name in ("train", "test", "validation"):
        part, same = getattr(marked, name), getattr(usual, name)
        torch.testing.assert_close(part.labels, same.labels, rtol=0, atol=0)
    assert f"column kind: {how}" in told(marked)
    assert marked.columns is not None
    assert marked.columns.marks == {"kind": mark}
    model = open_trained(fit(written_so, tmp_path / "run").folder)
    # Alone, 1,234 would be a thousand and more.
    new, number = ("1,234", 1.234) if mark == "decimal commas" else (write(1.5), 1.5)
    labels = samples_of(model, read_table(labelled(tmp_path / "new.csv", [new, write(2.5)]))).labels
    assert labels is not None
    assert labels[:, 0].tolist() == [number, 2.5]
    with pytest.raises(InputError, match=r"column kind: 1 of 2 cells is not a number \(line 3: 'x"):
        samples_of(model, read_table(labelled(tmp_path / "new.csv", [write(2.5), "x"])))


@pytest.mark.parametrize("mark", WAYS)
def test_classes_that_are_numbers_as_people_write_them_are_told(mark: str, tmp_path: Path) -> None:
    write, how = WAYS[mark]
    path = labelled(tmp_path / "t.csv", (write(n % 25 + 1000.5) for n in range(500)))
    assert (
        f"column kind: has 25 different numbers, {how}, in 500 rows, which looks like a quantity, "
        "not like classes; each number is learned as a class of its own. To predict the number, "
        "type task=regression"
    ) in told(table(path, path.read_text()))
    path = labelled(path, (write(n + 1000.5) for n in range(50)))
    with pytest.raises(InputError) as refused:
        table(path, path.read_text())
    assert (
        f"{path}: column kind: has 50 different numbers, {how}, in 50 rows, which looks like a "
        "quantity, not like classes; to predict the number, type task=regression\n"
    ) in str(refused.value)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("task", ["classification", "regression", "multilabel"])
def test_columns_of_numbers_are_read_without_a_warning(
    task: str, suffix: str, tmp_path: Path
) -> None:
    """Also those that are no features: polars gives their memory read only."""
    rows = 40
    frame = pl.DataFrame({
        "a": [float(n % 7) for n in range(rows)], "kind": [float(n % 2) for n in range(rows)],
        "w": [1.0 + n % 3 for n in range(rows)], "who": [n // 2 for n in range(rows)],
    })  # fmt: skip
    paths = [tmp_path / f"{name}.{suffix}" for name in ("train", "val")]
    for path, some in zip(
        paths, (frame, frame.with_columns(who=pl.col("who") + rows)), strict=True
    ):
        some.write_csv(path) if suffix == "csv" else some.write_parquet(path)
    config = compose(
        "data=csv", f"data.path={paths[0]}", f"data.val_path={paths[1]}", f"task={task}",
        "data.target=kind", "data.weights=w", "data.group=who",
    )  # fmt: skip
    found = open_source(config.data, config.task)
    assert found.validation is not None
    assert found.validation.weights is not None
    assert found.validation.weights.tolist() == frame["w"].to_list()
    assert found.validation.features.shape == (rows, found.shape[0])


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("write", [str, lambda true: str(true).upper(), bool])
def test_true_and_false_are_labels(write: Any, suffix: str, tmp_path: Path) -> None:
    labels = {"x": [n % 3 == 0 for n in range(40)], "y": [n % 2 == 0 for n in range(40)]}
    found = []
    for name, as_written in (("written", write), ("numbers", int)):
        columns = {key: [*map(as_written, values)] for key, values in labels.items()}
        frame = pl.DataFrame({"a": [*range(40)], **columns})
        path = tmp_path / f"{name}.{suffix}"
        frame.write_csv(path) if suffix == "csv" else frame.write_parquet(path)
        config = compose("data=csv", f"data.path={path}", "task=multilabel", "data.target=[x,y]")
        found.append(open_source(config.data, config.task))
    assert torch.equal(found[0].train.labels, found[1].train.labels)
    assert torch.equal(found[0].test.labels, found[1].test.labels)


@pytest.mark.parametrize("without", [1, 2])
def test_rows_without_a_label_are_counted(without: int, tmp_path: Path) -> None:
    labels = [*"ab" * 20, *[""] * without]
    text = lines(["a", "kind"], [range(100, 100 + len(labels)), labels])
    place = "line 42" if without == 1 else "the first in line 42"
    has, is_left_out = ("has", "is left out") if without == 1 else ("have", "are left out")
    expected = (
        f"{without} of {len(labels)} rows {has} no label in kind ({place}), and {is_left_out}"
    )
    assert expected in told(table(tmp_path / "t.csv", text)).splitlines()
