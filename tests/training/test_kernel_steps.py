"""Runs by the CUDA kernel, which is simulated on the CPU, against runs by closed form."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from src.benchmarks.crashes import fingerprint
from src.config.compose import compose
from src.models import step_choice
from src.models.step_choice import StepChoice
from src.native.kernel import KernelError
from src.runs.folder import Run
from src.training import fit as fit_module
from src.training import kernel_steps
from src.training.fit import fit, fit_stack
from tests.helpers import simulated_kernel
from tests.helpers.commands import SMALL
from tests.helpers.kills import Killed, die_after_writing, position
from tests.helpers.simulated_kernel import needs_compiler
from tests.helpers.weights import weights

pytestmark = needs_compiler
TOLD = "batches run without the CUDA kernel"
Launch = Callable[..., None]


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`trainer.step=auto` chooses the kernel, as on a GPU; a simulation is started instead."""
    choose = step_choice.choose_step

    def chosen(configs: Any, *others: Any) -> StepChoice:
        return (
            StepChoice("kernel") if configs[0].trainer.step == "auto" else choose(configs, *others)
        )

    monkeypatch.setattr(fit_module, "choose_step", chosen)
    monkeypatch.setattr(kernel_steps, "launch", simulated_kernel.launch)


def distance(run: Run, other: Run) -> float:
    a, b = weights(run), weights(other)
    return max((a[name] - b[name]).abs().max().item() for name in a)


RECIPES: dict[str, tuple[str, ...]] = {
    "bytes": (),
    "logistic regression": ("model=logistic_regression",),
    "two layers": ("model.hidden_sizes=[20,12]", "model.activation=tanh"),
    "schedule": ("scheduler=onecycle", "trainer.label_smoothing=0.1", "model.activation=gelu"),
    "floats": ("data=synthetic", "data.samples=300", "data.shape=[19]", "data.batch_size=64"),
    "the last batch": ("data.batch_size=77",),
    "folds": ("data.folds=3", "data.fold=1"),
    "augmented": ("augmentation=digits",),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_is_that_of_the_closed_form(recipe: str, on_a_gpu: None, tmp_path: Path) -> None:
    common = (*SMALL, "optimizer.lr=0.2", *RECIPES[recipe])
    run = fit(compose(*common), tmp_path / "run")
    other = fit(compose(*common, "trainer.step=closed_form"), tmp_path / "other")
    assert (run.result["step"], other.result["step"]) == ("kernel", "closed_form")
    assert TOLD not in run.log_file.read_text()
    assert distance(run, other) < 1e-4
    for row, expected in zip(run.history, other.history, strict=True):
        for name in ("lr", "train/loss", "train/acc", "val/loss", "val/acc"):
            assert row[name] == pytest.approx(expected[name], abs=2e-3)


def test_a_stack_is_its_single_runs(on_a_gpu: None, tmp_path: Path) -> None:
    """To the last bit, whatever the widths and seeds of the others are."""
    configs = [
        compose(*SMALL, f"optimizer.lr={rate}", f"model.hidden_sizes={width}", f"seed={seed}")
        for rate, width, seed in ((0.1, 16, 0), (0.2, 24, 0), (0.3, 16, 1), (0.1, 16, 2))
    ]
    runs = fit_stack(configs, [tmp_path / str(n) for n in range(4)], tmp_path / "stack")
    for config, run in zip(configs, runs, strict=True):
        alone = fit(config, tmp_path / "alone" / run.folder.name)
        assert all(value.equal(weights(run)[name]) for name, value in weights(alone).items())


def test_a_killed_run_goes_on(
    on_a_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose(*SMALL, "checkpoint.every_n_steps=5")
    whole = fit(config, tmp_path / "whole")
    die_after_writing(monkeypatch)
    run, seen = Run(tmp_path / "killed"), []
    while not run.result:
        try:
            fit(config, run.folder, resume=True)
        except Killed:
            seen.append(position(run))
    assert {epoch for epoch, batch in seen if batch} == {0, 1}
    assert fingerprint(run) == fingerprint(whole)


def absent(*_: Any) -> None:
    raise KernelError("CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU")


def wrong(shape: Any, arguments: Any, trials: int, device: torch.device) -> None:
    arguments.size -= 1
    simulated_kernel.launch(shape, arguments, trials, device)


@pytest.mark.parametrize(
    ("faulty", "reason"),
    [(absent, "CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU"), (wrong, "its results are off by")],
)
def test_without_a_kernel_the_closed_form_trains(
    faulty: Launch,
    reason: str,
    on_a_gpu: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A kernel that fails or differs at the first batches leaves nothing behind."""
    common = (*SMALL, "model.hidden_sizes=[16]")
    other = fit(compose(*common, "trainer.step=closed_form"), tmp_path / "other")
    monkeypatch.setattr(kernel_steps, "launch", faulty)
    with caplog.at_level(logging.INFO, "src"):
        run = fit(compose(*common), tmp_path / "run")
    assert sum(f"{TOLD}: {reason}" in record.getMessage() for record in caplog.records) == 1
    assert distance(run, other) < 1e-6


def test_a_trial_that_diverges_leaves_the_others(on_a_gpu: None, tmp_path: Path) -> None:
    configs = [compose(*SMALL, f"optimizer.lr={rate}") for rate in (0.05, 1e12)]
    good, bad = fit_stack(configs, [tmp_path / "good", tmp_path / "bad"], tmp_path / "stack")
    assert bad.result["status"] == "diverged"
    assert TOLD not in good.log_file.read_text()
    alone = fit(configs[0], tmp_path / "alone")
    assert all(value.equal(weights(good)[name]) for name, value in weights(alone).items())
