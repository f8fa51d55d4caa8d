"""How runs differ."""

import shutil
from pathlib import Path

import pytest
import torch

from src.config.compose import compose
from src.runs.difference import describe
from src.runs.folder import Run
from src.runs.labels import Change, write_labels
from src.runs.loading import open_trained
from src.training.fit import fit
from tests.helpers.commands import SMALL
from tests.helpers.runs import ended


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """The last two are the same."""
    base = tmp_path_factory.mktemp("difference")
    overrides: list[tuple[str, ...]] = [("model.hidden_sizes=[8]",), ("optimizer.lr=0.1",), (), ()]
    return [fit(compose(*SMALL, *own), base / str(n)) for n, own in enumerate(overrides)]


def test_settings_and_metrics_side_by_side(runs: list[Run]) -> None:
    text = describe([run.folder for run in runs[:3]])
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
    text = describe([first, second, third])
    assert f"{first} and {second}: the best weights differ by at most {furthest:.2g};" in text
    assert describe([second, third]).endswith("identical, history and best weights, bit for bit")
    assert "settings: the same" in describe([second, third])
    assert "best weights have other shapes" in describe([runs[0].folder, first])


def test_the_same_weights_with_another_history(runs: list[Run], tmp_path: Path) -> None:
    other = Run(shutil.copytree(runs[2].folder, tmp_path / "run"))
    last = other.history[-1]
    other.write_history([*other.history[:-1], {**last, "val/loss": (last["val/loss"] or 0) + 0.25}])
    text = describe([runs[2].folder, other.folder])
    told = "the best weights differ by at most 0; the histories differ by at most 0.25"
    assert text.endswith(told)
    write_labels(other.folder, Change(name="later"))
    assert f"{runs[2].folder} and later: {told}" in describe([runs[2].folder, other.folder])


def test_a_run_without_weights(runs: list[Run], tmp_path: Path) -> None:
    failed = ended(tmp_path / "failed", None, status="failed")
    failed.remove_checkpoints(but_best=False)
    text = describe([runs[2].folder, failed.folder])
    assert text.endswith("one has no weights; the histories have other epochs")
    assert torch.is_tensor(open_trained(runs[2].folder).model.state_dict()["layers.0.weight"])
