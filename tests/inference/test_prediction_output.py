"""The command `python -m src.predict`: its table, its CSV and its exit status."""

import csv
import io
import shlex
from pathlib import Path

import pytest
from PIL import Image

from src.inference import inputs
from src.inference.inputs import Picture, read_inputs
from src.inference.likeness import likeness_of
from src.inference.prediction import predict_inputs
from src.inference.prediction_output import predict_request
from src.runs.loading import open_trained
from src.system.errors import InputError, exit_on_error
from tests.helpers.commands import ROOT, Command, Train
from tests.helpers.drawings import save_drawings, seven


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
        done = cold_command("src.predict", *arguments, PYTHONPATH=f"{torch.parent}:{ROOT}")
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
    done = cold_command("src.predict", run, "seven.png", PYTHONPATH=f"{torch.parent}:{ROOT}")
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
    assert not picture.drawing.inverted
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
