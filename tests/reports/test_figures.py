"""Figures of runs."""

from pathlib import Path

import pytest

from src.reports import figures
from src.reports.collect import Entry
from src.runs.folder import Row, Run, Values
from src.runs.outcome import Outcome, Replicates


@pytest.mark.parametrize("runs", [1, 8])
def test_curves_fit_the_values_from_epoch_1_on(runs: int) -> None:
    """The untrained model and infinite losses do not change the scale."""
    found = ((0.1, 2.3), (0.98, 0.06), (0.995, 0.02), (0.99, float("inf")))
    history: list[Row] = [
        {"epoch": epoch, "val/acc": acc, "val/loss": loss, "train/acc": None, "train/loss": None}
        for epoch, (acc, loss) in enumerate(found)
    ]
    entries = [
        Entry(Run(Path("none")), {}, {}, {}, history, str(number), "") for number in range(runs)
    ]
    accuracy, loss = figures.curves(entries).axes
    assert accuracy.get_ylim() == pytest.approx((0.98 - 0.05 * 0.015, 0.995 + 0.05 * 0.015))
    assert loss.get_ylim() == pytest.approx((0.02 - 0.05 * 0.04, 0.06 + 0.05 * 0.04))
    assert accuracy.lines[0].get_xydata().tolist() == [[n, acc] for n, (acc, _) in enumerate(found)]  # type: ignore[union-attr]


def test_a_measure_that_the_best_run_monitors_comes_first() -> None:
    """A run with another monitor has no curve of it."""
    rows: list[Row] = [
        {"epoch": epoch, "val/acc": 0.5, "val/loss": 1.0, "train/acc": 0.5, "train/loss": 1.0}
        for epoch in range(3)
    ]
    measured: list[Row] = [row | {"val/f1": 0.6 + 0.1 * n} for n, row in enumerate(rows)]
    entries = [
        Entry(Run(Path("none")), {}, {}, {"checkpoint.monitor": monitor}, history, monitor, "")
        for monitor, history in (("val/f1", measured), ("val/acc", rows))
    ]
    axes = figures.curves(entries).axes
    titles = ["validation F1", "validation accuracy (training: dotted)", "validation loss"]
    assert [axis.get_title() for axis in axes] == titles
    drawn = [list(line.get_ydata()) for line in axes[0].lines]  # type: ignore[arg-type]
    assert drawn == [pytest.approx([0.6, 0.7, 0.8]), [], [], []]
    assert axes[0].yaxis.get_major_formatter()(0.7) == "70.0%"


def test_settings_without_the_monitored_value_are_left_out() -> None:
    """Trials of a sweep over checkpoint.monitor have different metrics."""
    best: list[Values] = [{"val/f1": 0.4}, {"val/f1": 0.6}, {"val/acc": 0.4}, {"val/acc": 0.6}]
    trials = [
        Outcome(Run(Path("none")), {"status": "finished", "best": values}, {}, {}, [])
        for values in best
    ]
    groups = [Replicates(["0.1"], trials[:2]), Replicates(["0.2"], trials[2:])]
    (axis,) = figures.settings(groups, ["optimizer.lr"], "val/f1").axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["optimizer.lr=0.1"]
    assert axis.xaxis.get_major_formatter()(0.5) == "50%"
