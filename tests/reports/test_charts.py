"""What charts.js draws."""

import base64
import gzip
import json
import math
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from kindling.records.folder import Result, Row, Run
from kindling.reports import charts
from kindling.reports.collect import Part, Reported


def test_the_library_is_that_of_the_package() -> None:
    content = charts.chart_content()
    script = gzip.decompress(base64.b64decode(content["library"]))
    assert script == files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    assert b"MIT license" in script[:300]
    assert len(content["library"]) < 2.2e6  # what a page grows by
    assert content["no_charts"] is None


def test_without_its_package_there_are_no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    content = charts.chart_content()
    assert content["library"] is None
    assert content["no_charts"] == 'plotly is not installed; type pip install -e ".[report]"'


def entry(name: str, value: float | None, history: Sequence[Row] = (), **settings: str) -> Reported:
    result: Result = {}
    if value is not None:
        result = {"status": "finished", "best": {"val/acc": value}}
    return Reported(Run(Path("none")), result, settings, settings, history, name, "")


def drawn(entries: Sequence[Reported], *keys: str) -> dict[str, Any]:
    """As a browser reads it."""
    data = charts.chart_data(Part(None, "", entries, keys), entries, keys)
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
    monkeypatch.setattr(charts, "MOST_SHOWN", 10)
    monkeypatch.setattr(charts, "MOST_POINTS", 0)
    rows: list[Row] = [{"epoch": epoch, "val/acc": 0.5} for epoch in range(1000)]
    data = drawn([entry(str(n), 1 - n / 100, rows) for n in range(100)])
    names = [trial["name"] for trial in data["trials"]]
    assert (names[:4], names[-1], len(names)) == (["0", "1", "2", "3"], "99", 13)
    epochs = data["trials"][0]["epochs"]
    assert (epochs[0], epochs[-1], len(epochs)) == (0, 999, charts.FEWEST_EPOCHS)
