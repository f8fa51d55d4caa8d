"""Random configurations: trials of a stack, their single runs and a plain loop of torch agree."""

import functools
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from kindling.config.compose import compose
from kindling.config.faults import check, find_faults
from kindling.config.schema import Config, Monitor
from kindling.data.sources.catalogue import open_source
from kindling.data.sources.folds import training_and_validation
from kindling.native import engine
from kindling.records.folder import Run
from kindling.records.sweep_folder import Sweep
from kindling.sweeps.trials import train_trials
from kindling.training.fit import fit
from tests.helpers.oracle import LOWER_IS_BETTER, Loop, Trained
from tests.helpers.weights import Weights, same

THOUSAND = bool(os.environ.get("TORTURE"))
EXAMPLES = 1000 if THOUSAND else 10
# Trials and loops add the same numbers in different orders. Training amplifies the differences.
TOLERANCE = 1e-6
SLACK = 10  # times what rounding moved in a few repetitions

Values = dict[str, Any]
Draw = Callable[..., Any]


@functools.cache
def _base(optimizer: str, scheduler: str, model: str) -> Config:
    return compose(
        "data=synthetic", "data.shape=[6]", "trainer=cpu", "trainer.precision=64",
        f"optimizer={optimizer}", f"scheduler={scheduler}", f"model={model}",
    )  # fmt: skip


@st.composite
def stacks(draw: Draw) -> tuple[list[Config], int | None, int]:
    """Configurations of one group, the largest size of a stack, and the threads of the machine."""
    optimizer = draw(st.sampled_from(["sgd", "sgd", "adam", "adamw"]))
    scheduler = draw(st.sampled_from(["none", "multistep", "cosine", "onecycle"]))
    depth = draw(st.integers(0, 3))
    model = draw(st.sampled_from(["mlp", "mlp", "cnn"])) if depth else "logistic_regression"
    shapes = [[1, 8, 9], [3, 8, 8]] if model == "cnn" else [[5], [12], [1, 4, 4]]
    shared = _base(optimizer, scheduler, model).to_primitives()
    samples = draw(st.integers(30, 150))
    shared["data"] |= {
        "samples": samples,
        "test_samples": draw(st.integers(5, 40)),
        "shape": draw(st.sampled_from(shapes)),
        "classes": draw(st.integers(2, 8)),
        "batch_size": draw(st.integers(2, 40)),
        "val_fraction": draw(st.sampled_from([None, 0.2, 0.4])),
        "split_seed": draw(st.integers(0, 3)),
        "drop_last": draw(st.booleans()),
        "folds": draw(st.sampled_from([None, None, 2, 3, 7])),
        "sampler": draw(st.sampled_from([None, None, "balanced"])),
    }
    shared["trainer"] |= {
        "max_epochs": draw(st.integers(1, 4)),
        "accumulate_grad_batches": draw(st.sampled_from([1, 1, 2, 5])),
        "gradient_clip_val": draw(st.sampled_from([None, None, 0.1, 1.0])),
        "label_smoothing": draw(st.sampled_from([0.0, 0.0, 0.1, 0.5])),
        "class_weights": draw(_class_weights(shared["data"]["classes"])),
        "ema_decay": draw(st.sampled_from([None, None, 0.5, 0.99])),
        "early_stopping_patience": draw(st.sampled_from([None, None, 1, 2])),
        "step": draw(
            st.sampled_from(["auto", "vmap" if model == "cnn" else "closed_form", "vmap"])
        ),
        "steps_per_call": draw(st.sampled_from(["auto", 1, 3])),
    }
    monitors = [name for name in get_args(Monitor) if name != "val/top5"]
    monitors += ["val/top5"] * (shared["data"]["classes"] > 5)
    monitor = draw(st.sampled_from(monitors))
    shared["checkpoint"] |= {
        "monitor": monitor,
        "mode": "min" if monitor in LOWER_IS_BETTER else "max",
        "every_n_epochs": draw(st.sampled_from([1, 1, 2, 7])),
    }
    if model == "cnn":
        shared["model"] |= {
            "channels": draw(st.lists(st.integers(1, 4), min_size=depth, max_size=depth)),
            "kernel_size": draw(st.sampled_from([1, 3, 5])),
            "norm": draw(st.sampled_from([None, "batch", "layer"])),
        }
    elif depth:
        shared["model"] |= {
            "activation": draw(st.sampled_from(["relu", "tanh", "gelu"])),
            "norm": draw(st.sampled_from([None, None, "batch", "layer"])),
            "max_norm": draw(st.sampled_from([None, None, 0.5, 1.5])),
        }
        # The loop of torch knows the noise of the engine alone.
        native = shared["trainer"]["step"] == "auto" and not engine.why_absent()
        shared["model"]["noise"] = draw(st.sampled_from([0.0, 0.3, 0.3])) if native else 0.0
    if optimizer == "sgd":
        shared["optimizer"]["nesterov"] = draw(st.booleans())
    # A layer norm of one unit is constant but for rounding, which then decides an order of samples.
    sizes = st.integers(2 if depth and shared["model"]["norm"] == "layer" else 1, 20)
    widths = draw(st.lists(st.lists(sizes, min_size=depth, max_size=depth), min_size=1, max_size=3))
    seeds = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True))
    trials = [draw(_trials(shared, widths, seeds)) for _ in range(draw(st.integers(1, 7)))]
    configs = [find_faults(values)[0] for values in trials]
    checked = [config for config in configs if config is not None]
    assume(len(checked) == len(trials))
    assume(_trainable(checked[0]))
    return checked, draw(st.sampled_from([None, None, 2, 3])), draw(st.integers(1, 3))


def _class_weights(classes: int) -> st.SearchStrategy[Any]:
    weights = st.sampled_from([0.1, 0.5, 1.0, 3.0, 20.0])
    return st.none() | st.just("balanced") | st.lists(weights, min_size=classes, max_size=classes)


@st.composite
def _trials(
    draw: Draw, shared: Values, widths: Sequence[list[int]], seeds: Sequence[int]
) -> Values:
    """One trial of the group. Its fusible numbers may differ from those of the others."""
    values = {name: dict(part) if isinstance(part, dict) else part for name, part in shared.items()}
    values["seed"] = draw(st.sampled_from(seeds))
    if values["data"]["folds"] is not None:
        values["data"]["fold"] = draw(st.integers(0, values["data"]["folds"] - 1))
    optimizer, scheduler = values["optimizer"], values["scheduler"]
    optimizer["lr"] = 10 ** draw(st.floats(-3, -0.5 if optimizer["name"] == "sgd" else -1.5))
    optimizer["weight_decay"] = draw(st.sampled_from([0.0, 0.0, 0.01, 0.1]))
    if optimizer["name"] == "sgd":
        least = 0.1 if optimizer["nesterov"] else 0.0
        optimizer["momentum"] = draw(st.sampled_from([least, least, 0.5, 0.9]))
    if values["model"]["name"] == "mlp":
        values["model"]["hidden_sizes"] = draw(st.sampled_from(widths))
    match scheduler["name"]:
        case "multistep":
            scheduler["milestones"] = draw(st.sampled_from([[1], [2], [1, 3]]))
            scheduler["gamma"] = draw(st.sampled_from([0.1, 0.5, 2.0]))
        case "cosine":
            scheduler["eta_min"] = draw(st.sampled_from([0.0, 0.001]))
        case "onecycle":
            scheduler["pct_start"] = draw(st.sampled_from([0.1, 0.3, 0.61]))
            scheduler["div_factor"] = draw(st.sampled_from([1.0, 25.0]))
    if "warmup_epochs" in scheduler:
        scheduler["warmup_epochs"] = draw(st.sampled_from([0.0, 0.0, 0.5, 1.5]))
    return values


def _trainable(config: Config) -> bool:
    """Whether project and torch accept the configuration. Refusals have other tests."""
    values = config.to_primitives()
    data, training = values["data"], values["data"]["samples"]
    if data["folds"] is not None:
        labels = open_source(config.data).train.labels
        if int(torch.bincount(labels).min()) < data["folds"]:
            return False
        training -= -(-training // data["folds"])
    elif data["val_fraction"] is not None:
        training -= round(training * data["val_fraction"])
    balanced = "balanced" in (values["trainer"]["class_weights"], data["sampler"])
    if balanced and _lacks_a_class(config):
        return False
    full, rest = divmod(training, data["batch_size"])
    if full == 0 and data["drop_last"]:
        return False
    smallest = rest if rest and not data["drop_last"] else data["batch_size"]
    if values["model"].get("norm") == "batch" and smallest == 1:
        return False
    batches = full + bool(rest and not data["drop_last"])
    steps = -(-batches // values["trainer"]["accumulate_grad_batches"])
    few = steps * values["trainer"]["max_epochs"] <= 20
    return not (values["scheduler"]["name"] == "onecycle" and few)


def _lacks_a_class(config: Config) -> bool:
    source, data = open_source(config.data), config.data
    train, _ = training_and_validation(source.train, data)
    return bool(train.empty_classes(source.labels))


# A failing case is kept and tried first the next time. By default the cases are always the same.
@pytest.mark.slow
@settings(
    max_examples=EXAMPLES,
    derandomize=not THOUSAND,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    report_multiple_bugs=False,
)
@given(stacks())
def test_trials_single_runs_and_plain_torch_agree(
    case: tuple[list[Config], int | None, int],
) -> None:
    configs, max_trials, threads = case
    expected = [_by_torch(config) for config in configs]
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("kindling.training.building.available", lambda: threads),
        patch("kindling.steps.lanes.WORTH", 1.0),  # even these small steps in lanes
    ):
        base = Path(folder)
        folders = [base / "sweep" / str(number) for number in range(len(configs))]
        train_trials(configs, folders, Sweep(base / "sweep"), max_trials)
        for number, (config, trained) in enumerate(zip(configs, expected, strict=True)):
            _agree(Run(folders[number]), config, trained)
            if number == len(configs) - 1 or THOUSAND:
                alone = fit(config, base / "alone" / str(number))
                _agree(alone, config, trained)
                if alone.result["step"] == "native" and alone.last_checkpoint.exists():
                    assert same(alone, Run(folders[number]))


def _by_torch(config: Config, nudge: float = 0.0) -> Trained:
    source = open_source(config.data)
    train, test = ((part.features.double(), part.labels) for part in (source.train, source.test))
    return Loop(config.to_primitives(), train, test, nudge).run()


def _agree(run: Run, config: Config, expected: Trained) -> None:
    """Compares; a number may differ as far as rounding alone moves it.

    Adam divides a gradient by its own size. If a gradient is zero but for rounding, such as that of
    a bias between two batch norms, the last bits decide the step.
    """
    try:
        _compare(run, expected)
    except AssertionError:
        others = [_by_torch(config, nudge) for nudge in (1e-16, -1e-16, 3e-16, 1e-15)]
        outcomes = {(o.diverged_step, o.stopped, o.best_epoch) for o in (expected, *others)}
        if len(outcomes) == 1:
            _compare(run, expected, others)


def _compare(run: Run, expected: Trained, others: Sequence[Trained] = ()) -> None:
    result, rows = run.result, run.history
    status = "finished" if expected.diverged_step is None else "diverged"
    assert (result["status"], result["diverged_step"]) == (status, expected.diverged_step), result
    assert (result["stopped"] is not None) == expected.stopped
    assert [row["epoch"] for row in rows] == [row["epoch"] for row in expected.rows]
    assert result["best"]["epoch"] == expected.best_epoch
    for number, (row, other) in enumerate(zip(rows, expected.rows, strict=True)):
        for key, value in other.items():
            if status == "diverged" and row is rows[-1] and "/" in key:
                continue  # above the bound, values need not be equal
            moved = [trained.rows[number][key] for trained in others]
            assert _near(row[key], value, row["epoch"], moved), (number, key, row[key], value)
    if expected.best_epoch is not None:
        losses, accuracies = zip(*(o.test for o in others), strict=True) if others else ((), ())
        assert _near(result["test/loss"], expected.test[0], moved=losses)
        assert _near(result["test/acc"], expected.test[1], moved=accuracies)
        _compare_weights(run.best_checkpoint, expected.best, [o.best for o in others])
    if status == "finished":
        _compare_weights(run.last_checkpoint, expected.last, [o.last for o in others])


def _near(
    found: Any, value: float | None, epoch: float | None = None, moved: Sequence[float] = ()
) -> bool:
    """Equal up to rounding. Epoch 0 has only one forward pass in float64, and little rounding; the
    Brier score and the calibration error round each sample."""
    if value is None or found is None:
        return found is value
    tolerance = 1e-11 if epoch == 0 else TOLERANCE
    tolerance += SLACK * max((abs(other - value) for other in moved), default=0.0)
    return math.isclose(found, value, rel_tol=tolerance, abs_tol=tolerance)


def _compare_weights(path: Path, expected: Weights, others: Sequence[Weights] = ()) -> None:
    found = torch.load(path, weights_only=True)["state_dict"]
    assert len(found) == len(expected)
    for place, (name, own) in enumerate(found.items()):
        value, *moved = ([*weights.values()][place].double() for weights in (expected, *others))
        slack = max(((other - value).abs().max().item() for other in moved), default=0.0)
        assert torch.allclose(own.double(), value, TOLERANCE, TOLERANCE + SLACK * slack), name


def test_the_oracle_notices_a_difference(tmp_path: Path) -> None:
    """A run with another learning rate differs from the loop of torch."""
    config = _base("sgd", "none", "mlp")
    expected = _by_torch(config)
    _compare(fit(config, tmp_path / "same"), expected)
    values = config.to_primitives()
    values["optimizer"]["lr"] *= 1.001
    other = fit(check(values), tmp_path / "other")
    with pytest.raises(AssertionError):
        _compare(other, expected)


def test_a_number_that_rounding_decides_is_recognised(tmp_path: Path) -> None:
    """The bias between two batch norms has no gradient but rounding, which Adam makes a step of."""
    values = _base("adamw", "cosine", "mlp").to_primitives()
    values["seed"] = 3
    values["data"] |= {"batch_size": 2, "val_fraction": None, "samples": 76, "drop_last": True}
    values["data"] |= {"split_seed": 3, "test_samples": 12, "shape": [1, 4, 4], "classes": 4}
    values["optimizer"] |= {"lr": 0.0032295761874598624, "weight_decay": 0.1}
    values["model"] |= {"hidden_sizes": [9, 1, 13], "activation": "tanh", "norm": "batch"}
    values["model"] |= {"max_norm": 0.5}
    values["trainer"] |= {"max_epochs": 1, "accumulate_grad_batches": 5}
    config = check(values)
    expected, nudged = _by_torch(config), _by_torch(config, 1e-16)
    assert any(
        (expected.last[name] - nudged.last[name]).abs().max() > TOLERANCE for name in expected.last
    )
    _agree(fit(config, tmp_path / "run"), config, expected)
