"""Trials that end before their last epoch: by patience, by successive halving."""

import functools
import math
import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer

from benchmarks.crashes import fingerprint
from kindling.config.compose import compose
from kindling.config.faults import check
from kindling.config.measures import sort_key
from kindling.config.schema import Config
from kindling.records.folder import Row, Run
from kindling.records.sweep_folder import Sweep
from kindling.steps import lanes
from kindling.sweeps.trials import train_trials
from kindling.training.decisions import (
    EARLY_STOPPING,
    HALVING,
    TrialStatuses,
    best,
    out_of_patience,
    rungs,
    sort_keys,
)
from kindling.training.fit import fit, fit_stack
from kindling.training.history import History
from tests.helpers.commands import SMALL, Command, Train
from tests.helpers.kills import Killed, die_after_writing
from tests.helpers.weights import weights

# Rates so different that validation gets worse again after different numbers of epochs.
UNEVEN = (
    *SMALL, "trainer.max_epochs=8", "checkpoint.monitor=val/acc", "scheduler=none",
    "trainer.early_stopping_patience=1",
)  # fmt: skip
RATES = (0.001, 0.1, 0.3, 1.0)


def stack(configs: list[Config], folder: Path, halving: int | None = None) -> list[Run]:
    folders = [folder / str(number) for number in range(len(configs))]
    return fit_stack(configs, folders, folder / "stack", halving)


@pytest.mark.parametrize("monitor", ["val/acc", "val/loss", "val/f1", "val/ece"])
@pytest.mark.parametrize("patience", [1, 2, 3])
def test_patience_is_lightnings(monitor: str, patience: int) -> None:
    mode = "min" if monitor in ("val/loss", "val/ece") else "max"
    config = compose(
        f"trainer.early_stopping_patience={patience}",
        f"checkpoint.monitor={monitor}",
        f"checkpoint.mode={mode}",
    )
    stream = torch.Generator().manual_seed(0)
    ends = []
    for _ in range(50):
        theirs = EarlyStopping(monitor, patience=patience, mode=mode)
        rows: list[Row] = [{monitor: 0.5}]
        for value in (torch.rand(30, generator=stream) * 20).round().tolist():
            rows.append({monitor: value})
            stops, _ = theirs._evaluate_stopping_criteria(torch.tensor(value))
            assert out_of_patience(sort_keys(rows, config), config) == stops
            if stops:
                break
        ends.append(len(rows))
    assert len(set(ends)) > 3


def test_rungs_and_who_goes_on() -> None:
    assert [rungs(epochs, 2) for epochs in (1, 2, 3, 10)] == [[], [1], [1, 2], [1, 2, 4, 8]]
    assert [rungs(27, factor) for factor in (3, 4, 30)] == [[1, 3, 9], [1, 4, 16], [1]]
    values = {7: 0.5, 2: 0.9, 3: 0.5, 9: 0.1, 4: 0.9, 5: 0.1}
    accuracies = {trial: sort_key("val/acc", value) for trial, value in values.items()}
    losses = {trial: sort_key("val/loss", value) for trial, value in values.items()}
    equal = dict.fromkeys(values, 10)
    assert best(accuracies, equal, 2) == {2, 4, 3}  # of equals the first
    assert best(losses, equal, 2) == {5, 9, 3}
    assert best(accuracies, equal, 4) == {2}  # 1.5 trials, rounded down
    assert best(accuracies, equal, 9) == {2}  # at least one
    dear = equal | {4: 30}
    assert best(accuracies, dear, 2) == {2, 4}  # 40 of 80
    assert best(accuracies, dear, 3) == {2}  # 26: not 4, nor a cheaper one that is worse
    assert best(accuracies, equal | {2: 1000}, 2) == {2}  # the best, whatever it costs


def test_a_value_that_is_no_number_neither_survives_nor_restores_patience() -> None:
    """Random histories with NaN and infinities, against the plain rule on the numbers alone."""
    stream = random.Random(0)
    for _ in range(300):
        monitor = stream.choice(["val/acc", "val/loss", "val/recall", "val/brier"])
        mode = "min" if monitor in ("val/loss", "val/brier") else "max"
        numbers = [0.1, 0.2, 0.3, 0.4, math.nan, math.inf, -math.inf]
        values = {trial: stream.choice(numbers) for trial in range(stream.randint(1, 9))}
        keys = {trial: sort_key(monitor, value) for trial, value in values.items()}
        factor = stream.randint(2, 4)
        alive = best(keys, dict.fromkeys(values, 1), factor)
        finite = [trial for trial in values if math.isfinite(values[trial])]
        sign = -1 if mode == "max" else 1
        expected = sorted(finite, key=lambda t: sign * values[t])[: max(1, len(values) // factor)]
        assert alive == set(expected or [0])

        patience = stream.randint(1, 3)
        config = compose_patience(monitor, patience)
        rows: list[Row] = [{monitor: value} for value in (0.0, *values.values())]
        least, since = math.inf, 0
        for value in values.values():
            since += 1
            if math.isfinite(value) and sign * value < least:
                least, since = sign * value, 0
        if least < math.inf:
            assert out_of_patience(sort_keys(rows, config), config) == (since >= patience)


@functools.cache
def compose_patience(monitor: str, patience: int) -> Config:
    mode = "min" if monitor in ("val/loss", "val/brier") else "max"
    return compose(
        f"trainer.early_stopping_patience={patience}",
        f"checkpoint.monitor={monitor}",
        f"checkpoint.mode={mode}",
    )


def test_a_run_ends_when_its_patience_does(tmp_path: Path) -> None:
    patient = [text for text in UNEVEN if "patience" not in text]
    whole = fit(compose(*patient, "optimizer.lr=0.3"), tmp_path / "whole")
    config = compose(*UNEVEN, "optimizer.lr=0.3")
    run = fit(config, tmp_path / "run")
    found = [row["val/acc"] for row in whole.history[1:]]
    ends = next(n for n in range(2, 9) if found[n - 1] <= max(found[: n - 1]))  # type: ignore[operator, type-var]
    assert ends < 8
    assert (run.result["status"], run.result["stopped"]) == ("finished", "early_stopping")
    assert (run.result["epochs"], run.result["steps"]) == (ends, run.history[-1]["step"])
    assert [row["val/acc"] for row in run.history[1:]] == found[:ends]
    short = fit(compose(*patient, "optimizer.lr=0.3", f"trainer.max_epochs={ends}"), tmp_path / "s")
    expected = weights(short)
    assert all(torch.equal(value, expected[name]) for name, value in weights(run).items())
    more = compose(*UNEVEN, "optimizer.lr=0.3", "trainer.max_epochs=9")
    assert fit(more, run.folder, resume=True).result["epochs"] == ends  # it is out of patience


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        (),
        ("optimizer.momentum=0.9", "model.norm=batch", "trainer.ema_decay=0.97"),
        ("optimizer=adamw", "optimizer.weight_decay=0.01", "model.norm=layer"),
        ("optimizer.momentum=0.5", "augmentation=digits"),
    ],
)
def test_trials_of_a_stack_end_as_their_single_runs_do(
    recipe: tuple[str, ...], tmp_path: Path
) -> None:
    scale = 0.1 if recipe else 1.0
    configs = [
        compose(*UNEVEN, *recipe, f"optimizer.lr={rate * scale}", f"model.hidden_sizes={width}")
        for rate, width in zip(RATES, (16, 16, 24, 16), strict=True)
    ]
    configs[1] = compose(*UNEVEN, *recipe, f"optimizer.lr={RATES[1] * scale}", "seed=1")
    runs = stack(configs, tmp_path / "fused")
    ends = set()
    for config, run in zip(configs, runs, strict=True):
        solo = fit(config, tmp_path / f"solo{run.folder.name}")
        assert run.result["epochs"] == solo.result["epochs"]
        assert run.result["stopped"] == solo.result["stopped"]
        assert run.result["steps"] == solo.result["steps"]
        ends.add(run.result["epochs"])
        fused, alone = (torch.load(r.last_checkpoint, weights_only=True) for r in (run, solo))
        assert set(fused) == set(alone)
        assert fused["stopped"] == alone["stopped"]
        pairs = [(fused["state_dict"], alone["state_dict"])]
        pairs += zip(fused["average"], alone["average"], strict=True)
        for found, expected in pairs:
            for name, value in expected.items():
                assert torch.allclose(found[name], value, rtol=1e-3, atol=1e-5), name
        for key in ("val/acc", "test/acc"):
            values = [{**r.result["best"], **r.result}[key] for r in (run, solo)]
            assert values[0] == pytest.approx(values[1], abs=1e-9)
    assert len(ends) >= 3  # the stack was cut more than once


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "halving", "threads"),
    [
        ((), None, 1),
        (("optimizer=adamw", "model.norm=batch", "model.dropout=0.1"), 2, 1),
        (("optimizer=adamw", "model.input_dropout=0.1", "model.dropout=0.1"), None, 2),
        (("augmentation=digits", "trainer.ema_decay=0.5"), None, 1),
        (("augmentation=digits", "trainer.ema_decay=0.5"), 2, 3),
    ],
)
def test_a_shrinking_stack_that_is_killed_at_every_checkpoint(
    recipe: tuple[str, ...],
    halving: int | None,
    threads: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In lanes too; a process that finds other cores keeps to the lanes that there were."""
    monkeypatch.setattr(lanes, "WORTH", 1.0)
    monkeypatch.setattr("kindling.training.building.available", lambda: threads)
    common = (*UNEVEN, "trainer.steps_per_call=4", "checkpoint.every_n_steps=8", *recipe)
    scale = 0.01 if recipe else 1.0
    configs = [
        compose(*common, f"optimizer.lr={rate * scale}", f"seed={number % 3}")
        for number, rate in enumerate(RATES)
    ]
    whole = stack(configs, tmp_path / "whole", halving)
    assert len({run.result["epochs"] for run in whole}) > 1
    die_after_writing(monkeypatch)
    died = 0
    while not all(Run(tmp_path / "killed" / str(n)).result for n in range(len(configs))):
        try:
            stack(configs, tmp_path / "killed", halving)
        except Killed:
            died += 1
            monkeypatch.setattr("kindling.training.building.available", lambda: threads % 3 + 1)
    assert died >= 8
    for number, run in enumerate(whole):
        assert fingerprint(Run(tmp_path / "killed" / str(number))) == fingerprint(run)


@pytest.mark.slow
def test_halving_drops_the_worse_and_changes_no_other(tmp_path: Path) -> None:
    common = (*SMALL, "trainer.max_epochs=5", "scheduler=none")
    configs = [
        compose(*common, f"optimizer.lr={rate}", f"model.hidden_sizes={width}", f"seed={seed}")
        for rate in (0.01, 0.1, 0.3)
        for width in (8, 16)
        for seed in (0, 1)
    ]
    sweep, full = Sweep(tmp_path / "halved"), tmp_path / "full"
    sweep.folder.mkdir()
    folders = [sweep.folder / str(number) for number in range(len(configs))]
    values = train_trials(configs, folders, sweep, None, halving=2)
    expected = train_trials(configs, [full / f.name for f in folders], _sweep(full), None)
    runs = [Run(folder) for folder in folders]
    alive = list(range(12))
    for epoch in (1, 2, 4):
        reached = {n: runs[n].history[epoch]["val/acc"] for n in alive}
        ranked = sorted(reached, key=lambda n: (-(reached[n] or 0), n))
        spent = list(accumulate(runs[n].result["parameters"] for n in ranked))
        alive = [n for n, cost in zip(ranked, spent, strict=True) if 2 * cost <= spent[-1]]
        others = set(reached) - set(alive)
        assert {runs[n].result["epochs"] for n in others} == {epoch}
        assert {runs[n].result["stopped"] for n in others} == {"halving"}
        assert 0 < len(alive) <= len(reached) / 2 + 1
    assert {runs[n].result["epochs"] for n in alive} == {5}
    for number, run in enumerate(runs):
        undisturbed = Run(full / str(number)).history[: len(run.history)]
        for row, other in zip(run.history, undisturbed, strict=True):
            assert row["val/loss"] == pytest.approx(other["val/loss"], rel=1e-4)
    assert values.index(max(values)) in alive
    assert [values[n] for n in alive] == pytest.approx([expected[n] for n in alive], abs=1e-9)
    more = fit(
        compose(*common, *_chosen(configs[0]), "trainer.max_epochs=6"), folders[0], resume=True
    )
    assert more.result["epochs"] == 6  # a dropped trial can be gone on with alone


def _sweep(folder: Path) -> Sweep:
    folder.mkdir()
    return Sweep(folder)


def _chosen(config: Config) -> tuple[str, ...]:
    values: Any = config.to_primitives()
    return (
        f"optimizer.lr={values['optimizer']['lr']}",
        f"model.hidden_sizes={values['model']['hidden_sizes'][0]}",
        f"seed={values['seed']}",
    )


@pytest.mark.slow
def test_halving_from_the_command_line(command: Command) -> None:
    sweep = ("-m", "hydra/launcher=fused", *SMALL, "optimizer.lr=0.001,0.1")
    wrong = command("src.train", *sweep, "hydra.launcher.halving=1")
    assert wrong.returncode == 2
    assert "hydra.launcher.halving=1: must be greater than or equal to 2" in wrong.stderr
    done = command("src.train", *sweep, "hydra.launcher.halving=2")
    assert done.returncode == 0, done.stderr
    assert "halving: 1 of 2 trials go on" in done.stdout
    assert "trial  status      optimizer.lr" in done.stdout


@pytest.mark.slow
def test_max_time_ends_a_run_early(train: Train) -> None:
    run = train("trainer.max_epochs=100000", "trainer.max_time='00:00:00:01'")
    assert 1 <= run.result["epochs"] < 100_000
    assert (run.result["status"], run.result["stopped"]) == ("finished", "max_time")
    values = run.config.to_primitives()
    values["trainer"]["max_epochs"] *= 2
    more = fit(check(values), run.folder, resume=True)
    assert more.result["epochs"] == run.result["epochs"]  # its time is over


@pytest.mark.parametrize("blocks", [0, 1, 5, 6, 7, 12])
def test_a_part_of_an_epoch_counts_and_has_its_own_samples(
    blocks: int, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is over after so many blocks and one more. An epoch has six: five of two batches, the
    last of one."""
    clock = iter([*[0.0] * blocks, *[99.0] * 100])
    monkeypatch.setattr(History, "seconds", property(lambda self: self.earlier_seconds))
    trained, now = Timer.on_train_batch_end, 0.0
    monkeypatch.setattr(Timer, "time_elapsed", lambda *_: now)

    def tick(self: Timer, trainer: Trainer, *arguments: Any) -> None:
        nonlocal now
        (history,) = [each for each in trainer.callbacks if isinstance(each, History)]  # type: ignore[attr-defined]
        now = history.earlier_seconds = next(clock)
        trained(self, trainer, *arguments)

    monkeypatch.setattr(Timer, "on_train_batch_end", tick)
    run = train(
        "trainer.max_epochs=9", "trainer.max_time='00:00:00:50'", "trainer.steps_per_call=2",
        "data.drop_last=true",
    )  # fmt: skip
    result, (whole, rest) = run.result, divmod(blocks + 1, 6)
    steps = 11 * whole + 2 * rest
    assert (result["epochs"], result["steps"]) == (whole + bool(rest), steps)
    assert result["stopped"] == "max_time"
    assert [row["step"] for row in run.history[1:]] == [
        *(11 * epoch for epoch in range(1, whole + 1)),
        *([steps] if rest else []),
    ]
    assert result["last"]["epoch"] == whole + bool(rest)
    samples = whole * result["data"]["train"] + 200 * rest
    assert result["samples_per_second"] == pytest.approx(samples / 99)


# --- the first reason stays ---


def test_a_trial_trains_until_it_diverges_or_is_stopped() -> None:
    statuses = TrialStatuses(4)
    assert statuses.active_trials == [0, 1, 2, 3]
    statuses.diverged.setdefault(1, 5)
    statuses.stop([1, 2], HALVING)
    statuses.stop([2], EARLY_STOPPING)
    assert statuses.active_trials == [0, 3]
    assert statuses.state_dict() == {"diverged": {1: 5}, "stopped": {2: HALVING}}


def test_statuses_survive_a_checkpoint() -> None:
    statuses = TrialStatuses(3)
    statuses.diverged[0] = 7
    statuses.stop([2], EARLY_STOPPING)
    restored = TrialStatuses(3)
    restored.diverged[1] = 1
    restored.load_state_dict(statuses.state_dict())
    assert restored.state_dict() == {"diverged": {0: 7}, "stopped": {2: EARLY_STOPPING}}
    assert restored.active_trials == [1]
