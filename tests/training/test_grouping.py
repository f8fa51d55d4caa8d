"""Which trials of a sweep train as one stack."""

import pytest

from src.config.schema import Config
from src.training import grouping
from src.training.grouping import plan
from tests.helpers.grids import SEEDS, WIDTHS, grid


def _sizes(configs: list[Config], most: int | None = None) -> list[int]:
    return [len(group.trials) for group in plan(configs, most)]


def test_groups_agree_in_all_but_the_fusible_keys() -> None:
    assert _sizes(grid(WIDTHS, SEEDS, ["optimizer.lr=0.1", "optimizer.lr=0.2"])) == [8]
    assert _sizes(grid(["model.hidden_sizes=[8]", "model.hidden_sizes=[8,8]"], SEEDS)) == [2, 2]
    for axis in (
        ["data.batch_size=10", "data.batch_size=20"],
        ["model.activation=relu", "model.activation=tanh"],
        ["optimizer=sgd", "optimizer=adam"],
        ["scheduler=none", "scheduler=cosine"],
        ["trainer.max_epochs=2", "trainer.max_epochs=3"],
    ):
        groups = plan(grid(axis, SEEDS))
        assert [group.trials for group in groups] == [[0, 1], [2, 3]], axis


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("trainer.precision=16-mixed", "a stack has no gradient scaling"),
        ("trainer.step=autograd", "differentiates one model at a time"),
        ("trainer.log_every_step=true", "prints the steps of one run"),
        ("trainer.max_time='00:00:01:00'", "by its own clock"),
        ("data.order=stream", "draws the order from the stream"),
        ("logger=tensorboard", "follows one run"),
    ],
)
def test_trials_that_train_alone_have_a_reason(override: str, reason: str) -> None:
    on_any = () if "16" not in override else ("trainer.accelerator=auto",)
    groups = plan(grid(SEEDS, common=(*on_any, override)))
    assert [group.trials for group in groups] == [[0], [1]]
    assert all(group.alone and reason in group.alone for group in groups)


def test_groups_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = grid([f"seed={seed}" for seed in range(10)])
    assert _sizes(configs, most=4) == [4, 3, 3]
    one = grouping.bytes_per_trial(configs[0], (784,), 10, 100)
    assert 4 * 25_450 * 5 < one < 4e6
    monkeypatch.setattr(grouping, "free_bytes", lambda _: 2 * 5 * one)
    assert _sizes(configs) == [5, 5]
    monkeypatch.setattr(grouping, "free_bytes", lambda _: 1)
    assert _sizes(configs) == [1] * 10


def test_a_stack_on_a_cpu_has_a_thousand_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """More trials would need memory and be no faster. Halving compares all trials of a stack."""
    monkeypatch.setattr(grouping, "free_bytes", lambda _: 10**12)
    configs = grid(["seed=0"]) * 2500
    assert [len(group.trials) for group in plan(configs)] == [834, 833, 833]
    assert [len(group.trials) for group in plan(configs, compared=True)] == [2500]
    assert [len(group.trials) for group in plan(configs, 2000)] == [1250, 1250]
    gpu = grouping.Place(10**12, on_cpu=False)
    assert [len(group.trials) for group in plan(configs, place=lambda _: gpu)] == [2500]
