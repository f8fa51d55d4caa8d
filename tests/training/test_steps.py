"""Steps, schedules and metrics against plain torch, by their values."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch._inductor.utils import fresh_cache
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR, OneCycleLR
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from src.config.compose import compose
from src.data.loader import SeededOrder
from src.data.sources.digits import digits
from src.data.sources.source import held_out
from src.models.mlp import Mlp
from src.runs import checkpoint
from src.system.errors import InputError
from src.training.fit import fit
from src.training.metrics import EpochMetrics
from src.training.optimizers import Schedule, build_optimizer
from tests.helpers.commands import SMALL, Train
from tests.helpers.weights import same, weights

Weights = dict[str, Tensor]


# --- schedules ---


@pytest.mark.parametrize(
    ("overrides", "build", "per_step"),
    [
        (["scheduler=none"], None, False),
        (
            ["scheduler=multistep", "scheduler.milestones=[2,5]", "scheduler.gamma=0.3"],
            lambda o: MultiStepLR(o, [2, 5], 0.3),
            False,
        ),
        (
            ["scheduler=cosine", "scheduler.eta_min=0.01"],
            lambda o: CosineAnnealingLR(o, 8, 0.01),
            False,
        ),
        (
            ["scheduler=onecycle"],
            lambda o: OneCycleLR(o, 0.5, total_steps=56, cycle_momentum=False),
            True,
        ),
        (
            ["scheduler=onecycle", "scheduler.pct_start=0.5", "scheduler.div_factor=4.0"],
            lambda o: OneCycleLR(
                o, 0.5, total_steps=56, pct_start=0.5, div_factor=4.0, cycle_momentum=False
            ),
            True,
        ),
    ],
)
def test_schedules_are_torchs(
    overrides: list[str], build: Callable[[Optimizer], LRScheduler] | None, per_step: bool
) -> None:
    epochs, steps = 8, 7
    schedule = Schedule(compose(*overrides).scheduler, 0.5, epochs, steps)
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    scheduler = build(optimizer) if build else None
    for step in range(epochs * steps):
        expected = optimizer.param_groups[0]["lr"]
        assert schedule(step) == pytest.approx(expected, rel=1e-12)
        optimizer.step()
        if scheduler and (per_step or (step + 1) % steps == 0) and step + 1 < epochs * steps:
            scheduler.step()
    assert schedule(epochs * steps + 100) == schedule(epochs * steps - 1)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 8, 10])
@pytest.mark.parametrize("pct_start", [0.1, 0.125, 0.2, 0.25, 0.5, 0.99])
def test_the_shortest_cycle_has_rates_too(pct_start: float, steps: int) -> None:
    """Also where the peak lies on step 0: pct_start · steps = 1."""
    chosen = compose("scheduler=onecycle", f"scheduler.pct_start={pct_start}").scheduler
    rates = [Schedule(chosen, 0.5, 1, steps)(step) for step in range(steps)]
    assert all(0 < rate <= 0.5 for rate in rates)
    if pct_start * steps == 1:
        assert rates == sorted(rates, reverse=True)
        assert rates[0] == 0.5


# --- metrics ---


def test_metrics_are_torchmetrics_whatever_the_grouping() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 50, 10), torch.randint(10, (6, 50))
    losses = torch.stack([F.cross_entropy(a, b) for a, b in zip(logits, labels, strict=True)])
    correct = (logits.argmax(-1) == labels).sum(-1)
    both = torch.stack([losses, 2 * losses], 1) * 50, torch.stack([correct, correct // 2], 1)
    values = []
    for groups in ([6], [1] * 6, [2, 1, 3]):
        metrics = EpochMetrics(2)
        for loss, hits in zip(*(torch.split(t, groups) for t in both), strict=True):
            metrics.update(loss, hits, 50 * len(loss))
        values.append(metrics.compute())
    assert values[0] == values[1] == values[2]  # to the last bit
    mean, accuracy = MeanMetric(), MulticlassAccuracy(10, average="micro")
    mean.update(losses)
    accuracy.update(logits.flatten(0, 1), labels.flatten())
    first, second = values[0]
    assert first["loss"] == pytest.approx(mean.compute().item(), rel=1e-6)
    assert first["acc"] == pytest.approx(accuracy.compute().item(), rel=1e-6)
    assert second["loss"] == pytest.approx(2 * first["loss"], rel=1e-6)
    assert second["acc"] == int((correct // 2).sum()) / 300


def test_metrics_weigh_batches_by_their_samples() -> None:
    metrics = EpochMetrics()
    metrics.update(torch.tensor([[4.0], [4.0]]), torch.tensor([[3], [1]]), 8)
    metrics.update(torch.tensor([[12.0]]), torch.tensor([[2]]), 2)
    assert metrics.compute() == [{"loss": 2.0, "acc": 0.6}]


# --- a run against the loop that one would write by hand ---


def by_hand(
    epochs: int,
    optimizer: Callable[[list[nn.Parameter]], Optimizer],
    *,
    accumulate: int = 1,
    clip: float | None = None,
    rate: Callable[[int], float] | None = None,
    lower: torch.dtype | None = None,
) -> Mlp:
    """784-32-10 on the digits, batch 100, seed 0, written as a tutorial would."""
    source = digits()
    train, _ = held_out(source.train, 0.2, seed=0)
    torch.manual_seed(0)
    model = Mlp(784, [32], 10)
    steps = optimizer(list(model.parameters()))
    for epoch in range(epochs):
        batches = torch.split(SeededOrder(0)(epoch, len(train)), 100)
        for group in steps.param_groups if rate else []:
            group["lr"] = rate(epoch) if rate else None
        for number, batch in enumerate(batches, 1):
            with torch.autocast("cpu", lower, enabled=lower is not None):
                loss = F.cross_entropy(model(train.features[batch]), train.labels[batch])
            (loss / accumulate).backward()  # type: ignore[no-untyped-call]
            if number % accumulate == 0 or number == len(batches):
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                steps.step()
                steps.zero_grad()
    return model


CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "sgd": (["optimizer.lr=0.1"], {"optimizer": lambda p: SGD(p, 0.1)}),
    "momentum": (
        [
            "optimizer.lr=0.05",
            "optimizer.momentum=0.9",
            "optimizer.nesterov=true",
            "optimizer.weight_decay=0.001",
        ],
        {"optimizer": lambda p: SGD(p, 0.05, 0.9, nesterov=True, weight_decay=0.001)},
    ),
    "adam": (
        ["optimizer=adam", "optimizer.weight_decay=0.01"],
        {"optimizer": lambda p: Adam(p, 0.001, weight_decay=0.01)},
    ),
    "adamw": (["optimizer=adamw"], {"optimizer": lambda p: AdamW(p, 0.001, weight_decay=0.01)}),
    "clipping": (
        ["optimizer.lr=0.5", "trainer.gradient_clip_val=0.1"],
        {"optimizer": lambda p: SGD(p, 0.5), "clip": 0.1},
    ),
    "accumulation": (
        ["optimizer.lr=0.5", "trainer.accumulate_grad_batches=5"],
        {"optimizer": lambda p: SGD(p, 0.5), "accumulate": 5},
    ),
    "schedule": (
        ["scheduler=multistep", "scheduler.milestones=[1]", "scheduler.gamma=0.1"],
        {"optimizer": lambda p: SGD(p, 0.5), "rate": lambda epoch: 0.05 if epoch else 0.5},
    ),
    "bf16": (
        ["optimizer.lr=0.1", "trainer.precision=bf16-mixed"],
        {"optimizer": lambda p: SGD(p, 0.1), "lower": torch.bfloat16},
    ),
}


@pytest.mark.parametrize("step", ["closed_form", "autograd"])
@pytest.mark.parametrize("case", CASES)
def test_a_run_is_the_loop_by_hand(case: str, step: str, train: Train) -> None:
    overrides, options = CASES[case]
    if case != "schedule":
        overrides = ["scheduler=none", *overrides]
    expected = by_hand(2, **options).state_dict()
    run = train(f"trainer.step={step}", *overrides)
    assert run.result["step"] == step
    found = weights(run)
    tolerance = 1e-3 if case == "bf16" else 1e-6
    for name, value in expected.items():
        assert torch.allclose(found[f"model.{name}"], value, rtol=0, atol=tolerance), name


@pytest.mark.parametrize("step", ["closed_form", "autograd"])
@pytest.mark.parametrize(
    "overrides",
    [
        ["data=synthetic", "data.shape=13", "data.batch_size=7"],  # no batch at an even address
        ["scheduler=onecycle", "trainer.accumulate_grad_batches=3"],
        ["trainer.precision=bf16-mixed", "model.dropout=0.3"],
        ["optimizer=adamw", "trainer.gradient_clip_val=0.5", "data.batch_size=7"],
    ],
)
def test_steps_per_call_change_nothing(overrides: list[str], step: str, train: Train) -> None:
    overrides = [f"trainer.step={step}", *overrides]
    reference = train("trainer.steps_per_call=1", *overrides)
    assert same(reference, train("trainer.steps_per_call=50", *overrides))
    assert same(reference, train("trainer.steps_per_call=5", *overrides))
    assert same(reference, train(*overrides))


def test_progress_and_log_settings_change_nothing(train: Train) -> None:
    quiet = train("model.dropout=0.2")
    loud = train(
        "model.dropout=0.2",
        "trainer.progress_bar=true",
        "trainer.log_every_step=true",
        "logger=tensorboard",
    )
    assert same(quiet, loud)


def test_workers_change_nothing(train: Train) -> None:
    workers = ["data.loader=workers", "data.num_workers=2", "data.persistent_workers=true"]
    assert same(train("model.dropout=0.2"), train("model.dropout=0.2", *workers))


def test_seeds_change_weights_and_order(train: Train) -> None:
    assert same(train("seed=5"), train("seed=5"))
    assert not same(train("seed=5"), train("seed=6"))


def test_double_precision_is_double(train: Train) -> None:
    run = train("trainer.precision=64")
    assert {value.dtype for value in weights(run).values()} == {torch.float64}


def test_deterministic_reaches_torch(train: Train) -> None:
    try:
        train("trainer.deterministic=true")
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_optimizers_are_fused() -> None:
    for name in ("sgd", "adam", "adamw"):
        config = compose(f"optimizer={name}").optimizer
        assert build_optimizer(config, Mlp(4, [3], 2).parameters()).defaults["fused"] is True


COMPILERS = [name for name in ("c++", "g++", "clang++") if shutil.which(name)]


@pytest.mark.skipif(not COMPILERS, reason="needs a C++ compiler")
def test_compiled_steps_are_autograds(tmp_path: Path) -> None:
    """The last batch of an epoch is smaller than the others; a run that goes on meets it first."""
    recipe = (*SMALL, "optimizer=adamw", "optimizer.lr=0.01", "model.hidden_sizes=[6]")
    compiled = (*recipe, "trainer.compile=true", "trainer.steps_per_call=11")
    plain = fit(compose(*recipe, "trainer.step=autograd"), tmp_path / "plain")
    whole = fit(compose(*compiled), tmp_path / "whole")
    assert whole.result["step"] == "autograd"
    a, b = weights(plain), weights(whole)
    assert max((a[name] - b[name]).abs().max().item() for name in a) < 1e-5
    every_block = fit(compose(*compiled, "checkpoint.every_n_steps=11"), tmp_path / "run")
    before_last_batch = every_block.checkpoints / "previous.ckpt"
    assert checkpoint.read(before_last_batch)["position"] == {"epoch": 1, "batch": 11}
    before_last_batch.rename(every_block.last_checkpoint)
    every_block.result_file.unlink()
    resumed = fit(compose(*compiled, "checkpoint.every_n_steps=11"), tmp_path / "run", resume=True)
    assert same(resumed, whole)


def test_no_compiler_is_told(tmp_path: Path) -> None:
    with (
        fresh_cache(),  # else what was compiled before is found
        inductor.patch("cpp.cxx", (None, "/absent")),
        pytest.raises(InputError, match=r"cannot compile here .*type trainer\.compile=false"),
    ):
        fit(compose(*SMALL, "trainer.compile=true", "model.hidden_sizes=[7]"), tmp_path / "run")
