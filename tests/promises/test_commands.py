"""The commands as their users type them."""

import csv
import json
import re
import shutil
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from kindling.records.bundle import write_bundle
from kindling.records.folder import Run
from tests.helpers.commands import COMMANDS, OF_A_CHECKOUT, SMALL, Command, Train
from tests.helpers.confirmations import pretended_sweep


@pytest.mark.slow
def test_a_run_from_the_command_line(cold_command: Command, tmp_path: Path) -> None:
    done = cold_command("src.train", *SMALL, "seed=3")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (result,) = tmp_path.glob("runs/*/*/result.json")
    content = json.loads(result.read_text())
    assert f"accuracy {content['test/acc']:.2%}" in done.stdout
    names = {path.name for path in (result.parent / ".hydra").iterdir()}
    assert names == {"config.yaml", "hydra.yaml", "overrides.yaml"}
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
def test_a_sweep_continues_after_a_failed_trial_and_reports_it(
    command: Command, tmp_path: Path
) -> None:
    done = command("src.train", "-m", *SMALL, "data.drop_last=true", "data.batch_size=100,50,5000")
    assert done.returncode == 1
    assert "error: 1 of 3 trials failed" in done.stderr
    told = re.findall(r"^trial (\d) of 3, in sweeps/\S+/(\d): (.*)$", done.stdout, re.M)
    assert [(number, folder) for number, folder, _ in told] == [("1", "0"), ("2", "1"), ("3", "2")]
    assert told[1][2] == f"{' '.join(SMALL)} data.drop_last=True data.batch_size=50"
    assert "[HYDRA]" not in done.stdout
    assert "type data.batch_size=1150 or less" in done.stdout
    (path,) = tmp_path.glob("sweeps/*/*/results.csv")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["finished", "finished", "failed"]
    assert [row["data.batch_size"] for row in rows] == ["100", "50", "5000"]
    for row in rows[:2]:
        result = json.loads((path.parent / row["trial"] / "result.json").read_text())
        assert float(row["val/acc"]) == result["best"]["val/acc"]
        assert float(row["test/acc"]) == result["test/acc"]
    best = max(rows[:2], key=lambda row: float(row["val/acc"]))
    assert (
        f"data.batch_size={best['data.batch_size']}"
        in done.stdout.partition("to train it alone: ")[2].splitlines()[0]
    )


@pytest.mark.parametrize("name", [*COMMANDS, *OF_A_CHECKOUT])
def test_every_command_has_help(name: str, command: Command, tmp_path: Path) -> None:
    done = command(f"src.{name}", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.iterdir())
    usage, purpose, *parts = done.stdout.split("\n\n")
    assert usage.startswith(f"usage: python -m src.{name} [")
    assert re.fullmatch(r"[A-Z].*\.", purpose, re.DOTALL)
    (examples,) = (part for part in parts if part.startswith("examples:\n"))
    lines = examples.splitlines()[1:]
    assert all(line.startswith(("  python -m src.", " " * 8)) for line in lines), lines
    for part in parts[: parts.index(examples)]:
        title, *rows = re.sub(r"\n {15,}", "  ", part).splitlines()
        assert title in ("positional arguments:", "options:")
        for row in rows:
            assert re.match(r"  COMMAND$| +\S.*\S  +\S", row), f"no help: {row}"
            if re.match(r"  --(?!best)[\w-]+ (N|K|RATE|PORT) ", row):
                assert "default: " in row


def test_the_version_is_the_projects(command: Command) -> None:
    done = command("src.train", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    told = dict(line.split() for line in done.stdout.splitlines())
    assert told["kindling"] == version("kindling")
    assert {"torch", "lightning", "hydra-core", "python"} < told.keys()


def test_a_bad_point_starts_nothing(command: Command, tmp_path: Path) -> None:
    done = command("src.train", "-m", "optimizer.lr=0.1,-1", "seed=1,2")
    assert done.returncode == 2
    assert "trials 2, 3: optimizer.lr=-1" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_root_without_the_data_exits_with_2(command: Command, tmp_path: Path) -> None:
    done = command("src.train", "data.root=nope")
    assert done.returncode == 2
    assert "data.root=nope: there is no such folder; name the folder that has MNIST" in done.stderr
    assert not list(tmp_path.iterdir())


def test_evaluate_repeats_what_the_run_recorded(command: Command, train: Train) -> None:
    run = train("trainer.max_epochs=3")
    done = command("src.evaluate", str(run.folder), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["accuracy"] == run.result["test/acc"]
    assert found["loss"] == pytest.approx(run.result["test/loss"], rel=1e-5)
    assert sum(map(sum, found["confusion"])) == 359
    shown = command("src.evaluate", str(run.best_checkpoint))
    assert f"accuracy {run.result['test/acc']:.2%} (largest class " in shown.stdout


# --- outputs and disks that nothing can be written to ------------------------------------------


WRITING = {  # a limit of some KB is met later than the first file
    ("run", 2**14): ["train", *SMALL, "hydra.run.dir=new"],
    ("sweep", 2**10): ["train", "-m", *SMALL, "seed=1,2", "hydra.sweep.dir=new"],
    ("stack", 2**14): [
        "train", "-m", *SMALL, "seed=1,2", "hydra.sweep.dir=new", "hydra/launcher=fused",
    ],
    ("search", 2**10): ["search", *SMALL, "seed=range(1,3)", "search.folder=new"],
    ("confirm", 2**10): ["confirm", "SWEEP"],
    ("report", 2**10): ["report", "RUN", "--output", "report.html"],
    ("bundle", 2**10): ["report", "RUN", "--bundle", "run.zip"],
    ("reproduce", 2**10): ["reproduce", "BUNDLE"],
    ("export", 2**10): ["export", "RUN", "--format", "safetensors"],
    ("predict", 2**10): ["predict", "RUN", "SAMPLES", "--csv", "new.csv"],
    ("demo", 2**10): ["demo", "RUN", "--port", "0", "--no-browser"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "limit"), WRITING)
def test_a_file_that_cannot_be_written(
    name: str, limit: int, command: Command, finished: Run, tmp_path: Path
) -> None:
    """A limit on the size of files acts like a full disk. The command prints the reason in one
    line, keeps all existing files, and leaves no part of a new file."""
    run = tmp_path / "run"
    shutil.copytree(finished.folder, run)
    np.savez(tmp_path / "samples.npz", x=np.zeros((500, 28, 28), np.uint8))
    write_bundle([run], tmp_path / "bundle.zip")
    pretended_sweep(tmp_path / "sweep", (("seed=1",), 0.9))
    given = {"RUN": "run", "BUNDLE": "bundle.zip", "SAMPLES": "samples.npz", "SWEEP": "sweep"}
    module, *arguments = [
        re.sub("RUN|BUNDLE|SAMPLES|SWEEP", lambda found: given[found[0]], text)
        for text in WRITING[name, limit]
    ]
    before = _contents(tmp_path)
    done = command(f"src.{module}", *arguments, limit=limit)
    assert done.returncode in (1, 2), done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "cannot be written (" in done.stdout + done.stderr
    after = _contents(tmp_path)
    assert not [path for path in after if path.name.endswith(".part")]
    assert {path: after.get(path) for path in before} == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", *SMALL, "hydra.run.dir=NOWHERE"],
        ["train", "-m", *SMALL, "seed=1,2", "hydra.sweep.dir=NOWHERE"],
        ["report", "RUN", "--output", "NOWHERE/report.html"],
        ["search", *SMALL, "seed=range(1,3)", "search.folder=NOWHERE"],
    ],
)
@pytest.mark.parametrize("nowhere", ["/sys/new", "file/new"])
def test_a_folder_that_cannot_be_made(
    nowhere: str, arguments: list[str], command: Command, finished: Run, tmp_path: Path
) -> None:
    """The kernel's own file system is read-only for everybody, and a file is not a folder."""
    (tmp_path / "file").write_text("")
    given = [
        text.replace("NOWHERE", nowhere).replace("RUN", str(finished.folder)) for text in arguments
    ]
    done = command(f"src.{given[0]}", *given[1:])
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {nowhere}")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
