"""The user's own labelled samples as a test set, by `python -m src.evaluate RUN --data PATH`."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from kindling.config.compose import compose
from kindling.data.sources.catalogue import open_source
from kindling.inference.evaluation import evaluate_path
from kindling.inference.inputs import read_inputs, read_request, require_labelled
from kindling.inference.prediction import predict_inputs, predict_request
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.commands import SMALL, Command
from tests.helpers.drawings import save_drawings

COMMON = ("trainer=cpu", "trainer.max_epochs=30", "optimizer.lr=0.05", "data.batch_size=8")


def fault(run: Run, path: Path) -> str:
    with pytest.raises(InputError) as caught:
        evaluate_path(run.folder, str(path))
    return str(caught.value)


@pytest.fixture(scope="module")
def on_table(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The class says on which side of 10 `a` is, far from it."""
    folder = tmp_path_factory.mktemp("table")
    rows = [f"{n if n < 10 else n + 60},{n % 3},{'höch' if n >= 10 else 'low'}" for n in range(20)]
    (folder / "t.csv").write_text("a,b,kind\n" + "\n".join(rows) + "\n")
    data = ("data=csv", f"data.path={folder}/t.csv", "data.target=kind")
    return fit(compose(*data, *COMMON, "seed=1"), folder / "run")


def test_all_rows_of_a_table_are_tested(on_table: Run, tmp_path: Path) -> None:
    """By hand: 7 rows, two of which have the wrong class; other columns are ignored."""
    path = tmp_path / "new.csv"
    rows = ["low,x,1,0", "low,x,2,1", "höch,x,75,2", "höch,x,76,0", "höch,x,77,1"]
    wrong = ["low,y,78,0", "höch,y,3,1"]
    path.write_text("kind,other,a,b\n" + "\n".join(rows + wrong) + "\n", "utf-8")
    found = evaluate_path(on_table.folder, str(path))
    assert found.labels == ("höch", "low")
    assert found.confusion.tolist() == [[3, 1], [1, 2]]
    assert (found.accuracy, found.data) == (5 / 7, str(path))
    trained = open_trained(on_table.folder)
    columns = {column.name: column for column in trained.columns.columns} if trained.columns else {}
    a, b = (getattr(columns[name], "mean", 0) for name in "ab")
    deviations = [getattr(columns[name], "deviation", 1) for name in "ab"]
    values = np.array([[float(text) for text in row.split(",")[2:]] for row in rows + wrong])
    features = torch.tensor((values - [a, b]) / deviations, dtype=torch.float32)
    labels = torch.tensor([["höch", "low"].index(row.split(",")[0]) for row in rows + wrong])
    loss = torch.nn.functional.cross_entropy(trained.model(features).double(), labels).item()
    assert found.loss == pytest.approx(loss, rel=1e-5)


def test_the_own_file_is_predicted_with_a_warning(on_table: Run) -> None:
    """Most of its rows were trained on, so that the accuracy would deceive."""
    path = Path(on_table.config.data.path)  # type: ignore[union-attr]
    request = read_request(on_table.folder, [path], "auto", None, force=False)
    output = predict_request(request)
    assert "20 of 20 right" in output.text or "accuracy" in output.text
    (note,) = (note for note in output.notes if note.startswith(str(path)))
    assert "was trained on most of these samples" in note
    assert note.endswith(f"type python -m src.evaluate {on_table.folder}")
    other = path.with_name("other.csv")
    other.write_text(path.read_text() + "3,0,low\n")
    request = read_request(on_table.folder, [other], "auto", None, force=False)
    assert not [note for note in predict_request(request).notes if "trained on" in note]


def test_own_data_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{n},{n % 3},{'b' if n >= 10 else 'a'}" for n in range(20)]
    Path("t.csv").write_text("a,b,kind\n" + "\n".join(rows) + "\n")
    run = fit(compose("data=csv", "data.path=t.csv", "data.target=kind", *COMMON), "run")
    run_folder = run.folder.absolute()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(InputError) as caught:
        evaluate_path(run_folder, None)
    told = f"was trained on data.path=t.csv, which is not in {Path.cwd()}; put it back; python -m"
    assert told in str(caught.value)
    assert evaluate_path(run_folder, str(tmp_path / "t.csv")).confusion.sum() == 4
    # Calibrates on the moved file.
    evaluate_path(run_folder, str(tmp_path / "t.csv"), calibrated=True)


def test_a_single_class_and_a_single_row(on_table: Run, tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("a,b,kind\n1,1,low\n")
    assert evaluate_path(on_table.folder, str(path)).per_class == [None, 1.0]
    said = evaluate_path(on_table.folder, str(path), calibrated=True)
    assert said.accuracy == 1.0
    assert said.calibration is not None
    assert math.isfinite(said.calibration.temperature)


def test_faults_of_a_table(on_table: Run, tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    for text, told in (
        ("a,b\n1,2\n", "has no column kind, the class of each sample; add it"),
        ("a,b,kind\n", "has no row below its header"),
        ("a,b,kind\n1,1,low\n2,2,\n", "column kind: 1 of 2 cells is empty"),
        ("a,b,kind\n1,1,hoch\n", "column kind has the class 'hoch', which"),
        ("a,kind,B\n1,low,2\n", "there is no column b; did you mean B?"),
        ("b,kind,height\n1,low,2\n", "there is no column a; it has b, kind, height"),
        ("a,b,kind\nx,1,low\n", "column a: 1 of 1 cell is not a number"),
        ("", "is empty; its first line must name the columns"),
    ):
        path.write_text(text)
        assert told in fault(on_table, path), text


def test_of_the_own_file_the_held_out_part_is_tested(on_table: Run, tmp_path: Path) -> None:
    """Also where it lies now, if it has moved."""
    plain = evaluate_path(on_table.folder, None)
    trained_on = Path(str(getattr(on_table.config.data, "path", "")))
    copied = Path(shutil.copy(trained_on, tmp_path / "copy.csv"))
    for path in (trained_on, copied):
        found = evaluate_path(on_table.folder, str(path))
        assert found.data == f"the held-out part of {path}"
        assert (found.loss, found.confusion.tolist()) == (plain.loss, plain.confusion.tolist())


def test_arrays_for_a_model_of_pictures(finished: Run, tmp_path: Path) -> None:
    source = open_source(finished.config.data)
    x, y = source.test.features[:40], source.test.labels[:40]
    path = tmp_path / "new.npz"
    np.savez(path, x=x.squeeze(1).numpy(), y=y.numpy())
    logits = open_trained(finished.folder).model(x)
    found = evaluate_path(finished.folder, str(path))
    assert found.accuracy == (logits.argmax(1) == y).double().mean().item()
    assert found.loss == pytest.approx(
        torch.nn.functional.cross_entropy(logits, y).item(), rel=1e-5
    )
    for arrays, told in (
        ({"x": x.numpy()}, "has no array y, the class of each sample; add it"),
        ({"x": x.numpy(), "y": y.numpy() + 9}, "must be from 0 to 9"),
        ({"x": x.numpy()[:, :, 1:], "y": y.numpy()}, "takes (N, 1, 28, 28)"),
    ):
        np.savez(path, **arrays)  # type: ignore[arg-type]
        assert told in fault(finished, path)
    path.write_bytes(b"no archive")
    assert "new.npz" in fault(finished, path)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    assert "not on a table" in fault(finished, tmp_path / "t.csv")


def test_drawings_in_a_folder_for_each_class(finished: Run, tmp_path: Path) -> None:
    """Prepared as for a prediction; a class may be absent."""
    drawings = sorted(save_drawings(tmp_path / "drawings").iterdir())
    trained, right = open_trained(finished.folder), 0
    for path in drawings:
        (prediction,) = predict_inputs(trained, read_inputs([path]))
        digit = path.name[0] if path.name[0].isdecimal() else "3"
        right += prediction.guess is not None and trained.labels[prediction.guess.best] == digit
        folder = tmp_path / "labelled" / digit
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)
    (tmp_path / "labelled" / ".hidden").mkdir()
    (tmp_path / "labelled" / "notes.txt").write_text("x")
    found = evaluate_path(finished.folder, str(tmp_path / "labelled"))
    assert found.accuracy == right / len(drawings)
    Image.new("L", (40, 40), 255).save(tmp_path / "labelled" / "3" / "empty.png")
    assert "empty.png: is blank; remove it" in fault(finished, tmp_path / "labelled")


def write_colours(folder: Path, colours: dict[str, tuple[int, int, int]], count: int) -> Path:
    rng = np.random.default_rng(0)
    for name, colour in colours.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = (np.array(colour) + rng.integers(0, 30, (9, 7, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_photographs_in_a_folder_for_each_class(tmp_path: Path) -> None:
    red, green = (200, 0, 0), (0, 200, 0)
    own = write_colours(tmp_path / "own", {"rot": red, "grün": green}, 12)
    data = ("data=image_folder", f"data.path={own}", "data.size=8")
    run = fit(compose(*data, *COMMON), tmp_path / "run")
    new = write_colours(tmp_path / "new", {"grün": green}, 3)
    assert evaluate_path(run.folder, str(new)).confusion.tolist() == [[3, 0], [0, 0]]
    write_colours(new, {"rot": green}, 2)  # wrong on purpose
    assert evaluate_path(run.folder, str(new)).accuracy == 3 / 5
    found, plain = evaluate_path(run.folder, str(own)), evaluate_path(run.folder, None)
    assert found.confusion.tolist() == plain.confusion.tolist()
    (new / "rot" / "broken.png").write_text("x")
    (new / "rot" / "odd.jpg").write_text("x")
    told = fault(run, new)
    assert "broken.png" in told
    assert "odd.jpg" in told
    (new / "blau").mkdir()
    (new / "gelb").mkdir()
    assert "blau: is no class of the model (grün, rot)" in fault(run, new)
    assert "gelb: is no class" in fault(run, new)
    (tmp_path / "empty").mkdir()
    assert "has no picture" in fault(run, tmp_path / "empty")


def test_a_table_takes_no_folder(on_table: Run, tmp_path: Path) -> None:
    write_colours(tmp_path / "new", {"low": (1, 2, 3)}, 1)
    assert "takes rows of a table, not pictures; name a .csv file with the columns a, b" in fault(
        on_table, tmp_path / "new"
    )


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("digist", "must be one of cifar10, "),
        ("digist", "a folder of pictures for each class; did you mean digits?"),
        ("csv", "--data csv: must be one of"),
        ("no.csv", "no.csv: there is no such file or folder"),
        ("no/folder", "no/folder: there is no such file or folder"),
        ("a.json", "--data a.json: must be a .csv file, an .npz file, or a folder"),
    ],
)
def test_what_cannot_be_tested_on(
    data: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text("x")
    with pytest.raises(InputError) as caught:
        require_labelled(data)
    assert told in str(caught.value)


def test_names_come_before_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits").mkdir()
    assert require_labelled("digits") is None
    assert require_labelled("./digits") == Path("digits")
    Path("csv").mkdir()
    assert require_labelled("csv") == Path("csv")


@pytest.mark.slow
def test_the_command(command: Command, train: Callable[..., Run], tmp_path: Path) -> None:
    run = train()
    source = open_source(compose(*SMALL).data)
    x, y = source.test.features.numpy(), source.test.labels.numpy()
    np.savez(tmp_path / "own.npz", x=x, y=y)
    done = command("src.evaluate", str(run.folder), "--data", "own.npz", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["data"], found["accuracy"]) == ("own.npz", run.result["test/acc"])
