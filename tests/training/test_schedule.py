"""Learning rates against torch's schedulers."""

from collections.abc import Callable

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR, OneCycleLR

from src.config.compose import compose
from src.training.schedule import Schedule


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
