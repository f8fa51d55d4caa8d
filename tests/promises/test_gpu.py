"""What needs a CUDA GPU: `make gpu-check` runs these, elsewhere they are skipped."""

from pathlib import Path

import pytest
import torch

from src.benchmarks.crashes import fingerprint
from src.config.compose import compose
from src.runs.folder import Run
from src.training.fit import fit, fit_stack
from tests.helpers.weights import weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

ON_GPU = ("data=digits", "trainer.accelerator=cuda", "trainer.max_epochs=4", "optimizer.lr=0.05")
RECIPES = {
    "sgd": (),
    "momentum": ("optimizer.momentum=0.9", "optimizer.lr=0.01"),
    "adam": ("optimizer=adam", "optimizer.lr=0.001"),
    "adamw": ("optimizer=adamw", "optimizer.lr=0.001"),
    "onecycle": ("scheduler=onecycle",),
    "accumulated": ("trainer.accumulate_grad_batches=11", "data.drop_last=true"),
    "clipped": ("trainer.gradient_clip_val=0.1",),
    "bf16": ("trainer.precision=bf16-mixed",),
    "double": ("trainer.precision=64",),
}


def distance(run: Run, other: Run) -> float:
    a, b = weights(run), weights(other)
    return max(
        ((a[name] - b[name]).abs().max() / b[name].abs().max().clamp(min=1e-3)).item() for name in a
    )


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_graph_is_its_eager_run(recipe: str, tmp_path: Path) -> None:
    graph = fit(compose(*ON_GPU, *RECIPES[recipe]), tmp_path / "graph")
    eager = fit(compose(*ON_GPU, *RECIPES[recipe], "trainer.cuda_graph=false"), tmp_path / "eager")
    assert "batches run without CUDA graphs" not in graph.log_file.read_text()
    assert distance(graph, eager) < (2e-2 if recipe == "bf16" else 1e-4)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_gpu_is_a_cpu(recipe: str, tmp_path: Path) -> None:
    gpu = fit(compose(*ON_GPU, *RECIPES[recipe]), tmp_path / "gpu")
    cpu = fit(compose(*ON_GPU, *RECIPES[recipe], "trainer.accelerator=cpu"), tmp_path / "cpu")
    assert distance(gpu, cpu) < (5e-2 if recipe == "bf16" else 5e-3)


@pytest.mark.parametrize("setting", ["model.dropout=0.5", "model.noise=0.3"])
def test_a_graph_draws_random_numbers_anew(setting: str, tmp_path: Path) -> None:
    """With the same masks in every replay half of the units would never be trained."""
    run = fit(compose(*ON_GPU, setting), tmp_path / "run")
    assert "batches run without CUDA graphs" not in run.log_file.read_text()
    assert 0.5 < (run.result["best"]["val/acc"] or 0) <= 1


def test_a_stack_is_its_single_runs(tmp_path: Path) -> None:
    configs = [
        compose(*ON_GPU, f"optimizer.lr={rate}", f"model.hidden_sizes={width}", f"seed={seed}")
        for rate, width, seed in ((0.05, 16, 0), (0.1, 24, 0), (0.1, 16, 1))
    ]
    runs = fit_stack(configs, [tmp_path / str(n) for n in range(3)], tmp_path / "stack")
    for config, run in zip(configs, runs, strict=True):
        assert distance(run, fit(config, tmp_path / "solo" / run.folder.name)) < 1e-3


def test_half_precision_scales_its_gradients(tmp_path: Path) -> None:
    half = fit(compose(*ON_GPU, "trainer.precision=16-mixed"), tmp_path / "half")
    full = fit(compose(*ON_GPU), tmp_path / "full")
    assert half.result["step"] == "autograd"
    assert half.result["best"]["val/acc"] == pytest.approx(full.result["best"]["val/acc"], abs=0.05)


def test_a_resumed_run_is_bit_identical(tmp_path: Path) -> None:
    dropped = (*ON_GPU, "model.dropout=0.3", "trainer.deterministic=true")
    whole = fit(compose(*dropped), tmp_path / "whole")
    fit(compose(*dropped, "trainer.max_epochs=2"), tmp_path / "run")
    run = fit(compose(*dropped), tmp_path / "run", resume=True)
    assert fingerprint(run) == fingerprint(whole)


def test_memory_of_the_gpu_is_reported(tmp_path: Path) -> None:
    result = fit(compose(*ON_GPU), tmp_path / "run").result
    assert 0 < result["peak_gpu_allocated_bytes"] <= result["peak_gpu_reserved_bytes"]
    assert 0 <= (result["gpu_utilisation"] or 0) <= 100
    assert result["hardware"]["gpu"] == torch.cuda.get_device_name()


def test_out_of_memory_and_the_largest_batch(tmp_path: Path) -> None:
    run = fit(compose(*ON_GPU, "data.batch_size=auto"), tmp_path / "run")
    assert run.config.data.batch_size == 1024  # of 1150 digits all fit


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_gpus_are_one(strategy: str, tmp_path: Path) -> None:
    even = (*ON_GPU, "data.drop_last=true")
    both = ("trainer.devices=2", f"trainer.strategy={strategy}")
    one = fit(compose(*even, "data.batch_size=100"), tmp_path / "one")
    two = fit(compose(*even, "data.batch_size=50", *both), tmp_path / "two")
    assert distance(two, one) < 1e-3
