"""Sources in the user's own files: their values, and what is told of each fault."""

import csv
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import torch
from PIL import Image
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from src.config.compose import compose
from src.data.loader import Block, SeededOrder
from src.data.module import DataModule
from src.data.sources.catalogue import open_source
from src.data.sources.source import Source, Split, held_out, with_test
from src.data.sources.user_files import PictureSplit
from src.data.tables import NumberColumn, TextColumn, read_table
from src.inference.evaluation import evaluate_path
from src.inference.exporters import export
from src.inference.formats import plan
from src.inference.inputs import read_inputs
from src.inference.prediction import predict_inputs
from src.inference.prediction_output import describe
from src.runs.loading import open_trained
from src.sweeps.command_line import check_command_line
from src.system.errors import InputError
from src.training.fit import fit
from tests.helpers.data_files import write_pictures


def pictures(root: Path, *overrides: str) -> Source:
    return open_source(compose("data=image_folder", f"data.path={root}", *overrides).data)


def arrays(path: Path, **content: Any) -> Source:
    np.savez(path, **content)
    return open_source(compose("data=npz", f"data.path={path}").data)


def table(path: Path, text: str, *overrides: str) -> Source:
    path.write_text(text)
    chosen = ["data=csv", f"data.path={path}", "data.target=kind", *overrides]
    return open_source(compose(*chosen).data)


# --- a test set where there is none ---


def test_a_test_set_is_drawn_from_each_class_and_never_all_of_it() -> None:
    labels = torch.tensor([0] * 10 + [1] * 5 + [2])
    whole = Split(torch.arange(16.0).view(-1, 1), labels)
    train, test = with_test(whole, 0.4, seed=3)
    assert torch.bincount(test.labels, minlength=3).tolist() == [4, 2, 0]
    together = sorted([*train.features[:, 0].tolist(), *test.features[:, 0].tolist()])
    assert together == list(range(16))
    assert torch.equal(with_test(whole, 0.4, seed=3)[1].features, test.features)
    assert not torch.equal(with_test(whole, 0.4, seed=4)[1].features, test.features)
    with pytest.raises(InputError, match=r"data\.test_fraction=0\.01: of 16 samples none"):
        with_test(whole, 0.01, seed=0)


# --- folders of pictures ---


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    write_pictures(tmp_path, {"owl": 4, "cat": 10, "dog": 5})
    source = pictures(tmp_path, "data.size=4", "data.test_fraction=0.2")
    assert (source.labels, source.classes) == (("cat", "dog", "owl"), 3)
    assert (source.shape, source.train.features.dtype) == ((3, 4, 4), torch.uint8)
    assert torch.bincount(source.train.labels).tolist() == [8, 4, 3]
    assert torch.bincount(source.test.labels).tolist() == [2, 1, 1]
    everything = {tuple(x.flatten().tolist()) for x in source.train.features}
    with Image.open(tmp_path / "cat" / "0.png") as image:
        plain = np.asarray(image.resize((4, 4), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    tested = {tuple(x.flatten().tolist()) for x in source.test.features}
    assert tuple(plain.flatten().tolist()) in everything | tested
    grey = pictures(tmp_path, "data.size=4", "data.channels=1")
    assert grey.shape == (1, 4, 4)


def test_folders_train_and_test(tmp_path: Path) -> None:
    write_pictures(tmp_path / "train", {"a": 3, "b": 2})
    write_pictures(tmp_path / "test", {"b": 2})
    source = pictures(tmp_path)
    assert (source.train.labels.tolist(), source.test.labels.tolist()) == ([0, 0, 0, 1, 1], [1, 1])
    write_pictures(tmp_path / "test", {"c": 1})
    with pytest.raises(InputError, match=r"test/c: .*/train has no such class"):
        pictures(tmp_path)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pictures_decoded_by_workers_are_the_resident_ones(
    tmp_path: Path, num_workers: int
) -> None:
    write_pictures(tmp_path, {"a": 12, "b": 9})
    (tmp_path / "a" / "3.png").write_bytes(b"no picture")
    common = ["data=image_folder", f"data.path={tmp_path}", "data.skip_broken=true"]
    common += ["data.batch_size=3", "data.size=5"]
    workers = ["data.loader=workers", f"data.num_workers={num_workers}"]
    modules = []
    for extra in ([], workers):
        config = compose(*common, *extra).data
        module = DataModule(config, open_source(config), [SeededOrder(1)], steps_per_call=2)
        modules.append(module)
    resident, lazy = modules
    assert isinstance(lazy.train, PictureSplit)
    assert resident.origin() == lazy.origin()
    for loader in ("train_dataloader", "val_dataloader", "test_dataloader"):
        pairs = zip(getattr(resident, loader)(), getattr(lazy, loader)(), strict=True)
        count = 0
        for expected, found in pairs:
            assert type(expected) is type(found)
            assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
            count += isinstance(expected, Block) and len(expected.labels)
        assert count == (5 if loader == "train_dataloader" else 0)  # batches of 13 samples


def test_what_does_not_fit_is_told_before_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pictures(tmp_path, {"a": 3, "b": 3})
    monkeypatch.setattr("src.system.resources.free_memory", lambda: 6 * 3 * 100 * 100)
    monkeypatch.setattr("src.data.sources.user_files.decode_all", None)
    with pytest.raises(
        InputError, match=r"6 pictures of 3 × 100 × 100 need .* data\.loader=workers"
    ):
        pictures(tmp_path, "data.size=100")


def test_mixed_sizes_and_modes_are_told_and_made_alike(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_pictures(tmp_path, {"a": 2, "b": 2})
    ink = Image.new("RGBA", (3, 9), (0, 0, 0, 0))
    ink.save(tmp_path / "a" / "clear.png")
    Image.new("I;16", (7, 7), 257 * 100).save(tmp_path / "a" / "deep.png")
    Image.new("P", (7, 7)).save(tmp_path / "b" / "palette.png")
    Image.new("CMYK", (8, 8)).save(tmp_path / "b" / "print.jpg")
    (tmp_path / "b" / "notes.txt").write_text("x")
    with caplog.at_level("INFO", "src"):
        config = compose("data=image_folder", f"data.path={tmp_path}", "data.val_fraction=null")
        source = open_source(config.data)
    told = caplog.text
    assert "pictures from 3 × 5 to 8 × 9 pixels, of modes CMYK, I;16, P, RGB, RGBA" in told
    assert "no PNG or JPEG, left out: 1" in told
    values = torch.cat([source.train.features, source.test.features])
    flat = [x for x in values if x.min() == x.max()]
    assert {int(x.min()) for x in flat} >= {255, 100}  # clear is white, 16 bits are scaled


def test_a_broken_picture_is_named_and_left_out_only_when_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_pictures(tmp_path / "data", {"a": 6, "b": 6}, (60, 50))
    cut = tmp_path / "data" / "a" / "2.png"
    cut.write_bytes(cut.read_bytes()[:-2000])
    with pytest.raises(
        InputError, match=r"1 of 12 pictures cannot be read.*skip_broken=true"
    ) as caught:
        pictures(tmp_path / "data")
    assert str(cut) in str(caught.value)
    overrides = ["data=image_folder", f"data.path={tmp_path}/data", "data.skip_broken=true"]
    run = fit(
        compose(*overrides, "data.size=4", "trainer=cpu", "trainer.max_epochs=1"), tmp_path / "run"
    )
    data = run.result["data"]
    assert (data["skipped"], data["train"] + data["val"] + data["test"]) == (1, 11)
    assert str(cut) in caplog.text
    for path in (tmp_path / "data" / "b").iterdir():
        path.write_bytes(b"")
    with pytest.raises(InputError, match="nothing is left of b"):
        pictures(tmp_path / "data", "data.skip_broken=true")


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no folder; it needs one for each of two or more"):
        pictures(tmp_path)
    write_pictures(tmp_path, {"a": 1})
    with pytest.raises(InputError, match="has the folder a alone"):
        pictures(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError) as caught:
        pictures(tmp_path)
    assert f"{tmp_path / 'b'}: has no picture" in str(caught.value)
    assert f"{tmp_path / 'c'}: has no picture" in str(caught.value)


def test_a_class_that_a_part_lacks_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_pictures(tmp_path / "data", {"many": 9, "once": 1})
    config = compose(
        "data=image_folder", f"data.path={tmp_path}/data", "data.size=4", "trainer=cpu",
        "trainer.max_epochs=1",
    )  # fmt: skip
    fit(config, tmp_path / "run")
    assert "part has no sample of once" in caplog.text


# --- arrays ---


def test_arrays_with_and_without_a_test_set(tmp_path: Path) -> None:
    x, y = np.arange(40, dtype=np.uint8).reshape(10, 2, 2), np.arange(10) % 2
    source = arrays(tmp_path / "a.npz", x=x, y=y)
    assert (source.shape, source.labels) == ((1, 2, 2), ("0", "1"))
    assert torch.bincount(source.test.labels).tolist() == [1, 1]
    again = arrays(tmp_path / "b.npz", x=x / 255, y=y, x_test=x[:3] / 255, y_test=y[:3])
    assert (again.train.features.dtype, len(again.train)) == (torch.float32, 10)
    assert torch.equal(again.test.features[:, 0], torch.from_numpy(x[:3] / 255).float())
    assert again.digest != source.digest


X, Y = np.zeros((4, 3)), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"y": Y}, "has no array x, it has y"),
        ({"x": X}, "has no array y"),
        ({"x": X, "y": Y[:3]}, r"y is \(3,\), must be \(4,\)"),
        ({"x": X[:, 0], "y": Y}, r"x is \(4,\), must be \(N, ...\)"),
        ({"x": X + np.nan, "y": Y}, r"x\[0\] has NaN or infinite values"),
        ({"x": np.full((4, 3), 1e300), "y": Y}, r"x\[0\] has NaN or infinite values"),
        ({"x": X.astype(object), "y": Y}, "cannot be read as .npz .*Object arrays"),
        ({"x": X, "y": Y + 1}, "y has 2 classes from 1 to 2, and none 0; .*return_inverse"),
        ({"x": X, "y": Y * 10**9}, "y has 2 classes from 0 to 1000000000, and none 1"),
        ({"x": X, "y": Y * 0}, "y has the one class 0"),
        ({"x": X, "y": Y * 1.0}, "y is of float64, must be whole numbers"),
        ({"x": X, "y": Y, "x_test": X}, "has x_test, but no y_test"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y + 1}, "y_test has the class 2, y has 0 to 1"),
        ({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, r"x is \(4, 3\), x_test \(4, 2\)"),
    ],
)
def test_faults_of_arrays(content: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told) as caught:
        arrays(tmp_path / "a.npz", **content)
    assert str(tmp_path / "a.npz") in str(caught.value)


# --- tables ---

ROWS = "\n".join(f"{n},{10 * n * n},{'red' if n % 3 else 'blue'}" for n in range(20))


def test_a_table_is_standardised_on_what_is_trained_on(tmp_path: Path) -> None:
    source = table(tmp_path / "t.csv", f"a,b,kind\n{ROWS}\n")
    assert (source.labels, source.shape) == (("blue", "red"), (2,))
    assert (len(source.train), len(source.test)) == (16, 4)
    trained_on, validated = held_out(source.train, 0.2, 0)
    np.testing.assert_allclose(trained_on.features.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(trained_on.features.std(0, correction=0), 1, rtol=1e-5)
    assert abs(float(validated.features.mean())) > 1e-3
    columns = source.columns
    assert columns is not None
    numbers = [column for column in columns.columns if isinstance(column, NumberColumn)]
    raw = source.test.features.double() * torch.tensor([column.deviation for column in numbers])
    raw += torch.tensor([column.mean for column in numbers])
    np.testing.assert_allclose(raw[:, 1], 10 * raw[:, 0] ** 2, rtol=1e-4, atol=1e-3)


def test_classes_of_numbers_are_in_their_order(tmp_path: Path) -> None:
    rows = "\n".join(f"{n},{(n % 3) * 5}" for n in range(12))
    source = table(tmp_path / "t.csv", f"a,kind\n{rows}\n")
    assert source.labels == ("0", "5", "10")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty; its first line must name the columns"),
        ("a,kind\n", "has no row below its header"),
        ("a;kind\n1;x\n", "has one column alone, 'a;kind'"),
        (
            "a,b,kind\n1,,x\n2,3,y\n",
            "column b: 1 of 2 cells is empty (line 2); type data.fill=median",
        ),
        ("a,b,kind\n1,NA,x\n2,3,y\n", "column b: 1 of 2 cells is empty (line 2: 'NA'); type"),
        ("a,b,kind\n1,2,x\n2,3,\n", "column kind: 1 of 2 cells is empty (line 3); write a class"),
        ("a,b,kind\n1,2,x\n2,m,y\n3,,z\n", "1 of 3 cells is no number (line 3: 'm'), 1 of 3 cells"),
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
        ("a,kind\n1,0.5\n2,1\n", "column kind has numbers as 0.5, which name no class"),
        ("a,kin\n1,x\n", "data.target=kind: there is no such column; did you mean kin?"),
        ('a,kind\n1,"x\n', "is no table in UTF-8"),
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
        "  column name: 300 of 300 cells are no numbers (the first in line 2: 'Name 0'); 300 "
        "different texts are more than data.encode=onehot takes (100); type data.drop=[name]",
        "  column sex: 300 of 300 cells are no numbers (the first in line 2: 'M'); "
        "type data.encode=onehot, or type data.drop=[sex]",
        "  column age: 100 of 300 cells are empty (the first in line 2); "
        "type data.fill=median, or type data.drop=[age]",
        "  column port of call: 299 of 300 cells are no numbers (the first in line 2: 'S'), "
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
    """Rows of a number with gaps, a text with gaps, and a class; and their file's text."""
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
def test_what_is_learnt_of_columns_is_scikit_learns(fill: str, tmp_path: Path) -> None:
    rows, text = _mixed_table(tmp_path / "t.csv")
    source = table(tmp_path / "t.csv", text, "data.encode=onehot", f"data.fill={fill}")
    rows_of = [(n, t, "xy".index(kind)) for n, t, kind in rows]
    whole = Split(torch.arange(len(rows)), torch.tensor([kind for *_, kind in rows_of]))
    train, test = with_test(whole, 0.2, seed=0)
    learning = held_out(train, 0.2, 0)[0].features
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


def test_what_is_learnt_of_columns_goes_with_the_model(
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
    with pytest.raises(InputError, match=r"column n: 1 of 1 cells is no number .*; correct that"):
        predict_inputs(trained, read_inputs([new]))


def test_a_table_whose_columns_and_classes_are_wrong_tells_both(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        table(tmp_path / "t.csv", "a,kind\n,x\n2,\n")
    assert "column a: 1 of 2 cells is empty" in str(caught.value)
    assert "column kind: 1 of 2 cells is empty" in str(caught.value)


# --- no further key ---


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_a_table_alone_ends_well(name: str, tmp_path: Path) -> None:
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


def test_pictures_alone_end_well(tmp_path: Path) -> None:
    write_pictures(tmp_path / "data", {"a": 40, "b": 40, "c": 40})
    config = compose("data=image_folder", f"data.path={tmp_path}/data", "trainer=cpu")
    assert (fit(config, tmp_path / "run").result["test/acc"] or 0) > 0.95


def test_the_recipe_of_few_samples_gives_way() -> None:
    own = ["data=csv", "data.path=a", "data.target=b"]
    default, chosen = compose(*own), compose(*own, "optimizer=sgd", "trainer.max_epochs=3")
    assert (default.optimizer.name, default.scheduler.name) == ("adam", "none")
    assert (chosen.optimizer.name, chosen.trainer.max_epochs) == ("sgd", 3)
    assert compose(*own, "experiment=mlp_tuned").optimizer.name == "adamw"
    assert compose().optimizer.name == "sgd"


def test_a_run_that_hardly_learns_says_what_to_type(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    features, labels = sklearn.datasets.load_iris(return_X_y=True)
    np.savez(tmp_path / "a.npz", x=features, y=labels)
    few = ["data=npz", f"data.path={tmp_path}/a.npz", "trainer=cpu", "trainer.max_epochs=3"]
    default = ["optimizer=sgd", "optimizer.lr=0.5", "data.batch_size=100"]
    with caplog.at_level("INFO", "src"):
        fit(compose(*few, *default), tmp_path / "default")
    assert "type experiment=few_samples" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "src"):
        fit(compose("data=toy", "trainer=cpu"), tmp_path / "toy")
    assert "few_samples" not in caplog.text


# --- before torch is imported ---


def test_what_can_be_told_before_torch_is(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,kind\n1,x\n")
    write_pictures(tmp_path / "one", {"a": 1})

    def told(*argv: str) -> str:
        with pytest.raises(InputError) as caught:
            check_command_line(argv)
        return str(caught.value)

    assert "data.path: has no default; type data.path=PATH" in told("data=npz")
    both = told("data=npz", f"data.path={tmp_path}/none.npz", "optimizer.lr=-1")
    assert "optimizer.lr=-1" in both
    assert "none.npz: there is no such file" in both
    both = told("data=csv", f"data.path={tmp_path}/none.csv")
    assert "data.target: has no default" in both
    assert "none.csv: there is no such file" in both
    assert "there is no such file or folder" in told("data=npz", f"data.path={tmp_path}/none")
    dropped = told("data=csv", f"data.path={tmp_path}/t.csv", "data.drop=[b,c]", "data.target=kin")
    for answer in ("data.drop=b: there", "data.drop=c: there", "did you mean kind"):
        assert answer in dropped
    assert "did you mean kind" in told("data=csv", f"data.path={tmp_path}/t.csv", "data.target=kin")
    assert "is a file" in told("data=image_folder", f"data.path={tmp_path}/t.csv")
    assert "is a folder; name a file" in told("data=npz", f"data.path={tmp_path}")
    assert "the folder a alone" in told("data=image_folder", f"data.path={tmp_path}/one")


# --- what a run does with them ---


def _run_on(kind: str, root: Path) -> tuple[Any, Path, Callable[[], Any]]:
    """A trained run, a file to predict, and what changes the content of its data."""
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
    text = describe(predictions, trained.labels)
    assert any(label in text.splitlines()[2].split() for label in labels)
    if kind == "csv":
        assert [prediction.label for prediction in predictions] == [1, 0]
        assert "of 2 right" in text
    else:
        assert len(predictions) == 1
        assert predictions[0].drawn == ""
    done = export(plan(run.folder, "safetensors", None, force=False))
    assert tuple(done.description.labels) == labels
    assert done.description.columns == trained.columns
    change()
    with pytest.raises(InputError, match="content of its data has changed"):
        evaluate_path(run.folder, None)
    config = run.config
    more = config.model_copy(
        update={"trainer": config.trainer.model_copy(update={"max_epochs": 5})}
    )
    with pytest.raises(InputError, match=r"is of another run\n.*(samples|digest): it was"):
        fit(more, run.folder, resume=True)


def test_a_picture_is_taken_whole_by_a_model_of_photographs(tmp_path: Path) -> None:
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


def test_a_table_and_a_run_that_do_not_fit(tmp_path: Path) -> None:
    run, new, _ = _run_on("csv", tmp_path)
    trained = open_trained(run.folder)
    new.write_text("a,kind\n1,red\n")
    with pytest.raises(InputError, match="there is no column b; it has a, kind"):
        predict_inputs(trained, read_inputs([new]))
    new.write_text("a,b,kind\n1,1,green\n")
    with pytest.raises(InputError, match="has the class 'green'"):
        predict_inputs(trained, read_inputs([new]))
