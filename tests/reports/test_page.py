"""The report's page says what the files of the runs say."""

import csv
import io
import json
import math
import re
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image
from playwright.sync_api import Browser, Locator

from kindling.data.sources import published
from kindling.data.sources.published import UnavailableError
from kindling.inference.evaluation import evaluate_path
from kindling.plots.samples import Sample, interval_data
from kindling.plots.style import COLOURS, use_style
from kindling.records.folder import CONFIRMATION, Run
from kindling.records.outcome import SHARED_TIME, in_full
from kindling.reports import charts, figures, tables
from kindling.reports.collect import Collection, Part, Reported, collect
from kindling.reports.page import MARK, title_of, write_report
from kindling.system.errors import InputError
from tests.helpers.browser import opened
from tests.helpers.commands import SMALL, Train
from tests.helpers.warm import Warm

AXES = ("model.hidden_sizes=8,16", "optimizer.lr=0.05,0.1", "seed=0,1")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Path:
    """A sweep of eight trials from the command line, which also writes the report."""
    folder = tmp_path_factory.mktemp("sweep")
    arguments = ("-m", "hydra/launcher=fused", *SMALL, *AXES, "hydra.sweep.dir=trials")
    done = warm(folder, "src.train", *arguments)
    assert done.returncode == 0, done.stderr
    assert f"report: {Path('trials/report.html')}" in done.stdout
    assert SHARED_TIME in done.stdout
    return folder / "trials"


class Tables(HTMLParser):
    """The rows of every table of a page, as texts, by the table's id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, list[list[str]]] = {}
        self.rows: list[list[str]] = []
        self.within = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.rows = self.found.setdefault(dict(attrs).get("id") or "", [])
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        self.within = tag in ("td", "th", "button", "code") and bool(self.rows)

    def handle_endtag(self, tag: str) -> None:
        self.within = False

    def handle_data(self, data: str) -> None:
        if self.within and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


@pytest.mark.slow
def test_the_page_of_a_sweep_agrees_with_its_table(sweep: Path) -> None:
    page = (sweep / "report.html").read_text()
    rows = list(csv.DictReader(io.StringIO((sweep / "results.csv").read_text())))
    header, *trials = Tables(page).found["sweep1-table"]
    swept = ["model.hidden_sizes", "optimizer.lr", "seed"]
    assert header == ["trial", "val/acc", *swept, "val/loss", *header[6:]]
    assert not {"status", "epochs"} & {*header}  # equal in all trials
    for fact in (
        "<code>status</code></td><td><code>finished",
        "<code>epochs</code></td><td><code>2",
    ):
        assert fact in page
    assert len(trials) == len(rows) == 8
    for row in rows:
        (cells,) = [cells for cells in trials if cells[0] == row["trial"]]
        shown = dict(zip(header, cells, strict=True))
        assert shown["val/acc"] == f"{float(row['val/acc']):.2%}"
        assert shown["val/loss"] == f"{float(row['val/loss']):.4f}"
        assert shown["seed"] == row["seed"]
    best = max(rows, key=lambda row: float(row["val/acc"]))
    assert trials[0][1] == f"{float(best['val/acc']):.2%}"  # the best first
    point = [
        row for row in rows if (row["model.hidden_sizes"], row["optimizer.lr"]) == ("16", "0.1")
    ]
    values = [float(row["val/acc"]) for row in point]
    expected = f"{statistics.mean(values):.2%} ± {statistics.stdev(values):.2%}"
    header_of_settings, *_ = settings = Tables(page).found["sweep1-settings-table"]
    assert ["16", "0.1", "2"] in [cells[:3] for cells in settings]
    brightest = settings[1][header_of_settings.index("val/acc")].split(" ")[0]
    assert re.search(
        f"strongest effects: dark is [^%]*%( or worse)?, bright is {brightest}\\.", page
    )
    assert expected in [cells[header_of_settings.index("val/acc")] for cells in settings]
    assert not [name for name in (*header, *header_of_settings) if "test" in name]
    assert "seconds" not in header  # equal in all trials
    assert SHARED_TIME.replace("'", "&#39;") not in page
    assert "reason" not in header


@pytest.mark.slow
def test_the_headline_of_repeated_settings_is_the_best_mean(sweep: Path) -> None:
    """The best of all trials owes a part of its value to its seed."""
    page = (sweep / "report.html").read_text()
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in csv.DictReader(io.StringIO((sweep / "results.csv").read_text())):
        setting = row["model.hidden_sizes"], row["optimizer.lr"]
        found.setdefault(setting, []).append((float(row["val/acc"]), float(row["test/acc"])))
    (width, rate), values = max(
        found.items(), key=lambda each: statistics.mean(validated for validated, _ in each[1])
    )
    (best,) = re.findall(r'class="card best">(.*?)</section>', page, re.DOTALL)
    assert f"best: model.hidden_sizes={width}, optimizer.lr={rate}, mean of 2 trials</p>" in best
    for name, of in zip(("val/acc", "test/acc"), zip(*values, strict=True), strict=True):
        spread = f"{statistics.mean(of):.2%} ± {statistics.stdev(of):.2%}"
        assert f"<dt>{name}</dt><dd>{spread}</dd>" in best
    (command,) = re.findall("<code>(.*)</code>", best)
    assert command.startswith("python -m src.train data=digits trainer=cpu")
    assert f"model.hidden_sizes={width} optimizer.lr={rate}" in command
    assert "seed=" not in command


def test_a_note_about_seconds_needs_a_column_of_seconds(sweep: Path) -> None:
    """A column that is equal in all trials is left out."""
    (found,) = collect([sweep]).sweeps
    table = tables.run_table("t", found)
    assert ("seconds" in table.rows[0], table.note) == (False, "")
    longer = found.entries[0].result | {"seconds": {"fit": 9.0}}
    entries = [replace(found.entries[0], result=longer), *found.entries[1:]]
    table = tables.run_table("t", replace(found, entries=entries))
    assert ("seconds" in table.rows[0], table.note) == (True, SHARED_TIME)


@pytest.mark.slow
def test_a_large_sweep_shows_its_first_rows(
    browser: Browser, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best trials, and some of those that did not finish; all runs in the pictures' ends."""
    shutil.copytree(sweep, tmp_path / "sweep")
    failed = Run(tmp_path / "sweep" / "3")
    failed.write_result({"status": "failed", "error": "broken"})
    Run(tmp_path / "sweep" / "4").write_result({"status": "failed", "error": "broken"})
    monkeypatch.setattr(tables, "MOST_ROWS", 4)
    monkeypatch.setattr(tables, "MOST_UNFINISHED", 1)
    monkeypatch.setattr(figures, "MOST_DRAWN", 2)
    page = write_report([tmp_path / "sweep"], models=False).read_text()
    header, *trials = Tables(page).found["sweep1-table"]
    statuses = [row[header.index("status")] for row in trials]
    assert statuses == ["finished", "finished", "finished", "failed"]
    accuracies = [float(row[header.index("val/acc")].rstrip("%")) for row in trials[:3]]
    rows = csv.DictReader(io.StringIO((sweep / "results.csv").read_text()))
    every = [float(row["val/acc"]) for row in rows if row["trial"] not in "34"]
    assert accuracies == [round(100 * value, 2) for value in sorted(every, reverse=True)[:3]]
    assert ">the first 4 of 8 trials; results.csv has all</span>" in page
    with opened(browser, (tmp_path / "sweep" / "report.html").as_uri()) as shown:
        count = shown.locator("[data-filters=sweep1] + .count")
        shown.locator("[data-filters=sweep1]").fill("nowhere")
        assert count.inner_text() == "0 of the first 4 of 8 trials; results.csv has all"
        shown.locator("[data-filters=sweep1]").fill("")
        assert count.inner_text() == "the first 4 of 8 trials; results.csv has all"
    assert "<h1>A sweep over hidden_sizes, lr, seed on digits: 8 trials</h1>" in page


def test_notebooks_have_the_colours_of_reports() -> None:
    with mpl.rc_context():
        use_style()
        axis = Figure().subplots()
        drawn = [axis.plot([1, 2])[0].get_color() for _ in COLOURS]
        assert tuple(drawn) == COLOURS
        assert not axis.spines["top"].get_visible()


def test_pictures_draw_some_of_many() -> None:
    assert charts.spread(range(300)) == range(300)
    few = charts.spread(range(10_000))
    assert (len(few), few[0], few[-1]) == (300, 0, 9_999)
    assert max(b - a for a, b in pairwise(few)) == 34


def test_a_page_is_self_contained(sweep: Path) -> None:
    page = (sweep / "report.html").read_text()
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert links
    for link in links:
        inside = link.startswith(("#", "data:image/png;base64,"))
        assert inside or (sweep / link).is_file(), link
    assert "default-src 'none'" in page  # nor may anything be fetched
    assert re.search("script-src 'nonce-[0-9a-f]{32}'; img-src data:\"", page)
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))


def test_pictures_lie_beside_the_page(sweep: Path) -> None:
    names = {path.stem for path in (sweep / "report").iterdir()}
    parts = (
        "heat-map",
        "effects",
        "curves",
        "settings",
        "model1-confusion",
        "model1-reliability",
        "model1-mistakes",
        "model1-weights",
    )
    assert names == {f"sweep1-{part}" for part in parts}
    for name in names:
        assert ElementTree.parse(sweep / "report" / f"{name}.svg").getroot().tag.endswith("svg")
        with Image.open(sweep / "report" / f"{name}.png") as picture:
            assert np.asarray(picture.convert("L")).min() < 128  # something dark on its white
            assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.slow
@pytest.mark.slow
def test_sentences_about_several_sweeps_are_below_their_titles(sweep: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(sweep, tmp_path / name)
    told = list[str]()
    write_report([tmp_path], models=False, tell=told.append)
    assert [line for line in told if line.startswith("Sweep")] == ["Sweep one:", "Sweep two:"]
    half = len(told) // 2
    assert told[1:half] == [line.replace("/two", "/one") for line in told[half + 1 :]]
    assert told[1].startswith("The best of 4 settings is ")
    single = list[str]()
    alone = write_report([tmp_path / "one"], models=False, tell=single.append)
    assert single == told[1:half]
    assert "<nav" not in alone.read_text()


@pytest.mark.slow
def test_a_page_of_several_parts_begins_with_an_overview(
    browser: Browser, sweep: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        shutil.copytree(sweep, tmp_path / name)
    page = write_report([tmp_path], models=False)
    with opened(browser, page.as_uri()) as shown:
        lines = shown.locator("nav li").all_inner_texts()
        assert [line.partition(": ")[0] for line in lines] == ["Sweep one", "Sweep two"]
        texts = shown.locator(".best").first.inner_text().splitlines()
        best = [text for text in texts if text]  # name, metric, value
        told = f"{best[0].removeprefix('best: ')}, {best[1]} {best[2]}"
        assert [line.partition(": ")[2] for line in lines] == [told, told]
        top = "element => element.getBoundingClientRect().top"
        assert shown.locator("nav").evaluate(top) < 300
        shown.locator("nav a", has_text="Sweep two").click()
        assert -1 <= shown.locator("h2", has_text="Sweep two").evaluate(top) < 100


@pytest.mark.slow
def test_numbers_in_charts_are_rounded_as_in_python(browser: Browser, sweep: Path) -> None:
    """Also halfway between two hundredths, where Python takes the even one."""
    values = [n / 800 for n in range(-800, 801)] + [n / 32_000 for n in range(32_001)]
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        found = page.evaluate("values => values.map(value => shown(value, true))", values)
    assert found == [f"{value:.2%}" for value in values]


@pytest.mark.slow
def test_charts_and_pictures_fit_the_same_values(browser: Browser, sweep: Path) -> None:
    generator = np.random.default_rng(0)
    curves = [generator.standard_cauchy(size).round(3).tolist() for size in range(40)]
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        found = page.evaluate("curves => curves.map(near)", curves)
    points = [np.array([*enumerate(curve, 1)], float).reshape(-1, 2) for curve in curves]
    assert found == [figures._near(each).tolist() for each in points]
    assert sum(map(len, found)) < sum(map(len, curves))


@pytest.mark.slow
def test_an_axis_of_shares_ends_at_0_and_100_percent(browser: Browser, sweep: Path) -> None:
    samples = [Sample("a", [0.0, 0.99], 0.5, (0.0, 1.0)), Sample("b", [1.0], 1.0, None)]
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        for quantity, ends, expected in (
            ("val/acc", None, [-0.02, 1.02]), ("val/acc", (-0.1, 1.1), [-0.02, 1.02]),
            ("val/loss", None, [-0.05, 1.05]), ("val/loss", (-0.1, 1.1), [-0.1, 1.1]),
        ):  # fmt: skip
            data = {"intervals": interval_data(samples, quantity, "a trial", ends=ends)}
            axis = page.evaluate("data => intervals(data, {}, 800)[1].xaxis.range", data)
            assert axis == pytest.approx(expected)


def test_runs_in_one_plot(train: Train, tmp_path: Path) -> None:
    runs = [train(), train("model=logistic_regression", "optimizer.lr=0.05")]
    page = write_report([run.folder for run in runs])
    assert page.samefile(tmp_path / "report-run1+run2.html")
    text = page.read_text()
    header, *rows = Tables(text).found["runs-table"]
    assert {row[0] for row in rows} == {"run1", "run2"}
    by_name = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    for run in runs:
        shown = by_name[run.folder.name]
        assert shown["test/acc"] == f"{run.result['test/acc']:.2%}"
        assert shown["parameters"] == f"{run.result['parameters']:,}"
    assert by_name["run2"]["model.name"] == "logistic_regression"
    assert "trainer.max_epochs" not in header  # they have it in common
    assert "<code>trainer.max_epochs</code></td><td><code>2</code>" in text
    assert f"torch {torch.__version__.partition('+')[0]}" in text
    best = max(runs, key=lambda run: float(run.result["best"]["val/acc"] or 0))
    found = evaluate_path(best.folder, None)
    table = Tables(text).found["run-model1-measures"]
    assert table[0] == ["class", "precision", "recall", "F1", "AUROC", "samples"]
    assert table[-2][1:] == [
        *(f"{m.macro:.2%}" for m in (found.measures.precision, found.measures.recall)),
        *(f"{m.macro:.2%}" for m in (found.measures.f1, found.measures.auroc)),
        "359",
    ]
    confusion = found.confusion
    drawn = (page.with_suffix("") / "run-model1-confusion.svg").read_text()
    for count in confusion.diag().tolist():
        assert f">{count}</text>" in drawn


@pytest.mark.slow
def test_each_data_set_has_its_own_section(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each data set has its own curves, table and best run; the toy data set is much easier."""

    def unavailable(*_: object) -> None:
        raise UnavailableError("there is no network")

    monkeypatch.setattr(published, "download", unavailable)
    monkeypatch.delenv("DATA_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "mine.npz", x=np.eye(40, 4), y=np.arange(40) % 2)
    np.savez(tmp_path / "other.npz", x=np.eye(40, 4), y=np.arange(40) % 2)
    runs = [
        train("trainer.max_epochs=1"),
        train("data=toy", "trainer.max_epochs=5"),
        train("data=mnist_or_digits"),  # takes the digits
        train("data=npz", f"data.path={tmp_path / 'mine.npz'}"),
        train("data=npz", f"data.path={tmp_path / 'other.npz'}"),
    ]
    file = write_report([run.folder for run in runs], models=False)
    page = file.read_text()
    found = Tables(page).found
    names = [sorted(row[0] for row in found[f"runs{number}-table"][1:]) for number in (1, 2, 3, 4)]
    assert names == [["run1", "run3"], ["run2"], ["run4"], ["run5"]]
    titles = re.findall('<h2 id="\\w+">(Runs.*)</h2>', page)
    paths = [tmp_path / name for name in ("mine.npz", "other.npz")]
    assert titles == [
        "Runs on digits", "Runs on toy", *(f"Runs on npz {path}" for path in paths)
    ]  # fmt: skip
    assert page.count('class="card best"') == 4
    better = max(runs[0], runs[2], key=lambda run: float(run.result["best"]["val/acc"] or 0))
    assert f"best: {better.folder.name}</p>" in page
    assert {path.stem for path in file.with_suffix("").iterdir()} == {
        f"runs{number}" for number in (1, 2, 3, 4)
    }


@pytest.mark.slow
def test_a_sweep_over_data_sets_has_a_best_trial_on_each(warm: Warm, tmp_path: Path) -> None:
    arguments = (
        "-m",
        "hydra/launcher=fused",
        *SMALL[1:],
        "data=digits,toy",
        "seed=0,1",
        "hydra.sweep.dir=trials",
    )
    done = warm(tmp_path, "src.train", *arguments)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    best = [line for line in lines if line.startswith("best trial")]
    assert [line.partition(":")[0] for line in best] == [
        "best trial on digits, to train it alone",
        "best trial on toy, to train it alone",
    ]
    assert ["data=digits" in line for line in best] == [True, False]
    trials = [line.split()[0] for line in lines if re.match(r" +\d+  finished", line)]
    assert [sorted(trials[:2]), sorted(trials[2:])] == [["0", "1"], ["2", "3"]]
    over_seeds = [line.split()[:2] for line in lines if " ± " in line and "its mean" not in line]
    assert over_seeds == [["digits", "2"], ["toy", "2"]]
    page = (tmp_path / "trials" / "report.html").read_text()
    found = Tables(page).found
    for number, expected in ((1, {"0", "1"}), (2, {"2", "3"})):
        assert {row[0] for row in found[f"sweep{number}-table"][1:]} == expected
    assert '<h2 id="sweep1">Sweep trials on digits</h2>' in page
    assert "<h1>A sweep over seed on digits, toy: 4 trials</h1>" in page


@pytest.mark.slow
def test_unfinished_runs_show_their_best_epoch_and_the_reason(train: Train, tmp_path: Path) -> None:
    """The best epoch so far comes from the history; the reason is a signal, an error or a step."""
    runs = {name: train("trainer.max_epochs=4") for name in ("SIGTERM", "failed", "early", "went")}
    results: dict[str, dict[str, object]] = {
        "SIGTERM": {"status": "interrupted", "signal": "SIGTERM", "epochs": 2, "steps": 9},
        "failed": {"status": "failed", "error": "ValueError: no\n  such thing"},
        "early": {"status": "interrupted", "signal": "SIGINT", "epochs": 0, "steps": 0},
    }
    for name, result in results.items():
        runs[name].write_history(runs[name].history[: 1 if name == "early" else 3])
        runs[name].write_result(result)
    runs["went"].write_result(runs["went"].result | {"status": "diverged", "diverged_step": 7})
    page = write_report([tmp_path], models=False).read_text()
    header, *rows = Tables(page).found["runs-table"]
    shown = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    for name, epochs, reason in (
        ("SIGTERM", "2", "SIGTERM"),
        ("failed", "2", "ValueError: no"),
        ("early", "0", "SIGINT"),
        ("went", "4", "at step 7"),
    ):
        cells = shown[runs[name].folder.name]
        assert (cells["epochs"], cells["reason"]) == (epochs, reason)
        if name in ("SIGTERM", "failed"):
            best = max(runs[name].history[1:], key=lambda row: row["val/acc"] or 0)
            assert cells["val/acc"] == f"{best['val/acc']:.2%}"
            assert cells["val/loss"] == f"{best['val/loss']:.4f}"
            assert cells["test/acc"] == "–"
    assert shown[runs["early"].folder.name]["val/acc"] == "–"


@pytest.mark.slow
def test_a_foreign_file_is_not_overwritten(train: Train, tmp_path: Path) -> None:
    run = train("model=logistic_regression")
    mine = run.folder / "report.html"
    mine.write_text("my notes")
    with pytest.raises(InputError, match=r"exists already .*--force"):
        write_report([run.folder], models=False)
    assert mine.read_text() == "my notes"
    write_report([run.folder], force=True, models=False)
    assert MARK in mine.read_text()
    write_report([run.folder], models=False)  # one of ours is written anew
    with pytest.raises(InputError, match=r"must end in \.html; type --output .*x\.html"):
        write_report([run.folder], tmp_path / "x.pdf")


@pytest.mark.slow
def test_a_report_of_several_paths_replaces_no_other_report(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name says what is in the page; the folder of the day may have a report of its own."""
    day = tmp_path / "2026-01-02"
    names = ("one", "two", "größe #1", "n" * 90)
    for name in names:
        shutil.copytree(finished.folder, day / name)
    own = write_report([day], models=False)
    before = own.read_bytes()
    monkeypatch.chdir(tmp_path)
    one, two, strange, long = (day / name for name in names)

    def place(*paths: Path) -> str:
        return str(write_report(paths, models=False))

    assert place(one, two) == place(two, one) == "2026-01-02/report-one+two.html"
    assert place(one, one) == str(one / "report.html")  # the same twice
    assert place(day, day / "one") == "2026-01-02/report-2026-01-02+one.html"
    shutil.copytree(finished.folder, tmp_path / "2026-01-03" / "one")
    assert place(one, tmp_path / "2026-01-03" / "one") == (
        "report-2026-01-02-one+2026-01-03-one.html"
    )
    unusual = [place(one, strange), place(one, long), place(two, long)]
    assert len(set(unusual)) == 3
    for page in unusual:
        assert re.fullmatch(r"2026-01-02/report-2-folders-[0-9a-f]{8}\.html", page)
    assert own.read_bytes() == before


def entry(name: str, **result: object) -> Reported:
    return Reported(Run(Path(name)), result, {}, {}, [], name, "")  # type: ignore[arg-type]


def test_an_environment_that_runs_share_is_told_once() -> None:
    def environments(*results: dict[str, object]) -> list[str]:
        return tables.environments([entry(str(n), **each) for n, each in enumerate(results)])

    same: dict[str, object] = {"hardware": {"device": "cpu"}, "versions": {"torch": "2"}}
    assert environments() == environments({}) == []
    unfinished = "runs: not recorded, because they did not finish"
    assert environments(same, same) == ["device cpu, torch 2"]
    assert environments(same, {}, same) == ["device cpu, torch 2", f"1 of 3 {unfinished}"]
    other = {**same, "hardware": {"device": "cpu", "threads": 4}}
    assert environments(same, other, {}, {**other, "commit": "abc"}) == [
        "device cpu, torch 2", "1 of 4 runs: threads 4", "1 of 4 runs: threads 4, commit abc",
        f"1 of 4 {unfinished}",
    ]  # fmt: skip
    gpu: dict[str, object] = {"hardware": {"device": "cuda"}}
    assert environments({"hardware": {"device": "cpu"}}, gpu, gpu) == [
        "1 of 3 runs: device cpu", "2 of 3 runs: device cuda"
    ]  # fmt: skip


def test_a_title_names_seeds_and_folds_last() -> None:
    keys = ["data.fold", "seed", "optimizer.lr", "model.hidden_sizes", "model.dropout"]
    trial = replace(entry("0"), settings={"data.name": "digits"})
    found = Collection([], [Part(Path("s"), "s", [trial], keys)], [])
    assert (
        title_of(found) == "A sweep over lr, hidden_sizes, dropout, fold, 1 more on digits: 1 trial"
    )


@pytest.mark.parametrize(
    ("called", "model", "title"),
    [
        ("wide", {"name": "mlp"}, "wide on csv my.csv"),
        (None, {"name": "mlp", "hidden_sizes": "[8]"}, "MLP [8] on csv my.csv"),
        (None, {"name": "cnn", "channels": "[4,8]"}, "CNN [4,8] on csv my.csv"),
        (None, {"name": "logistic_regression"}, "Logistic regression on csv my.csv"),
    ],
)
def test_the_title_of_a_run_names_its_data(
    called: str | None, model: dict[str, str], title: str
) -> None:
    settings = {"data.name": "csv", "data.path": "my.csv"}
    settings |= {f"model.{key}": value for key, value in model.items()}
    run = replace(entry("0"), settings=settings, called=called)
    assert title_of(Collection([run], [], [])) == title


def test_a_sweep_and_its_confirmation_are_titled_by_the_sweep(sweep: Path, tmp_path: Path) -> None:
    alone = title_of(collect([sweep]))
    confirmed = shutil.copytree(sweep, tmp_path / "s")
    (shutil.copytree(sweep, confirmed / "confirm") / CONFIRMATION).write_text("{}\n")
    found = collect([confirmed])
    assert [each.kind for each in found.sweeps] == ["sweep", "confirmation"]
    assert title_of(found) == f"{alone}, and a confirmation"
    assert "confirmation" in title_of(collect([confirmed / "confirm"]))


@pytest.mark.slow
def test_a_model_is_told_with_all_its_settings(train: Train) -> None:
    """A legend has no room for all; the line of the model has."""
    run = train("optimizer.momentum=0.25", "optimizer.weight_decay=0.0001", "trainer.max_epochs=1")
    page = write_report([run.folder]).read_text()
    (line,) = re.findall(r'<h3>The model of .*</h3>\n<p class="soft">(.*)</p>', page)
    assert line == in_full(run.overrides).replace("'", "&#39;")
    assert len(line) > 100


@pytest.mark.slow
def test_a_run_is_called_by_its_name_else_by_data_and_model(train: Train, tmp_path: Path) -> None:
    named, plain = train("name=wide"), train("model.hidden_sizes=[16]")
    for runs, title in (
        ([named], "wide on digits"),
        ([plain], "MLP [16] on digits"),
        ([named, plain], "2 runs on digits"),
    ):
        page = write_report([run.folder for run in runs], tmp_path / "x.html", models=False)
        assert f"<h1>{title}</h1>" in page.read_text()
    rows = Tables(page.read_text()).found["runs-table"]
    assert {row[0] for row in rows[1:]} == {f"wide ({named.folder.name})", plain.folder.name}
    seconds = sum(run.result["seconds"]["fit"] for run in (named, plain))
    assert f"<li>fit {seconds:.2f} s</li>" in page.read_text()


@pytest.mark.slow
def test_texts_of_strangers_are_escaped(train: Train) -> None:
    """Also in the data of the charts."""
    run = train("model=logistic_regression")
    attack = '</script><script>document.title="had"</script>'
    run.overrides_file.write_text(json.dumps([f"seed={attack}", "seed=$\\frac", "a=`id`"]))
    result = run.result | {"commit": attack, "hardware": {attack: attack}}
    run.write_result(result)
    twin = shutil.copytree(run.folder, run.folder.with_name("<img src=x onerror=alert()>"))
    page = write_report([run.folder, twin]).read_text()
    assert "<script>document" not in page
    assert "<img" not in page
    assert "\\u003cimg src=x onerror=alert()\\u003e" in page
    assert "&lt;script&gt;document" in page
    assert "&#39;a=`id`&#39;" in page  # quoted for a shell


def test_a_sweep_in_which_everything_failed(sweep: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sweep, tmp_path / "copy")
    for number in range(8):
        run = Run(copy / str(number))
        run.history_file.unlink()
        run.write_result({"status": "failed", "error": "ValueError: no"})
    page = write_report([copy]).read_text()
    rows = Tables(page).found["sweep1-table"][1:]
    assert [row[1:3] for row in rows] == [["ValueError: no", "–"]] * 8
    assert '<p class="soft">8 failed' in page
    assert not (copy / "report" / "sweep1-time.png").exists()


@pytest.mark.slow
def test_trials_that_halving_has_dropped_are_counted(sweep: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sweep, tmp_path / "copy")
    for number in (2, 5):
        run = Run(copy / str(number))
        run.write_result(run.result | {"stopped": "halving", "epochs": 1})
    page = write_report([copy], models=False).read_text()
    assert re.search('<p class="soft">(6 finished, 2 dropped|2 dropped, 6 finished);', page)
    header, *rows = Tables(page).found["sweep1-table"]
    places = [header.index(name) for name in ("trial", "status", "epochs")]
    told = {row[places[0]]: tuple(row[place] for place in places[1:]) for row in rows}
    assert told["2"] == told["5"] == ("dropped", "1")
    assert told["0"] == ("finished", "2")


# --- as people see it --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_table_is_sorted_and_filtered_in_a_browser(browser: Browser, sweep: Path) -> None:
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        table = page.locator("#sweep1-table")

        def column(name: str) -> list[str]:
            header = table.locator("th").all_inner_texts()
            cells = table.locator(f"tbody tr:visible td:nth-child({header.index(name) + 1})")
            return cells.all_inner_texts()

        table.locator("th button", has_text="val/loss").click()
        losses = [float(text) for text in column("val/loss")]
        assert losses == sorted(losses)
        table.locator("th button", has_text="val/loss").click()
        assert [float(text) for text in column("val/loss")] == sorted(losses, reverse=True)
        assert table.locator("th", has_text="val/loss").get_attribute("aria-sort") == "descending"
        table.locator("th button", has_text="trial").click()
        assert column("trial") == [str(number) for number in range(8)]
        rows = table.locator("tbody tr").all_inner_texts()
        words = [column("model.hidden_sizes")[3], column("val/loss")[3]]
        having = [
            str(trial) for trial, row in enumerate(rows) if all(word in row for word in words)
        ]
        page.locator("[data-filters=sweep1]").fill(" ".join(words))
        assert "3" in having
        assert column("trial") == having
        count = page.locator("[data-filters=sweep1] + .count").inner_text()
        assert count == f"{len(having)} of 8 rows"


@pytest.mark.slow
def test_a_faded_edge_tells_that_a_table_goes_on(browser: Browser, sweep: Path) -> None:
    """Below and on the right, until the last row and the last column are in view."""
    faded = """each => ["--right", "--below"].map(
        name => parseFloat(getComputedStyle(each).getPropertyValue(name)) > 0)"""
    with opened(browser, (sweep / "report.html").as_uri(), width=390) as page:
        table = page.locator("#sweep1-table").locator("..")

        def edges() -> list[bool]:
            page.wait_for_timeout(100)
            found: list[bool] = table.evaluate(faded)
            return found

        assert edges() == [True, False]  # all rows are in view
        page.add_style_tag(content=".scroll { max-height: 8rem; }")
        assert edges() == [True, True]
        table.evaluate("each => each.scrollBy(0, 1000)")
        assert edges() == [True, False]
        table.evaluate("each => each.scrollBy(1000, -1000)")
        assert edges() == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize(("higher", "most"), [(True, 1), (False, 1), (True, 0)])
def test_the_ink_of_a_heat_map_can_be_read(
    browser: Browser, sweep: Path, tmp_path: Path, higher: bool, most: float
) -> None:
    """By the contrast that the Web Content Accessibility Guidelines ask of text, 4.5; on all
    colours of the scale, and where all values are equal, which get the colour in the middle."""
    text = (sweep / "report.html").read_text()
    data = json.loads(re.findall(r'id="sweep1-data">(.*?)</script>', text)[0])
    values = np.linspace(0, most, 15)
    data["monitor"]["higher"] = higher
    data["heat"]["x"]["labels"] = [*map(str, range(5))]
    data["heat"]["y"]["labels"] = [*map(str, range(3))]
    data["heat"] |= {"best": values.reshape(3, 5).tolist(), "ends": [0, most]}
    found = re.search(r'(?<=id="sweep1-data">).*?(?=</script>)', text)
    assert found is not None
    shown = tmp_path / "report.html"
    shown.write_text(text[: found.start()] + json.dumps(data) + text[found.end() :])

    def brightness(colour: Sequence[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    with opened(browser, shown.as_uri()) as page:
        page.wait_for_selector("#sweep1-heat-map .textpoint text")
        fills = page.locator("#sweep1-heat-map .textpoint text").evaluate_all(
            "each => each.map(one => getComputedStyle(one).fill)"
        )
    assert len(fills) == 15
    for value, fill in zip(values, fills, strict=True):
        ink = brightness([int(c) / 255 for c in re.findall(r"\d+", fill)[:3]])
        place = value if most else 0.5
        cell = brightness(colormaps["viridis"](place if higher else 1 - place))
        low, high = sorted([ink, cell])
        assert (high + 0.05) / (low + 0.05) >= 4.5, (value, fill)


RECTANGLES = """each => each.map(one => {
    const {left, right, top, bottom} = one.getBoundingClientRect();
    return [left, right, top, bottom]; })"""


def overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    """Of two rectangles, by more than the edge of a letter."""
    return all(min(one[to], other[to]) - max(one[to - 1], other[to - 1]) > 1 for to in (1, 3))


@pytest.mark.slow
def test_without_scripts_a_page_has_pictures_and_nothing_that_does_nothing(
    browser: Browser, sweep: Path
) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto((sweep / "report.html").as_uri())
        assert page.locator("figure img:visible, figure svg:visible").count() > 3
        for useless in (".copy", ".tools"):
            assert page.locator(useless).count() > 0
            assert page.locator(f"{useless}:visible").count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 800])
def test_each_cell_of_a_heat_map_has_its_number(browser: Browser, sweep: Path, width: int) -> None:
    """And each row and column its label, on a phone too: the best cell is found by numbers. Where
    even short numbers are too wide, the chart is scrolled, and not the page."""
    with opened(browser, (sweep / "report.html").as_uri(), width=width) as page:
        page.wait_for_selector("#sweep1-heat-map .main-svg")
        figure = page.locator("#sweep1-heat-map")
        numbers, labels = (
            figure.locator(kind) for kind in (".textpoint text", ".xtick text, .ytick text")
        )
        for rows, columns, label, fraction in (
            (2, 2, "[8]", True), (6, 6, "0.00226–0.0886", True), (6, 10, "[1024]", True),
            (6, 6, "0.00226–0.0886", False), (16, 16, "[1024,1024,1024]", True),
        ):  # fmt: skip
            values = 0.30119 + 0.6 * np.arange(rows * columns) / (rows * columns)
            page.evaluate(
                """([best, x, y, fraction]) => {
                const source = document.getElementById("sweep1-data");
                const data = JSON.parse(source.textContent);
                data.monitor.fraction = fraction;
                data.heat.best = best;
                data.heat.x.labels = x;
                data.heat.y.labels = y;
                source.textContent = JSON.stringify(data); showAll(); }""",
                [
                    values.reshape(rows, columns).tolist(),
                    *([f"{label}{at}" for at in range(count)] for count in (columns, rows)),
                    fraction,
                ],
            )
            written = numbers.all_text_contents()
            shown = sorted(float(text.strip("%")) / (100 if fraction else 1) for text in written)
            assert shown == pytest.approx(values, abs=0.0006)
            units = figure.locator(".annotation-text").all_text_contents()
            assert fraction == ("%" in written[0] or units == ["val/acc in %"])
            sizes = "each => each.map(one => parseFloat(getComputedStyle(one).fontSize))"
            assert min(numbers.evaluate_all(sizes)) >= 9
            assert labels.count() == rows + columns
            for some in (numbers, labels):
                faded = "each => each.some(one => getComputedStyle(one).opacity < 1)"
                assert not some.evaluate_all(faded)
                require_apart(some, figure.locator(".svg-container"))
            assert page.evaluate("document.documentElement.scrollWidth") == width


def require_apart(texts: Locator, canvas: Locator) -> None:
    """No text lies on another one or outside of its chart, but for the edge of a letter."""
    rectangle = """each => each.map(one => {
        const {left, top, right, bottom} = one.getBoundingClientRect();
        return [[left, top], [right, bottom]]; })"""
    boxes = np.array(texts.evaluate_all(rectangle))
    (chart,) = np.array(canvas.evaluate_all(rectangle))
    assert (boxes[:, 0] >= chart[0]).all()
    assert (boxes[:, 1] <= chart[1]).all()
    for at, (start, end) in enumerate(boxes):
        common = np.minimum(end, boxes[:at, 1]) - np.maximum(start, boxes[:at, 0])
        assert not (common > 1).all(axis=1).any()


@pytest.mark.slow
def test_charts_answer_the_pointer_and_their_controls(browser: Browser, sweep: Path) -> None:
    """The charts take the place of the pictures. Their buttons send nothing anywhere."""
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        page.wait_for_selector("#sweep1-parallel .main-svg")
        assert page.locator(".chart").count() == 5  # with heat map and intervals
        assert page.locator("#sweep1-curves .still").count() == 0
        figure = page.locator("#sweep1-curves")
        select = {
            label.inner_text().split("\n")[0].strip(): label.locator("select")
            for label in figure.locator(".controls label").all()
        }
        assert [*select] == ["colour by", "lines", "scale"]
        keys = select["colour by"].locator("option").all_inner_texts()
        assert sorted(keys) == ["model.hidden_sizes", "optimizer.lr", "seed"]
        assert keys[-1] == "seed"  # nobody chooses seeds
        select["colour by"].select_option("optimizer.lr")
        shapes = "each => each.map(({x, width}) => x + width / 2)"
        boxes = "each => each.map(one => one.getBoundingClientRect())"
        panels, titles = (
            figure.locator(kind).evaluate_all(f"each => ({shapes})(({boxes})(each))")
            for kind in (".subplot .gridlayer", ".annotation-text")
        )
        assert titles == pytest.approx(panels, abs=3)
        legend = figure.locator(".legendtext").all_text_contents()
        header, best, *_ = Tables((sweep / "report.html").read_text()).found["sweep1-table"]
        assert legend[:2] == ["optimizer.lr = 0.05", "optimizer.lr = 0.1"]
        # Its colour is that of no entry, so its settings are told; a line may end after a comma.
        own = dict(zip(header, best, strict=True))
        first, *settings = (text.strip() for text in legend[2].split(","))
        assert first == f"best: trial {best[0]}"
        assert settings == [f"{key} = {own[key]}" for key in keys]
        select["lines"].select_option("means")
        (best_mean,) = figure.locator(".legendtext", has_text="best: ").all_text_contents()
        first, *settings = (text.strip() for text in best_mean.split(","))
        assert first == "best: mean of 2 trials"
        assert [text.partition(" = ")[0] for text in settings] == keys[:-1]  # without the seed
        select["scale"].select_option("logit")
        assert {"30%", "50%"} <= {*figure.locator(".ytick text").all_text_contents()}
        titles = page.locator(".modebar-btn").evaluate_all(
            "buttons => buttons.map(button => button.dataset.title ?? button.ariaLabel)"
        )
        assert {"Zoom", "Pan"} <= {*titles}
        assert not [title for title in titles if "loud" in title or "ownload" in title]
        cut = page.evaluate(
            """() => { const {data, layout} = document.querySelector("#sweep1-effects .chart");
            return data.filter(trace => trace.mode.startsWith("lines")).flatMap(({y}) => y)
                .filter(end => end < layout.yaxis.range[0] || end > layout.yaxis.range[1]); }"""
        )
        assert cut == []  # the axis shows all lines
        select["lines"].select_option("")
        select["scale"].select_option("linear")
        page.evaluate(
            """() => { const chart = document.querySelector("#sweep1-curves .chart");
            Plotly.Fx.hover(chart, [{curveNumber: 0, pointNumber: 2}]); }"""
        )
        text = figure.locator(".hovertext").text_content() or ""
        number, accuracy = re.findall(r"^trial (\d).*epoch 2: (.*%)$", text)[0]
        assert accuracy == f"{Run(sweep / number).history[2]['val/acc']:.2%}"


@pytest.mark.slow
def test_cards_of_a_model_leave_no_gap(browser: Browser, train: Train) -> None:
    """Two columns end at the same height; the card below has the whole width, and so has a card on
    a phone."""
    page = write_report([train("augmentation=digits").folder]).as_uri()
    for width in (390, 800, 1200):
        _require_no_gap(browser, page, width)


def _require_no_gap(browser: Browser, page: str, width: int) -> None:
    with opened(browser, page, width=width) as shown:
        cards = shown.locator(".model figure")
        names = cards.evaluate_all("each => each.map(one => one.id.split('-').at(-1))")
        boxes = cards.evaluate_all("each => each.map(one => one.getBoundingClientRect().toJSON())")
        cut = "each => each.filter(one => one.scrollWidth > one.clientWidth).length"
        assert shown.locator(".model .still").evaluate_all(cut) == 0
    box = dict(zip(names, boxes, strict=True))
    assert [*box] == ["confusion", "reliability", "weights", "mistakes", "augmented"]
    columns = [["reliability", "weights"], ["mistakes"]]
    if width == 390:
        columns = [["reliability", "weights", "mistakes"]]
    for column in columns:
        for above, below in pairwise(["confusion", *column, "augmented"]):
            assert box[below]["top"] - box[above]["bottom"] == pytest.approx(16, abs=1)
    for row in ([column[0] for column in columns], ["augmented"]):
        assert box[row[0]]["left"] == pytest.approx(box["confusion"]["left"], abs=1)
        assert box[row[-1]]["right"] == pytest.approx(box["confusion"]["right"], abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 800, 1200])
def test_the_legend_of_curves_is_never_cut(browser: Browser, sweep: Path, width: int) -> None:
    """Its values are what tells the curves of a few trials apart."""
    with opened(browser, (sweep / "report.html").as_uri(), width=width) as page:
        page.wait_for_selector("#sweep1-curves .main-svg")
        page.evaluate(
            """() => { const source = document.getElementById("sweep1-data");
            const data = JSON.parse(source.textContent);
            data.trials = data.trials.slice(0, 4);
            source.textContent = JSON.stringify(data); showAll(); }"""
        )
        page.locator('#sweep1-curves [name="colour by"]').select_option("")
        entries = page.locator("#sweep1-curves .legendtext")
        texts = entries.all_text_contents()
        edge = "each => each.map(one => one.getBoundingClientRect().%s)"
        ends, tops = (entries.evaluate_all(edge % side) for side in ("right", "top"))
        (window,) = page.locator("#sweep1-curves .legend .bg").evaluate_all(edge % "right")
        titles = page.locator("#sweep1-curves .xtitle, #sweep1-curves .x2title")
        lowest = max(titles.evaluate_all(edge % "bottom"))
    rows = csv.DictReader(io.StringIO((sweep / "results.csv").read_text()))
    ranked = sorted(rows, key=lambda row: -float(row["val/acc"]))[:4]
    keys = ("model.hidden_sizes", "optimizer.lr", "seed")
    for row in ranked:
        (text,) = [text for text in texts if text.startswith(f"trial {row['trial']},")]
        assert all(f"{key} = {row[key]}" in text for key in keys)
    assert len(texts) == 4
    assert max(ends) <= window <= width
    assert lowest < min(tops)


@pytest.mark.slow
def test_means_over_seeds_count_each_seed_once(
    browser: Browser, sweep: Path, tmp_path: Path
) -> None:
    """Trials 0 and 1 differ in the seed alone; the copy of trial 0 tells nothing more."""
    for name, number in (("first", 0), ("again", 0), ("second", 1), ("other", 2)):
        shutil.copytree(sweep / str(number), tmp_path / name)
    with opened(browser, write_report([tmp_path], models=False).as_uri()) as page:
        page.wait_for_selector("#runs .main-svg")
        control = {name: page.locator(f'#runs [name="{name}"]') for name in ("colour by", "lines")}
        colours = control["colour by"].locator("option")
        assert colours.all_inner_texts() == ["run", "optimizer.lr", "seed"]
        texts = control["lines"].locator("option").all_inner_texts()
        assert texts == ["each run", "mean ± deviation over seeds"]
        control["lines"].focus()
        control["lines"].select_option("means")
        legend = page.locator("#runs .legendtext").all_text_contents()
        assert {text.partition(",")[0] for text in legend} == {"mean of 2 runs", "run other"}
        assert colours.all_inner_texts() == ["run", "optimizer.lr"]  # a mean has several seeds
        assert control["lines"].evaluate("each => each === document.activeElement")
        curves = page.evaluate(CHART % "data.filter(trace => trace.hovertext)", "#runs")
    values = [Run(sweep / number).history[2]["val/acc"] or 0 for number in "01"]
    texts = [text for trace in curves for text in trace["hovertext"] if text]
    spread = f"{statistics.mean(values):.2%} ± {statistics.stdev(values):.2%}"
    assert any(re.match(f"<b>mean of 2 .*epoch 2: <b>{spread}</b>", text) for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_deviations_that_would_fill_a_chart_are_bars_at_some_epochs(
    browser: Browser, sweep: Path, scale: str
) -> None:
    """Means cannot be told apart below bands that overlap. Bars of many epochs are at epochs of
    their own, the last one of the best line at the last epoch; those of few are side by side."""
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        page.wait_for_selector("#sweep1-curves .main-svg")
        charts, ranges = page.evaluate(
            """scale => { const found = [[12, 0.02], [12, 0.05], [3, 0.05]].map(([last, off]) => {
            const data = JSON.parse(document.getElementById("sweep1-data").textContent);
            const epochs = Array.from({length: last + 1}, (_, epoch) => epoch);
            data.trials = data.trials.slice(0, 4).map((trial, at) => {
                const group = at >> 1, side = (at % 2 ? -1 : 1) / 2 ** 0.5;
                const value = [0.8, 0.4][group] + side * off;
                const curve = epochs.map(epoch => epoch ? value : 0.1);
                return {...trial, value, epochs, group, curves: [curve, curve, curve, curve]};
            });
            const state = {means: true, scale, key: "", smooth: ""};
            const [traces, {yaxis}] = CHARTS.curves(data, state, 800);
            const drawn = traces.filter(each => each.hoverinfo === "skip" && each.yaxis === "y");
            return [drawn.map(({x, y, fill}) => [x, y, fill ?? null]), yaxis.range]; });
            return [found.map(each => each[0]), found.map(each => each[1])]; }""",
            scale,
        )
    # No end of a deviation is cut.
    for (low, high), off in zip(ranges, (0.02, 0.05, 0.05), strict=True):
        ends = [math.log10(end) if scale == "log" else end for end in (0.4 - off, 0.8 + off)]
        margin = 0.05 * (ends[1] - ends[0])
        assert [low, high] == pytest.approx([ends[0] - margin, ends[1] + margin])
    every = [*range(13)]
    for (x, y, fill), middle in zip(charts[0], (0.8, 0.4), strict=True):
        assert (x, fill) == (every + every[::-1], "toself")
        ends = [0.1, *[middle + 0.02] * 12, *[middle - 0.02] * 12, 0.1]
        assert y == pytest.approx(ends)
    near = 0.04 * 3 / 4  # of an epoch
    places: list[list[float]] = [
        [3, 6, 9, 12],
        [2, 5, 8, 11],
        [n - near for n in (1, 2, 3)],
        [n + near for n in (1, 2, 3)],
    ]
    for (x, y, fill), middle, bars in zip(
        [*charts[1], *charts[2]], (0.8, 0.4) * 2, places, strict=True
    ):
        assert fill is None
        assert x[::3] == x[1::3] == pytest.approx(bars)
        assert y[::3] == pytest.approx([middle - 0.05] * len(bars))
        assert y[1::3] == pytest.approx([middle + 0.05] * len(bars))
        assert {*x[2::3], *y[2::3]} == {None}  # a gap between two bars


@pytest.mark.slow
def test_a_chosen_scale_is_remembered(browser: Browser, sweep: Path) -> None:
    """A scale that no page knows is none."""
    place = '#sweep1-curves [name="scale"]'
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        for chosen in ("logit", "linear", "log"):
            page.wait_for_selector("#sweep1-curves .main-svg")
            page.locator(place).select_option(chosen)
            page.reload()
            page.wait_for_selector("#sweep1-curves .main-svg")
            assert page.locator(place).input_value() == chosen
        assert page.evaluate(CHART % "layout.yaxis2.type", "#sweep1-curves") == "log"
        page.evaluate("localStorage.setItem('kindling.scale', 'cubic')")
        page.reload()
        page.wait_for_selector("#sweep1-curves .main-svg")
        assert page.locator(place).input_value() == "linear"


CHART = "name => { const {data, layout} = document.querySelector(`${name} .chart`); return %s; }"


@pytest.mark.slow
def test_parallel_coordinates_leave_out_seeds(browser: Browser, sweep: Path) -> None:
    """Nobody chooses them. A line per trial goes through the places of its settings."""
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        page.wait_for_selector("#sweep1-parallel .main-svg")
        titles, traces = page.evaluate(
            CHART % "[layout.annotations.map(each => each.text), data]", "#sweep1-parallel"
        )
    titles = [text for text in titles if text.startswith("<b>")]
    assert sorted(titles[:2]) == ["<b>hidden_sizes</b>", "<b>lr</b>"]
    assert titles[2:] == ["<b>val/acc</b>"]
    rows = {
        row["trial"]: row
        for row in csv.DictReader(io.StringIO((sweep / "results.csv").read_text()))
    }
    places: dict[str, set[float]] = {}
    lines = 0
    for trace in traces:
        points = list(
            zip(trace.get("x", []), trace.get("y", []), trace.get("hovertext") or [], strict=False)
        )
        for at in range(0, len(points), len(titles) + 1):
            line, text = points[at : at + len(titles)], points[at][2]
            number = re.findall(r"trial (\d)<", text)[0]
            assert [x for x, *_ in line] == [0, 1, 2]
            for (_, y, _), title in zip(line[:2], titles, strict=False):
                key = next(key for key in rows[number] if key.endswith(title[3:-4]))
                places.setdefault(f"{key}={rows[number][key]}", set()).add(round(y))
            lines += 1
    assert lines == 8
    assert places == {
        "model.hidden_sizes=8": {0}, "model.hidden_sizes=16": {1},
        "optimizer.lr=0.05": {0}, "optimizer.lr=0.1": {1},
    }  # fmt: skip


@pytest.mark.slow
def test_accuracies_lie_evenly_in_parallel_coordinates(browser: Browser, sweep: Path) -> None:
    """Also those that differ by orders of magnitude. Such losses have a logarithmic axis."""
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        page.wait_for_selector("#sweep1-parallel .main-svg")
        texts = page.evaluate(
            """() => [true, false].map(fraction => {
            const data = JSON.parse(document.getElementById("sweep1-data").textContent);
            data.trials.forEach((trial, at) => {
                trial.value = [0.8, 0.08, 0.01][Math.min(at, 2)]; });
            Object.assign(data.monitor, {fraction, ends: [0.01, 0.8]});
            const [, layout] = CHARTS.parallel(data, {}, 800);
            return layout.annotations.slice(-3)[0].text; })"""
        )
    assert texts == ["40.5%", "0.08944"]


@pytest.mark.slow
def test_axes_of_effects_have_the_scale_of_their_key(browser: Browser, sweep: Path) -> None:
    """The learning rates are pretended to be others."""
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        page.wait_for_selector("#sweep1-effects .main-svg")
        page.evaluate(
            """() => { const source = document.getElementById("sweep1-data");
            const data = JSON.parse(source.textContent);
            const rate = data.keys.find(key => key.name === "optimizer.lr");
            Object.assign(rate, {scale: "log", at: [0.01, 1], labels: ["0.01", "1"]});
            source.textContent = JSON.stringify(data); showAll(); }"""
        )
        axes = page.evaluate(CHART % "[layout.xaxis, layout.xaxis2]", "#sweep1-effects")
    shown = {axis["title"]["text"]: axis for axis in axes}
    rate, width = shown["optimizer.lr"], shown["model.hidden_sizes"]
    assert (rate["type"], rate["tickvals"], rate["ticktext"]) == ("log", [0.01, 1], ["0.01", "1"])
    assert rate["range"] == pytest.approx([-3, 1])
    assert (width["type"], width["tickvals"], width["range"]) == ("linear", [8, 16], [4, 20])


@pytest.mark.slow
def test_a_weak_key_beside_a_strong_one_has_an_axis_of_its_own(
    browser: Browser, sweep: Path
) -> None:
    """On the axis of the strong key, its lines would be flat. No panel lacks its ticks then, nor
    has a panel the axis of another one. Fitted lines count, and dots do not."""
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        page.wait_for_selector("#sweep1-effects .main-svg")
        charts = page.evaluate(
            """() => [[[0.3, 0.9], [0.8, 0.9]], [[0.8, 0.9], [0.3, 0.9]], [[0.3, 0.9], [0.6, 0.9]],
                [[0.3, 0.9], [0.8, 0.9], [0.4, 0.9]]].map(([strong, weak, fit]) => {
            const data = JSON.parse(document.getElementById("sweep1-data").textContent);
            data.trials.forEach((trial, at) => { trial.value = at ? 0.3 : 0.9; });
            [strong, weak].forEach((ends, number) => {
                data.keys[number].levels = ends.map(end => [end, end, end]); });
            const fitted = fit && {at: [1, 2], values: fit, low: fit, high: fit};
            if (fit) data.fits = {[data.keys[1].name]: fitted};
            const [traces, {xaxis, xaxis2, yaxis, yaxis2}] = CHARTS.slices(data, {}, 1200);
            const dots = traces.filter(trace => trace.mode === "markers");
            const far = dots.filter(trace => trace.name === "below the axis");
            return [yaxis, yaxis2, xaxis.title.text, xaxis2.title.text, data.keys[0].name,
                data.keys[1].name, far.map(trace => [trace.xaxis, trace.y.length])]; })"""
        )
    common, own = pytest.approx([0.27, 0.93]), pytest.approx([0.795, 0.905])
    for (y, y2, x, x2, key, key2, far), ends, outside in zip(
        charts,
        [(common, own), (own, common), (common, common), (common, common)],
        [[["x2", 7]], [["x", 7]], [], []],
        strict=True,
    ):
        assert (y["range"], y2["range"]) == ends
        weak = [each == own for each in (y["range"], y2["range"])]
        names = [
            f"{name} (own scale)" if of else name for name, of in ((key, weak[0]), (key2, weak[1]))
        ]
        assert [x, x2] == names
        assert far == outside
        assert y2.get("showticklabels", True) == any(weak)
        assert y2.get("matches") == (None if any(weak) else "y")


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_ticks_of_a_logarithmic_axis_are_few_whole_numbers(
    width: int, browser: Browser, sweep: Path
) -> None:
    """The learning rates are pretended to be those of a search, and the losses to be small."""
    with opened(browser, (sweep / "report.html").as_uri(), width=width) as page:
        page.wait_for_selector("#sweep1-effects .main-svg")
        page.evaluate(
            """() => { const source = document.getElementById("sweep1-data");
            const data = JSON.parse(source.textContent);
            const rate = data.keys.find(key => key.name === "optimizer.lr");
            const numbers = data.trials.map((_, number) => 0.015 * 1.8 ** number);
            Object.assign(rate, {scale: "log", at: [0, 1], labels: ["a", "b"], numbers});
            const place = data.keys.indexOf(rate);
            data.keys = [rate];  // so that a wide page has a wide panel
            for (const trial of data.trials) trial.settings = [trial.settings[place]];
            for (const trial of data.trials) trial.curves[2] = [2, 0.2, 0.02];
            source.textContent = JSON.stringify(data); showAll(); }"""
        )
        panel = page.locator("#sweep1-effects .xaxislayer-above, #sweep1-effects .xaxislayer-below")
        ticks = panel.locator("text").all_text_contents()
        page.locator('#sweep1-curves [name="scale"]').select_option("log")
        losses = page.locator("#sweep1-curves .y2tick text").all_text_contents()
    assert [text for text in ticks if text.startswith("0.")] == [
        "0.02",
        "0.05",
        "0.1",
        "0.2",
        "0.5",
    ]
    assert {"0.02", "0.05", "0.1", "0.2"} <= {*losses}


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 800])
def test_labels_of_effects_never_overlap(browser: Browser, sweep: Path, width: int) -> None:
    """Neither close ones, such as 0.3 and 0.5 among powers of ten, nor very many long ones, nor
    upright ones and the panel below."""
    with opened(browser, (sweep / "report.html").as_uri(), width=width) as page:
        page.wait_for_selector("#sweep1-effects .main-svg")
        page.evaluate(
            """() => { const source = document.getElementById("sweep1-data");
            const data = JSON.parse(source.textContent), [first, second] = data.keys;
            const rates = [0.001, 0.01, 0.03, 0.1, 0.3, 0.5, 1];
            Object.assign(second, {scale: "log", at: rates, labels: rates.map(String)});
            const places = Array.from({length: 40}, (_, number) => number);
            const named = places.map(number => `augmentation ${number}`);
            Object.assign(first, {scale: "category", at: places, labels: named});
            source.textContent = JSON.stringify(data); showAll(); }"""
        )
        figure = page.locator("#sweep1-effects")
        canvas = figure.locator(".svg-container")
        names = figure.locator(".xtick text")
        rates = figure.locator(".x2tick text")
        assert rates.all_text_contents() == ["0.001", "0.01", "0.03", "0.1", "0.3", "0.5", "1"]
        assert 8 <= names.count() < 40
        require_apart(rates, canvas)
        require_apart(names, canvas)
        if width == 390:  # one below the other
            edge = "each => each.map(one => one.getBoundingClientRect().%s)"
            (title,) = figure.locator(".xtitle").evaluate_all(edge % "bottom")
            assert title < min(figure.locator(".x2y2 .gridlayer").evaluate_all(edge % "top"))


@pytest.mark.slow
def test_no_label_of_parallel_coordinates_is_cut(browser: Browser, sweep: Path) -> None:
    """Nor a title at the left or the right end, and no title lies on its neighbour."""
    with opened(browser, (sweep / "report.html").as_uri(), width=390) as page:
        page.wait_for_selector("#sweep1-parallel .main-svg")
        page.evaluate(
            """() => { const source = document.getElementById("sweep1-data");
            const data = JSON.parse(source.textContent), [first, second] = data.keys;
            data.keys.push({...second, name: "model.negative_slope"});
            for (const trial of data.trials) trial.settings.push("0.1");
            first.labels = ["[1024,1024]", "[512]"];
            first.name = "model.hidden_sizes";
            second.name = "model.activation_scale";
            data.monitor.name = "val/balanced_accuracy";
            source.textContent = JSON.stringify(data); showAll(); }"""
        )
        figure = page.locator("#sweep1-parallel")
        texts = figure.locator(".annotation-text")
        assert texts.first.text_content() == "hidden_sizes"
        require_apart(texts, figure.locator(".svg-container"))


@pytest.mark.slow
def test_dots_outside_of_an_axis_lie_at_its_end(browser: Browser, sweep: Path) -> None:
    """Of very many trials, some are far worse than most. No trial is lost, nor its value."""
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        page.wait_for_selector("#sweep1-effects .main-svg")
        charts = page.evaluate(
            """() => { const source = document.getElementById("sweep1-data");
            const data = JSON.parse(source.textContent);
            data.keys = data.keys.filter(key => key.name === "optimizer.lr");
            data.keys[0].of = Array.from({length: 50}, (_, n) => n % 2);
            data.trials = data.keys[0].of.map((_, n) =>
                ({...data.trials[0], name: String(n), value: n < 48 ? 0.98 - n / 1000 : 0.1}));
            source.textContent = JSON.stringify(data); showAll();
            return [CHARTS.history(data), CHARTS.slices(data, {}, 800)]; }"""
        )
        legend = page.locator("#sweep1-effects .legendtext").all_text_contents()
    for traces, layout in charts:
        low, high = layout["yaxis"]["range"]
        dots = [trace for trace in traces if trace["mode"] == "markers"]
        near, far = dots[0], dots[-1]
        assert (len(near["y"]), len(far["y"])) == (48, 2)
        assert far["name"] == "below the axis"
        assert far["marker"]["symbol"] == "triangle-down"
        assert min(near["y"]) == pytest.approx(0.933)
        assert all(low < y < low + 0.05 * (high - low) for y in far["y"])
        assert all("<b>10.00%</b>" in text for text in far["hovertext"])
    lines = ["best setting", "best quarter of the settings", "median setting"]
    assert sorted(legend) == sorted(["below the axis", *lines])


@pytest.mark.slow
def test_a_chart_of_some_trials_says_so(browser: Browser, sweep: Path) -> None:
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        page.wait_for_selector("#sweep1-parallel .main-svg")
        captions = [page.locator(f"#sweep1-{name} figcaption") for name in ("curves", "parallel")]
        assert not any("drawn" in each.inner_text() for each in captions)
        trials = page.evaluate(
            """() => { const source = document.getElementById("sweep1-data");
            const data = JSON.parse(source.textContent);
            data.entries = 10000;
            source.textContent = JSON.stringify(data); redraws.forEach(redraw => redraw());
            return data.trials.length; }"""
        )
        for each in captions:
            assert each.inner_text().startswith(f"{trials} of 10,000 trials are drawn. ")


@pytest.mark.slow
def test_a_hidden_chart_is_no_error(browser: Browser, sweep: Path) -> None:
    """Its width is 0."""
    with opened(browser, (sweep / "report.html").as_uri()) as page:
        page.wait_for_selector("#sweep1-parallel .main-svg")
        page.add_style_tag(content="figure { display: none; }")
        page.wait_for_timeout(200)


def test_a_page_without_scripts_has_all_pictures(browser: Browser, sweep: Path) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto((sweep / "report.html").as_uri())
    for name in ("curves", "effects", "heat-map", "settings"):
        assert page.locator(f"#sweep1-{name} svg[role=img]").is_visible()
    assert not page.locator("#sweep1-parallel").is_visible()
    page.close()


@pytest.mark.slow
def test_a_page_without_plotly_has_all_pictures(
    browser: Browser, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what to install, and its tables are sorted as ever."""
    monkeypatch.setitem(sys.modules, "plotly", None)
    path = write_report([sweep], tmp_path / "still.html", models=False)
    assert path.stat().st_size < 1e6
    with opened(browser, path.as_uri()) as page:
        told = page.locator("header").inner_text()
        assert 'not installed; type pip install -e ".[report]" and write the report again' in told
        for name in ("curves", "effects", "heat-map", "settings"):
            assert page.locator(f"#sweep1-{name} svg[role=img]").is_visible()
        assert not page.locator("#sweep1-parallel").is_visible()
        page.locator("#sweep1-table th button", has_text="trial").click()
        first = page.locator("#sweep1-table tbody td:first-child").first
        assert first.inner_text() == "0"


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_a_page_fits_its_window_in_light_and_dark(
    browser: Browser, sweep: Path, width: int, tmp_path: Path
) -> None:
    shades = {}
    for scheme in ("light", "dark"):
        with opened(browser, (sweep / "report.html").as_uri(), width=width, scheme=scheme) as page:
            page.wait_for_selector("#sweep1-parallel .main-svg")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            cut = "each => each.filter(one => one.scrollWidth > one.clientWidth).length"
            assert page.locator(".chart, .still").evaluate_all(cut) == 0
            page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
        with Image.open(tmp_path / f"{scheme}.png") as picture:
            shades[scheme] = float(np.asarray(picture.convert("L")).mean())
    assert shades["dark"] < 80
    assert shades["light"] > 200
