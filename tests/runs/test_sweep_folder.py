"""A sweep's table."""

import csv
import io
from pathlib import Path

import pytest

from src.runs.sweep_folder import Sweep
from tests.helpers.commands import Train


@pytest.fixture
def sweep(train: Train, tmp_path: Path) -> Sweep:
    folder = tmp_path / "sweep"
    folder.mkdir()
    for number, rate in enumerate((1e-4, 0.1, 0.01)):
        train(f"optimizer.lr={rate}").folder.rename(folder / str(number))
    sweep = Sweep(folder)
    sweep.write_results()
    return sweep


def test_a_sweeps_table_ranks_its_trials(sweep: Sweep) -> None:
    sweep.write_results()
    assert len(sweep.results_file.read_text().splitlines()) == 4
    assert [line.split()[0] for line in sweep.table().splitlines()[2:5]] == ["1", "2", "0"]


def test_the_table_has_accuracies_in_percent(sweep: Sweep) -> None:
    """The CSV file has plain numbers for programs."""
    rows = list(csv.DictReader(io.StringIO(sweep.results_file.read_text())))
    lines = sweep.table().splitlines()
    assert len(rows) == 3
    for row in rows:
        (line,) = [line for line in lines if line.split()[:2] == [row["trial"], "finished"]]
        assert line.split()[-3:-1] == [f"{float(row[key]):.2%}" for key in ("val/acc", "test/acc")]
