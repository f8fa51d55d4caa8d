"""Learning rates against torch's schedulers."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
)

from kindling.config import registry
from kindling.config.compose import compose
from kindling.config.measures import sort_key
from kindling.config.section import SchedulerSection
from kindling.steps.schedule import Schedule
from kindling.system.errors import InputError
from kindling.training.fit import fit, fit_stack
from tests.helpers.commands import SMALL
from tests.helpers.kills import Killed


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
def test_schedules_equal_those_of_torch(
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
def test_one_cycle_in_a_run_of_few_steps(pct_start: float, steps: int) -> None:
    """The peak may lie on step 0: pct_start · steps = 1."""
    chosen = compose("scheduler=onecycle", f"scheduler.pct_start={pct_start}").scheduler
    rates = [Schedule(chosen, 0.5, 1, steps)(step) for step in range(steps)]
    assert all(0 < rate <= 0.5 for rate in rates)
    if pct_start * steps == 1:
        assert rates == sorted(rates, reverse=True)
        assert rates[0] == 0.5


@pytest.mark.parametrize("scheduler", ["none", "multistep", "cosine"])
def test_warm_up_is_linear(scheduler: str) -> None:
    chosen = compose(f"scheduler={scheduler}", "scheduler.warmup_epochs=1.5").scheduler
    plain = compose(f"scheduler={scheduler}").scheduler
    warm, cold = Schedule(chosen, 0.3, 8, 10), Schedule(plain, 0.3, 8, 10)
    factors = [warm(step) / cold(step) for step in range(80)]
    assert factors == pytest.approx([min(1, (step + 1) / 15) for step in range(80)])


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("seed", range(8))
def test_plateaus_are_those_of_torch(mode: Literal["max", "min"], seed: int) -> None:
    """For random values, of which some are almost equal, equal, or no number."""
    draw = random.Random(seed)
    monitor = "val/acc" if mode == "max" else "val/loss"
    patience, factor, lowest = draw.randint(0, 3), draw.choice([0.1, 0.5]), draw.choice([0, 0.01])
    values = [draw.choice([draw.random(), 0.5, 0.50004, 0.4999, math.nan]) for _ in range(60)]
    chosen = compose(
        "scheduler=plateau", f"scheduler.patience={patience}", f"scheduler.factor={factor}",
        f"scheduler.min_lr={lowest}",
    ).scheduler  # fmt: skip
    seen: list[float] = []
    schedule = Schedule(chosen, 0.5, 61, 2)
    schedule.sort_keys = lambda: seen
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    torchs = ReduceLROnPlateau(
        optimizer, mode, factor, patience, min_lr=lowest, eps=0.0  # torch ignores changes below eps
    )  # fmt: skip
    for epoch, value in enumerate(values):
        assert schedule(2 * epoch) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        seen.append(sort_key(monitor, value))
        torchs.step(value)
    assert schedule(10) == schedule(11)  # what comes later changes no earlier rate


@pytest.mark.slow
def test_a_run_follows_its_own_plateaus(tmp_path: Path) -> None:
    """Each trial of a stack its own; a run that is killed and resumed has the same rates."""
    common = (*SMALL, "scheduler=plateau", "scheduler.patience=0", "scheduler.factor=0.5",
              "trainer.max_epochs=8", "checkpoint.every_n_epochs=1")  # fmt: skip
    configs = [compose(*common, f"optimizer.lr={lr}") for lr in (1.0, 2.0)]
    runs = fit_stack(configs, [tmp_path / str(n) for n in range(2)], tmp_path / "stack")
    for config, run in zip(configs, runs, strict=True):
        rate, best, expected = config.optimizer.lr, -math.inf, []
        for row in run.history[1:]:
            expected.append(rate)
            better = float(row["val/acc"] or 0) > best * (1 + 1e-4)
            best, rate = (float(row["val/acc"] or 0), rate) if better else (best, rate / 2)
        assert [row["lr"] for row in run.history[1:]] == pytest.approx(expected)
        alone = fit(config, run.folder.with_name(f"alone{run.folder.name}"))
        assert [r["lr"] for r in alone.history] == [r["lr"] for r in run.history]
        assert len({row["lr"] for row in run.history[1:]}) > 1
    killed = tmp_path / "killed"
    with pytest.raises(Killed):
        fit(configs[1], killed, callbacks=[KillAfter(4)])
    resumed = fit(configs[1], killed, resume=True)
    names = ("lr", "train/loss", "val/loss")
    assert [[row[n] for n in names] for row in resumed.history] == [
        [row[n] for n in names] for row in runs[1].history
    ]


class KillAfter(Callback):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == self.epoch:
            raise Killed


@pytest.mark.parametrize("rate", [0, 0.5, np.float32(0.5), np.array(0.5), torch.tensor([0.5])])
def test_a_rate_of_an_extension_is_any_number(rate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = own_rate(rate, monkeypatch)
    assert (found, type(found)) == (float(rate), float)


@pytest.mark.parametrize("rate", [None, "much", -1.0, torch.nan, math.inf, [0.1], torch.ones(2)])
def test_other_rates_of_an_extension_are_refused(
    rate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = r"^scheduler=halves: mine:rate returned .* for epoch 0 of 3, must return a number of 0"
    with pytest.raises(InputError, match=told):
        own_rate(rate, monkeypatch)


def own_rate(rate: Any, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setitem(registry.PLACES, ("scheduler", "halves"), "mine:rate")
    monkeypatch.setattr(registry, "resolve", lambda *_: lambda *_: rate)
    config = SchedulerSection.model_construct(name="halves", warmup_epochs=0)
    return Schedule(config, 0.1, 3, 2)(0)  # type: ignore[arg-type]
