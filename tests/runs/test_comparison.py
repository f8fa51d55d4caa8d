"""A run and its repetition from a bundle, compared."""

import json
from pathlib import Path

import pytest

from src.config.compose import compose
from src.runs.bundle import open_bundle
from src.runs.comparison import describe
from src.runs.folder import Run
from src.training.fit import fit
from src.training.reproduction import reproduce
from tests.helpers.bundles import RECIPE, rewritten
from tests.helpers.commands import SMALL, Command


def test_a_run_is_repeated_bit_for_bit(bundle: Path, tmp_path: Path) -> None:
    found = reproduce(open_bundle(bundle, tmp_path / "opened"), tmp_path / "again")
    assert found.identical
    assert found.agrees
    assert found.metrics["test/acc"] == (found.original.result["test/acc"],) * 2
    assert "identical" in describe(found)
    assert "environment: the same" in describe(found)
    there, here = found.metrics["test/acc"]
    assert there == here is not None
    assert describe(found).splitlines()[4].split() == ["test/acc", f"{there:.2%}", f"{here:.2%}"]


@pytest.mark.parametrize(("off", "agrees"), [(0.004, True), (0.006, False)])
def test_differences_are_reported(
    off: float, agrees: bool, bundle: Path, original: Run, tmp_path: Path
) -> None:
    other = fit(compose(*RECIPE, "seed=1"), tmp_path / "other")
    result = original.result
    result["versions"]["torch"] = "2.10.0"
    result["test/acc"] = (result["test/acc"] or 0) + off
    changes: dict[str, bytes | None] = {
        "checkpoints/best.ckpt": other.best_checkpoint.read_bytes(),
        "result.json": json.dumps(result).encode(),
    }
    opened = open_bundle(rewritten(bundle, changes), tmp_path / "opened")
    found = reproduce(opened, tmp_path / "again")
    assert not found.identical
    assert found.weights > 0.01
    assert found.history == 0
    here = found.repeated.result["versions"]["torch"]
    assert ("torch", "2.10.0", here) in found.environment
    assert found.agrees == agrees
    verdict = "close" if agrees else "NOT reproduced"
    assert f"{verdict}: best weights differ by" in describe(found)


@pytest.mark.slow
def test_bundle_and_reproduce_from_the_command_line(command: Command, tmp_path: Path) -> None:
    assert command("src.train", *SMALL, "hydra.run.dir=run").returncode == 0
    assert command("src.report", "run", "--bundle", "run.zip").stdout == "run.zip\n"
    again = command("src.reproduce", "run.zip")
    assert again.returncode == 0, again.stderr
    assert "identical: history and best weights are the same bit for bit" in again.stdout
    assert Run(tmp_path / "reproduced" / "run").result["status"] == "finished"
    twice = command("src.reproduce", "run.zip")
    assert (twice.returncode, twice.stdout) == (2, "")
    assert "reproduced/run: exists already; type --output FOLDER" in twice.stderr
