"""What needs a CUDA GPU: `make gpu-check` runs these, elsewhere they are skipped. With
`--accelerator=cpu` they run on a CPU, where they only show that nothing is missing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.crashes import fingerprint
from kindling.config.compose import compose
from kindling.ranks import processes as ranks
from kindling.records.folder import Run
from kindling.steps import cuda_graph
from kindling.system.errors import InputError
from kindling.training.fit import fit, fit_stack
from tests.helpers.kills import Killed, die_after_writing, position
from tests.helpers.weights import weights

pytestmark = pytest.mark.gpu

COMMON = ("data=digits", "trainer.devices=1", "trainer.max_epochs=4", "optimizer.lr=0.05")
CLOSED_FORM, NO_GRAPH = "trainer.step=closed_form", "trainer.cuda_graph=false"
VMAP = ("trainer.step=vmap", "model=cnn", "model.channels=[4,8]", "optimizer.lr=0.01")
TOLD = "batches run without CUDA graphs"
TOLD_OF_KERNEL = "batches run without the CUDA kernel"
RECIPES = {
    "sgd": (),
    "momentum": ("optimizer.momentum=0.9", "optimizer.lr=0.01"),
    "nesterov": ("optimizer.momentum=0.9", "optimizer.lr=0.01", "optimizer.nesterov=true"),
    "adam": ("optimizer=adam", "optimizer.lr=0.001"),
    "adamw": ("optimizer=adamw", "optimizer.lr=0.001"),
    "onecycle": ("scheduler=onecycle",),
    "accumulated": ("trainer.accumulate_grad_batches=11", "data.drop_last=true"),
    "accumulated, unevenly": ("trainer.accumulate_grad_batches=5",),
    "clipped": ("trainer.gradient_clip_val=0.1",),
    "batch norm": ("model.norm=batch", "model.hidden_sizes=[32,16]"),
    "layer norm": ("model.norm=layer", "model.activation=gelu"),
    "max-norm": ("model.max_norm=1.0", "trainer.label_smoothing=0.1"),
    "average": ("trainer.ema_decay=0.9",),
    "augmented": ("augmentation=digits",),
    "balanced": ("trainer.class_weights=balanced", "data.sampler=balanced"),
    "vmap": VMAP,
    "bf16": ("trainer.precision=bf16-mixed",),
    "double": ("trainer.precision=64",),
}
RANDOM = {
    "nothing random": (),
    "dropout": ("model.dropout=0.3", "model.input_dropout=0.1"),
    "noise": ("model.noise=0.3", "model.norm=batch"),
    "augmented": ("augmentation=digits",),
    "autograd": ("trainer.step=autograd", "model.dropout=0.3"),
    "vmap": (*VMAP, "model.dropout=0.3"),
}


@pytest.fixture
def accelerator(pytestconfig: pytest.Config) -> str:
    chosen: str = pytestconfig.getoption("accelerator")
    if chosen == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    return chosen


@pytest.fixture
def here(accelerator: str) -> tuple[str, ...]:
    return (*COMMON, f"trainer.accelerator={accelerator}")


@pytest.fixture
def cuda(accelerator: str) -> None:
    if accelerator != "cuda":
        pytest.skip("cannot be rehearsed")


def distance(run: Run, other: Run) -> float:
    """The largest difference of weights, relative to the largest weight of each tensor."""
    a, b = weights(run), weights(other)
    return max(
        ((a[name] - b[name]).abs().max() / b[name].abs().max().clamp(min=1e-3)).item() for name in a
    )


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_graph_is_its_eager_run(recipe: str, here: tuple[str, ...], tmp_path: Path) -> None:
    overrides = (*here, CLOSED_FORM, *RECIPES[recipe])
    graph = fit(compose(*overrides), tmp_path / "graph")
    eager = fit(compose(*overrides, NO_GRAPH), tmp_path / "eager")
    assert (TOLD in graph.log_file.read_text()) == (recipe == "average" and "cuda" in here[-1])
    assert distance(graph, eager) < (2e-2 if recipe == "bf16" else 1e-4)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_gpu_is_a_cpu(recipe: str, here: tuple[str, ...], tmp_path: Path) -> None:
    gpu = fit(compose(*here, *RECIPES[recipe]), tmp_path / "gpu")
    cpu = fit(compose(*here, *RECIPES[recipe], "trainer.accelerator=cpu"), tmp_path / "cpu")
    assert distance(gpu, cpu) < (5e-2 if recipe == "bf16" else 5e-3)


KERNELS = {
    "bytes": ("data=mnist_or_digits", "data.val_fraction=0.5"),
    "floats": (),
    "logistic regression": ("model=logistic_regression",),
    "deep": ("model.hidden_sizes=[20,30,12]", "model.activation=tanh", "data.batch_size=77"),
    "gelu": ("model.activation=gelu", "trainer.label_smoothing=0.1", "scheduler=onecycle"),
}


@pytest.mark.parametrize("recipe", KERNELS)
def test_the_kernel_is_the_closed_form(
    recipe: str, cuda: None, here: tuple[str, ...], tmp_path: Path
) -> None:
    overrides = (*here, *KERNELS[recipe])
    run = fit(compose(*overrides), tmp_path / "run")
    other = fit(compose(*overrides, CLOSED_FORM), tmp_path / "other")
    assert run.result["step"] == "kernel"
    assert TOLD_OF_KERNEL not in run.log_file.read_text()
    assert distance(run, other) < 1e-3
    for row, expected in zip(run.history, other.history, strict=True):
        assert row["train/loss"] == pytest.approx(expected["train/loss"], abs=1e-3)
        assert row["train/acc"] == pytest.approx(expected["train/acc"], abs=2e-3)


def test_a_stack_of_the_kernel_is_its_single_runs(
    cuda: None, here: tuple[str, ...], tmp_path: Path
) -> None:
    """To the last bit, whatever the others are."""
    configs = [
        compose(*here, f"optimizer.lr={rate}", f"model.hidden_sizes={width}", f"seed={seed}")
        for rate, width, seed in ((0.1, 16, 0), (0.2, 24, 0), (0.3, 16, 1), (0.1, 16, 2))
    ]
    runs = fit_stack(configs, [tmp_path / str(n) for n in range(4)], tmp_path / "stack")
    for config, run in zip(configs, runs, strict=True):
        assert run.result["step"] == "kernel"
        alone = fit(config, tmp_path / "alone" / run.folder.name)
        assert all(value.equal(weights(run)[name]) for name, value in weights(alone).items())


@pytest.mark.parametrize("setting", ["model.dropout=0.5", "model.noise=0.3"])
def test_a_graph_draws_random_numbers_anew(
    setting: str, here: tuple[str, ...], tmp_path: Path
) -> None:
    """With the same masks in every replay half of the units would never be trained."""
    run = fit(compose(*here, setting), tmp_path / "run")
    assert TOLD not in run.log_file.read_text()
    assert 0.5 < (run.result["best"]["val/acc"] or 0) <= 1


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("norm", ["null", "batch", "layer"])
def test_a_stack_is_its_single_runs(
    optimizer: str, norm: str, here: tuple[str, ...], tmp_path: Path
) -> None:
    """Adam divides by gradients that may be as small as their rounding errors, so its trials are
    compared in float64; on a GPU, torch computes the corrections of a single run in float32."""
    precise = optimizer == "adam"
    common = (*here, f"optimizer={optimizer}", f"model.norm={norm}")
    common = (*common, "trainer.precision=64") if precise else common
    configs = [
        compose(*common, f"optimizer.lr={rate}", f"model.hidden_sizes={width}", f"seed={seed}")
        for rate, width, seed in ((0.005, 16, 0), (0.01, 24, 0), (0.01, 16, 1))
    ]
    runs = fit_stack(configs, [tmp_path / str(n) for n in range(3)], tmp_path / "stack")
    for config, run in zip(configs, runs, strict=True):
        alone = fit(config, tmp_path / "solo" / run.folder.name)
        assert distance(run, alone) < (1e-6 if precise else 5e-3)


def test_a_trial_that_diverges_leaves_the_others(here: tuple[str, ...], tmp_path: Path) -> None:
    """Its weights are no numbers, in a replay and without a graph."""
    configs = [compose(*here, CLOSED_FORM, f"optimizer.lr={rate}") for rate in (0.05, 1e12)]
    good, bad = fit_stack(configs, [tmp_path / "good", tmp_path / "bad"], tmp_path / "stack")
    assert bad.result["status"] == "diverged"
    assert TOLD not in good.log_file.read_text()
    assert distance(good, fit(configs[0], tmp_path / "solo")) < 1e-4


def test_half_precision_scales_its_gradients(
    cuda: None, here: tuple[str, ...], tmp_path: Path
) -> None:
    half = fit(compose(*here, "trainer.precision=16-mixed"), tmp_path / "half")
    full = fit(compose(*here), tmp_path / "full")
    assert half.result["step"] == "autograd"
    assert half.result["best"]["val/acc"] == pytest.approx(full.result["best"]["val/acc"], abs=0.05)


@pytest.mark.parametrize("recipe", RANDOM)
def test_killed_within_an_epoch_and_resumed(
    recipe: str, here: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints after half of each epoch and at its end; the same to the last bit."""
    fine = (
        "trainer.deterministic=true",
        "data.batch_size=10",
        "checkpoint.every_n_steps=57",
        "trainer.steps_per_call=57",
    )
    config = compose(*here, *fine, *RANDOM[recipe])
    whole = fit(config, tmp_path / "whole")
    die_after_writing(monkeypatch)
    run, seen = Run(tmp_path / "killed"), set()
    while not run.result:
        try:
            fit(config, run.folder, resume=True)
        except Killed:
            seen.add(position(run))
    assert {epoch for epoch, batch in seen if batch} == {0, 1, 2, 3}
    assert fingerprint(run) == fingerprint(whole)


def test_a_capture_that_fails_changes_nothing(
    cuda: None, here: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped = (*here, "model.dropout=0.3")
    eager, actual = fit(compose(*dropped, NO_GRAPH), tmp_path / "eager"), cuda_graph.capture

    def capture(run: Callable[[], tuple[Tensor, ...]]) -> cuda_graph.Replay:
        def wait() -> tuple[Tensor, ...]:
            outputs = run()
            outputs[0].sum().item()  # CUDA forbids to wait within a capture
            return outputs

        return actual(wait)

    monkeypatch.setattr(cuda_graph, "capture", capture)
    run = fit(compose(*dropped), tmp_path / "run")
    assert TOLD in run.log_file.read_text()
    found, expected = fingerprint(run), fingerprint(eager)
    for part in ("weights", "average", "optimizer", "random", "history"):  # settings differ
        assert found[part] == expected[part]


@pytest.fixture
def little_memory(cuda: None) -> Iterator[None]:
    """256 MiB more than what is in use."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    used = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((used + 256 * 2**20) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_too_little_memory_says_what_to_try(
    little_memory: None, here: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="out of memory") as caught:
        fit(compose(*here, "model.hidden_sizes=[16384,16384]"), tmp_path / "run")
    assert "a smaller model.hidden_sizes than [16384, 16384]" in str(caught.value)
    assert fit(compose(*here), tmp_path / "small").result["status"] == "finished"


def test_memory_of_the_gpu_is_reported(cuda: None, here: tuple[str, ...], tmp_path: Path) -> None:
    result = fit(compose(*here), tmp_path / "run").result
    assert 0 < result["peak_gpu_allocated_bytes"] <= result["peak_gpu_reserved_bytes"]
    assert 0 <= (result["gpu_utilisation"] or 0) <= 100
    assert result["hardware"]["gpu"] == torch.cuda.get_device_name()


def test_the_largest_batch(cuda: None, here: tuple[str, ...], tmp_path: Path) -> None:
    run = fit(compose(*here, "data.batch_size=auto"), tmp_path / "run")
    assert run.config.data.batch_size == 1024  # of 1150 digits all fit


def test_one_rank_exchanges_with_itself(accelerator: str, tmp_path: Path) -> None:
    """By NCCL, whose tensors lie on the GPU."""
    backend = "nccl" if accelerator == "cuda" else "gloo"
    device = torch.device(accelerator, 0) if accelerator == "cuda" else torch.device("cpu")
    file = f"file://{tmp_path}/store"
    dist.init_process_group(backend, file, rank=0, world_size=1)
    try:
        tensor = torch.arange(3.0, device=device)
        ranks.all_reduce(tensor)()
        ranks.all_min(tensor)
        assert tensor.tolist() == [0, 1, 2]
        assert ranks.all_max([3, 1], device) == [3, 1]
        (found,) = ranks.gather({"weights": tensor, "epoch": 1})
        assert found["weights"].device.type == "cpu"
        assert found["weights"].tolist() == [0, 1, 2]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_gpus_are_one(strategy: str, cuda: None, here: tuple[str, ...], tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA GPUs")
    even = (*here, "data.drop_last=true")
    both = ("trainer.devices=2", f"trainer.strategy={strategy}")
    one = fit(compose(*even, "data.batch_size=100"), tmp_path / "one")
    two = fit(compose(*even, "data.batch_size=50", *both), tmp_path / "two")
    assert distance(two, one) < 1e-3
