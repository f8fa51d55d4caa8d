"""Two ranks on two CPU cores: real processes, gloo between them."""

from pathlib import Path

import pytest
import torch

from src.composition import compose
from src.errors import InputError
from src.run import Run
from src.training.fit import fit, fit_stack
from tests.conftest import SMALL, Command, Train
from tests.test_training import weights

POINTS = [(0.02, 0), (0.05, 0), (0.02, 1)]
BOTH = ("trainer.devices=2", "trainer.strategy=ddp")


def test_two_ranks_are_one(train: Train) -> None:
    """Half the batch each: the same gradients, so the same weights and the same evaluation."""
    overrides = ["optimizer.lr=0.1", "data.drop_last=true"]
    one = train("data.batch_size=100", *overrides)
    two = train("data.batch_size=50", *overrides, *BOTH)
    a, b = weights(one), weights(two)
    assert max((a[name] - b[name]).abs().max().item() for name in a) < 1e-5
    assert two.result["ranks"] == 2
    assert two.result["steps"] == one.result["steps"]
    for row, other in zip(one.history, two.history, strict=True):
        assert other["val/acc"] == row["val/acc"]  # each sample counted once
        assert other["val/loss"] == pytest.approx(row["val/loss"], abs=1e-5)
        assert other["train/loss"] == pytest.approx(row["train/loss"], abs=1e-5)
        assert other["train/acc"] == pytest.approx(row["train/acc"])
    assert two.result["test/acc"] == one.result["test/acc"]
    assert torch.equal(b["model.layers.0.bias"], weights(two)["model.layers.0.bias"])


def test_two_ranks_train_a_stack(tmp_path: Path) -> None:
    def stack(*overrides: str) -> list[Run]:
        base = (*SMALL, "data.drop_last=true", "optimizer.momentum=0.5", *overrides)
        configs = [compose(*base, f"optimizer.lr={rate}", f"seed={seed}") for rate, seed in POINTS]
        where = tmp_path / str(len(overrides))
        folders = [where / str(number) for number in range(len(configs))]
        return fit_stack(configs, folders, where / "stack")

    for one, two in zip(
        stack("data.batch_size=100"), stack("data.batch_size=50", *BOTH), strict=True
    ):
        a, b = weights(one), weights(two)
        assert max((a[name] - b[name]).abs().max().item() for name in a) < 1e-5
        assert two.result["test/acc"] == one.result["test/acc"]


def test_ranks_stop_together_when_a_run_diverges(tmp_path: Path) -> None:
    config = compose(*SMALL, *BOTH, "optimizer.lr=1e6", "trainer.max_epochs=3")
    result = fit(config, tmp_path / "run").result
    assert (result["status"], result["epochs"]) == ("diverged", 1)


def test_a_fault_in_a_rank_comes_home(tmp_path: Path) -> None:
    config = compose(*SMALL, *BOTH, "data.batch_size=600", "data.drop_last=true")
    with pytest.raises(InputError, match=r"type data\.batch_size=575 or less"):
        fit(config, tmp_path / "run")


def test_ranks_from_the_command_line_in_a_sweep(command: Command, tmp_path: Path) -> None:
    done = command("src.train", "-m", "optimizer.lr=0.1,0.5", *SMALL, "trainer.max_epochs=1", *BOTH)
    assert done.returncode == 0, done.stderr
    (results,) = tmp_path.glob("sweeps/*/*/results.csv")
    assert [line.split(",")[:3] for line in results.read_text().splitlines()] == [
        ["trial", "status", "optimizer.lr"],
        ["0", "finished", "0.1"],
        ["1", "finished", "0.5"],
    ]
    assert len(list(tmp_path.glob("**/history.csv"))) == 2  # no second output tree
    assert done.stdout.count("epoch 1/1") == 2  # rank 0 alone speaks
