"""When checkpoints are written, and which epoch is the best."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.crashes import fingerprint
from kindling.config.compose import compose
from kindling.inference.evaluation import evaluate_path
from kindling.inference.evaluation import measure as measures_of
from kindling.inference.logits import compute_logits
from kindling.inference.samples import source_of, validation_of
from kindling.records import checkpoint
from kindling.records.checkpoint import CheckpointPair
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.training import checkpoints
from kindling.training.fit import fit, fit_stack
from kindling.training.module import StackModule
from kindling.training.result import summary
from tests.helpers.commands import SMALL, Train
from tests.helpers.grids import grid
from tests.helpers.kills import Killed


def test_monitoring_the_loss_keeps_the_least(train: Train) -> None:
    run = train(
        "trainer.max_epochs=4",
        "optimizer.lr=1.5",
        "scheduler=none",
        "checkpoint.monitor=val/loss",
        "checkpoint.mode=min",
    )
    losses = [float(row["val/loss"] or 0) for row in run.history[1:]]
    assert run.monitored == min(losses)
    saved = torch.load(run.best_checkpoint, weights_only=True)["epoch"]
    assert losses[saved] == min(losses)


@pytest.mark.parametrize(
    ("measure", "step", "rate", "seed"),
    [
        ("f1", "native", 0.5, 1),
        ("precision", "closed_form", 0.5, 1),
        ("recall", "autograd", 1.5, 0),
        ("f1", "autograd", 0.5, 1),
    ],
)
def test_monitoring_a_measure_of_the_classes(
    measure: str, step: str, rate: float, seed: int, train: Train
) -> None:
    """The epoch with the best measure is not the one with the best accuracy."""
    monitor = f"val/{measure}"
    run = train(
        f"checkpoint.monitor={monitor}", f"trainer.step={step}", "trainer.max_epochs=6",
        f"optimizer.lr={rate}", "scheduler=none", f"seed={seed}", "trainer.precision=64",
    )  # fmt: skip
    rows, result = run.history[1:], run.result
    values = [float(row[monitor] or 0) for row in rows]
    best = values.index(max(values))
    accuracies = [float(row["val/acc"] or 0) for row in rows]
    assert best != accuracies.index(max(accuracies))
    assert result["best"]["epoch"] == best + 1
    assert run.monitored == result["best"][monitor] == values[best]  # type: ignore[literal-required]
    assert result["last"][monitor] == values[-1]  # type: ignore[literal-required]
    trained = open_trained(run.folder)
    validation = validation_of(trained, source_of(trained))
    measured = measures_of(compute_logits(trained, validation), validation.labels)
    assert getattr(measured, measure).macro == pytest.approx(values[best], rel=1e-12)
    tested = getattr(evaluate_path(run.folder, None).measures, measure).macro
    assert result[f"test/{measure}"] == pytest.approx(tested, rel=1e-12)  # type: ignore[literal-required]


def test_checkpoints_every_n_epochs(train: Train) -> None:
    run = train("trainer.max_epochs=5", "checkpoint.every_n_epochs=2")
    assert torch.load(run.last_checkpoint, weights_only=True)["epoch"] == 4  # the end, always
    assert torch.load(run.checkpoints / "previous.ckpt", weights_only=True)["epoch"] == 3
    accuracies = [row["val/acc"] for row in run.history[1:]]
    assert run.result["best"]["epoch"] == accuracies.index(run.monitored) + 1


@pytest.mark.parametrize(
    ("write_seconds", "epochs"), [(0.01, [*range(1, 13)]), (0.1, [1, 7, 12]), (1.0, [1, 12])]
)
def test_checkpoints_take_a_fiftieth_of_the_time(
    write_seconds: float, epochs: list[int], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With epochs of a second, by a clock of our own."""
    now, written = [0.0], []
    write, validated = CheckpointPair.write, StackModule.on_validation_epoch_end

    def slow_write(self: CheckpointPair, content: dict[str, Any]) -> None:
        written.append(content["position"]["epoch"])
        write(self, content)
        now[0] += write_seconds

    def end_epoch(self: StackModule) -> None:
        validated(self)
        now[0] += 1

    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(CheckpointPair, "write", slow_write)
    monkeypatch.setattr(StackModule, "on_validation_epoch_end", end_epoch)
    train("trainer.max_epochs=12", "checkpoint.every_seconds=null")
    assert written == epochs


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("every", [1, 2, 3, 9])
@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([0.5, NAN, 0.4, 0.3], 4),
        ([NAN, 0.5, NAN, 0.6], 2),
        ([0.5, INF, -INF, 0.6], 1),
        ([0.3, 0.2, 0.2, NAN], 2),
        ([NAN, NAN, INF, NAN], None),
    ],
)
def test_no_number_at_all_is_never_the_best(
    values: list[float], best: int | None, every: int, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best epoch is that of the weights which are kept and tested, however often the state is
    written."""
    evaluated, given = StackModule._evaluated, iter([1.0, *values])

    def spoilt(self: StackModule, part: str) -> dict[int, dict[str, float]]:
        found = evaluated(self, part)
        return {0: found[0] | {"val/loss": next(given)}} if part == "val" else found

    monkeypatch.setattr(StackModule, "_evaluated", spoilt)
    run = train(
        "trainer.max_epochs=4", "checkpoint.monitor=val/loss", "checkpoint.mode=min",
        f"checkpoint.every_n_epochs={every}",
    )  # fmt: skip
    result = run.result
    assert (result["status"], result["best"]["epoch"]) == ("finished", best)
    assert run.best_checkpoint.exists() == (best is not None)
    if best is None:
        assert (result["test/acc"], math.isnan(run.monitored)) == (None, True)
    else:
        assert run.monitored == values[best - 1]
        assert torch.load(run.best_checkpoint, weights_only=True)["epoch"] == best - 1
        assert evaluate_path(run.folder, None).accuracy == result["test/acc"]
    assert "accuracy" in summary(run) or best is None


def test_checkpoints_hold_primitives_and_tensors_alone(train: Train) -> None:
    content = torch.load(train().best_checkpoint, weights_only=True)
    assert content["kindling"]["shape"] == [1, 28, 28]
    assert json.dumps(content["kindling"])


def test_checkpoints_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block is later than the last one by more than that; the last of an epoch is its end."""
    written = []
    write = CheckpointPair.write

    def noted(self: CheckpointPair, content: dict[str, Any]) -> None:
        written.append((content["position"]["epoch"], content["position"]["batch"]))
        write(self, content)

    monkeypatch.setattr(CheckpointPair, "write", noted)
    blocks = ("trainer.steps_per_call=4", "trainer.max_epochs=1")
    fit(compose(*SMALL, *blocks, "checkpoint.every_seconds=1e-9"), tmp_path / "often")
    assert written == [(0, 4), (0, 8), (0, 11), (1, 0)]
    written.clear()
    fit(compose(*SMALL, *blocks, "checkpoint.every_seconds=null"), tmp_path / "seldom")
    assert written == [(1, 0)]


def test_states_of_a_large_stack_keep_to_a_fiftieth_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stack that would need long to write its state writes none; killed after its last epoch, it
    trains again, to the same bits."""
    configs = grid(["seed=0", "seed=1"], common=("checkpoint.every_seconds=null",))
    written: list[int] = []
    write = CheckpointPair.write

    def noted(self: CheckpointPair, content: dict[str, Any]) -> None:
        written.append(content["position"]["epoch"])
        write(self, content)

    def stack(name: str) -> list[dict[str, str]]:
        folders = [tmp_path / name / number for number in "01"]
        return [fingerprint(run) for run in fit_stack(configs, folders, tmp_path / name / "stack")]

    monkeypatch.setattr(CheckpointPair, "write", noted)
    expected = stack("small")
    assert written in ([1], [1, 2])  # whether another state pays depends on the time
    written.clear()
    monkeypatch.setattr(checkpoints, "UNNOTICED", 0)
    monkeypatch.setattr(checkpoints, "SPEED", 1.0)
    assert stack("large") == expected
    assert written == []
    with monkeypatch.context() as patch:
        patch.setattr(Run, "write_result_text", killed)
        with pytest.raises(Killed):
            stack("killed")
    assert stack("killed") == expected
    assert written == []


def killed(*_: Any) -> None:
    raise Killed


def test_a_trials_files_hold_its_own_weights_alone(tmp_path: Path) -> None:
    """In the memory of a stack, they are views of the weights of all."""
    common = (*SMALL, "trainer.step=closed_form", "model.norm=batch")
    configs = [compose(*common, f"seed={seed}") for seed in range(8)]
    runs = fit_stack(configs, [tmp_path / str(n) for n in range(8)], tmp_path / "stack")
    alone = fit(configs[3], tmp_path / "alone")
    for name in ("best_checkpoint", "last_checkpoint"):
        file, other = getattr(runs[3], name), getattr(alone, name)
        assert abs(file.stat().st_size - other.stat().st_size) < 2000
        weights, expected = (
            checkpoint.read(file)["state_dict"],
            checkpoint.read(other)["state_dict"],
        )
        for key, value in weights.items():
            torch.testing.assert_close(value, expected[key], atol=1e-4, rtol=1e-3)
