"""What a confirmation says of its results."""

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser
from scipy import stats

from kindling.records.config_files import create_run_folder
from kindling.records.confirm_record import Record, trials, write_record
from kindling.records.folder import Run
from kindling.records.labels import write_labels
from kindling.reports.confirmation import (
    Confirmation,
    describe_confirmation,
    read_confirmation,
    to_primitives,
    write_page,
)
from kindling.sweeps.confirmation.command import check_command_line
from tests.helpers.browser import opened
from tests.helpers.confirmations import pretended_sweep, settle

NAN = math.nan
LOSS = ("checkpoint.monitor=val/loss", "checkpoint.mode=min")


def confirmed(
    folder: Path, promised: Sequence[float], values: Sequence[Sequence[float]], *more: str
) -> Confirmation:
    """The confirmation of a sweep over the rate with these values, best first. NaN: diverged."""
    points = [
        ((f"optimizer.lr=0.{place}", *more), value) for place, value in enumerate(promised, 1)
    ]
    sweep = pretended_sweep(folder / "s", *points)
    record = check_command_line(sweep, len(values), len(values[0])).record
    return settled(folder / "c", record, values)


def settled(folder: Path, record: Record, values: Sequence[Sequence[float]]) -> Confirmation:
    for of_setting, own in zip(trials(folder, record), values, strict=True):
        for trial, value in zip(of_setting, own, strict=True):
            known = None if math.isnan(value) else value
            settle(trial.run, trial.config, known, "diverged" if known is None else "finished")
    return read_confirmation(folder, record)


VALUES = [
    [0.90, 0.92, 0.91, 0.93],  # promised 0.96
    [0.94, 0.95, 0.95, 0.97],  # promised 0.95
]


def test_figures_by_scipy(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.96, 0.95, 0.5], VALUES)
    (other, first), told = np.array(VALUES), to_primitives(found)
    assert (told["monitor"], told["seeds"], told["settings_of_sweep"]) == (
        "val/acc", [1, 2, 3, 4], 3,
    )  # fmt: skip
    for setting, sample, promised, rate in zip(
        told["settings"], (first, other), (0.95, 0.96), ("0.2", "0.1"), strict=True
    ):
        assert setting["values"] == {"optimizer.lr": rate}
        assert setting["mean"] == pytest.approx(sample.mean())
        assert setting["standard_deviation"] == pytest.approx(sample.std(ddof=1))
        interval = stats.t.interval(0.95, 3, sample.mean(), stats.sem(sample))
        assert setting["interval"] == pytest.approx([interval[0], min(interval[1], 1)])
        assert setting["flattered_by"] == pytest.approx(promised - sample.mean())
        assert setting["value_of_seed"] == sample.tolist()
    assert [setting["trials"] for setting in told["settings"]] == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert [setting["chance_to_be_best"] for setting in told["settings"]] == [1, 0]
    (difference,), theirs = told["first_minus_others"], stats.ttest_rel(first, other)
    assert difference["mean"] == pytest.approx((first - other).mean())
    assert difference["interval"] == pytest.approx([*theirs.confidence_interval()])
    assert difference["p_value"] == pytest.approx(theirs.pvalue)
    assert difference["p_value_corrected"] == difference["p_value"]
    tested = told["test_of_first"]
    assert tested["test/acc"]["mean"] == pytest.approx(first.mean() - 0.01)
    assert tested["test/loss"]["count"] == 4
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_the_text(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.96, 0.95, 0.5], VALUES)
    lines = describe_confirmation(found).splitlines()
    sweep, first = tmp_path / "s", found.settings[0].trials[0].run
    assert lines[0] == f"2 of 3 settings of {sweep}, each with 4 fresh seeds, 1 to 4"
    header = [
        "optimizer.lr", "seeds", "mean val/acc", "95% interval", "deviation", "promised",
        "confirmed is", "best with",
    ]  # fmt: skip
    assert lines[2] == "Setting 1 is better than the other, beyond chance (p-value < 0.001)"
    rows = [[cell for cell in line.split("  ") if cell] for line in (lines[4], *lines[6:8])]
    stripped = [[cell.strip() for cell in row] for row in rows]
    assert stripped == [
        header,
        ["1", "0.2", "4", "95.25%", "93.25% to 97.25%", "1.26%", "95.00%", "0.25% better", "100%"],
        ["2", "0.1", "4", "91.50%", "89.45% to 93.55%", "1.29%", "96.00%", "4.50% worse", "0%"],
    ]
    assert lines[11].split("  ")[0] == "1 − 2"
    assert "+3.75%" in lines[11]
    assert lines[11].endswith(" 0.001")
    assert lines[13] == (
        "test set, for setting 1 only: test/acc 94.25% (95% interval 92.25% to 96.25%); test/loss "
        "0.9425 (95% interval 0.9225 to 0.9625)"
    )
    assert "90.50%" not in describe_confirmation(found)  # the test accuracy of the other setting
    assert lines[15] == f"to train it alone with seed 1: {first.command}"
    assert len(lines) == 16


@pytest.mark.parametrize("seed", range(4))
def test_the_verdict_is_that_of_the_tests(seed: int, tmp_path: Path) -> None:
    """By SciPy's paired test and Holm's correction for all pairs of three settings."""
    draw = np.random.default_rng(seed)
    values = 0.9 + 0.01 * draw.normal(size=(3, 8)) - [[0], [0.004 * seed], [0.02]]
    found = confirmed(tmp_path, [0.93, 0.92, 0.91], values.tolist())
    for setting, parameters in zip(found.settings, (300, 100, 200), strict=True):
        for trial in setting.trials:
            trial.run.write_result({**trial.run.result, "parameters": parameters})
    found = read_confirmation(found.folder, found.record)
    measured = dict(enumerate((setting.measured for setting in found.settings), 1))
    tests = sorted(
        (float(stats.ttest_rel(measured[a], measured[b]).pvalue), a, b)
        for a, b in itertools.combinations(measured, 2)
    )
    corrected, least = dict[int, float](), 0.0
    for rank, (p, one, other) in enumerate(tests):
        least = max(least, min(1.0, p * (len(tests) - rank)))
        corrected |= {other: least} if one == 1 else {}
    alike = [place for place in (2, 3) if corrected[place] > 0.05]
    lines = describe_confirmation(found).splitlines()[2:]
    if not alike:
        assert lines[0].startswith("Setting 1 is better than each of the others, beyond chance (p-")
        assert lines[2].startswith("    ")  # the table
        return
    named = "settings 2, 3" if alike == [2, 3] else f"setting {alike[0]}"
    p = min(corrected[place] for place in alike)
    more = " or more" if len(alike) > 1 else ""
    assert lines[0] == (
        f"Setting 1 cannot be told apart from {named} by 8 seeds (p-value {p:.3f}{more})"
    )
    smallest = 2 if 2 in alike else 3
    command = found.settings[smallest - 1].trials[0].run.command
    size = {2: 100, 3: 200}[smallest]
    told = f"The smallest of them is setting {smallest}, with {size} parameters. To train it"
    assert lines[2] == f"{told}: {command}"
    assert lines[4] == (
        f"Four times the seeds halve the intervals: python -m src.confirm {tmp_path / 's'} --top 3 "
        f"--seeds 32 --output {tmp_path / 'c-32'}"
    )


def test_of_equal_sizes_or_unknown_ones_none_is_the_smallest(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.9, 0.9], [[0.9, 0.8], [0.9, 0.81]])
    assert "smallest" not in describe_confirmation(found)
    for setting in found.settings:
        for trial in setting.trials:
            trial.run.write_result({**trial.run.result, "parameters": 7})
    text = describe_confirmation(read_confirmation(found.folder, found.record))
    assert "cannot be told apart" in text
    assert "smallest" not in text


def test_of_folds_more_seeds_tell_little_more(tmp_path: Path) -> None:
    found = cross_validated(tmp_path, [[0.5, 0.75, 0.75, 0.5], [0.5, 0.6, 0.9, 0.5]])
    text = describe_confirmation(found)
    assert "More seeds add no folds, so the intervals would hardly shrink" in text
    assert "Four times" not in text


def test_a_test_accuracy_tells_how_far_its_samples_could_move_it(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.96, 0.95], VALUES)
    for trial in found.settings[0].trials:
        data = {**trial.run.result["data"], "test": 200}
        trial.run.write_result({**trial.run.result, "data": data})
    text = describe_confirmation(read_confirmation(found.folder, found.record))
    z = stats.norm.ppf(0.975)
    half = z * math.sqrt(0.9425 * 0.0575 / 200 + z**2 / 160_000) / (1 + z**2 / 200)
    assert f" over seeds, ± {half:.2%} over 200 test samples)" in text


def test_one_setting_has_no_verdict(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.9, 0.5], [[0.9, 0.8]])
    assert "told apart" not in describe_confirmation(found)
    assert "beyond chance" not in describe_confirmation(found)


def test_the_page_is_titled_by_a_name(tmp_path: Path) -> None:
    found = confirmed(tmp_path / "s", [0.96, 0.95], VALUES)
    assert "<title>Confirmation of " in write_page(found).read_text()
    write_labels(tmp_path / "s" / "s", name="rates")
    assert "<h1>Confirmation of rates</h1>" in write_page(found).read_text()
    write_record(found.folder, found.record)
    write_labels(found.folder, name="rates")  # typed with the sweep, so all of its runs have it
    assert "<h1>Confirmation of rates</h1>" in write_page(found).read_text()
    write_labels(found.folder, name="twenty")
    assert "<h1>twenty</h1>" in write_page(found).read_text()
    (found.folder / "labels.json").write_text("no")
    assert "<h1>Confirmation of rates</h1>" in write_page(found).read_text()


def test_of_losses_the_least_is_the_best(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.1, 0.2], [[0.3, 0.4], [0.2, 0.1]], *LOSS)
    assert [s.values["optimizer.lr"] for s in found.settings] == ["0.2", "0.1"]
    assert [s.flattered for s in found.settings] == pytest.approx([-0.05, 0.25])
    assert found.differences[0].estimate.mean == pytest.approx(-0.2)
    assert found.chances == [1, 0]
    text = describe_confirmation(found)
    assert "0.0500 better" in text  # the loss is lower than promised
    assert "0.2500 worse" in text
    low = found.settings[0].estimate.interval
    assert low is not None
    assert low[0] == 0  # no loss is below 0


def test_a_measure_of_the_classes_is_better_the_higher(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.9, 0.8], [[0.7, 0.6], [0.8, 1.0]], "checkpoint.monitor=val/f1")
    assert [s.values["optimizer.lr"] for s in found.settings] == ["0.2", "0.1"]
    assert [s.flattered for s in found.settings] == pytest.approx([-0.1, 0.25])
    assert found.chances == [1, 0]
    high = found.settings[0].estimate.interval
    assert high is not None
    assert high[1] == 1  # no fraction is above 1
    assert "test/f1 89.00% (95% interval" in describe_confirmation(found)
    assert to_primitives(found)["test_of_first"]["test/f1"]["mean"] == pytest.approx(0.89)


def test_seeds_that_diverge_are_told(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.9, 0.8], [[0.8, NAN, 0.9, 0.7], [0.6, 0.5, NAN, NAN]])
    assert [setting.estimate.count for setting in found.settings] == [3, 2]
    assert found.differences[0].estimate.count == 1
    assert found.differences[0].corrected is None
    text = describe_confirmation(found)
    assert (
        "setting 1: 1 of 4 seeds diverged, 2; the mean is over the others\n"
        "setting 2: 2 of 4 seeds diverged, 3, 4; the mean is over the others"
    ) in text
    assert "nan" not in text.lower()
    told = to_primitives(found)["settings"][0]
    assert (told["diverged_seeds"], told["value_of_seed"][1]) == ([2], None)


def test_a_failed_seed_is_told_with_its_reason(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.9, 0.8], VALUES)
    run = found.settings[1].trials[2].run
    run.write_result({"status": "failed", "error": "no memory\nat all"})
    again = read_confirmation(found.folder, found.record)
    assert (again.failures, found.failures) == (1, 0)
    text = describe_confirmation(again)
    assert "setting 2: 1 of 4 seeds failed, 3; the mean is over the others" in text
    assert f"trial {run.folder.name} failed: no memory\n" in text


def test_nothing_confirmed_is_one_sensible_line(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.9, 0.8], [[NAN, NAN], [NAN, NAN]])
    assert found.winner is None
    text = describe_confirmation(found)
    assert text.endswith("no setting has a value, so none is confirmed")
    assert "nan" not in text.lower()
    assert "test/acc" not in text
    told = json.loads(json.dumps(to_primitives(found), allow_nan=False))
    assert told["test_of_first"] is None
    assert told["settings"][0]["chance_to_be_best"] is None
    write_page(found)


@pytest.mark.parametrize(
    ("values", "interval", "p_value"),
    [
        ([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], "100.00% to 100.00%", "1.000"),
        ([[1.0, 1.0, 1.0], [0.9, 0.9, 0.9]], "100.00% to 100.00%", "< 0.001"),
        ([[0.5, 0.5], [0.5, NAN]], "50.00% to 50.00%", "–"),
    ],
    ids=["all perfect", "without variance", "one value"],
)
def test_equal_values(
    values: list[list[float]], interval: str, p_value: str, tmp_path: Path
) -> None:
    """No warning either: the tests make warnings errors."""
    found = confirmed(tmp_path, [0.9, 0.8], values)
    text = describe_confirmation(found)
    assert interval in text
    assert any(line.startswith("1 − 2") and line.endswith(p_value) for line in text.splitlines())
    assert "nan" not in text.lower()
    assert sum(chance or 0 for chance in found.chances) == pytest.approx(1)
    write_page(found)


def cross_validated(folder: Path, values: Sequence[Sequence[float]]) -> Confirmation:
    """As `confirmed`, of a sweep over two folds."""
    points = [
        ((f"optimizer.lr=0.{place}", "data.folds=2", f"data.fold={fold}"), 1 - place / 10)
        for place in range(1, len(values) + 1)
        for fold in range(2)
    ]
    record = check_command_line(
        pretended_sweep(folder / "s", *points), len(values), len(values[0])
    ).record
    return settled(folder / "c", record, values)


def test_folds_are_the_values(tmp_path: Path) -> None:
    found = cross_validated(tmp_path, [[0.5, 0.75, 0.75, 0.5], [0.5, 0.5, 0.25, 0.25]])
    told = to_primitives(found)
    assert (told["folds"], told["fold_of_seed"]) == (2, [0, 1, 0, 1])
    first, other = told["settings"]
    assert (first["mean_of_fold"], other["mean_of_fold"]) == ([0.625, 0.625], [0.375, 0.375])
    assert (first["count"], first["mean"], first["interval"]) == (2, 0.625, [0.625, 0.625])
    (difference,) = told["first_minus_others"]
    assert (difference["count"], difference["mean"], difference["p_value"]) == (2, 0.25, 0)
    assert told["test_of_first"]["test/acc"]["count"] == 2
    lines = describe_confirmation(found).splitlines()
    assert lines[0] == (
        f"2 of 2 settings of {tmp_path / 's'}, each with 4 fresh seeds, 1 to 4, which take turns "
        "on 2 folds"
    )
    assert lines[6].split()[:4] == ["1", "0.1", "4", "62.50%"]
    assert lines[9] == (
        "a fold counts as one value, the mean over its seeds; the intervals and p-values are "
        "corrected for the training samples that folds share"
    )
    assert "pairs of folds" in lines[11]
    assert "Four times the seeds" not in "".join(lines)
    run = found.settings[0].trials[0].run
    create_run_folder(run, {}, ["data.folds=2", "optimizer.lr=0.1", "data.fold=0", "seed=1"])
    assert describe_confirmation(found).splitlines()[-1] == (
        "to train it without folds, with seed 1: python -m src.train optimizer.lr=0.1 seed=1"
    )
    shown = chart(found)
    assert shown["value"] == "a fresh seed on its fold"
    assert shown["mean"] == "mean of the 2 folds and 95% interval"


def test_a_fold_that_lost_all_seeds_is_told(tmp_path: Path) -> None:
    found = cross_validated(tmp_path, [[0.5, 0.75, 0.75, 0.5], [0.25, NAN, NAN, NAN]])
    text = describe_confirmation(found)
    assert "setting 2: 3 of 4 seeds diverged, 2 to 4; the mean is over the others" in text
    assert ("setting 2: no seed has a value on fold 1; the mean is over the other folds\n") in text
    told = to_primitives(found)
    assert told["settings"][1]["mean_of_fold"] == [0.25, None]
    assert told["first_minus_others"][0]["count"] == 1
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    write_page(found)


def test_without_folds_nothing_is_said_of_them(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.96, 0.95, 0.5], VALUES)
    told = to_primitives(found)
    assert (told["folds"], told["fold_of_seed"]) == (None, None)
    assert [setting["mean_of_fold"] for setting in told["settings"]] == [None, None]
    assert "fold" not in describe_confirmation(found).replace(str(tmp_path), "")


def test_labels_have_all_keys(tmp_path: Path) -> None:
    keys = ("optimizer.lr", "optimizer.momentum", "optimizer.weight_decay", "model.dropout")
    points = [([f"{key}={value}" for key in keys], value) for value in (0.25, 0.125)]
    record = check_command_line(pretended_sweep(tmp_path / "s", *points), 2, 2).record
    found = settled(tmp_path / "c", record, [[0.9, 0.8], [0.7, 0.6]])
    label = chart(found)["samples"][0]["label"]
    assert label == f"1: {', '.join(f'{key}=0.25' for key in keys)}"


def test_one_setting_has_no_differences(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.9], [[0.8, 0.9]])
    text = describe_confirmation(found)
    assert text.startswith("1 of 1 settings of")
    assert "difference" not in text
    assert found.chances == [1]


def chart(found: Confirmation) -> dict[str, Any]:
    """What the page's chart draws, as a browser reads it."""
    page = write_page(found).read_text()
    (data,) = re.findall(r'id="confirm-data">(.*?)</script>', page)
    drawn: dict[str, Any] = json.loads(data)["intervals"]
    return drawn


def test_the_page_has_a_row_for_each_setting(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.96, 0.95], VALUES)
    first, other = chart(found)["samples"]
    assert (first["label"], other["label"]) == ("1: optimizer.lr=0.2", "2: optimizer.lr=0.1")
    assert (first["values"], other["values"]) == (VALUES[1], VALUES[0])
    assert (first["promised"], other["promised"]) == (0.95, 0.96)
    assert first["mean"] == pytest.approx(0.9525)
    for name in ("confirm.html", "confirm.png", "confirm.svg"):
        assert (found.folder / name).stat().st_size > 1000


@pytest.mark.slow
def test_the_page_is_drawn_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    """On a phone too; texts of strangers are texts."""
    sweep = "<script>document.title='had'</script>"
    found = confirmed(tmp_path, [0.96, 0.95], [[0.90, NAN, NAN, NAN], VALUES[1]])
    record = found.record.model_copy(update={"sweep": sweep})
    page = write_page(replace(found, record=record)).as_uri()
    for width in (390, 1200):
        with opened(browser, page, width=width) as shown:
            shown.wait_for_selector("#confirm .main-svg")
            assert shown.evaluate("document.documentElement.scrollWidth") == width
            fits = "each => each.scrollWidth <= each.clientWidth"
            assert shown.locator("#confirm .chart").evaluate(fits)
            assert shown.locator("#confirm .still").count() == 0
            assert shown.title() == f"Confirmation of {sweep}"
            legend = shown.locator(".legendtext").all_text_contents()
            assert legend == ["a fresh seed", "mean and 95% interval", "promised by the sweep"]
            assert "0.25% better" in shown.locator("table").first.inner_text()
            if width == 1200:  # the tool bar covers no dot of the best setting
                edge = "each => each.getBoundingClientRect()"
                bar = shown.locator("#confirm .modebar").evaluate(edge)
                plot = shown.locator("#confirm .nsewdrag").evaluate(edge)
                assert 0 < bar["bottom"] <= plot["top"]


@pytest.mark.slow
def test_tables_of_several_keys_fit_a_wide_window(browser: Browser, tmp_path: Path) -> None:
    """Names and intervals have several lines before a column would be cut."""
    keys = ("optimizer.lr", "optimizer.momentum", "optimizer.weight_decay", "model.dropout")
    points = [([f"{key}={value}" for key in keys], value) for value in (0.25, 0.125)]
    record = check_command_line(pretended_sweep(tmp_path / "s", *points), 2, 2).record
    page = write_page(settled(tmp_path / "c", record, [[0.9, 0.8], [0.7, 0.6]]))
    with opened(browser, page.as_uri()) as shown:
        widths = "each => each.map(one => [one.scrollWidth, one.clientWidth])"
        tables = shown.locator(".scroll").evaluate_all(widths)
        header = shown.locator("th").all_inner_texts()
    assert len(tables) == 2
    assert all(content == window for content, window in tables)
    assert header[1:5] == list(keys)


def test_a_mean_as_promised_is_neither_better_nor_worse(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.9, 0.8], [[0.9, 0.9], [0.8, NAN]])
    assert describe_confirmation(found).count("as promised") == 2


def test_missing_trials_have_no_value(tmp_path: Path) -> None:
    found = confirmed(tmp_path, [0.9, 0.8], VALUES)
    Run(found.folder / "5").result_file.unlink()
    again = read_confirmation(found.folder, found.record)
    assert math.isnan(again.settings[0].measured[1])
