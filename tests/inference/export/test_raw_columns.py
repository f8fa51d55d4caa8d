"""An ONNX model that takes the columns of a table as they are answers as the model does."""

import random
import re
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import polars
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper

from kindling.data.tables.columns import Columns, DateColumn, NumberColumn, TextColumn
from kindling.data.tables.table import as_table
from kindling.inference.export.export import export, report
from kindling.inference.export.formats import plan
from kindling.inference.export.raw_columns import input_names, with_columns
from kindling.inference.model import Model
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from tests.helpers.commands import ROOT, Train
from tests.helpers.tables import ROWS, learn


def only_preparation(columns: Columns) -> onnx.ModelProto:
    """A model whose logits are its features."""
    shape: list[str | int | None] = ["N", columns.width]
    graph = helper.make_graph(
        [helper.make_node("Identity", ["inputs"], ["logits"])],
        "features",
        [helper.make_tensor_value_info("inputs", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)],
    )
    opset = [helper.make_opsetid("", 18)]
    return with_columns(
        helper.make_model(graph, opset_imports=opset, ir_version=10), columns, "inputs"
    )


def as_user(columns: Columns, rows: dict[str, list[Any]]) -> dict[str, NDArray[Any]]:
    """The inputs as a program without this project makes them. An empty cell is None."""
    inputs: dict[str, NDArray[Any]] = {}
    names = input_names(columns, ["logits"])
    for name, column in zip(names, columns.columns, strict=True):
        values = rows[column.name]
        if isinstance(column, TextColumn):
            texts = ["" if value is None else str(value) for value in values]
            inputs[name] = np.array(texts, object)[:, None]
            continue
        if isinstance(column, DateColumn):
            values = [
                None
                if value is None
                else datetime.fromisoformat(value).replace(tzinfo=UTC).timestamp()
                for value in values
            ]
        numbers = [np.nan if value is None else float(value) for value in values]
        inputs[name] = np.array(numbers, np.float64)[:, None]
    return inputs


def ask(model: onnx.ModelProto | Path, inputs: dict[str, NDArray[Any]]) -> NDArray[Any]:
    content = model.read_bytes() if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    found: NDArray[Any] = session.run(["logits"], inputs)[0]
    return found


def moment(draw: random.Random, *, new: bool) -> datetime:
    year, month = draw.randint(1950 if new else 2001, 2030), draw.randint(1, 12)
    return datetime(year, month, 5, draw.randint(0, 23), draw.randint(0, 59))


# A value of each kind of column; `new`: perhaps one that training does not see.
KINDS: dict[str, Callable[[random.Random, bool], Any]] = {
    "normal": lambda draw, new: round(draw.gauss(0, 9 if new else 1), 3),
    "wide": lambda draw, _: draw.choice([1e-9, 3.5, 1e12, -7e5]) * draw.random(),
    "few": lambda draw, new: draw.choice([10, 20, 30, *[99] * new]),
    "word": lambda draw, _: draw.choice([-999, 5, 6, 7.5]),
    "town": lambda draw, new: draw.choice(["Rom", "Bern", "Köln", "🦊", *["Ulm", "rom"] * new]),
    "flag": lambda draw, new: draw.choice(["true", "false", *["True", "FALSE", "yes"] * new]),
    "code": lambda draw, new: draw.choice(["a1", "b2", "7", *["8", "c"] * new]),
    "day": lambda draw, new: f"{moment(draw, new=new):%Y-%m-%d}",
    "time": lambda draw, new: f"{moment(draw, new=new):%Y-%m-%dT%H:%M:00}",
}


def drawn(draw: random.Random, kinds: Sequence[str], rows: int, *, new: bool) -> dict[str, Any]:
    gaps = draw.choice([0.0, 0.2])
    return {
        f"{number} {kind}": [
            None if draw.random() < gaps else KINDS[kind](draw, new) for _ in range(rows)
        ]
        for number, kind in enumerate(kinds)
    }


@pytest.mark.parametrize("seed", range(25))
def test_the_features_have_the_bits_of_the_projects_own(seed: int) -> None:
    draw = random.Random(seed)
    kinds = draw.choices([*KINDS], k=draw.randint(1, 8))
    columns, *_ = learn(drawn(draw, kinds, ROWS, new=False), "data.empty=['',-999,NA]")
    others = drawn(draw, kinds, 25, new=True)
    expected = columns.features(as_table(others))
    found = ask(only_preparation(columns), as_user(columns, others))
    dates = [np.full(column.width, isinstance(column, DateColumn)) for column in columns.columns]
    exact = ~np.concatenate(dates)
    np.testing.assert_array_equal(found[:, exact], expected[:, exact])
    np.testing.assert_allclose(found, expected, atol=3e-6)  # another sine


def test_columns_as_a_stranger_writes_them() -> None:
    """Names of the model's own values, texts that read as empty, and what a command refuses."""
    number = NumberColumn(name="logits", fill=None, mean=2, deviation=4)
    text = TextColumn(name="model/inputs", fill="b", categories=["a", "b", "NA"], absent=True)
    empty = TextColumn(name="", fill=None, categories=["true"])
    taken = TextColumn(name="column logits", fill=None, categories=["x"])
    named = Columns(columns=[number, taken])
    assert input_names(named, ["logits"]) == ["column column logits", "column logits"]
    columns = Columns(columns=[number, text, empty], empty=["NA", "-1"])
    model = only_preparation(columns)
    assert [value.name for value in model.graph.input] == [
        "column logits",
        "model/inputs",
        "column ",
    ]
    found = ask(
        model,
        {
            "column logits": np.array([[4.0], [np.nan], [-1.0]]),
            "model/inputs": np.array([["a"], ["NA"], ["c"]], object),
            "column ": np.array([["TRUE"], [""], ["True"]], object),
        },
    )
    nan = np.nan
    expected = [[0.5, 1, 0, 0, 0, 1], [nan, 0, 1, 0, 1, 0], [nan, 0, 0, 0, 0, 1]]
    np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 rows of numbers, texts, dates, shares with a mark, and gaps in all of them."""
    draw = random.Random(3)
    lines = ["age,town,since,share,logits,number,class"]
    for row in range(120):
        age, share = f"{draw.uniform(18, 90):.1f}", f"{draw.randint(0, 100)}%"
        town = draw.choice(["Rom", "Bern", "Köln", f"once {row}"])
        since, flag = (
            f"20{draw.randint(10, 22)}-0{draw.randint(1, 9)}-13",
            draw.choice(["true", "no"]),
        )
        known = [cell if draw.random() < 0.9 else "" for cell in (age, town, since, share, flag)]
        label = "old" if float(age) > 50 else "young"
        lines.append(",".join([*known, str(draw.gauss(100, 9)), label]))
    path = tmp_path_factory.mktemp("table") / "people.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


NEW: dict[str, list[Any]] = {
    "age": [33.0, None, 90.0], "town": ["Bern", None, "Ulm"], "share": [4.0, 100.0, None],
    "since": ["2011-02-03", None, "2031-12-31"], "logits": ["TRUE", "no", None],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "output"),
    [
        (["data.target=class", "data.drop=[number]"], "logits"),
        (["data.target=number", "task=regression", "data.drop=[class]"], "numbers"),
    ],
)
def test_the_file_answers_rows_as_the_model_does(
    overrides: list[str], output: str, table: Path, train: Train
) -> None:
    run = train("data=csv", f"data.path={table}", *overrides, "trainer.max_epochs=3")
    done = export(plan(run.folder, "onnx", None, columns=True))
    assert done.metadata.raw_columns
    assert done.samples == 24
    assert done.difference < 1e-5
    trained = open_trained(run.folder)
    assert trained.columns is not None
    rows = {**NEW, "share": [None if n is None else f"{n}%" for n in NEW["share"]]}
    inputs = as_user(trained.columns, NEW)
    if output == "numbers":
        inputs = {name.removeprefix("column "): value for name, value in inputs.items()}
    session = onnxruntime.InferenceSession(done.output, providers=["CPUExecutionProvider"])
    (found,) = session.run([output], inputs)
    model = Model(trained)
    if output == "logits":
        expected, found = model.predict_proba(rows), torch.from_numpy(found).softmax(1).numpy()
    else:
        expected = model.predict(rows)
    np.testing.assert_allclose(found.squeeze(), np.asarray(expected).squeeze(), rtol=2e-5)
    told = report(done)
    own = "column logits" if output == "logits" else "logits"
    assert f"an input (N, 1) for each column (age, town, since, share, {own})" in told
    assert 'numbers double, NaN where empty; texts string, "" where empty; dates double' in told


@pytest.mark.slow
def test_the_program_of_the_documents_answers_or_fails(
    table: Path, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never takes a cell that it cannot read for an empty one."""
    page = (ROOT / "docs" / "using_a_model.md").read_text()
    (program,) = (part for part in re.findall(r"```python\n(.*?)```", page, re.S) if "pl." in part)
    monkeypatch.chdir(tmp_path)
    shutil.copy(table, "new.csv")
    settings = ["data=csv", f"data.path={table}", "data.target=class", "trainer.max_epochs=2"]
    run = train(*settings, "data.drop=[number,logits,share,since]")
    export(plan(run.folder, "onnx", Path("model.onnx"), columns=True))
    found: dict[str, Any] = {}
    exec(program, found)
    expected = Model(open_trained(run.folder)).predict_proba(table)
    shares = torch.from_numpy(found["logits"]).softmax(1)
    np.testing.assert_allclose(shares, expected, rtol=2e-5)
    run = train(*settings, "data.drop=[number,logits]")
    export(plan(run.folder, "onnx", Path("model.onnx"), columns=True, force=True))
    with pytest.raises(polars.exceptions.InvalidOperationError, match=r"str.*f64"):
        exec(program, {})


def test_faults(run: Run, table: Path, train: Train, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--columns: .* trained on data=digits, not on a table"):
        plan(run.folder, "onnx", tmp_path / "a.onnx", columns=True)
    with pytest.raises(InputError, match="--columns: works with --format onnx, not torch"):
        plan(run.folder, "torch", tmp_path / "a.pt2", columns=True)
    copy = tmp_path / "best.ckpt"  # without a configuration beside it
    copy.write_bytes(run.best_checkpoint.read_bytes())
    with pytest.raises(InputError, match=r"--columns: .*best\.ckpt was trained on data=digits"):
        export(plan(copy, "onnx", None, columns=True))
    assert not copy.with_suffix(".onnx").exists()
