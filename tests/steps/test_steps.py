"""Compares our steps with a plain torch loop, and the closed form with autograd."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch._inductor.utils import fresh_cache
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer

from kindling.config.compose import compose
from kindling.data.loader import Block, SeededOrder
from kindling.data.sources.digits import digits
from kindling.data.sources.source import split_off_validation
from kindling.models.mlp import Mlp
from kindling.records import checkpoint
from kindling.steps.autograd import AutogradLearner
from kindling.steps.base import StepPlan
from kindling.steps.lanes import Lanes
from kindling.steps.schedule import Schedule
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.blocks import BATCHES, block, model
from tests.helpers.commands import SMALL, Train
from tests.helpers.steps import FAST, STEPS
from tests.helpers.tasks import classes
from tests.helpers.weights import same, weights

Weights = dict[str, Tensor]


def by_hand(
    epochs: int,
    make_optimizer: Callable[[list[nn.Parameter]], Optimizer],
    *,
    accumulate: int = 1,
    clip: float | None = None,
    rate: Callable[[int], float] | None = None,
    autocast_dtype: torch.dtype | None = None,
    weight: Tensor | None = None,
    smoothing: float = 0.0,
) -> Mlp:
    """Trains 784-32-10 on the digits, with batch size 100 and seed 0, as a tutorial would."""
    source = digits()
    train, _ = split_off_validation(source.train, 0.2, seed=0)
    torch.manual_seed(0)
    model = Mlp(784, [32], 10)
    cross_entropy = nn.CrossEntropyLoss(weight, label_smoothing=smoothing)
    optimizer = make_optimizer(list(model.parameters()))
    for epoch in range(epochs):
        batches = torch.split(SeededOrder(0)(epoch, len(train)), 100)
        for group in optimizer.param_groups if rate else []:
            group["lr"] = rate(epoch) if rate else None
        for number, batch in enumerate(batches, 1):
            with torch.autocast("cpu", autocast_dtype, enabled=autocast_dtype is not None):
                loss = cross_entropy(model(train.features[batch]), train.labels[batch])
            (loss / accumulate).backward()
            if number % accumulate == 0 or number == len(batches):
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
    return model


CLASS_WEIGHTS = [1.0, 0.1, 2.0, 5.0, 1.0, 0.5, 1.0, 30.0, 1.0, 4.0]
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "sgd": (["optimizer.lr=0.1"], {"make_optimizer": lambda p: SGD(p, 0.1)}),
    "momentum": (
        [
            "optimizer.lr=0.05",
            "optimizer.momentum=0.9",
            "optimizer.nesterov=true",
            "optimizer.weight_decay=0.001",
        ],
        {"make_optimizer": lambda p: SGD(p, 0.05, 0.9, nesterov=True, weight_decay=0.001)},
    ),
    "adam": (
        ["optimizer=adam", "optimizer.weight_decay=0.01"],
        {"make_optimizer": lambda p: Adam(p, 0.001, weight_decay=0.01)},
    ),
    "adamw": (
        ["optimizer=adamw"],
        {"make_optimizer": lambda p: AdamW(p, 0.001, weight_decay=0.01)},
    ),
    "clipping": (
        ["optimizer.lr=0.5", "trainer.gradient_clip_val=0.1"],
        {"make_optimizer": lambda p: SGD(p, 0.5), "clip": 0.1},
    ),
    "accumulation": (
        ["optimizer.lr=0.5", "trainer.accumulate_grad_batches=5"],
        {"make_optimizer": lambda p: SGD(p, 0.5), "accumulate": 5},
    ),
    "schedule": (
        ["scheduler=multistep", "scheduler.milestones=[1]", "scheduler.gamma=0.1"],
        {"make_optimizer": lambda p: SGD(p, 0.5), "rate": lambda epoch: 0.05 if epoch else 0.5},
    ),
    "class weights": (
        ["optimizer.lr=0.1", f"trainer.class_weights={CLASS_WEIGHTS}"],
        {"make_optimizer": lambda p: SGD(p, 0.1), "weight": torch.tensor(CLASS_WEIGHTS)},
    ),
    "class weights, smoothed and accumulated": (
        [
            "optimizer.lr=0.1",
            "trainer.accumulate_grad_batches=5",
            "trainer.label_smoothing=0.2",
            f"trainer.class_weights={CLASS_WEIGHTS}",
        ],
        {
            "make_optimizer": lambda p: SGD(p, 0.1),
            "accumulate": 5,
            "weight": torch.tensor(CLASS_WEIGHTS),
            "smoothing": 0.2,
        },
    ),
    "bf16": (
        ["optimizer.lr=0.1", "trainer.precision=bf16-mixed"],
        {"make_optimizer": lambda p: SGD(p, 0.1), "autocast_dtype": torch.bfloat16},
    ),
    "bf16, class weights": (
        [
            "optimizer.lr=0.1",
            "trainer.precision=bf16-mixed",
            "trainer.label_smoothing=0.2",
            f"trainer.class_weights={CLASS_WEIGHTS}",
        ],
        {
            "make_optimizer": lambda p: SGD(p, 0.1),
            "autocast_dtype": torch.bfloat16,
            "weight": torch.tensor(CLASS_WEIGHTS),
            "smoothing": 0.2,
        },
    ),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("case", CASES)
def test_a_run_equals_a_plain_loop(case: str, step: str, train: Train) -> None:
    overrides, options = CASES[case]
    if "bf16" in case and step == "native":
        pytest.skip("the engine has no 16-bit products")
    if case != "schedule":
        overrides = ["scheduler=none", *overrides]
    expected = by_hand(2, **options).state_dict()
    run = train(f"trainer.step={step}", *overrides)
    assert run.result["step"] == step
    trained = weights(run)
    tolerance = 1e-3 if "bf16" in case else 1e-6
    for name, value in expected.items():
        assert torch.allclose(trained[f"model.{name}"], value, rtol=0, atol=tolerance), name


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "overrides",
    [
        # A batch has 364 bytes: without padding, batches would not begin at multiples of 64.
        ["data=synthetic", "data.shape=13", "data.batch_size=7"],
        ["scheduler=onecycle", "trainer.accumulate_grad_batches=3"],
        ["trainer.precision=64", "model.dropout=0.3", "model.input_dropout=0.1"],
        ["model.noise=0.3", "model.norm=batch", "trainer.gradient_clip_val=0.5"],
        ["optimizer=adamw", "trainer.gradient_clip_val=0.5", "data.batch_size=7"],
        ["trainer.class_weights=balanced", "data.sampler=balanced", "data.batch_size=7"],
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


@pytest.mark.slow
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
        train("trainer.deterministic=false")  # the next run of the process
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


COMPILERS = [name for name in ("c++", "g++", "clang++") if shutil.which(name)]


@pytest.mark.slow
@pytest.mark.skipif(not COMPILERS, reason="needs a C++ compiler")
def test_compiled_steps_equal_autograd(tmp_path: Path) -> None:
    """The last batch of an epoch is smaller than the others. A resumed run begins with it."""
    recipe = (*SMALL, "optimizer=adamw", "optimizer.lr=0.01", "model.hidden_sizes=[6]")
    compiled = (*recipe, "trainer.compile=true", "trainer.steps_per_call=11")
    plain = fit(compose(*recipe, "trainer.step=autograd"), tmp_path / "plain")
    whole = fit(compose(*compiled), tmp_path / "whole")
    assert whole.result["step"] == "autograd"  # how the steps were computed
    a, b = weights(plain), weights(whole)
    assert max((a[name] - b[name]).abs().max().item() for name in a) < 1e-5
    every_block = fit(compose(*compiled, "checkpoint.every_n_steps=11"), tmp_path / "run")
    before_last_batch = every_block.checkpoints / "previous.ckpt"
    assert checkpoint.read(before_last_batch)["position"] == {"epoch": 1, "batch": 11}
    before_last_batch.rename(every_block.last_checkpoint)
    every_block.result_file.unlink()
    resumed = fit(compose(*compiled, "checkpoint.every_n_steps=11"), tmp_path / "run", resume=True)
    assert same(resumed, whole)


@pytest.mark.slow
def test_a_missing_compiler_is_reported(tmp_path: Path) -> None:
    with (
        fresh_cache(),  # without code that was compiled before
        inductor.patch("cpp.cxx", (None, "/absent")),
        pytest.raises(InputError, match=r"cannot compile here .*type trainer\.compile=false"),
    ):
        fit(compose(*SMALL, "trainer.compile=true", "model.hidden_sizes=[7]"), tmp_path / "run")


DEEP = "model.hidden_sizes=[24,16]"
SETTINGS: dict[str, tuple[str, ...]] = {
    "batch norm": ("model.norm=batch",),
    "layer norm": ("model.norm=layer", "model.activation=gelu"),
    "batch norm, momentum": ("model.norm=batch", "optimizer.momentum=0.9", "optimizer.lr=0.05"),
    "max norm": ("model.max_norm=0.5",),
    "max norm, adam": ("model.max_norm=0.5", "optimizer=adam", "optimizer.lr=0.01"),
    "label smoothing": ("trainer.label_smoothing=0.2",),
    "class weights": (f"trainer.class_weights={CLASS_WEIGHTS}", "trainer.label_smoothing=0.2"),
    "class weights, clipping": (
        f"trainer.class_weights={CLASS_WEIGHTS}",
        "trainer.gradient_clip_val=0.1",
        "model.norm=layer",
    ),
    "average": ("trainer.ema_decay=0.8", "model.norm=batch"),
    "average, accumulated": ("trainer.ema_decay=0.8", "trainer.accumulate_grad_batches=4"),
    "warm-up": ("scheduler.warmup_epochs=1.5",),
    "layer norm, clipping": ("model.norm=layer", "trainer.gradient_clip_val=0.1"),
}


@pytest.mark.parametrize("step", FAST)
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_fast_step_equals_autograd(setting: str, step: str, tmp_path: Path) -> None:
    """Up to rounding, in float64: last and best weights, statistics, losses of every epoch."""
    common = (*SMALL, DEEP, "optimizer.lr=0.1", "trainer.precision=64", *SETTINGS[setting])
    slow = fit(compose(*common, "trainer.step=autograd"), tmp_path / "slow")
    fast = fit(compose(*common, f"trainer.step={step}"), tmp_path / "fast")
    assert (slow.result["step"], fast.result["step"]) == ("autograd", step)
    for which in ("last", "best"):
        expected, actual = weights(slow, which), weights(fast, which)
        assert expected.keys() == actual.keys()
        for name, value in expected.items():
            assert torch.allclose(actual[name].double(), value.double(), rtol=1e-7, atol=1e-9), name
    for a, b in zip(slow.history, fast.history, strict=True):
        # Row 0 is before training, so it has no training loss.
        for key in ("train/loss", "val/loss") if a["epoch"] else ("val/loss",):
            assert a[key] == pytest.approx(b[key], rel=1e-8)


def test_batch_norm_equals_a_plain_loop(tmp_path: Path) -> None:
    """One epoch by torch: nn.BatchNorm1d, SGD, label smoothing, max norm by torch.renorm."""
    config = compose(
        *SMALL, "trainer.max_epochs=1", "optimizer.lr=0.1", "model.norm=batch",
        "model.max_norm=1.0", "trainer.label_smoothing=0.1", "trainer.precision=64",
    )  # fmt: skip
    run = fit(config, tmp_path / "run")
    torch.manual_seed(0)
    first = nn.Linear(784, 32, bias=False)
    model = nn.Sequential(first, nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)).double()
    train, _ = split_off_validation(digits().train, 0.2, 0)
    order = SeededOrder(0)(0, len(train))
    optimizer = SGD(model.parameters(), 0.1)
    for batch in torch.split(order, 100):
        x, y = train.features[batch].double().flatten(1), train.labels[batch]
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, label_smoothing=0.1).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            first.weight.copy_(torch.renorm(first.weight, 2, 0, 1.0))
    trained = weights(run)
    for name, value in model.state_dict().items():
        assert torch.allclose(trained[f"model.layers.{name}"].double(), value.double(), atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_scaling_the_loss_leaves_no_trace(optimizer: str, blocks: int) -> None:
    """Accumulated, clipped and scaled by a power of two, in blocks of any length: the results equal
    those without the scale."""
    config = compose(f"optimizer={optimizer}", "optimizer.lr=0.1", "scheduler=none")
    step_plan = StepPlan(BATCHES, accumulate=3, clip=0.05)
    schedules = [Schedule(config.scheduler, 0.1, 1, step_plan.steps_per_epoch)]
    results = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**12)):
        net = model()
        learner = AutogradLearner(
            [config], [net], [0], Lanes(), classes(10), SimpleNamespace(scaler=scaler)
        )
        learner.begin(schedules, step_plan)
        whole, size = block(), BATCHES // blocks
        for first in range(0, BATCHES, size):
            learner.train(Block(*(tensor[first : first + size] for tensor in whole[:2])), 0, first)
        results.append([parameter.detach() for parameter in net.parameters()])
    for plain, scaled in zip(*results, strict=True):
        assert torch.allclose(plain, scaled, rtol=1e-6, atol=1e-7)


def test_a_step_that_overflows_is_skipped() -> None:
    config = compose("optimizer.lr=0.1", "scheduler=none")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)  # any loss overflows float32
    net, step_plan = model(), StepPlan(1)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    schedule = Schedule(config.scheduler, 0.1, 1, 1)
    learner = AutogradLearner(
        [config], [net], [0], Lanes(), classes(10), SimpleNamespace(scaler=scaler)
    )
    learner.begin([schedule], step_plan)
    whole = block()
    learner.train(Block(100 * whole.features[:1], whole.labels[:1]), 0, 0)
    for old, new in zip(before, net.parameters(), strict=True):
        assert torch.equal(old, new)
    assert scaler.get_scale() == 2.0**126
