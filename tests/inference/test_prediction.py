"""Predictions of a trained model, for pictures and arrays, and the command that prints them."""

import csv
import doctest
import io
import random
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from kindling.config.compose import compose
from kindling.config.faults import check
from kindling.data.sources.catalogue import open_source
from kindling.data.sources.published import read_idx_set
from kindling.inference import inputs
from kindling.inference.evaluation import evaluate_path
from kindling.inference.inputs import read_inputs, read_request
from kindling.inference.likeness import likeness_of
from kindling.inference.pictures import Picture
from kindling.inference.prediction import (
    classify,
    describe_predictions,
    predict,
    predict_inputs,
    predict_request,
    to_csv,
)
from kindling.records import checkpoint
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.system.errors import InputError, exit_on_error
from kindling.training.fit import fit
from kindling_digits.drawings import prepare
from tests.helpers.commands import PYTHONPATH, Command, Train
from tests.helpers.data_files import write_pictures
from tests.helpers.drawings import FIELD, LIGHT_ON_DARK, SEVEN, save_drawings, seven


def right(drawings: Path, run: Path) -> int:
    """The number of right predictions for the ten drawings; each polarity must be detected."""
    predictions = predict_inputs(open_trained(run), read_inputs([drawings]))
    assert [prediction.path.stem for prediction in predictions] == list("0123456789")
    for digit, prediction in enumerate(predictions):
        light = digit in LIGHT_ON_DARK
        assert prediction.polarity == ("light on dark" if light else "dark on light")
    guesses = [prediction.guess for prediction in predictions]
    return sum(guess is not None and guess.best == digit for digit, guess in enumerate(guesses))


@pytest.mark.slow
def test_ten_drawings_by_the_default_run(
    default_run: Run, mnist_root: Path, tmp_path: Path
) -> None:
    """MNIST's own digits, inverted and enlarged, get the same predictions as the originals."""
    assert right(save_drawings(tmp_path / "drawings"), default_run.folder) >= 9

    test = read_idx_set("mnist", mnist_root).test
    digits, labels = test.features[:500, 0].numpy(), test.labels[:500].tolist()
    trained = open_trained(default_run.folder)

    def accuracy(prepared: list[Any]) -> float:
        guesses = classify(trained, np.stack(prepared))
        hits = [guess.best == label for guess, label in zip(guesses, labels, strict=True)]
        return float(np.mean(hits))

    plain = accuracy(list(digits))
    inverted = [prepare(Image.fromarray(255 - digit), FIELD).pixels for digit in digits]
    enlarged = [
        prepare(Image.fromarray(digit).resize((200, 200)), FIELD).pixels for digit in digits
    ]
    assert accuracy(inverted) > plain - 0.01
    assert accuracy(enlarged) > plain - 0.01


def test_ten_drawings_by_a_run_on_the_digits(train: Train, tmp_path: Path) -> None:
    """The digits are written differently, cut to their box and not centred; chance is 1 of 10."""
    run = train("trainer.max_epochs=10")
    assert right(save_drawings(tmp_path / "drawings"), run.folder) >= 6


def test_arrays_get_the_predictions_of_evaluate(train: Train, tmp_path: Path) -> None:
    run = train()
    test = open_source(run.config.data).test
    features, labels = test.features.numpy(), test.labels.numpy()
    np.savez(tmp_path / "floats.npz", x=features.astype(float), y=labels)
    np.savez(tmp_path / "bytes.npz", x=np.rint(features[:3, 0] * 255).astype(np.uint8))
    trained = open_trained(run.folder)
    names = ["bytes.npz", "floats.npz"]
    found = predict_inputs(trained, read_inputs([tmp_path / name for name in names]))
    assert [(item.path.name, item.row) for item in found[:4]] == [
        *(("bytes.npz", row) for row in range(3)),
        ("floats.npz", 0),
    ]
    hits = [item.guess is not None and item.guess.best == item.true_class for item in found[3:]]
    assert np.mean(hits) == evaluate_path(run.folder, None).accuracy
    probabilities = trained.model(test.features).softmax(-1).detach().numpy()
    for item, row in zip(found[3:], probabilities, strict=True):
        assert item.guess is not None
        best, second = np.argsort(row)[::-1][:2]
        assert (item.guess.best, item.guess.second) == (best, second)
        assert item.guess.probability == pytest.approx(row[best], abs=1e-5)
        assert item.guess.second_probability == pytest.approx(row[second], abs=1e-5)
    for exact, rounded in zip(found[3:6], found[:3], strict=True):
        assert exact.guess is not None
        assert rounded.guess is not None
        assert rounded.guess.probability == pytest.approx(exact.guess.probability, abs=0.01)
    text = describe_predictions(found, "0123456789")
    assert "and 262 more; --csv FILE writes every row" in text
    assert f"{sum(hits)} of 359 right, accuracy {np.mean(hits):.2%}" in text
    rows = list(csv.DictReader(io.StringIO(to_csv(found, "0123456789"))))
    assert len(rows) == 362
    assert (rows[3]["row"], rows[3]["label"], rows[0]["label"]) == ("0", str(labels[0]), "")
    assert sum(row["class"] == row["label"] for row in rows) == sum(hits)


def test_predict_gives_probabilities_as_its_docstring_shows(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of the docstring runs; a probability is the softmax of the model's logits."""
    run = train()
    (tmp_path / "runs").mkdir()
    shutil.copytree(run.folder, tmp_path / "runs" / "example")
    monkeypatch.chdir(tmp_path)
    (example,) = doctest.DocTestFinder().find(predict, globs={})
    assert doctest.DocTestRunner().run(example) == doctest.TestResults(0, len(example.examples))
    trained = open_trained(run.folder)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
    found = predict(trained, pixels)
    logits = trained.model(torch.from_numpy(pixels)[:, None] / 255).double()
    np.testing.assert_allclose(found, logits.softmax(-1).detach(), rtol=1e-5)
    np.testing.assert_array_equal(predict(trained, pixels[:, None]), found)
    np.testing.assert_allclose(predict(trained, pixels / 255), found, rtol=1e-5)
    guesses = [guess.probability for guess in classify(trained, pixels)]
    assert found.max(1).tolist() == guesses


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.zeros((5, 8, 8), np.uint8), r"features is \(5, 8, 8\), but .* takes \(N, 1, 28, 28\)"),
        (np.zeros((784,), np.uint8), r"features is \(784,\), must be"),
        (np.zeros((5, 28, 28), np.int64), "features is of int64, must be uint8"),
        (
            np.full((5, 28, 28), 2.0),
            "features goes from 2 to 2, floats of pictures must be from 0 to 1",
        ),
    ],
)
def test_predict_refuses_features_that_the_model_does_not_take(
    features: np.ndarray, message: str, train: Train
) -> None:
    with pytest.raises(InputError, match=message):
        predict(open_trained(train().folder), features)


def test_pictures_and_arrays_keep_their_order(train: Train, tmp_path: Path) -> None:
    trained = open_trained(train().folder)
    seven().save(tmp_path / "a.png")
    Image.new("L", (9, 9)).save(tmp_path / "b\n.png")
    np.savez(tmp_path / "c.npz", x=np.stack([SEVEN, SEVEN]).astype(np.uint8))
    order = ["c.npz", "a.png", "b\n.png", "c.npz"]
    found = predict_inputs(trained, read_inputs([tmp_path / name for name in order]))
    assert [item.path.name for item in found] == ["c.npz", *order[:3], "c.npz", "c.npz"]
    assert [item.polarity for item in found] == ["", "", "dark on light", "nothing", "", ""]
    assert [item.guess is None for item in found] == [False, False, False, True, False, False]
    first, picture = found[0].guess, found[2].guess
    assert first is not None
    assert picture is not None
    assert (first.best, first.second) == (picture.best, picture.second)
    assert first.probability == pytest.approx(picture.probability)
    lines = describe_predictions(found, "0123456789").splitlines()
    assert lines[5].split()[-5:] == ["–", "–", "–", "–", "nothing"]
    assert f"{tmp_path}/b\ufffd.png" in lines[5]  # no line of its own


def test_a_model_that_does_not_take_pictures(train: Train, tmp_path: Path) -> None:
    seven().save(tmp_path / "a.png")
    pictures = read_inputs([tmp_path / "a.png"])
    toy = open_trained(train("data=toy", "data.factor=4").folder)
    with pytest.raises(InputError, match=r"trained on data=toy; it takes features of shape \(2,\)"):
        predict_inputs(toy, pictures)
    colour = open_trained(train("data=synthetic", "data.shape=[3,8,8]").folder)
    with pytest.raises(InputError, match=r"npz file with x of \(N, 3, 8, 8\)$"):
        predict_inputs(colour, pictures)
    np.savez(tmp_path / "toy.npz", x=[[-1.2, 3.1], [2.7, -1.5]], y=[0, 1])
    found = predict_inputs(toy, read_inputs([tmp_path / "toy.npz"]))
    assert [item.guess and item.guess.best for item in found] == [0, 1]
    np.savez(tmp_path / "toy.npz", x=[[-1.2, 3.1, 0]])
    with pytest.raises(InputError, match=r"x is \(1, 3\), but .*best\.ckpt takes \(N, 2\)"):
        predict_inputs(toy, read_inputs([tmp_path / "toy.npz"]))
    np.savez(tmp_path / "toy.npz", x=[[-1.2, 3.1], [2.7, -1.5]], y=[0, 2])
    with pytest.raises(InputError, match="y goes from 0 to 2, must be from 0 to 1"):
        predict_inputs(toy, read_inputs([tmp_path / "toy.npz"]))


def test_other_fields(train: Train, tmp_path: Path) -> None:
    """Pictures are scaled to the shape that the model takes."""
    seven().save(tmp_path / "a.png")
    trained = open_trained(train("data=synthetic", "data.shape=[14,20]", "data.classes=3").folder)
    (found,) = predict_inputs(trained, read_inputs([tmp_path / "a.png"]))
    (expected,) = classify(trained, prepare(seven(), (14, 20)).pixels[None])
    assert found.guess == expected


def test_weights_that_are_not_finite(train: Train) -> None:
    trained = open_trained(train().folder)
    next(trained.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(InputError, match=r"best\.ckpt: its logits for the input are not finite"):
        classify(trained, SEVEN.astype(np.uint8)[None])


def test_equally_probable_classes_keep_their_order(train: Train) -> None:
    trained = open_trained(train("model=logistic_regression").folder)
    for parameter in trained.model.parameters():
        parameter.data.zero_()
    (guess,) = classify(trained, SEVEN.astype(np.uint8)[None])
    assert (guess.best, guess.second) == (0, 1)
    assert guess.probability == guess.second_probability == pytest.approx(0.1)


def test_whole_pictures_for_a_run_folder_and_for_its_checkpoint(
    train: Train, tmp_path: Path
) -> None:
    """Of a checkpoint file, the data set is known only after the pictures were read."""
    folder = tmp_path / "own"
    write_pictures(folder, {"cat": 12, "dog": 12})
    run = train("data=image_folder", f"data.path={folder}", "data.size=8")
    rows = []
    for path in (run.folder, run.best_checkpoint):
        request = read_request(path, [folder / "cat"], "auto", "-", force=False)
        rows.append([*csv.DictReader(io.StringIO(predict_request(request).text))])
    assert rows[0] == rows[1]
    assert len(rows[0]) == 12
    assert {(row["drawn"], row["drawings"]) for row in rows[0]} == {("", "")}
    with pytest.raises(InputError, match="takes whole pictures; name a run on drawings in one ch"):
        predict_request(replace(request, boxes_file=tmp_path / "boxes.png"))


# --- the command: its table, its CSV and its exit status ------------------------------------------


@pytest.mark.slow
def test_the_command(command: Command, train: Train, tmp_path: Path) -> None:
    run = train()
    drawings = save_drawings(tmp_path / "drawings")
    shown = command("src.predict", str(run.folder), str(drawings), "--csv", "found.csv")
    assert (shown.returncode, shown.stderr) == (0, "")
    *lines, told = shown.stdout.splitlines()
    assert lines[0] == f"{run.best_checkpoint}, trained on digits"
    assert lines[2].split()[5:] == ["drawn", "note"]
    content = (tmp_path / "found.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(content)))
    trained = open_trained(run.folder)
    expected = predict_inputs(trained, read_inputs([drawings]), likeness_of(trained))
    unlike = [item.unlikeness is not None and item.unlikeness > 1 for item in expected]
    assert told.startswith(
        f"{sum(unlike)} of 10 are unlike: "
    )  # scikit-learn's digits are written differently
    for line, row, prediction in zip(lines[4:], rows, expected, strict=True):
        guess = prediction.guess
        assert guess is not None
        assert line.split() == [
            str(prediction.path), str(guess.best), f"{guess.probability:.2%}",
            str(guess.second), f"{guess.second_probability:.2%}", *prediction.polarity.split(),
            *prediction.note.split(),
        ]  # fmt: skip
        assert list(row.values()) == [
            str(prediction.path), "", str(guess.best), f"{guess.probability:.6f}",
            str(guess.second), f"{guess.second_probability:.6f}", prediction.polarity, "",
            "1", f"{prediction.unlikeness:.4f}", "",
        ]  # fmt: skip
    printed = command("src.predict", str(run.best_checkpoint), str(drawings), "--csv", "-")
    assert printed.stdout == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drawings", "found.csv", "run1"]


def test_several_drawings_in_a_picture_say_what_to_type(
    command: Command, train: Train, tmp_path: Path
) -> None:
    run = str(train().folder)
    page = Image.new("L", (400, 120), 255)
    for place in range(3):
        page.paste(seven().resize((80, 80)), (20 + 130 * place, 20))
    page.save(tmp_path / "my page.png")
    done = command("src.predict", run, "my page.png")
    typed = f"python -m src.predict {run} 'my page.png' --boxes boxes.png"
    assert f"my page.png: has 3 drawings; to read each one, type {typed}\n" in done.stderr
    assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
    done = command(*shlex.split(typed)[2:])
    assert (done.returncode, (tmp_path / "boxes.png").exists()) == (0, True)
    assert [f"my page.png[{number}]" in done.stdout for number in range(4)] == [True] * 3 + [False]


def test_the_exit_status_says_whether_all_files_have_predictions(
    command: Command, train: Train, tmp_path: Path
) -> None:
    run = str(train().folder)
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("a.png", "c.png"):
        seven().save(folder / name)
    for name in ("b.png", "notes.txt"):
        (folder / name).write_text("a text")
    fault = "is not a PNG or JPEG file; save the picture as PNG"
    told = f"{folder}: 1 skipped, not PNG or JPEG: notes.txt\nerror: {folder / 'b.png'}: {fault}\n"
    done = command("src.predict", run, str(folder))
    assert (done.returncode, done.stderr) == (1, told)
    assert [line.split()[0] for line in done.stdout.splitlines()[4:6]] == [
        str(folder / "a.png"),
        str(folder / "c.png"),
    ]
    done = command("src.predict", run, str(folder), "--csv", "-")
    assert (done.returncode, done.stderr) == (1, told)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["fault"] for row in rows] == ["", fault, ""]
    assert [row["class"] == "" for row in rows] == [False, True, False]
    done = command("src.predict", run, str(folder / "b.png"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {folder / 'b.png'}: {fault}\n"


def test_a_blank_picture_has_no_prediction(command: Command, train: Train, tmp_path: Path) -> None:
    run, blank = str(train().folder), tmp_path / "blank.png"
    Image.new("L", (28, 28)).save(blank)
    told = f"error: {blank}: has no drawing, so no prediction\n"
    done = command("src.predict", run, str(blank))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
    seven().save(tmp_path / "seven.png")
    done = command("src.predict", run, str(blank), str(tmp_path / "seven.png"))
    assert (done.returncode, done.stderr) == (1, told)
    assert "seven.png" in done.stdout


@pytest.mark.slow
def test_faults_are_reported_before_torch_is_imported(
    cold_command: Command, train: Train, tmp_path: Path
) -> None:
    run = str(train().folder)
    torch = tmp_path / "without" / "torch.py"
    torch.parent.mkdir()
    torch.write_text("raise SystemExit('torch was imported')")
    (tmp_path / "found.csv").write_text("mine")
    seven().save(tmp_path / "seven.png")

    def message(*arguments: str) -> str:
        done = cold_command("src.predict", *arguments, PYTHONPATH=f"{torch.parent}:{PYTHONPATH}")
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr

    assert message("seven.png", "seven.png").startswith("error: seven.png: is not a run; name one")
    absent = "nowhere: there is no such file or folder; name a run, runs/DATE/TIME"
    assert message("nowhere", "seven.png") == f"error: {absent}\n"
    assert message("without", "seven.png").startswith("error: without: is not a run folder")
    assert message(run, "no.png") == "error: no.png: there is no such file or folder\n"
    assert message(run, "seven.png", "--csv", "found.csv") == (
        "error: --csv found.csv: exists already; name another file, or type --force to replace it\n"
    )
    assert message(run, "seven.png", "--csv", "without").startswith("error: --csv without: is a f")
    assert "there is no folder no" in message(run, "seven.png", "--csv", "no/x.csv")
    assert "is one of the inputs" in message(run, ".", "--csv", "seven.png", "--force")
    assert "IMAGE: is missing" in message(run)
    assert (tmp_path / "found.csv").read_text() == "mine"
    done = cold_command("src.predict", run, "seven.png", PYTHONPATH=f"{torch.parent}:{PYTHONPATH}")
    assert (done.returncode, done.stderr) == (1, "torch was imported\n")  # so the check is one


def test_only_force_replaces_a_file(train: Train, tmp_path: Path) -> None:
    run = train().folder
    seven().save(tmp_path / "seven.png")
    target = tmp_path / "found.csv"
    target.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        inputs.read_request(run, [tmp_path / "seven.png"], "auto", str(target), force=False)
    request = inputs.read_request(run, [tmp_path / "seven.png"], "no", str(target), force=True)
    (picture,) = request.inputs
    assert isinstance(picture, Picture)
    assert picture.polarity == "light on dark"
    predict_request(request)
    assert target.read_text().startswith("file,row,class,probability,runner_up")
    assert "light on dark" in target.read_text()
    target.unlink()
    target.mkdir()  # after it was checked
    with pytest.raises(InputError, match=r"found\.csv: is a folder, must be a file"):
        predict_request(request)


def test_ctrl_c_ends_a_command_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, exit_on_error():
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr().err == "SIGINT: ended before it was done\n"


@pytest.fixture(scope="module")
def on_persian(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on a table whose classes differ only in characters that are not printed."""
    folder = tmp_path_factory.mktemp("table")
    names = ("a\u200cb", "a\u200db")
    rows = [f"{n % 2 + n / 1000},{'NA' if n % 9 == 4 else 'EU'},{names[n % 2]}" for n in range(60)]
    (folder / "t.csv").write_text("\n".join(["a,region,kind", *rows]), "utf-8")
    config = compose(
        "data=csv", f"data.path={folder}/t.csv", "data.target=kind", "data.encode=onehot",
        "data.fill=median", "trainer=cpu", "trainer.max_epochs=30",
    )  # fmt: skip
    return fit(config, folder / "run")


def test_names_of_classes_are_written_as_they_are_and_printed_clean(
    on_persian: Run, tmp_path: Path
) -> None:
    log = on_persian.log_file.read_text()
    assert "[WARNING] " in log
    assert "column kind: 'a\\u200cb' (30) and 'a\\u200db' (30) look like one class" in log
    assert "7 cells 'NA' of column region read as empty, filled with EU" in log
    trained = open_trained(on_persian.folder)
    assert trained.labels == ("a\u200cb", "a\u200db")
    new = tmp_path / "new.csv"
    new.write_text("a,region,kind\n0,EU,a\u200cb\n1,NA,a\u200db\n7,EU,a\u200db\n", "utf-8")
    request = read_request(on_persian.folder, [new], "auto", str(tmp_path / "out.csv"), force=False)
    output = predict_request(request)
    assert "\u200c" not in output.text
    assert output.text.count("a\ufffdb") == 9  # the class, the second, and the true class
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        written = [(row["class"], row["label"]) for row in csv.DictReader(file)]
    assert written[:2] == [("a\u200cb", "a\u200cb"), ("a\u200db", "a\u200db")]
    assert [note for note in output.notes if note.startswith(f"{new}: ")] == [
        f"{new}: 1 cell 'NA' of column region read as empty, filled with EU",
        f"{new}: numbers that training did not see: column a, 0 to 1.059 in training: 1 of 3 cells "
        "is beyond (line 4: '7')",
    ]
    evaluation = evaluate_path(on_persian.folder, str(new))
    assert evaluation.labels == trained.labels
    assert "\u200c" not in evaluation.describe()
    assert "as a\ufffdb" in evaluation.describe()


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_fit_are_predicted_beside_wrong_ones(
    seed: int, on_persian: Run, tmp_path: Path
) -> None:
    """The right rows have the predictions that they have alone, and each wrong one is listed."""
    draw = random.Random(seed)
    cells = [[f"{draw.uniform(0, 1):.3f}", draw.choice(["EU", "NA"])] for _ in range(40)]
    wrong = sorted(draw.sample(range(40), draw.randint(1, 39)))
    for row in wrong:
        cells[row] = draw.choice([["x", "EU"], ["1e99", "NA"], ["0.5", "NAM"], ["x", "NAM"]])
    faulty, right = tmp_path / "faulty.csv", tmp_path / "right.csv"
    rows = [",".join(row) for row in cells]
    faulty.write_text("\n".join(["a,region", *rows]))
    right.write_text("\n".join(["a,region", *(r for n, r in enumerate(rows) if n not in wrong)]))
    found, alone = (
        predict_request(read_request(on_persian.folder, [path], "auto", "-", force=False))
        for path in (faulty, right)
    )
    assert len(found.faults) == len(wrong)
    for row, fault in zip(wrong, found.faults, strict=True):
        assert fault.startswith(f"{faulty}: ")
        assert f"line {row + 2}: {cells[row][0]!r}" in fault or f"{cells[row][1]!r}" in fault
    told, expected = (list(csv.DictReader(io.StringIO(each.text))) for each in (found, alone))
    assert [int(each["row"]) for each in told] == [*range(40)]
    assert [int(each["row"]) for each in told if each["fault"]] == wrong
    kept = [each for each in told if not each["fault"]]
    assert [(each["class"], each["probability"]) for each in kept] == [
        (each["class"], each["probability"]) for each in expected
    ]
    notes = [note.replace("faulty.csv", "right.csv") for note in found.notes]
    assert notes == list(alone.notes)


def test_a_note_about_a_table_with_wrong_rows_comes_once(tmp_path: Path) -> None:
    rows = [f"{n % 7},{'Rome' if n % 2 else 'Oslo'},{'xy'[n % 2]}" for n in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["a,town,kind", *rows]))
    config = compose(
        "data=csv", f"data.path={tmp_path}/t.csv", "data.target=kind", "trainer.max_epochs=1"
    )
    run = fit(config, tmp_path / "run")
    path = tmp_path / "new.csv"
    path.write_text("town,a\nBonn,1\nRome,x\nOslo,2\n")
    found = predict_request(read_request(run.folder, [path], "auto", None, force=False))
    assert [fault for fault in found.faults if "column a" in fault and "line 3" in fault]
    assert len([note for note in found.notes if "Bonn" in note]) == 1


def test_a_table_of_which_no_row_or_too_few_fit_is_refused(
    on_persian: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its faults as a whole: a missing column is one fault, not one of each row."""
    path = tmp_path / "t.csv"

    def refused() -> str:
        request = read_request(on_persian.folder, [path], "auto", None, force=False)
        with pytest.raises(InputError) as caught:
            predict_request(request)
        return str(caught.value)

    path.write_text("region,b\nEU,1\nEU,2\n")
    assert refused().startswith(f"{path}: there is no column a")
    path.write_text("a,region\nx,EU\ny,EU\n")
    assert "column a: 2 of 2 cells are not numbers" in refused()
    monkeypatch.setattr("kindling.inference.prediction.MOST_WRONG", 2)
    path.write_text("a,region\n0,EU\nx,EU\ny,EU\nz,EU\n")
    assert "column a: 3 of 4 cells are not numbers" in refused()
    path.write_text("a,region\n0,EU\nx,EU\ny,EU\n1,EU\n")
    request = read_request(on_persian.folder, [path], "auto", None, force=False)
    assert len(predict_request(request).faults) == 2


def test_a_text_that_training_did_not_see_is_a_fault_of_its_file(
    on_persian: Run, tmp_path: Path
) -> None:
    for name, region in (("good", "EU"), ("bad", "NAM")):
        (tmp_path / f"{name}.csv").write_text(f"a,region\n0,{region}\n")
    with (tmp_path / "good.csv").open("a") as file:
        file.write("\n\n1,EU\n")  # two blank lines, which the numbers of lines count
    paths = [tmp_path / "good.csv", tmp_path / "bad.csv"]
    output = predict_request(read_request(on_persian.folder, paths, "auto", None, force=False))
    assert output.faults == [
        f"{tmp_path}/bad.csv: column region: 1 of 1 cell is a text (line 2: 'NAM') that training "
        "did not see: 'NAM' (1); correct that, or leave the rows out, or empty the cells to have "
        "'EU' read"
    ]
    rows = [line.split()[0] for line in output.text.splitlines() if "good.csv" in line]
    assert rows == [f"{tmp_path}/good.csv:{line}" for line in (2, 5)]
    with pytest.raises(InputError, match="column region: 1 of 1 cell is a text"):
        evaluate_path(on_persian.folder, str(tmp_path / "bad.csv"))


def test_a_model_of_before_opens_resumes_and_is_evaluated(on_persian: Run, tmp_path: Path) -> None:
    """Its configuration has no data.empty, its columns have no ends, and its classes are printable.
    Here both classes would print alike, so one of them is `no`."""
    path = tmp_path / "t.csv"
    names = ("a\u200cb", "no")
    rows = [f"{n % 2 + n / 1000},{'Na' if n % 9 == 4 else 'EU'},{names[n % 2]}" for n in range(60)]
    path.write_text("\n".join(["a,region,kind", *rows]), "utf-8")
    values = compose(
        "data=csv", f"data.path={path}", "data.target=kind", "data.encode=onehot",
        "data.fill=median", "trainer=cpu", "trainer.max_epochs=3",
    ).to_primitives()  # fmt: skip
    del values["data"]["empty"]
    config = check(values)
    run = fit(config, tmp_path / "run")
    for file in (run.last_checkpoint, run.best_checkpoint):
        content = checkpoint.read(file)
        saved = content["kindling"]
        del saved["config"]["data"]["empty"]
        saved["labels"] = ["a\ufffdb", "no"]
        assert [*saved["columns"]] == ["columns"]
        assert [*saved["columns"]["columns"][0]] == ["name", "fill", "mean", "deviation"]
        checkpoint.write(content, file)
    text = run.config_file.read_text()
    assert "  empty: null\n" in text
    run.config_file.write_text(text.replace("  empty: null\n", ""))
    more = check({**values, "trainer": {**values["trainer"], "max_epochs": 5}})
    assert fit(more, run.folder, resume=True).result["epochs"] == 5
    assert evaluate_path(run.folder, None).accuracy == run.result["test/acc"]
    checkpoint.write(content, run.best_checkpoint)
    assert evaluate_path(run.folder, None).labels == ("a\ufffdb", "no")
    new = tmp_path / "new.csv"
    new.write_text("a,region,kind\n0,nA,a\u200cb\n1,EU,no\n", "utf-8")
    assert evaluate_path(run.folder, str(new)).confusion.sum() == 2
