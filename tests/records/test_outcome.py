"""The outcomes of runs, and how they compare."""

import math
from pathlib import Path
from typing import Any

import pytest

from kindling.config.measures import in_words
from kindling.records.confidence import t_interval
from kindling.records.folder import Result, Row, Run
from kindling.records.outcome import (
    Outcome,
    Replicates,
    all_metrics,
    best_places,
    comparable,
    compared_rows,
    format_interval,
    format_metric,
    format_spread,
    main_metrics,
    replicates,
    table_metrics,
)


def outcome(result: Result, **settings: str) -> Outcome:
    return Outcome(Run(Path("none")), result, settings, settings, [])


def test_points_replicates_are_ranked_by_their_mean() -> None:
    trials = [
        outcome({"status": "finished", "best": {"val/acc": value}}, lr=rate, seed=str(seed))
        for rate, values in (("0.1", (0.7, 0.9)), ("0.3", (0.85, 0.95)), ("1", (0.99,)))
        for seed, value in enumerate(values)
    ]
    keys, groups = replicates(trials, ["lr", "seed"])
    assert keys == ["lr"]
    assert [(group.values, len(group.trials)) for group in groups] == [(("0.3",), 2), (("0.1",), 2)]
    assert format_spread(groups[0].known("val/acc")) == "90.00% ± 7.07%"
    assert format_spread(groups[0].known("test/acc")) == "–"
    assert format_spread([1.25, 0.75], "val/loss") == "1.0000 ± 0.3536"
    assert groups[0].metrics == ["val/acc", "test/acc"]
    assert replicates(trials, ["lr"]) == (["lr"], [])
    assert format_interval(groups[0].interval("val/acc")) == "26.47% to 100.00%"
    assert format_interval(groups[0].interval("test/acc")) == "–"
    assert format_interval((0.25, 1.5), "val/brier") == "0.2500 to 1.5000"


def test_the_best_of_each_group() -> None:
    ranks = [("a", 2.0), ("b", math.inf), ("a", 1.0), ("c", 5.0), ("a", 1.0), ("c", math.nan)]
    assert best_places(ranks) == [2, 3]
    assert best_places([]) == []


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("val/acc", 0.97314, "97.31%"),
        ("test/f1", 1, "100.00%"),
        ("val/ece", 0.24484, "24.48%"),
        ("val/loss", 0.0, "0.0000"),
        ("val/loss", 1.005, "1.0050"),
        ("val/loss", 0.00099, "0.00099"),
        ("val/loss", 3.21e-12, "3.21e-12"),
        ("val/loss", 999.99, "999.9900"),
        ("val/loss", 12345.6, "1.235e+04"),
        ("val/loss", -0.5, "-0.5000"),
        ("val/loss", math.nan, "nan"),
        ("val/loss", math.inf, "inf"),
        ("parameters", 25450, "25,450"),
        ("seconds", 1.286, "1.29"),
        ("seconds", 4000, "4,000"),
        ("val/acc", None, "–"),
    ],
)
def test_every_number_has_one_format(name: str, value: float | None, text: str) -> None:
    assert format_metric(name, value) == text


def test_folds_and_seeds_repeat_a_setting() -> None:
    values = {("0", "0"): 0.8, ("0", "1"): 0.9, ("1", "0"): 0.7, ("1", "1"): 0.8}
    trials = [
        outcome(
            {"status": "finished", "best": {"val/acc": value}},
            **{"data.folds": "5", "data.fold": fold, "seed": seed},
        )
        for (fold, seed), value in values.items()
    ]
    keys, (group,) = replicates(trials, ["data.fold", "seed"])
    assert (keys, group.folds, len(group.trials)) == ([], 5, 4)
    assert group.known("val/acc") == [0.8, 0.9, 0.7, 0.8]
    means = group.repeats("val/acc")
    assert means == pytest.approx([0.85, 0.75])
    assert group.interval("val/acc") == t_interval(means, 5, low=0, high=1)


def test_only_several_folds_widen_the_interval() -> None:
    def folds(asked: str, *used: str) -> int:
        trials = [
            outcome(
                {"status": "finished", "best": {"val/acc": 0.5}},
                **{"data.folds": asked, "data.fold": fold, "seed": str(seed)},
            )
            for fold in used
            for seed in range(2)
        ]
        return replicates(trials, ["data.fold", "seed"])[1][0].folds

    assert folds("5", "0", "1") == 5
    assert folds("5", "3") == 0  # seeds alone
    for unknown in ("", "null", "²", "9" * 5000, "1"):
        assert folds(unknown, "0", "1", "2") == 3


def test_only_values_of_one_monitor_and_data_set_are_compared() -> None:
    def ended(data: str, monitor: Any, value: float) -> Outcome:
        best: Any = {monitor: value}
        result: Result = {"status": "finished", "monitor": monitor, "best": best}
        result["data"] = {"name": data}
        settings = {"checkpoint.monitor": monitor, "data": data, "seed": str(value)}
        return outcome(result, **settings)

    trials = [
        ended("toy", "val/acc", 0.5), ended("toy", "val/loss", 0.1),
        ended("digits", "val/acc", 0.2),
        ended("toy", "val/acc", 0.6), ended("toy", "val/loss", 0.3),
    ]  # fmt: skip
    toy_acc, toy_loss, digits = [trials[0], trials[3]], [trials[1], trials[4]], [trials[2]]
    assert comparable(trials) == {
        "toy by val/acc": toy_acc, "toy by val/loss": toy_loss, "digits": digits,
    }  # fmt: skip
    _, groups = replicates(trials, ["checkpoint.monitor", "data", "seed"])
    assert [group.trials for group in groups] == [toy_acc, toy_loss]


def test_a_loss_is_compared_with_its_own_kind() -> None:
    def ended(monitor: str, **settings: str) -> Outcome:
        best: Any = {monitor: 0.1}
        result: Result = {"status": "finished", "monitor": monitor, "task": "regression"}
        result |= {"best": best, "data": {"name": "diabetes"}}
        return outcome(result, **settings)

    quantile, huber = {"task.loss": "quantile"}, {"task.loss": "huber"}
    trials = [
        ended("val/loss"), ended("val/loss", **{"task.loss": "squared_error"}),
        ended("val/loss", **quantile), ended("val/loss", **huber),
        ended("val/loss", **huber, **{"task.delta": "0.5"}), ended("val/r2", **quantile),
        ended("val/r2"),
    ]  # fmt: skip
    assert [*comparable(trials).values()] == [
        trials[:2], [trials[2]], [trials[3]], [trials[4]], trials[5:]
    ]  # fmt: skip


def test_values_that_sums_cannot_take_are_unknown() -> None:
    for loss, expected in ((1e99, 1e99), (1e100, None), (-1e308, None), (None, None)):
        best: Any = {"val/loss": loss}
        found = outcome({"status": "finished", "monitor": "val/loss", "best": best})
        assert found.value == expected


def test_a_setting_that_lost_a_trial_comes_last() -> None:
    found: list[tuple[str, Result]] = [
        ("0.1", {"status": "finished", "best": {"val/acc": 0.9}}),
        ("0.1", {"status": "finished", "best": {"val/acc": 0.8}}),
        ("0.1", {"status": "diverged", "best": {"val/acc": 1.0}}),
        ("0.1", {"status": "failed"}),
        ("0.3", {"status": "finished", "best": {"val/acc": 0.5}}),
        ("0.3", {"status": "finished", "best": {"val/acc": 0.6}}),
        ("1", {"status": "finished", "best": {"val/acc": 1.0}}),
        ("1", {"status": "diverged"}),
    ]
    trials = [outcome(each, lr=lr, seed=str(seed)) for seed, (lr, each) in enumerate(found)]
    _, groups = replicates(trials, ["lr", "seed"])
    assert [(group.values, group.count) for group in groups] == [
        (("0.3",), "2"),
        (("0.1",), "2 of 4"),
    ]
    assert groups[1].known("val/acc") == [0.9, 0.8]


def test_a_measure_is_followed_and_may_be_missing() -> None:
    """The monitor of a run from a stranger may have neither a column nor a value."""
    assert main_metrics("val/f1") == ("val/f1", "test/f1")
    # What only a LightningModule logs.
    logged = ("val_mse", "val/acc_best", "validation/x", "valid-x", "value", "score/val")
    assert [main_metrics(name)[1] for name in logged] == [
        "test_mse", "test/acc_best", "test/x", "test-x", "test/value", "test/score/val"
    ]  # fmt: skip
    assert main_metrics("train/loss") == main_metrics("val/acc") == ("val/acc", "test/acc")
    known: list[Result] = [
        {"status": "finished", "monitor": "val/f1", "best": {"val/f1": value, "val/acc": 1 - value}}
        for value in (0.7, 0.9, 0.8)
    ]
    runs = [outcome(result) for result in known]
    assert [run.value for run in sorted(runs, key=lambda run: run.rank)] == [0.9, 0.8, 0.7]
    assert table_metrics([*runs, outcome({})]) == ["val/f1", "test/f1", "val/acc", "test/acc"]
    for monitor in ("val/loss", "train/loss", "train/acc"):
        by_it = outcome({"status": "finished", "monitor": monitor})
        assert table_metrics([by_it]) == [monitor, "val/acc", "test/acc"]
        assert monitor in all_metrics(monitor)
    assert format_metric("val/f1", 0.5) == format_metric("val/ece", 0.5) == "50.00%"
    assert format_metric("val/brier", 0.5) == "0.5000"
    assert [in_words(f"test/{name}") for name in ("auroc", "ece")] == ["AUROC", "calibration error"]
    rows: list[Row] = [{"epoch": n, "val/acc": n / 10, "val/loss": 1.0} for n in range(4)]
    measured: list[Row] = [row | {"val/f1": 0.9 - abs(n - 2)} for n, row in enumerate(rows)]
    settings = {"checkpoint.monitor": "val/f1"}
    unfinished = [Outcome(Run(Path("none")), {}, {}, settings, each) for each in (rows, measured)]
    assert [run.value for run in unfinished] == [None, 0.9]
    assert [run.metric("val/acc") for run in unfinished] == [None, 0.2]
    lacking: Result = {"status": "finished", "monitor": "val/f1", "best": {"val/acc": 1}}
    assert outcome(lacking).value is None


def test_only_runs_that_did_not_fail_have_a_value() -> None:
    """An interrupted run counts with its best epoch so far; a diverged one is never the best."""
    results: list[Result] = [
        {"status": "finished"}, {"status": "interrupted"}, {"status": "diverged"},
        {"status": "failed"},
    ]  # fmt: skip
    runs = [outcome({**result, "best": {"val/acc": 0.5}}) for result in results]
    assert [run.value for run in runs] == [0.5, 0.5, None, None]
    assert [run.finished for run in runs] == [True, False, False, False]
    unfinished = outcome({})
    assert (unfinished.status, unfinished.value, unfinished.rank) == (
        "unfinished", None, float("inf"),
    )  # fmt: skip
    losses = [
        outcome({"status": "finished", "monitor": "val/loss", "best": {"val/loss": loss}})
        for loss in (0.2, 0.1)
    ]
    assert min(losses, key=lambda run: run.rank).value == 0.1


def test_the_reason_is_one_line() -> None:
    found = [
        outcome({"status": "failed", "error": "no data\nat all"}),
        outcome({"status": "interrupted", "signal": "SIGTERM"}),
        outcome({"status": "diverged", "diverged_step": 7}),
        outcome({"status": "finished"}),
    ]
    assert [each.reason for each in found] == ["no data", "SIGTERM", "at step 7", ""]


def test_tables_tell_that_halving_has_dropped_a_trial() -> None:
    found = [
        outcome({"status": "finished", "stopped": "halving"}),
        outcome({"status": "finished", "stopped": "early_stopping"}),
        outcome({"status": "diverged", "stopped": "halving"}),
        outcome({}),
    ]
    assert [each.ending for each in found] == ["dropped", "finished", "diverged", "unfinished"]
    assert found[0].finished  # it has a best epoch and a test


# --- a model beside baselines ---

OWN: dict[str, Any] = {"name": "the model", "score": 0.75, "low": 0.5, "high": 0.875, "less": None}
OTHER = OWN | {"name": "linear model", "score": 0.5, "less": [0.25, -0.125, 0.625]}


def test_accuracies_are_percent_and_differences_points() -> None:
    own, other = compared_rows("classification", [OWN, OTHER])
    assert own == {
        "on the test rows": "the model", "accuracy": "75.00%", "95% interval": "50.00% to 87.50%",
        "behind the model, points": "", "its 95% interval": "",
    }  # fmt: skip
    assert other["accuracy"] == "50.00%"
    assert other["behind the model, points"] == "+25.0"
    assert other["its 95% interval"] == "-12.5 to +62.5"


def test_numbers_have_r2() -> None:
    _, other = compared_rows("regression", [OWN, OTHER])
    assert other["R²"] == "0.5000"
    assert other["behind the model"] == "+0.250"
    assert other["its 95% interval"] == "-0.125 to +0.625"


def test_a_result_from_before_has_none() -> None:
    assert [*compared_rows("classification", [])] == []


def test_counts_of_many_trials_have_commas() -> None:
    trials = [Outcome(Run(Path("none")), {"status": "finished"}, {}, {}, [])] * 1200
    assert Replicates(["0.1"], trials).count == "1,200"
    assert Replicates(["0.1"], trials, lost=1).count == "1,200 of 1,201"
