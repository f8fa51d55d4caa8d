"""A sweep from Python."""

import csv
import logging
from pathlib import Path

import pytest

import kindling
from kindling.system.errors import InputError
from tests.helpers.commands import SMALL, Command


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_table_is_that_of_the_command(command: Command, tmp_path: Path) -> None:
    swept = ("optimizer.lr=0.01,0.3", "seed=0,1")
    root = logging.getLogger()
    own = logging.FileHandler("own.log", "w")
    root.addHandler(own)
    before = root.handlers[:], root.level
    here = Path("here, with=a comma")
    rows = kindling.sweep(*SMALL, *swept, folder=here)
    assert (root.handlers[:], root.level) == before
    root.warning("after the sweep")
    root.removeHandler(own)
    own.close()
    assert Path("own.log").read_text().endswith("after the sweep\n")
    assert [row["folder"] for row in rows] == [here / str(row["trial"]) for row in rows]
    values = [row["val/acc"] for row in rows]
    assert values == sorted(values, reverse=True)
    assert {(row["optimizer.lr"], row["seed"]) for row in rows} == {
        (rate, seed) for rate in (0.01, 0.3) for seed in (0, 1)
    }
    line = ("src.train", "-m", "hydra/launcher=fused", "hydra.sweep.dir=there", *SMALL, *swept)
    assert command(*line).returncode == 0
    names = ("val/acc", "val/loss", "test/acc")
    tables = []
    for folder in (here, "there"):
        with Path(folder, "results.csv").open() as file:
            tables.append([[row[name] for name in names] for row in csv.DictReader(file)])
    assert tables[0] == tables[1]


def test_the_default_folder_and_another_launcher() -> None:
    (row,) = kindling.sweep(
        *SMALL, "hydra/launcher=basic", "seed=3", "model.hidden_sizes=[8,4]", "optimizer.lr=1e-2",
        "model.activation=tanh", "optimizer.nesterov=false", "optimizer.momentum=0.5",
    )  # fmt: skip
    assert [
        row[key]
        for key in (
            "seed",
            "model.hidden_sizes",
            "optimizer.lr",
            "model.activation",
            "optimizer.nesterov",
        )
    ] == [3, [8, 4], 0.01, "tanh", False]
    assert row["folder"].parts[0] == "sweeps"
    assert row["status"] == "finished"


def test_a_stopped_sweep_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    kindling.sweep(*SMALL, "seed=0,1", folder="a")
    Path("a/1/result.json").unlink()
    with pytest.raises(InputError, match="holds a sweep already"):
        kindling.sweep(*SMALL, "seed=0,1", folder="a")
    rows = kindling.sweep(*SMALL, "seed=0,1", "resume=auto", folder="a")
    assert [row["status"] for row in rows] == ["finished"] * 2


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("optimizer.lr=-1,0.1", "sed=1"), "2 faults"),
        (("--help",), "trains nothing"),
        (("--cfg=job",), "exclude each other|trains nothing"),
    ],
)
def test_nothing_starts_with_a_fault(overrides: tuple[str, ...], told: str) -> None:
    with pytest.raises(InputError, match=told):
        kindling.sweep(*overrides)
    assert not list(Path().iterdir())


def test_a_trial_that_fails_is_a_row() -> None:
    rows = kindling.sweep(*SMALL, "data.drop_last=true", "data.batch_size=50,5000")
    assert [row["status"] for row in rows] == ["finished", "failed"]
    assert "data.batch_size=1150" in rows[1]["error"]
