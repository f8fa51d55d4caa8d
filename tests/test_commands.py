"""The commands as their users type them."""

import csv
import json
from pathlib import Path

import pytest

from src.sweep import Sweep
from tests.conftest import SMALL, Command, Train


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


def test_a_sweep_goes_on_after_a_failure_and_tells(command: Command, tmp_path: Path) -> None:
    done = command("src.train", "-m", *SMALL, "data.drop_last=true", "data.batch_size=100,50,5000")
    assert done.returncode == 1
    assert "error: 1 of 3 trials failed" in done.stderr
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
        in done.stdout.partition("best alone: ")[2].splitlines()[0]
    )


def test_a_bad_point_starts_nothing(command: Command, tmp_path: Path) -> None:
    done = command("src.train", "-m", "optimizer.lr=0.1,-1", "seed=1,2")
    assert done.returncode == 2
    assert "points 2, 3: optimizer.lr=-1" in done.stderr
    assert not list(tmp_path.iterdir())


def test_named_mnist_without_network_exits_with_2(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = command("src.train", "data=mnist", "data.root=file/data")
    assert done.returncode == 2
    assert done.stderr.startswith("error: data.root=file/data: cannot be written")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "runs"]


def test_a_sweeps_table_ranks_its_trials(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    for number, rate in enumerate((1e-4, 0.1, 0.01)):
        train(f"optimizer.lr={rate}").folder.rename(folder / str(number))
    sweep = Sweep(folder)
    sweep.write_results()
    sweep.write_results()
    assert len(sweep.results_file.read_text().splitlines()) == 4
    assert [line.split()[0] for line in sweep.table().splitlines()[2:5]] == ["1", "2", "0"]


def test_evaluate_repeats_what_the_run_recorded(command: Command, train: Train) -> None:
    run = train("trainer.max_epochs=3")
    done = command("src.evaluate", str(run.folder), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["accuracy"] == run.result["test/acc"]
    assert found["loss"] == pytest.approx(run.result["test/loss"], rel=1e-5)
    assert sum(map(sum, found["confusion"])) == 359
    shown = command("src.evaluate", str(run.best_checkpoint))
    assert f"accuracy {run.result['test/acc']:.2%}, loss" in shown.stdout
