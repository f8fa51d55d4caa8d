"""Run folders that an older version wrote, when the package was called src and had no extensions.

runs_of_before.zip holds `whole`, a run of 60 epochs, `killed`, the same run killed in epoch 4, and
`sweep`, a fused sweep of two trials.
"""

import csv
import json
import re
import zipfile
from pathlib import Path

import pytest

from tests.helpers.commands import Command


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path) -> None:
    with zipfile.ZipFile(Path(__file__).parent / "runs_of_before.zip") as archive:
        archive.extractall(tmp_path)


def history(run: Path) -> list[dict[str, float]]:
    with (run / "history.csv").open() as file:
        return [
            {key: float(value) for key, value in row.items() if key != "seconds" and value}
            for row in csv.DictReader(file)
        ]


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_end_it_had(command: Command, tmp_path: Path) -> None:
    done = command("src.train", "resume=killed")
    assert done.returncode == 0, done.stderr
    whole, resumed = history(tmp_path / "whole"), history(tmp_path / "killed")
    assert len(resumed) == 61
    # Another processor than the one that wrote `whole` rounds otherwise.
    for row, expected in zip(resumed, whole, strict=True):
        assert row == pytest.approx(expected, rel=1e-3, abs=4e-3)
    results = [
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("killed", "whole")
    ]
    assert results[0]["config_hash"] == results[1]["config_hash"]
    assert results[0]["test/loss"] == pytest.approx(results[1]["test/loss"], rel=1e-3)


def test_its_weights_classify_as_they_did(command: Command, tmp_path: Path) -> None:
    done = command("src.evaluate", "whole", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    result = json.loads((tmp_path / "whole" / "result.json").read_text())
    assert told["accuracy"] == pytest.approx(result["test/acc"], abs=1e-9)
    assert told["loss"] == pytest.approx(result["test/loss"], rel=1e-5)


@pytest.mark.slow
def test_a_sweep_is_listed_compared_and_resumed(command: Command) -> None:
    listed = command("src.runs", "sweep", "whole", "--json")
    assert listed.returncode == 0, listed.stderr
    rows = {row["folder"]: row for row in json.loads(listed.stdout)}
    assert {name: row["status"] for name, row in rows.items()} == {
        "sweep": "finished", "whole": "finished",
    }  # fmt: skip
    assert rows["sweep"]["trials"] == 2
    assert rows["whole"]["best"] == pytest.approx(0.7083333333333334)
    compared = command("src.runs", "compare", "sweep/0", "sweep/1")
    assert compared.returncode == 0, compared.stderr
    assert re.search(r"^optimizer.lr +0.1 +0.5$", compared.stdout, re.MULTILINE)
    assert re.search(r"^val/loss +0.1988 +0.0197$", compared.stdout, re.MULTILINE)
    resumed = command("src.train", "resume=sweep")
    assert resumed.returncode == 0, resumed.stderr
