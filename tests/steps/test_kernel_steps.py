"""The CUDA kernel, told without a GPU, and simulated on the CPU against runs by closed form."""

import ctypes
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.crashes import fingerprint
from benchmarks.stacks import Training, configure
from kindling.config.compose import compose
from kindling.models import construct_model
from kindling.native import kernel
from kindling.native.kernel import KernelError, Shape
from kindling.records.folder import Run
from kindling.steps import choice as step_choice
from kindling.steps import kernel as kernel_steps
from kindling.steps.base import StepChoice
from kindling.steps.choice import choose_step
from kindling.steps.closed_form import ClosedFormLearner
from kindling.steps.kernel import (
    MOST_BLOCK_MEMORY,
    block_memory,
    is_trained,
    shape_of,
    warps_of,
    why_no_kernel,
)
from kindling.training import building
from kindling.training.fit import fit, fit_stack
from tests.helpers import simulated_kernel
from tests.helpers.commands import SMALL
from tests.helpers.kills import Killed, die_after_writing, position
from tests.helpers.simulated_kernel import needs_compiler
from tests.helpers.weights import weights


@pytest.fixture(autouse=True)
def h200(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    properties = SimpleNamespace(shared_memory_per_block_optin=232_448)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)
    monkeypatch.setattr(kernel, "why_absent", lambda: "")
    return properties


def model(*overrides: str) -> nn.Module:
    return construct_model(compose(*overrides).model, (784,), 10)


def reason(*overrides: str) -> str:
    return why_no_kernel([compose(*overrides)], [model(*overrides)])


def test_the_tutorials_network_is_trained_by_the_kernel() -> None:
    assert reason() == ""
    assert reason("model=logistic_regression", "trainer.label_smoothing=0.1") == ""
    assert choose_step([compose()], [model()], "cuda") == StepChoice("kernel")
    closed = compose("trainer.step=closed_form")
    assert choose_step([closed], [model()], "cuda") == StepChoice("closed_form")
    why = "the kernel and CUDA graphs do not exchange gradients, and there are 2 ranks"
    assert choose_step([compose()], [model()], "cuda", 2) == StepChoice("closed_form", why)
    why = "the kernel knows no weights of samples"
    assert choose_step([compose()], [model()], "cuda", weighted=True) == StepChoice(
        "closed_form", why
    )


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("trainer.precision=bf16-mixed", "trainer.precision=bf16-mixed"),
        ("trainer.accumulate_grad_batches=2", "trainer.accumulate_grad_batches"),
        ("trainer.gradient_clip_val=1", "trainer.gradient_clip_val"),
        ("trainer.ema_decay=0.9", "trainer.ema_decay"),
        ("trainer.class_weights=balanced", "trainer.class_weights"),
        ("data.loader=workers", "data.loader=workers"),
        ("augmentation=digits", "augmentation"),
        ("optimizer=adam", "optimizer=adam"),
        ("optimizer.momentum=0.9", "optimizer.momentum"),
        ("optimizer.weight_decay=0.1", "optimizer.weight_decay"),
        ("model.dropout=0.1", "model.dropout"),
        ("model.input_dropout=0.1", "model.dropout"),
        ("model.norm=batch", "model.norm"),
        ("model.noise=0.1", "model.noise"),
        ("model.max_norm=1", "model.max_norm"),
    ],
)
def test_the_reason_names_what_stands_in_the_way(override: str, told: str) -> None:
    assert reason(override) == f"the kernel has no {told}"
    choice = choose_step([compose(override)], [model(override)], "cuda")
    assert choice == StepChoice("closed_form", f"the kernel has no {told}")


def test_every_trial_of_a_stack_counts() -> None:
    overrides = ((), ("optimizer.momentum=0.9",), ("model.hidden_sizes=64",))
    configs, models = [compose(*each) for each in overrides], [model(*each) for each in overrides]
    assert why_no_kernel(configs[:2], models[:2]) == "the kernel has no optimizer.momentum"
    assert why_no_kernel(configs[::2], models[::2]).startswith("the largest network takes 291,336")


@pytest.mark.parametrize(
    ("units", "trials", "warps"),
    [
        ((64, 32, 10), 132, 16),  # each trial has a multiprocessor
        ((64, 32, 10), 133, 8),
        ((784, 32, 10), 1000, 16),  # two do not fit into one
    ],
)
def test_trials_share_a_multiprocessor_where_two_fit(
    units: tuple[int, ...], trials: int, warps: int,
    h200: SimpleNamespace, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    h200.multi_processor_count, h200.shared_memory_per_multiprocessor = 132, 233_472
    shape = Shape(units, 100, True, "relu", 0.0)
    assert warps_of(shape, trials) == 16  # without a GPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert warps_of(shape, trials) == warps


def test_what_the_gpu_lacks(h200: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    h200.shared_memory_per_block_optin = 101_376
    assert reason() == (
        "the largest network takes 152,968 bytes of the memory of a thread block with its batch, "
        "and this GPU has 101,376"
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert reason() == "the kernel needs compute capability 8.0, this GPU has 7.5"
    monkeypatch.setattr(kernel, "why_absent", lambda: "cuda.bindings is not installed")
    assert reason() == "cuda.bindings is not installed"


def test_the_memory_of_a_block_is_the_gpus(
    h200: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert block_memory() == 232_448 == MOST_BLOCK_MEMORY
    assert is_trained(compose(), model(), 152_968)
    assert not is_trained(compose(), model(), 152_967)
    assert not is_trained(compose("optimizer.momentum=0.9"), model(), 152_968)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert block_memory() == 0
    monkeypatch.setattr(kernel, "why_absent", lambda: "cuda.bindings is not installed")
    assert block_memory() == 0


def test_the_shape_is_the_models() -> None:
    found = shape_of(model("model.hidden_sizes=[20,30]", "model.activation=tanh"), 64, 0.1)
    assert found == Shape((784, 20, 30, 10), 64, True, "tanh", 0.1)


pytestmark = needs_compiler
TOLD = "batches run without the CUDA kernel"
Launch = Callable[..., None]


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`trainer.step=auto` chooses the kernel, as on a GPU; a simulation is started instead."""
    choose = step_choice.choose_step

    def chosen(configs: Any, *others: Any, **options: Any) -> StepChoice:
        return (
            StepChoice("kernel")
            if configs[0].trainer.step == "auto"
            else choose(configs, *others, **options)
        )

    monkeypatch.setattr(building, "choose_step", chosen)
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
}


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


class Failing:
    """Launches a simulation `good` times, and then raises an error each time."""

    def __init__(self, error: Exception, good: int = 0) -> None:
        self.error, self.left = error, good

    def __call__(self, *arguments: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise self.error
        simulated_kernel.launch(*arguments)


def wrong(shape: Any, arguments: Any, trials: int, device: torch.device) -> None:
    arguments.size -= 1
    simulated_kernel.launch(shape, arguments, trials, device)


@pytest.mark.parametrize(
    ("faulty", "reason"),
    [
        (Failing(KernelError("CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU")), "CUresult.CUDA_ERROR_NO_B"),
        (Failing(RuntimeError("libnvrtc.so is missing")), "RuntimeError: libnvrtc.so is missing"),
        (wrong, "its results are off by"),
    ],
)
def test_without_a_kernel_the_closed_form_trains(
    faulty: Launch,
    reason: str,
    on_a_gpu: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A kernel that fails or differs at the first batches leaves nothing behind, and the result
    tells what trained."""
    common = (*SMALL, "model.hidden_sizes=[16]")
    other = fit(compose(*common, "trainer.step=closed_form"), tmp_path / "other")
    monkeypatch.setattr(kernel_steps, "launch", faulty)
    with caplog.at_level(logging.INFO, "kindling"):
        run = fit(compose(*common), tmp_path / "run")
    assert sum(f"{TOLD}: {reason}" in record.getMessage() for record in caplog.records) == 1
    assert distance(run, other) < 1e-6
    assert run.result["step"] == "closed_form"
    assert str(run.result["step_reason"]).startswith(reason)
    assert f"closed form ({reason}" in run.log_file.read_text()


def libraries_of_cuda() -> list[Exception]:
    """What cuda.bindings raises here, where there is no driver, and without its NVRTC."""
    pathfinder = pytest.importorskip("cuda.pathfinder")
    with pytest.raises(Exception) as caught:  # noqa: PT011  # of any type
        pathfinder.load_nvidia_dynamic_lib("none")
    return [caught.value, pathfinder.DynamicLibNotFoundError("Failure finding libnvrtc.so")]


ERRORS: list[Exception] = [
    KernelError("nvrtcResult.NVRTC_ERROR_COMPILATION: no such macro"), RuntimeError("no driver"),
    RuntimeError(), ImportError("libcuda.so.1"), ModuleNotFoundError("No module named 'cuda'"),
    OSError("cannot open shared object file"), PermissionError(13, "Permission denied"),
    AttributeError("no cuLaunchKernel"), TypeError("takes 3 arguments"), ValueError("sm_999"),
    KeyError("train"), IndexError("list index out of range"), AssertionError(), MemoryError(),
    NotImplementedError("on this system"), ctypes.ArgumentError("argument 1"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), SystemError("NULL result"),
    torch.OutOfMemoryError("CUDA out of memory"), StopIteration(), *libraries_of_cuda(),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_no_failure_of_the_kernel_ends_a_run(error: Exception, on_a_gpu: None) -> None:
    """At the check and at a later block; of the first segment of a stack and of the second, when
    the first is trained already."""
    widths = ("model.hidden_sizes=5", "model.hidden_sizes=9")

    def trained(epochs: int, *more: str) -> tuple[StepChoice, list[torch.Tensor]]:
        overrides = (
            "data=synthetic", "data.samples=150", "data.shape=[6]", "data.batch_size=16",
            "optimizer.lr=0.1", "trainer.steps_per_call=3", *more,
        )  # fmt: skip
        _, data = configure(*overrides)
        training = Training(data, [compose(*overrides, width) for width in widths])
        for _ in range(epochs):
            training.epoch()
        assert isinstance(training.learner, ClosedFormLearner)
        return training.step, [*training.learner.stack.parameters]

    _, expected = trained(2, "trainer.step=closed_form")
    for good in (0, 1, 2, 3, 6):  # a launch of each segment at the check, then in each block
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel_steps, "launch", Failing(error, good))
            step, found = trained(2)
        assert step.kind == "closed_form"
        assert (str(error).splitlines() or [type(error).__name__])[0][:200] in step.reason
        assert isinstance(error, KernelError) or type(error).__name__ in step.reason
        for value, other in zip(found, expected, strict=True):
            torch.testing.assert_close(value, other, atol=0 if good < 4 else 1e-5, rtol=0)


@pytest.mark.slow
def test_a_run_whose_kernel_failed_goes_on_by_closed_form(
    on_a_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, also where the kernel would work again. The result keeps the cause."""
    config = compose(*SMALL, "checkpoint.every_n_steps=5")
    monkeypatch.setattr(kernel_steps, "launch", Failing(OSError("busy"), 1))
    whole = fit(config, tmp_path / "whole")
    assert whole.result["step_reason"] == "OSError: busy"
    monkeypatch.setattr(kernel_steps, "launch", Failing(OSError("busy"), 1))
    die_after_writing(monkeypatch)
    run = Run(tmp_path / "killed")
    for _ in range(100):
        try:
            fit(config, run.folder, resume=True)
            break
        except Killed:
            monkeypatch.setattr(kernel_steps, "launch", simulated_kernel.launch)
    assert run.result["step"] == "closed_form"
    assert run.result["step_reason"] == "OSError: busy"
    assert fingerprint(run) == fingerprint(whole)


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 5])
def test_another_machine_without_a_kernel_goes_on(
    every: int, on_a_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks have another size, and all samples of the epoch are trained on once."""
    config = compose(*SMALL, f"checkpoint.every_n_steps={every}")
    whole = fit(config, tmp_path / "whole")
    die_after_writing(monkeypatch)
    run, reason = Run(tmp_path / "killed"), "this GPU has 99"
    with pytest.raises(Killed):
        fit(config, run.folder)
    monkeypatch.setattr(building, "choose_step", lambda *_, **__: StepChoice("closed_form", reason))
    while not run.result:
        with suppress(Killed):
            fit(config, run.folder, resume=True)
    assert (run.result["step"], run.result["step_reason"]) == ("closed_form", reason)
    assert (run.result["epochs"], run.result["steps"]) == (2, whole.result["steps"])
    assert distance(run, whole) < 1e-4
    for row, expected in zip(run.history, whole.history, strict=True):
        assert row["train/loss"] == pytest.approx(expected["train/loss"], abs=1e-5)


def test_a_stack_whose_kernel_failed_may_shrink(
    on_a_gpu: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """When a trial ends, the others go on by closed form, and the failure is told once."""
    configs = [compose(*SMALL, "trainer.max_epochs=3", f"optimizer.lr={r}") for r in (0.05, 1e12)]
    monkeypatch.setattr(kernel_steps, "launch", Failing(OSError("busy")))
    with caplog.at_level(logging.INFO, "kindling"):
        good, bad = fit_stack(configs, [tmp_path / "good", tmp_path / "bad"], tmp_path / "stack")
    assert bad.result["status"] == "diverged"
    assert good.result["step_reason"] == "OSError: busy"
    assert sum(TOLD in record.getMessage() for record in caplog.records) == 1
    alone = fit(
        compose(*SMALL, "trainer.max_epochs=3", "optimizer.lr=0.05", "trainer.step=closed_form"),
        tmp_path / "alone",
    )
    assert distance(good, alone) < 1e-6


@pytest.mark.slow
def test_a_trial_that_diverges_leaves_the_others(on_a_gpu: None, tmp_path: Path) -> None:
    configs = [compose(*SMALL, f"optimizer.lr={rate}") for rate in (0.05, 1e12)]
    good, bad = fit_stack(configs, [tmp_path / "good", tmp_path / "bad"], tmp_path / "stack")
    assert bad.result["status"] == "diverged"
    assert TOLD not in good.log_file.read_text()
    alone = fit(configs[0], tmp_path / "alone")
    assert all(value.equal(weights(good)[name]) for name, value in weights(alone).items())
