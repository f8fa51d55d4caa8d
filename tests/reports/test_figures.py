"""Figures of runs, and the content of the charts that replace them in a browser."""

import base64
import gzip
import json
import math
import re
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kindling.records.folder import Result, Row, Run
from kindling.records.outcome import Outcome, Replicates, format_metric
from kindling.reports import figures
from kindling.reports.analysis import Effect, Grid
from kindling.reports.collect import Part, Reported


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
    (axis,) = figures.importance({f"key {n}": 1 / (n + 2) for n in range(50)}).axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == [f"key {n}" for n in range(figures.MOST_SETTINGS)]
    assert [text.get_text() for text in axis.texts][:3] == ["50%", "33%", "25%"]


def test_settings_without_the_monitored_value_are_left_out() -> None:
    """Trials of a sweep over checkpoint.monitor have different metrics."""
    best: list[Any] = [{"val/f1": 0.4}, {"val/f1": 0.6}, {"val/acc": 0.4}, {"val/acc": 0.6}]
    trials = [
        Outcome(Run(Path("none")), {"status": "finished", "best": values}, {}, {}, [])
        for values in best
    ]
    groups = [Replicates(["0.1"], trials[:2]), Replicates(["0.2"], trials[2:])]
    (sample,) = figures.best_settings(groups, ["optimizer.lr"], "val/f1")
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


def test_the_axis_of_an_effect_has_the_scale_of_its_key() -> None:
    values, texts = [[0.5, 0.6], [0.9], [0.7]], ["0.01", "0.1", "1"]
    found = [
        Effect(["lr"], texts, values, "log", [[0.01, 0.01], [0.1], [1.0]]),
        Effect(["width"], ["1", "2", "9"], values, "linear", [[1.0, 1.0], [2.0], [9.0]]),
        Effect(["drawn"], ["0.01–0.02", "0.1", "1"], values, "log", [[0.01, 0.02], [0.1], [1.0]]),
        Effect(["name"], ["a", "b", "c"], values, "category", [[0.0], [1.0], [2.0]]),
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
    assert list(name.get_xticks()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("most", "ticks"), [(0.7, ["0.02", "0.05", "0.1", "0.2", "0.5"]), (7.0, ["0.1", "1"])]
)
def test_a_logarithmic_axis_of_drawn_numbers_has_several_ticks(
    most: float, ticks: list[str]
) -> None:
    drawn = Effect(["lr"], ["a", "b"], [[0.5, 0.6], [0.9]], "log", [[0.02, 0.05], [most]])
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
    assert figures.colours_in_words(grid, monitor) == told
    (image,) = figures.heat_map(grid, monitor).axes[0].images
    ends = [format_metric(monitor, end) for end in image.get_clim()]
    assert sorted(re.findall(r"is ([\d.%]+)", told)) == sorted(ends)


def test_a_heat_map_without_a_trial_in_a_cell_has_no_nan() -> None:
    """JSON has no NaN."""
    grid = Grid("lr", "width", ["0.1", "1"], ["8"], np.array([[0.5], [np.nan]]))
    assert figures.heat_data(grid, "val/loss") == {
        "x": {"name": "width", "labels": ["8"]},
        "y": {"name": "lr", "labels": ["0.1", "1"]},
        "means": [[0.5], [None]],
        "ends": (0.5, 0.5),
    }


# --- what charts.js draws -------------------------------------------------------------------------


def test_the_library_is_that_of_the_package() -> None:
    content = figures.chart_content()
    script = gzip.decompress(base64.b64decode(content["library"]))
    assert script == files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    assert b"MIT license" in script[:300]
    assert len(content["library"]) < 2.2e6  # what a page grows by
    assert content["no_charts"] is None


def test_without_its_package_there_are_no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    content = figures.chart_content()
    assert content["library"] is None
    assert content["no_charts"] == 'plotly is not installed; type pip install -e ".[report]"'


def entry(name: str, value: float | None, history: Sequence[Row] = (), **settings: str) -> Reported:
    result: Result = {}
    if value is not None:
        result = {"status": "finished", "best": {"val/acc": value}}
    return Reported(Run(Path("none")), result, settings, settings, history, name, "")


def drawn(entries: Sequence[Reported], *keys: str) -> dict[str, Any]:
    """As a browser reads it."""
    data = figures.chart_data(Part(None, "", entries, keys), entries, keys)
    found: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    return found


def test_curves_have_the_values_of_the_history_the_best_run_first() -> None:
    history: list[Row] = [
        {"epoch": 0, "train/acc": None, "val/acc": 0.1, "train/loss": None, "val/loss": 2.3025851},
        {"epoch": 1, "train/acc": 0.8, "val/acc": 0.9, "train/loss": 0.5, "val/loss": math.inf},
    ]
    data = drawn([entry("b", 0.9, history, lr="0.1"), entry("a", 0.95, lr="0.12345678901")], "lr")
    best, other = data["trials"]
    assert best == {
        "name": "a", "settings": ["0.1235"], "value": 0.95, "group": 0, "epochs": [],
        "curves": [[], [], [], []],
    }  # fmt: skip
    assert other["epochs"] == [0, 1]
    assert other["curves"] == [[0.1, 0.9], [None, 0.8], [2.3026, None], [None, 0.5]]
    assert data["monitor"] == {
        "name": "val/acc", "fraction": True, "higher": True, "ends": [0.9, 0.95],
    }  # fmt: skip
    assert [quantity["title"] for quantity in data["quantities"]] == [
        "validation accuracy", "validation loss"
    ]  # fmt: skip


def test_runs_that_differ_in_the_seed_alone_form_a_group() -> None:
    entries = [
        entry(f"{lr}-{seed}", value, lr=lr, seed=seed)
        for value, (lr, seed) in zip(
            (0.9, 0.8, 0.7, 0.6), (("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")), strict=True
        )
    ]
    data = drawn(entries, "lr", "seed")
    assert [trial["group"] for trial in data["trials"]] == [0, 0, 1, 1]
    assert [key["repeated"] for key in data["keys"]] == [False, True]
    assert data["keys"][0]["labels"] == ["1", "2"]
    assert data["keys"][1]["of"] == [0, 1, 0, 1]


def test_a_second_run_of_a_seed_is_in_no_group() -> None:
    """The mean over seeds would count the seed twice."""
    entries = [entry(name, 0.9, lr="1", seed=name[0]) for name in ("0", "0 again", "1")]
    assert [trial["group"] for trial in drawn(entries, "lr", "seed")["trials"]] == [0, None, 0]
    assert [trial["group"] for trial in drawn(entries[:2], "lr")["trials"]] == [0, None]


def test_drawn_numbers_have_ranges_as_labels_and_many_texts_none() -> None:
    numbers = [entry(str(n), n / 40, lr=f"{(n + 1) / 7:.12f}", note=f"text {n}") for n in range(80)]
    rate, note = drawn(numbers, "lr", "note")["keys"]
    assert len(rate["labels"]) == 6
    assert rate["numbers"][0] == pytest.approx(80 / 7)  # the best run, which has the largest
    assert rate["of"][0] == 5
    assert (note["labels"], note["of"], note["numbers"]) == ([], [], None)


def test_a_key_has_the_scale_of_its_axis() -> None:
    entries = [
        entry(f"{n}", n / 4, lr=lr, act=act, width=width)
        for n, (lr, act, width) in enumerate(
            (("0.01", "a", "[8]"), ("1", "b", "[16]"), ("0.1", "c", "[24]"))
        )
    ]
    found = {
        key["name"]: (key["scale"], key["at"])
        for key in drawn(entries, "lr", "act", "width")["keys"]
    }
    assert found == {
        "lr": ("log", [0.01, 0.1, 1]), "act": ("category", [0, 1, 2]),
        "width": ("linear", [8, 16, 24]),
    }  # fmt: skip


def test_a_run_without_a_value_or_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    data = drawn([entry("failed", None), entry("huge", 1e300, lr="1")], "lr")
    assert [trial["value"] for trial in data["trials"]] == [None, None]
    assert data["keys"][0]["labels"] == ["1", "–"]


def test_very_many_runs_and_epochs_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best three stay, and the first and the last epoch."""
    monkeypatch.setattr(figures, "MOST_SHOWN", 10)
    monkeypatch.setattr(figures, "MOST_POINTS", 0)
    rows: list[Row] = [{"epoch": epoch, "val/acc": 0.5} for epoch in range(1000)]
    data = drawn([entry(str(n), 1 - n / 100, rows) for n in range(100)])
    names = [trial["name"] for trial in data["trials"]]
    assert (names[:4], names[-1], len(names)) == (["0", "1", "2", "3"], "99", 13)
    epochs = data["trials"][0]["epochs"]
    assert (epochs[0], epochs[-1], len(epochs)) == (0, 999, figures.FEWEST_EPOCHS)
