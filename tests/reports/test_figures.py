"""Figures of runs, and the content of the charts that replace them in a browser."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kindling.plots import pictures
from kindling.plots.samples import Sample, interval_data
from kindling.records.folder import Result, Row, Run
from kindling.records.outcome import Outcome, Replicates, format_metric
from kindling.records.sweep_folder import KeyImportance
from kindling.reports import figures
from kindling.reports import pictures as chosen
from kindling.reports.analysis import Effect, Grid, Levels
from kindling.reports.collect import Reported


@pytest.mark.parametrize("runs", [1, 8])
def test_curves_fit_the_values_from_epoch_1_on(runs: int) -> None:
    """The untrained model and infinite losses do not change the scale."""
    found = ((0.1, 2.3), (0.98, 0.06), (0.995, 0.02), (0.99, float("inf")))
    history: list[Row] = [
        {"epoch": epoch, "val/acc": acc, "val/loss": loss, "train/acc": None, "train/loss": None}
        for epoch, (acc, loss) in enumerate(found)
    ]
    entries = [
        Reported(Run(Path("none")), {}, {}, {}, history, str(number), "") for number in range(runs)
    ]
    accuracy, loss = figures.curves(entries).axes
    assert accuracy.get_ylim() == pytest.approx((0.98 - 0.05 * 0.015, 0.995 + 0.05 * 0.015))
    assert loss.get_ylim() == pytest.approx((0.02 - 0.05 * 0.04, 0.06 + 0.05 * 0.04))
    assert accuracy.lines[0].get_xydata().tolist() == [[n, acc] for n, (acc, _) in enumerate(found)]  # type: ignore[union-attr]


def test_values_far_from_all_others_do_not_change_the_scale() -> None:
    """The training loss of the first epoch with a rate that is too high."""
    losses = [(2.3, None), (7.5, 2242.0), (3.6, 4.9), (2.9, 3.2), (2.6, 2.8)]
    history: list[Row] = [
        {"epoch": epoch, "val/acc": 0.1, "val/loss": val, "train/acc": None, "train/loss": train}
        for epoch, (val, train) in enumerate(losses)
    ]
    _, loss = figures.curves([Reported(Run(Path("none")), {}, {}, {}, history, "1", "")]).axes
    assert loss.get_ylim() == pytest.approx((2.6 - 0.05 * 4.9, 7.5 + 0.05 * 4.9))


@pytest.mark.parametrize(
    ("values", "far"),
    [([], []), ([0.0], []), ([1.0, 100.0], []), ([0.0] * 5, [5.0]), ([-1.0] * 5, [40.0]),
     ([1.0, 2.0, 3.0], [200.0]), ([0.8] * 5, [-3000.0])],
)  # fmt: skip
def test_near_values(values: list[float], far: list[float]) -> None:
    found = figures._near(np.array([*enumerate([*far, *values], 1)], float).reshape(-1, 2))
    assert found.tolist() == values


def test_a_measure_that_the_best_run_monitors_comes_first() -> None:
    """A run with another monitor has no curve of it."""
    rows: list[Row] = [
        {"epoch": epoch, "val/acc": 0.5, "val/loss": 1.0, "train/acc": 0.5, "train/loss": 1.0}
        for epoch in range(3)
    ]
    measured: list[Row] = [row | {"val/f1": 0.6 + 0.1 * n} for n, row in enumerate(rows)]
    entries = [
        Reported(Run(Path("none")), {}, {}, {"checkpoint.monitor": monitor}, history, monitor, "")
        for monitor, history in (("val/f1", measured), ("val/acc", rows))
    ]
    axes = figures.curves(entries).axes
    titles = ["validation F1", "validation accuracy (training: dashed)", "validation loss"]
    assert [axis.get_title() for axis in axes] == titles
    drawn = [list(line.get_ydata()) for line in axes[0].lines]  # type: ignore[arg-type]
    assert drawn == [pytest.approx([0.6, 0.7, 0.8]), [], [], []]
    assert axes[0].yaxis.get_major_formatter()(0.7) == "70.0%"


def trial(number: int, monitor: str, value: float | None) -> Reported:
    result: Result = {"status": "finished", "best": {monitor: value}, "monitor": monitor}  # type: ignore[misc]
    return Reported(Run(Path("s", str(number))), result, {}, {}, [], str(number), "")


@pytest.mark.parametrize(
    ("monitor", "best"), [("val/acc", [0.5, 0.5, 0.7]), ("val/loss", [0.5, 0.3, 0.3])]
)
def test_the_history_of_a_search_has_the_best_so_far(monitor: str, best: list[float]) -> None:
    """In the order of the numbers; trials without a value are left out."""
    trials = [trial(10, monitor, 0.7), trial(2, monitor, 0.3), trial(1, monitor, 0.5)]
    (axis,) = figures.history([*trials, trial(3, monitor, None)]).axes
    dots, line = axis.lines
    assert dots.get_xydata().tolist() == [[1, 0.5], [2, 0.3], [10, 0.7]]  # type: ignore[union-attr]
    assert list(line.get_ydata()) == best  # type: ignore[arg-type]


def test_the_importance_of_many_keys_is_that_of_the_first() -> None:
    shares = {f"key {n}": KeyImportance(1 / (n + 2), 0.1 / (n + 2), 0.9) for n in range(50)}
    (axis,) = figures.importance(shares).axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == [f"key {n}" for n in range(figures.MOST_BARS)]
    texts = [text.get_text() for text in axis.texts]
    assert texts[:3] == ["50% (5% to 90%)", "33% (3% to 90%)", "25% (2% to 90%)"]
    assert len(texts) == len(axis.collections) == figures.MOST_BARS
    (segment,) = axis.collections[1].get_segments()  # type: ignore[attr-defined]
    assert segment.tolist() == [[pytest.approx(0.1 / 3), 1], [0.9, 1]]


def test_settings_without_the_monitored_value_are_left_out() -> None:
    """Trials of a sweep over checkpoint.monitor have different metrics."""
    best: list[Any] = [{"val/f1": 0.4}, {"val/f1": 0.6}, {"val/acc": 0.4}, {"val/acc": 0.6}]
    trials = [
        Outcome(Run(Path("none")), {"status": "finished", "best": values}, {}, {}, [])
        for values in best
    ]
    groups = [Replicates(["0.1"], trials[:2]), Replicates(["0.2"], trials[2:])]
    (sample,) = chosen.best_settings(groups, ["optimizer.lr"], "val/f1")
    assert (sample.label, sample.values, sample.mean) == ("optimizer.lr=0.1", [0.4, 0.6], 0.5)


def test_a_long_entry_of_the_legend_keeps_its_last_value() -> None:
    settings = "model.hidden_sizes=[512,256,128], optimizer.weight_decay=0.001, optimizer.lr=0.025"
    entries = [
        Reported(Run(Path("none")), {}, {}, {}, [{"epoch": 0, "val/acc": 0.5}], name, label)
        for name, label in (("a", settings), ("b", "seed=1"))
    ]
    legend = [text.get_text() for text in figures.curves(entries).legends[0].get_texts()]
    assert legend == ["model.hidden_sizes=[512,256,1…ecay=0.001, optimizer.lr=0.025", "seed=1"]
    assert len(legend[0]) == 60


def test_the_legend_has_what_tells_runs_apart() -> None:
    """Runs of the same settings have the name of their folder."""
    shared = "data=digits, trainer.max_epochs=20"
    entries = [
        Reported(Run(Path("none")), {}, {}, {}, [{"epoch": 0, "val/acc": 0.5}], name, label)
        for name, label in (
            ("a", f"{shared}, seed=1"), ("day/b", shared), ("c", f"tag=x, {shared}"),
            ("day/d", shared),
        )
    ]  # fmt: skip
    for some, expected in (
        (entries, ["seed=1", f"{shared} (b)", "tag=x", f"{shared} (d)"]),
        (entries[:1], [f"{shared}, seed=1"]),
    ):
        lines = figures.curves(some).axes[0].lines[::2]
        assert [line.get_label() for line in lines] == expected


def test_the_axis_of_an_effect_has_the_scale_of_its_key() -> None:
    values, texts = [[0.5, 0.6], [0.9], [0.7]], ["0.01", "0.1", "1"]
    levels = [Levels.of(each, higher=True) for each in values]
    found = [
        Effect(["lr"], texts, values, "log", [[0.01, 0.01], [0.1], [1.0]], levels),
        Effect(["width"], ["1", "2", "9"], values, "linear", [[1.0, 1.0], [2.0], [9.0]], levels),
        Effect(
            ["drawn"],
            ["0.01–0.02", "0.1", "1"],
            values,
            "log",
            [[0.01, 0.02], [0.1], [1.0]],
            levels,
        ),
        Effect(["name"], ["a", "b", "c"], values, "category", [[0.0], [1.0], [2.0]], levels),
    ]
    rate, width, drawn, name = figures.effects(found, "val/acc").axes[:4]
    assert [axis.get_xscale() for axis in (rate, width, drawn, name)] == [
        "log", "linear", "log", "linear"
    ]  # fmt: skip
    assert list(rate.get_xticks()) == pytest.approx([0.01, 0.1, 1])
    assert [label.get_text() for label in rate.get_xticklabels()] == texts
    assert list(width.get_xticks()) == [1, 2, 9]
    dots = np.asarray(drawn.lines[0].get_xdata(), float)
    assert dots == pytest.approx([0.01, 0.02])  # where they were drawn
    means = next(line for line in drawn.lines if len(np.asarray(line.get_xdata())) == 3)
    assert np.asarray(means.get_xdata()) == pytest.approx([0.02**0.5 / 10, 0.1, 1])
    lines = [line.get_ydata() for line in drawn.lines if len(np.asarray(line.get_xdata())) == 3]
    assert lines == [pytest.approx(line) for line in zip(*levels, strict=True)]
    assert list(name.get_xticks()) == [0, 1, 2]


def test_a_weak_key_beside_a_strong_one_has_an_axis_of_its_own() -> None:
    """On the axis of the strong key, its lines would be flat."""
    found = [
        Effect(["lr"], ["1", "2"], [[0.3], [0.9]], "linear", [[1.0], [2.0]],
               [Levels(0.3, 0.3, 0.3), Levels(0.9, 0.9, 0.9)]),
        Effect(["width"], ["1", "2"], [[0.3, 0.9], [0.9]], "linear", [[1.0, 1.0], [2.0]],
               [Levels(0.9, 0.88, 0.85), Levels(0.9, 0.89, 0.87)]),
    ]  # fmt: skip
    strong, weak = figures.effects(found, "val/acc").axes[:2]
    assert strong.get_ylim() == pytest.approx((0.3 - 0.03, 0.9 + 0.03))
    assert weak.get_ylim() == pytest.approx((0.85 - 0.0025, 0.9 + 0.0025))
    assert [axis.get_xlabel() for axis in (strong, weak)] == ["lr", "width (own scale)"]
    far = [np.asarray(line.get_ydata()) for line in weak.lines if line.get_marker() == "v"]
    assert np.concatenate(far) == pytest.approx([0.85 - 0.0025 + 0.02 * 0.055])  # the dot of 0.3
    assert {
        len(np.asarray(line.get_ydata())) for line in strong.lines if str(line.get_marker()) in "v^"
    } == {0}
    assert all(
        any(label.get_visible() for label in axis.get_yticklabels()) for axis in (strong, weak)
    )
    found[1].levels[0] = Levels(0.9, 0.8, 0.6)  # type: ignore[index]
    strong, weak = figures.effects(found, "val/acc").axes[:2]
    assert strong.get_ylim() == weak.get_ylim()
    assert weak.get_xlabel() == "width"


@pytest.mark.parametrize(
    ("most", "ticks"), [(0.7, ["0.02", "0.05", "0.1", "0.2", "0.5"]), (7.0, ["0.1", "1"])]
)
def test_a_logarithmic_axis_of_drawn_numbers_has_several_ticks(
    most: float, ticks: list[str]
) -> None:
    levels = [Levels.of(each, higher=True) for each in ([0.5, 0.6], [0.9])]
    drawn = Effect(["lr"], ["a", "b"], [[0.5, 0.6], [0.9]], "log", [[0.02, 0.05], [most]], levels)
    axis = figures.effects([drawn], "val/acc").axes[0]
    low, high = axis.get_xlim()
    pairs = zip(axis.get_xticks(), axis.get_xticklabels(), strict=True)
    assert [text.get_text() for place, text in pairs if low <= place <= high] == ticks


@pytest.mark.parametrize(
    ("monitor", "means", "told"),
    [
        ("val/acc", [0.1, 0.9, 0.92, 0.95, 0.96], "dark is 90.00% or worse, bright is 96.00%"),
        ("val/acc", [0.93, 0.96, np.nan], "dark is 93.00%, bright is 96.00%"),
        ("val/loss", [0.1, 0.11, 0.12, 0.5], "dark is 0.1200 or worse, bright is 0.1000"),
    ],
)
def test_a_heat_map_tells_what_its_colours_span(
    monitor: str, means: list[float], told: str
) -> None:
    """A mean that is far worse than most shares the darkest colour."""
    grid = Grid("lr", "width", ["1"], [str(n) for n in means], np.array([means]))
    assert chosen.colours_in_words(grid, monitor) == told
    drawn = figures.heat_map(grid, monitor, chosen.colour_ends(grid, monitor))
    (image,) = drawn.axes[0].images
    ends = [format_metric(monitor, end) for end in image.get_clim()]
    assert sorted(re.findall(r"is ([\d.%]+)", told)) == sorted(ends)


@pytest.mark.parametrize("label", ["8", "0.00226–0.0886", "[1024,1024,1024]"])
def test_labels_of_a_heat_map_never_overlap(label: str) -> None:
    names = [f"{label}{place}" for place in range(6)]
    drawn = figures.heat_map(Grid("lr", "width", names, names, np.full((6, 6), 0.5)), "acc", (0, 1))
    drawn.draw_without_rendering()
    boxes = [each.get_window_extent() for each in drawn.axes[0].get_xticklabels()]
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))
    assert boxes[0].x0 >= 0
    assert boxes[-1].x1 <= drawn.bbox.x1


def test_a_heat_map_without_a_trial_in_a_cell_has_no_nan() -> None:
    """JSON has no NaN."""
    grid = Grid("lr", "width", ["0.1", "1"], ["8"], np.array([[0.5], [np.nan]]))
    assert chosen.heat_data(grid, "val/loss") == {
        "x": {"name": "width", "labels": ["8"]},
        "y": {"name": "lr", "labels": ["0.1", "1"]},
        "best": [[0.5], [None]],
        "ends": (0.5, 0.5),
    }


# --- what charts.js draws -------------------------------------------------------------------------


def test_the_settings_within_reach_fill_the_axis_and_the_others_lie_at_its_end() -> None:
    """Beside settings that failed, four contenders would lie within a hundredth of the axis."""
    samples = [
        Sample("a", [0.93, 0.95], 0.94, (0.8, 1.0)),
        Sample("b", [0.92, 0.95], 0.935, (0.7, 1.0)),
        Sample("c", [0.90, 0.92], 0.91, (0.75, 1.0)),
        Sample("d", [0.86, 0.88], 0.87, (0.6, 1.0)),
        Sample("e", [0.1, 0.12], 0.11, (0.0, 0.4)),
    ]
    ends = chosen.ends_of_contenders(samples)
    deviation = np.median([np.std(each.values, ddof=1) for each in samples])
    assert 3 * deviation < 0.94 - 0.87  # so d is too far away
    assert ends == pytest.approx((0.9 - 0.3 * 0.05, 0.95 + 0.3 * 0.05))
    assert chosen.ends_of_contenders(samples[:3]) is None
    assert chosen.ends_of_contenders([Sample("x", [1.0], 1.0, None)] * 9) is None
    equal = [Sample(str(n), [1 - n / 10] * 2, 1 - n / 10, None) for n in range(5)]
    assert chosen.ends_of_contenders(equal) == pytest.approx((0.8 - 0.06, 1 + 0.06))
    figure = pictures.intervals(samples, "val/acc", "a trial", ends=ends)
    (axis,) = figure.axes
    assert axis.get_xlim() == pytest.approx(ends)
    assert [text.get_text() for text in axis.texts] == ["87.00%", "11.00%"]
    marks = [line for line in axis.lines if line.get_marker() == "<"]
    assert [np.asarray(mark.get_ydata()).item() for mark in marks] == [3, 4]
    losses = [replace(each, mean=1 - (each.mean or 0), interval=None) for each in samples]
    inside = pictures.intervals(losses, "val/loss", "a trial", ends=(0.05, 0.095))
    assert [text.get_text() for text in inside.axes[0].texts] == ["0.13", "0.89"]
    assert [line.get_marker() for line in inside.axes[0].lines].count(">") == 2
    assert interval_data(samples, "val/acc", "a trial", ends=ends)["ends"] == ends


def test_an_axis_of_shares_ends_at_0_and_100_percent() -> None:
    samples = [Sample("a", [0.0, 0.99], 0.5, (0.0, 1.0)), Sample("b", [1.0], 1.0, None)]
    for ends in (None, (-0.1, 1.1)):
        axis = pictures.intervals(samples, "val/acc", "a trial", ends=ends).axes[0]
        assert axis.get_xlim() == (-0.02, 1.02)
        wide = pictures.intervals(samples, "val/loss", "a trial", ends=ends).axes[0].get_xlim()
        assert wide[0] < -0.02
        assert wide[1] > 1.02
