"""How runs differ, and a run and its repetition from a bundle."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from kindling.config.compose import compose
from kindling.records.bundle import open_bundle
from kindling.records.comparison import describe_comparison, side_by_side
from kindling.records.folder import Run
from kindling.records.labels import write_labels
from kindling.records.loading import open_trained
from kindling.training.fit import fit
from kindling.training.reproduction import reproduce
from tests.helpers.bundles import RECIPE, rewritten
from tests.helpers.commands import SMALL, Command
from tests.helpers.runs import ended


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """The last two are the same."""
    base = tmp_path_factory.mktemp("difference")
    overrides: list[tuple[str, ...]] = [("model.hidden_sizes=[8]",), ("optimizer.lr=0.1",), (), ()]
    return [fit(compose(*SMALL, *own), base / str(n)) for n, own in enumerate(overrides)]


def test_settings_and_metrics_side_by_side(runs: list[Run]) -> None:
    text = side_by_side([run.folder for run in runs[:3]])
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    assert rows["model.hidden_sizes"] == ["[8]", "[32]", "[32]"]
    assert rows["optimizer.lr"][1] == "0.1"
    assert "seed" not in rows
    assert rows["test/acc"] == [f"{run.result['test/acc']:.2%}" for run in runs[:3]]
    assert rows["parameters"] == [f"{run.result['parameters']:,}" for run in runs[:3]]
    assert rows["status"] == ["finished"] * 3


def test_distances(runs: list[Run]) -> None:
    _, first, second, third = (run.folder for run in runs)
    states = [open_trained(folder).model.state_dict() for folder in (first, second)]
    furthest = max(
        (a - b).abs().max().item() for a, b in zip(*(s.values() for s in states), strict=True)
    )
    text = side_by_side([first, second, third])
    assert f"{first} and {second}: the best weights differ by at most {furthest:.2g};" in text
    assert side_by_side([second, third]).endswith(
        "identical, history and best weights, bit for bit"
    )
    assert "settings: the same" in side_by_side([second, third])
    assert "best weights have other shapes" in side_by_side([runs[0].folder, first])


def test_the_same_weights_with_another_history(runs: list[Run], tmp_path: Path) -> None:
    other = Run(shutil.copytree(runs[2].folder, tmp_path / "run"))
    last = other.history[-1]
    other.write_history([*other.history[:-1], {**last, "val/loss": (last["val/loss"] or 0) + 0.25}])
    text = side_by_side([runs[2].folder, other.folder])
    told = "the best weights differ by at most 0; the histories differ by at most 0.25"
    assert text.endswith(told)
    write_labels(other.folder, name="later")
    assert f"{runs[2].folder} and later: {told}" in side_by_side([runs[2].folder, other.folder])


def test_a_run_without_weights(runs: list[Run], tmp_path: Path) -> None:
    failed = ended(tmp_path / "failed", None, status="failed")
    failed.remove_checkpoints(but_best=False)
    text = side_by_side([runs[2].folder, failed.folder])
    assert text.endswith("one has no weights; the histories have other epochs")
    assert torch.is_tensor(open_trained(runs[2].folder).model.state_dict()["layers.0.weight"])


def test_a_run_is_repeated_bit_for_bit(bundle: Path, tmp_path: Path) -> None:
    found = reproduce(open_bundle(bundle, tmp_path / "opened"), tmp_path / "again")
    assert found.identical
    assert found.agrees
    assert found.metrics["test/acc"] == (found.original.result["test/acc"],) * 2
    assert "identical" in describe_comparison(found)
    assert "environment: the same" in describe_comparison(found)
    there, here = found.metrics["test/acc"]
    assert there == here is not None
    assert describe_comparison(found).splitlines()[4].split() == [
        "test/acc",
        f"{there:.2%}",
        f"{here:.2%}",
    ]


@pytest.mark.parametrize(("off", "agrees"), [(0.004, True), (0.006, False)])
def test_differences_are_reported(
    off: float, agrees: bool, bundle: Path, original: Run, tmp_path: Path
) -> None:
    other = fit(compose(*RECIPE, "seed=1"), tmp_path / "other")
    result = original.result
    result["versions"]["torch"] = "2.0.0"
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
    assert ("torch", "2.0.0", here) in found.environment
    assert found.agrees == agrees
    verdict = "close" if agrees else "NOT reproduced"
    assert f"{verdict}: best weights differ by" in describe_comparison(found)


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
