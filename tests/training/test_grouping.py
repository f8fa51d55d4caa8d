"""Which trials of a sweep train as one stack."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kindling.config.schema import Config
from kindling.system.errors import InputError
from kindling.training import grouping
from kindling.training.fit import fit_stack
from kindling.training.grouping import group_trials
from kindling.training.memory import bytes_per_trial
from tests.helpers.grids import SEEDS, WIDTHS, grid


def _sizes(configs: list[Config], most: int | None = None) -> list[int]:
    return [len(group.trials) for group in group_trials(configs, most)]


def test_groups_agree_in_all_but_the_fusible_keys() -> None:
    assert _sizes(grid(WIDTHS, SEEDS, ["optimizer.lr=0.1", "optimizer.lr=0.2"])) == [8]
    for axis in (
        ["data.batch_size=10", "data.batch_size=20"],
        ["optimizer=sgd", "optimizer=adam"],
        ["scheduler=none", "scheduler=cosine"],
        ["trainer.max_epochs=2", "trainer.max_epochs=3"],
    ):
        groups = group_trials(grid(axis, SEEDS))
        assert [group.trials for group in groups] == [[0, 1], [2, 3]], axis


OF_MODELS = (
    ["model.hidden_sizes=[8]", "model.hidden_sizes=[8,8]"],
    ["model.activation=relu", "model.activation=tanh"],
    ["model.dropout=0.0", "model.dropout=0.5"],
    ["model.norm=null", "model.norm=batch"],
    ["model=mlp", "model=logistic_regression"],
)


@pytest.mark.parametrize("axis", OF_MODELS)
def test_where_the_engine_trains_models_of_a_family_differ_at_will(
    axis: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = grid(axis, SEEDS)
    one_family = configs[0].model.name == configs[-1].model.name
    assert _sizes(configs) == ([4] if one_family else [2, 2])
    assert _sizes(grid(axis, SEEDS, common=("trainer.step=closed_form",))) == [2, 2]
    assert _sizes(grid(axis, SEEDS, common=("trainer.step=vmap",))) == [2, 2]
    gpu = grouping.TrainingDevice(10**12, on_cpu=False)
    assert _on(gpu, configs) == [[0, 1], [2, 3]]
    monkeypatch.setattr("kindling.native.engine.why_absent", lambda: "there is no engine")
    assert _sizes(configs) == [2, 2]


def test_a_stack_of_several_kinds_is_refused_without_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint may come to a machine that has none. In one product of the closed form, both
    would have the first activation."""
    configs = grid(OF_MODELS[1], common=("trainer.max_epochs=1",))
    monkeypatch.setattr("kindling.native.engine.why_absent", lambda: "there is no engine")
    with pytest.raises(InputError, match=r"which only the engine trains: there is no engine; to"):
        fit_stack(configs, [tmp_path / "0", tmp_path / "1"], tmp_path / "stack")


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
    groups = group_trials(grid(SEEDS, common=(*on_any, override)))
    assert [group.trials for group in groups] == [[0], [1]]
    assert all(group.alone and reason in group.alone for group in groups)


def test_groups_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = grid([f"seed={seed}" for seed in range(10)])
    assert _sizes(configs, most=4) == [4, 3, 3]
    one = bytes_per_trial(configs[0], (784,), 10, 100)
    assert 4 * 25_450 * 5 < one < 4e6
    monkeypatch.setattr(grouping, "free_bytes", lambda _: 2 * 5 * one)
    assert _sizes(configs) == [5, 5]
    monkeypatch.setattr(grouping, "free_bytes", lambda _: 1)
    assert _sizes(configs) == [1] * 10


def test_a_stack_on_a_cpu_has_a_thousand_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """More trials would need memory and be no faster. Halving compares all trials of a stack."""
    monkeypatch.setattr(grouping, "free_bytes", lambda _: 10**12)
    configs = grid(["seed=0"]) * 2500
    assert [len(group.trials) for group in group_trials(configs)] == [834, 833, 833]
    assert [len(group.trials) for group in group_trials(configs, compared=True)] == [2500]
    assert [len(group.trials) for group in group_trials(configs, 2000)] == [1250, 1250]
    gpu = grouping.TrainingDevice(10**12, on_cpu=False)
    assert [len(group.trials) for group in group_trials(configs, device_of=lambda _: gpu)] == [2500]


def _on(place: grouping.TrainingDevice, configs: list[Config]) -> list[list[int]]:
    return [group.trials for group in group_trials(configs, device_of=lambda _: place)]


GPU = grouping.TrainingDevice(10**12, on_cpu=False, block_memory=232_448)


@pytest.mark.parametrize(
    ("others", "common", "expected"),
    [
        ("model.hidden_sizes=[64]", (), [[0, 2, 4], [1, 3, 5]]),
        ("optimizer.momentum=0.9", (), [[0, 2, 4], [1, 3, 5]]),
        ("optimizer.weight_decay=0.1", (), [[0, 2, 4], [1, 3, 5]]),
        ("model.hidden_sizes=[16]", (), [[*range(6)]]),
        ("model.hidden_sizes=[64]", ("optimizer=adam",), [[*range(6)]]),
        ("model.hidden_sizes=[64]", ("trainer.precision=64",), [[*range(6)]]),
        ("model.hidden_sizes=[64]", ("trainer.step=closed_form",), [[*range(6)]]),
    ],
)
def test_a_trial_keeps_the_kernel_from_no_other(
    others: str, common: tuple[str, ...], expected: list[list[int]]
) -> None:
    """Trials that the kernel trains have a stack of their own, if there are any."""
    seeds = [f"seed={seed}" for seed in range(3)]
    name, _, _ = others.partition("=")
    usual = {"model.hidden_sizes": "[32]"}.get(name, "0.0")
    configs = grid(seeds, [f"{name}={usual}", others], common=("data=mnist", *common))
    assert [group.trials for group in group_trials(configs, device_of=lambda _: GPU)] == expected
    for place in (grouping.TrainingDevice(10**12, on_cpu=True), replace(GPU, block_memory=0)):
        assert _on(place, configs) == [[*range(6)]]
    assert len(group_trials(configs, device_of=lambda _: GPU, compared=True)) == 1


def test_a_card_decides_what_fits() -> None:
    widths = [f"model.hidden_sizes=[{width}]" for width in (8, 32, 128)]
    configs = grid(widths, common=("data=mnist", "data.batch_size=32"))
    for memory, expected in ((101_376, [[0], [1, 2]]), (166_912, [[0, 1], [2]])):
        place = replace(GPU, block_memory=memory)
        assert _on(place, configs) == expected


def test_the_engine_is_asked_once_for_each_kind_of_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """To build a model for each trial of a large sweep would take longer than to train some."""
    asked, by_engine = [], grouping._by_engine

    def count(config: Config, *others: Any) -> bool:
        asked.append(config)
        return by_engine(config, *others)

    monkeypatch.setattr(grouping, "_by_engine", count)
    assert _sizes(grid(WIDTHS, [f"seed={n}" for n in range(20)], OF_MODELS[1])) == [80]
    assert len(asked) == 2
