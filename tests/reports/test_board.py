"""The page over all runs and sweeps: what it answers, whom, and what a browser shows."""

import base64
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page

from kindling.plots.style import INK
from kindling.records.folder import Run
from kindling.records.labels import read_labels, write_labels
from kindling.records.listing import read_entry, values_of
from kindling.reports import board as serving
from kindling.reports import charts
from kindling.reports.board import Board, Server, serve_board
from kindling.reports.drawing import Drawn, save
from kindling.reports.pictures import CURVES, PagePicture
from kindling.system.errors import InputError
from kindling.system.page_server import ADDRESS
from tests.helpers.browser import opened
from tests.helpers.commands import ROOT
from tests.helpers.fakes import fake_run, fake_runs, fake_sweep
from tests.helpers.mutations import MUTATIONS, Mutation, examples, mutated
from tests.helpers.page_server import answering

EVIL = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>'\"\r\n&"
FIRST, SECOND = "runs/2026-03-01/00-00-00", "runs/2026-03-01/00-01-00"
SWEEP = "sweeps/2026-03-02/10-00-00"


@pytest.fixture
def place(tmp_path: Path, finished: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten runs and a sweep of two rates and three seeds; the current folder."""
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert len([*fake_runs(Path(), finished, 10)]) == 10
    fake_sweep(Path(SWEEP), finished, ("0.1", "0.3"))
    return folder


def served(*paths: Path) -> AbstractContextManager[Server]:
    return answering(Server(0, Board(paths or [Path()])))


@pytest.fixture
def server(place: Path) -> Iterator[Server]:
    with served() as found:
        yield found


def ask(
    server: Server, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, Any, Any]:
    """Sends exactly these headers, with `_` for `-`, and by default the right Host."""
    connection = http.client.HTTPConnection(ADDRESS, server.server_port, timeout=60)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": f"{ADDRESS}:{server.server_port}", **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(body)
    response = connection.getresponse()
    content, kind = response.read(), response.headers["Content-Type"]
    connection.close()
    return response.status, response.headers, json.loads(content) if "json" in kind else content


def get(server: Server, path: str, *pairs: tuple[str, str]) -> Any:
    status, _, found = ask(server, "GET", f"{path}?{urlencode(pairs)}")
    assert status == 200, found
    return found


def refused(server: Server, path: str, *pairs: tuple[str, str]) -> tuple[int, str]:
    status, _, found = ask(server, "GET", f"{path}?{urlencode(pairs)}")
    return status, found["error"]


def post(server: Server, change: Any, **headers: str) -> tuple[int, Any]:
    body = change if isinstance(change, bytes) else json.dumps(change).encode()
    given = {"Content_Type": "application/json", "Content_Length": str(len(body)), **headers}
    status, _, found = ask(server, "POST", "/label", body, **given)
    return status, found


def of_runs(*folders: str) -> list[tuple[str, str]]:
    return [("folder", folder) for folder in folders]


# --- what the server answers --------------------------------------------------------------------


def test_rows_are_filtered_and_sorted(server: Server) -> None:
    found = get(server, "/rows")
    assert (found["total"], len(found["order"]), found["whole"]) == (11, 11, True)
    folders = {row["number"]: row["folder"] for row in found["rows"]}
    assert folders[found["order"][0]] == SWEEP  # the newest
    some = get(server, "/rows", ("where", "kind=run best>50"), ("sort", "best"), ("since", "0"))
    values = {row["number"]: row["best"] for row in some["rows"]}
    ordered = [values[number] for number in some["order"]]
    assert ordered == sorted((value for value in ordered), reverse=True)
    assert len(ordered) == sum(v > 0.5 for number, v in values.items() if folders[number] != SWEEP)
    again = get(server, "/rows", ("since", str(found["version"])))
    assert (again["rows"], len(again["order"]), again["version"]) == ([], 11, found["version"])
    extra = get(server, "/rows", ("key", "model.dropout"), ("key", "seed"))
    assert extra["keys"] == ["optimizer.lr", "model.hidden_sizes", "seed", "model.dropout"]
    assert {row["values"][3] for row in extra["rows"]} == {"0.0"}
    told = (400, "bst>1: unknown key; did you mean best?")
    assert refused(server, "/rows", ("where", "bst>1")) == told


def test_the_trials_of_a_sweep_are_rows(server: Server) -> None:
    found = get(server, "/rows", ("in", SWEEP), ("where", "seed=1"))
    assert (found["total"], len(found["order"]), found["whole"]) == (6, 2, False)
    assert {row["folder"] for row in found["rows"]} == {f"{SWEEP}/{trial}" for trial in range(6)}
    assert all("test" not in row for row in found["rows"])
    assert found["first"] == ["optimizer.lr", "seed"]
    for path in ("/rows", "/chart"):
        pairs = ("in", SWEEP), ("where", "test>0.1"), ("key", "seed")
        assert refused(server, path, *pairs)[0] == 400
    pairs = ("in", SWEEP), ("metric", "test"), ("key", "seed")
    assert "not to choose" not in refused(server, "/chart", *pairs)[1]
    assert refused(server, "/chart", *pairs)[0] == 400
    assert refused(server, "/rows", ("in", FIRST)) == (
        404,
        f"{FIRST}: is a run, which has no trials",
    )


def test_curves_are_those_of_the_histories(server: Server) -> None:
    found = get(server, "/curves", *of_runs(FIRST, SECOND, SWEEP, f"{SWEEP}/0"))
    ((chart),) = found["charts"]
    trials = {trial["name"]: trial for trial in chart["data"]["trials"]}
    assert len(trials) == 8  # a trial that is ticked too is drawn once
    names = [(split, name) for name in ("acc", "loss") for split in ("val", "train")]
    for folder in (FIRST, SECOND, f"{SWEEP}/4"):
        called = read_labels(Path(folder)).name
        trial = trials[f"{called} ({folder})" if called else folder]
        rows = Run(Path(folder)).history
        assert trial["epochs"] == [row["epoch"] for row in rows]
        assert trial["over"] == [
            [pytest.approx(row[column], 1e-4) for row in rows] for column in ("step", "seconds")
        ]
        for curve, (split, quantity) in zip(trial["curves"], names, strict=True):
            assert curve == [
                value if value is None else pytest.approx(value, 1e-4)
                for value in (row[f"{split}/{quantity}"] for row in rows)
            ]
    assert not re.search(r"test/", json.dumps(found))
    # A row that is gone, or whose files are damaged, is told, and the others are drawn.
    Run(Path(SECOND)).history_file.write_text("a,b\n")
    found = get(server, "/curves", *of_runs(FIRST, "runs/absent", SECOND))
    assert len(found["charts"][0]["data"]["trials"]) == 1
    assert [text.partition(":")[0] for text in found["skipped"]] == [
        "runs/absent", f"{SECOND}/history.csv"
    ]  # fmt: skip


def test_curves_of_several_sweeps_tell_theirs(server: Server, finished: Run) -> None:
    other = "sweeps/2026-03-02/11-00-00"
    fake_sweep(Path(other), finished, ("0.1", "0.3"))
    server.board.table(fresh=True)

    def sweeps_of(*folders: str) -> dict[str, str]:
        ((chart),) = get(server, "/curves", *of_runs(*folders))["charts"]
        data, names = chart["data"], [key["name"] for key in chart["data"]["keys"]]
        if "sweep" not in names:
            return {}
        place = names.index("sweep")
        return {trial["name"]: trial["settings"][place] for trial in data["trials"]}

    trials = {f"{sweep}/{number}": sweep for sweep in (SWEEP, other) for number in range(6)}
    assert sweeps_of(SWEEP, other) == trials
    two = {f"{SWEEP}/0": SWEEP, f"{other}/1": other}
    assert sweeps_of(*two) == two
    assert sweeps_of(f"{SWEEP}/0", FIRST)[f"{SWEEP}/0"] == SWEEP
    assert set(sweeps_of(f"{SWEEP}/0", FIRST).values()) == {SWEEP, "none"}
    assert sweeps_of(SWEEP, f"{SWEEP}/0") == sweeps_of(FIRST, SECOND) == {}


def test_a_trial_that_waits_hides_no_curve(server: Server, finished: Run) -> None:
    waits = fake_run(Path(SWEEP, "6"), finished, {"seed": "9"})
    waits.history_file.unlink()
    waits.result_file.unlink()
    found = get(server, "/curves", *of_runs(SWEEP))
    assert len(found["charts"][0]["data"]["trials"]) == 6
    assert found["skipped"] == []


def test_runs_without_a_curve_are_told_and_name_no_key(server: Server, finished: Run) -> None:
    """Their settings would fill the legend of the others."""
    cut = fake_run(Path("runs/cut"), finished, {"optimizer.lr": "7", "model.dropout": "0.5"})
    cut.result_file.unlink()
    cut.history_file.write_text("".join(cut.history_file.read_text().splitlines(True)[:2]))
    server.board.table(fresh=True)
    found = get(server, "/curves", *of_runs(FIRST, SECOND, "runs/cut"))
    assert found["skipped"] == ["runs/cut: no epoch has ended"]
    ((chart),) = found["charts"]
    assert len(chart["data"]["trials"]) == 2
    assert "model.dropout" not in [key["name"] for key in chart["data"]["keys"]]


def test_the_data_of_a_scatter(server: Server) -> None:
    found = get(server, "/chart", ("key", "optimizer.lr"), ("metric", "val/loss"))
    data = found["data"]
    assert (found["rows"], len(found["data"]["trials"]), found["left_out"]) == (11, 11, 0)
    assert data["monitor"]["name"] == "val/loss"
    (key,) = data["keys"]
    names = [trial["name"].split(" (")[-1].rstrip(")") for trial in data["trials"]]
    shown = {name: at for at, name in enumerate(names)}
    for row in get(server, "/rows")["rows"]:
        at = shown[row["folder"]]
        assert data["trials"][at]["value"] == pytest.approx(row["metrics"]["val/loss"][0], 1e-4)
        # A sweep lies at its best setting.
        text = "0.3" if row["folder"] == SWEEP else row["values"][0]
        assert key["labels"][key["of"][at]] == text
    some = get(server, "/chart", ("key", "optimizer.lr"), ("where", "optimizer.lr=0.1"))
    assert {label for key in some["data"]["keys"] for label in key["labels"]} == {"0.1"}
    none = get(server, "/chart", ("key", "optimizer.lr"), ("metric", "val/f1"))
    assert (none["data"], none["left_out"]) == (None, 11)


def test_rows_that_cannot_be_compared_are_left_out(server: Server, finished: Run) -> None:
    run = fake_run(Path("runs/other"), finished, {"seed": "5"})
    result = json.loads(run.result_file.read_text())
    run.result_file.write_text(json.dumps({**result, "data": {"name": "mnist"}}))
    found = get(server, "/chart", ("key", "seed"))
    assert (found["group"], found["left_out"]) == ("digits val/acc", 2)  # and the sweep's seeds
    assert found["rows"] == 10


def test_a_run_with_its_log_and_its_pictures(server: Server) -> None:
    run = Run(Path(FIRST))
    run.log_file.write_text("x" * 100_000 + "the end\n")
    pictures = run.folder / "report"
    pictures.mkdir()
    svg = f'<?xml version="1.0"?>\n<svg width="9pt"><path style="fill: {INK}"/></svg>'
    (pictures / "runs.svg").write_text(svg)
    drawn = Drawn(b"", svg.replace(INK, "red"))
    save(PagePicture("a", 'Rows: "true" & <b>', "", ()), pictures, drawn)
    (pictures / "run-model1-mistakes.svg").write_text("<svg></svg>")
    (pictures / "not.svg").write_text("<script>")
    (pictures / "bytes.svg").write_bytes(b"<svg>\xff</svg>")
    (pictures / "large.svg").write_text(svg + " " * serving.PICTURE_LIMIT)
    found = get(server, "/run", ("folder", FIRST))
    assert found["log"].endswith("xxthe end\n")
    assert (len(found["log"]), found["omitted"]) == (65_536, 100_008 - 65_536)
    shown = {}
    for picture in found["pictures"]:
        kind, _, packed = picture["src"].partition(",")
        assert kind == "data:image/svg+xml;base64"
        shown[picture["name"]] = base64.b64decode(packed).decode()
    start, dark, rest = re.split("<style>|</style>", shown["runs"])
    assert start == '<?xml version="1.0"?>\n<svg class="" width="9pt">'
    assert "prefers-color-scheme: dark" in dark
    assert rest == '<path style="fill: var(--ink)"/></svg>'
    assert shown["run-model1-mistakes"].startswith('<svg class="model">')
    assert len(shown) == 3
    captions = {picture["name"]: picture["caption"] for picture in found["pictures"]}
    older = {name: name for name in ("runs", "run-model1-mistakes")}
    assert captions == {"a": 'Rows: "true" & <b>', **older}
    facts = dict(found["facts"])
    assert facts["test/acc"] == f"{run.result['test/acc']:.2%}"
    assert facts["epochs"] == "2"
    assert ["optimizer.lr", run.overrides["optimizer.lr"], True] in found["settings"]
    assert ["model.dropout", "0.0", False] in found["settings"]
    assert found["command"] == run.command
    assert found["draw"] == f"python -m src.report {FIRST}"
    assert found["stacked"] == run.result["stacked"] == 1
    log = "epoch 2/2\ntest             accuracy 86.35%, loss 0.8\nspeed\n"
    Run(Path(SWEEP, "2")).log_file.write_text(log)
    shutil.copytree(pictures, Path(SWEEP, "2", "report"))  # perhaps of a model, by its test
    trial = get(server, "/run", ("folder", f"{SWEEP}/2"))
    assert trial["log"] == "epoch 2/2\nspeed\n"
    assert trial["stacked"] == 1
    assert (trial["draw"], trial["pictures"]) == (None, [])
    assert (trial["kind"], trial["sweep"]) == ("trial", SWEEP)
    assert not [name for name, _ in trial["facts"] if "test" in name]


def test_keys_that_few_rows_have_draw_no_axis(place: Path, finished: Run) -> None:
    """A column that other data have, such as data.path, leaves out no row."""
    board = Board([Path()])
    found = board.chart("", "", ["optimizer.lr", "model.hidden_sizes", "data.path"], "best")
    drawn = found["data"]
    assert [key["name"] for key in drawn["keys"]] == ["optimizer.lr", "model.hidden_sizes"]
    assert (found["rows"], found["left_out"]) == (11, 0)  # ten runs and the sweep


@pytest.mark.parametrize("named", [5, 6])
def test_a_key_that_half_of_the_rows_have_draws_an_axis(named: int, place: Path) -> None:
    folders = [FIRST, SECOND, *(f"runs/2026-03-01/00-0{number}-00" for number in range(2, 10))]
    for place_, folder in enumerate(folders):
        write_labels(Path(folder), name=f"n{place_}" if place_ < named else "")
    found = Board([Path()]).chart("", "", ["optimizer.lr", "name"], "best")
    both = named == 6  # of eleven
    names = ["optimizer.lr", "name"] if both else ["optimizer.lr"]
    assert [key["name"] for key in found["data"]["keys"]] == names
    assert (found["rows"], found["left_out"]) == ((6, 5) if both else (11, 0))


def test_nobody_chooses_a_seed(place: Path) -> None:
    """Except alone, to see how much seeds matter."""
    board = Board([Path()])
    for keys, drawn in (
        (["optimizer.lr", "seed", "data.fold"], ["optimizer.lr"]),
        (["seed"], ["seed"]),
    ):
        found = board.chart("", "kind=run", keys, "best")["data"]
        assert [key["name"] for key in found["keys"]] == drawn


@pytest.mark.parametrize(
    ("key", "values", "scale"),
    [
        # Uneven ones, which a report would set side by side.
        ("optimizer.lr", ["0.001", "0.1766", "0.2", "0.3", "1"], "log"),
        ("optimizer.lr", ["0.1", "0.101", "0.102", "0.103", "0.9"], "linear"),
        ("optimizer.lr", ["0.1", "0.101", "0.102", "0.103", "1"], "log"),
        ("optimizer.momentum", ["0", "0.1766", "0.2", "0.3", "0.9"], "linear"),
        ("model.activation", ["gelu", "relu", "tanh"], "category"),
        ("model.hidden_sizes", ["[8]", "[16,8]"], "category"),
    ],
)
def test_numbers_lie_on_an_axis_of_numbers(
    key: str, values: list[str], scale: str, place: Path, finished: Run
) -> None:
    for number, value in enumerate(values):
        fake_run(Path("runs", "uneven", str(number)), finished, {key: value})
    (found,) = Board([Path("runs/uneven")]).chart("", "", [key], "best")["data"]["keys"]
    assert found["scale"] == scale
    if scale != "category":
        assert found["at"] == [float(value) for value in values]


def test_a_confirmation_shows_the_setting_of_its_best(place: Path, finished: Run) -> None:
    folder = fake_sweep(Path("sweeps/confirmed"), finished, ("0.003", "0.3"))
    (folder / "multirun.yaml").unlink()
    record = {"sweep": "s", "found": 2, "keys": ["optimizer.lr"], "seeds": [0, 1, 2], "folds": None}
    config = Run(folder / "0").config.model_dump(mode="json")
    chosen = {"overrides": {"optimizer.lr": "0.003"}, "promised": 0.9, "trials": [0]}
    settings = [{**chosen, "config": config}, {**chosen, "config": config}]
    (folder / "confirm.yaml").write_text(json.dumps({**record, "settings": settings}))
    entry = read_entry(folder)
    assert entry.kind == "confirmation"
    assert values_of(entry, "optimizer.lr") == ["0.3"]  # by its values, and not the first trial


def test_runs_side_by_side(server: Server) -> None:
    found = get(server, "/compare", *of_runs(FIRST, SECOND, SWEEP))
    assert found["folders"] == [FIRST, SECOND, SWEEP]
    facts = {name: texts for name, *texts in found["facts"]}
    values = [Run(Path(folder)).result["best"]["val/acc"] for folder in (FIRST, SECOND)]
    assert facts["best val/acc"][:2] == [f"{value:.2%}" for value in values]
    assert not [name for name in facts if "test" in name]  # side by side is for choosing
    assert all(len([text for text in texts if text]) > 1 for texts in facts.values())
    settings = {key: texts for key, *texts in found["settings"]}
    assert settings["seed"] == ["0", "1", "0,1,2"]
    assert set(settings) <= {"seed", "optimizer.lr", "model.hidden_sizes"}
    assert found["same"] > 50
    for count in (1, 7):
        folders = [f"runs/2026-03-01/00-0{number}-00" for number in range(count)]
        told = f"{count} rows are ticked; tick 2 to 6 to see them side by side"
        assert refused(server, "/compare", *of_runs(*folders)) == (400, told)


def test_how_runs_side_by_side_ended(server: Server, finished: Run) -> None:
    """What only some runs have tells nothing of the others, and data.name more than data."""
    ends: dict[str, dict[str, Any]] = {
        "diverged": {"status": "diverged", "diverged_step": 7},
        "failed": {"status": "failed", "error": "OSError: no space"},
        "interrupted": {"status": "interrupted", "signal": "SIGINT"},
    }
    for name, changes in ends.items():
        run = fake_run(Path("ended", name), finished, {"optimizer.lr": "0.2"})
        run.overrides_file.write_text(json.dumps(["optimizer.lr=0.2", "data=digits"]))
        run.result_file.write_text(json.dumps({**run.result, **changes}))
    killed = fake_run(Path("ended/killed"), finished, {"optimizer.lr": "0.2"})
    killed.result_file.unlink()
    server.board.table(fresh=True)
    names = ("diverged", "failed", "interrupted", "killed")
    found = get(server, "/compare", *of_runs(*(f"ended/{name}" for name in names)))
    facts = {name: texts for name, *texts in found["facts"]}
    assert facts["status"] == [
        "diverged at step 7", "failed: OSError: no space", "interrupted by SIGINT",
        "unfinished: its process was killed, or has not begun to train",
    ]  # fmt: skip
    assert found["settings"] == []
    assert found["chance"] == ""


@pytest.mark.parametrize(
    ("better", "told"),
    [
        # With 2,000 samples, 90% and 88% differ by 1.98% more than chance, 90% and 88.2% do not.
        ((0.9, 0.88, 0.5), "b and c are worse, beyond chance."),
        ((0.882, 0.9, 0.5), "a cannot be told apart from it."),
        ((0.89, 0.9, 0.895), "c and a cannot be told apart from it."),
        ((0.9, None, 0.5), "c is worse, beyond chance."),
        ((None, 0.9, None), ""),
    ],
)
def test_runs_side_by_side_may_differ_by_chance(
    better: Sequence[float | None], told: str, place: Path, finished: Run
) -> None:
    for name, value in zip("abc", better, strict=True):
        run = fake_run(Path("few", name), finished, {"optimizer.lr": "0.2", "name": name})
        best = {**run.result["best"], "val/acc": value}
        data = {**run.result["data"], "val": 2_000}
        run.result_file.write_text(json.dumps({**run.result, "best": best, "data": data}))
    folders, board = [f"few/{name}" for name in "abc"], Board([Path("few")])
    first = "abc"[better.index(0.9)]
    start = f"{first} has the best val/acc. By 2,000 validation samples and one run each, "
    assert board.compare(folders)["chance"] == (start + told if told else "")
    other = Run(Path("few", "b"))
    other.result_file.write_text(json.dumps({**other.result, "data": {"name": "x", "val": 2_000}}))
    if better == (0.89, 0.9, 0.895):  # values on other data cannot be compared
        assert Board([Path("few")]).compare(folders)["chance"] == ""


def test_a_sweep_tells_its_best_setting_and_its_trials_their_numbers(place: Path) -> None:
    write_labels(Path(SWEEP), name="rates")
    for trial in (3, 4):
        write_labels(Path(SWEEP, str(trial)), name="rates")
    board = Board([Path()])
    assert dict(board.details(SWEEP)["facts"])["best setting"] == "optimizer.lr=0.3"
    assert "best setting" not in dict(board.details(FIRST)["facts"])
    names = board.compare([SWEEP, f"{SWEEP}/3", f"{SWEEP}/4"])["names"]
    assert names == ["rates", "rates/3", "rates/4"]


# --- a report, which may be a stranger's --------------------------------------------------------


@pytest.mark.slow
def test_a_report_is_made_anew_and_has_no_rights(server: Server, browser: Browser) -> None:
    folder = Path(SWEEP)
    (folder / "report.html").write_text("<script>alert(12345)</script>")
    before = sorted(folder.rglob("*"))
    status, headers, page = ask(server, "GET", f"/report?{urlencode({'folder': SWEEP})}")
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert b"The best of 2 settings" in page
    assert b"12345" not in page
    assert sorted(folder.rglob("*")) == before
    assert f'href="/#run={SWEEP.replace("/", "%2F")}"'.encode() in page
    assert refused(server, "/report", ("folder", f"{SWEEP}/0"))[0] == 400
    with opened(browser, f"{server.url}/report?{urlencode({'folder': SWEEP})}") as shown:
        shown.wait_for_selector(".main-svg >> nth=0")
        # A script of the page, if there were one, could change nothing on the board.
        assert shown.evaluate("() => self.origin") == "null"
        shown.get_by_text("← the board").click()
        shown.wait_for_selector("#run h2")
        assert shown.inner_text("#run h2") == SWEEP


def test_no_report_of_what_lies_behind_a_link(server: Server, tmp_path: Path) -> None:
    inner = Path(SWEEP, "confirm")
    inner.symlink_to(tmp_path)
    told = f"{inner}: is a link, which the board does not follow"
    assert refused(server, "/report", ("folder", SWEEP)) == (400, told)


# --- names, tags and notes -----------------------------------------------------------------------


def test_labels_change_in_the_folder(server: Server) -> None:
    version = get(server, "/rows")["version"]
    change = {"folder": FIRST, "name": "best-1", "add": ["good"], "remove": ["mnist"], "note": EVIL}
    status, found = post(server, change)
    assert (status, found) == (
        200, {"name": "best-1", "tags": ["first", "good"], "note": EVIL}
    )  # fmt: skip
    labels = read_labels(Path(FIRST))
    assert (labels.name, labels.tags, labels.note) == ("best-1", ["first", "good"], EVIL)
    (row,) = get(server, "/rows", ("since", str(version)))["rows"]
    assert (row["folder"], row["name"], row["note"]) == (FIRST, "best-1", EVIL)
    assert post(server, {"folder": f"{SWEEP}/1", "name": "trial"})[0] == 200
    assert read_labels(Path(SWEEP, "1")).name == "trial"
    assert post(server, {"folder": FIRST, "name": "", "note": ""})[0] == 200
    assert read_labels(Path(FIRST)).model_dump() == {
        "name": None, "tags": ["first", "good"], "note": None
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a/b"}, {"name": "latest"}, {"name": "x" * 3000}, {"name": EVIL},
        {"add": ["-x"]}, {"add": [EVIL]}, {"add": [f"t{n}" for n in range(40)]},
        {"note": "x" * 2001}, {"note": "\ud800"},
    ],
)  # fmt: skip
def test_refused_labels_are_told_as_by_the_command(server: Server, change: dict[str, Any]) -> None:
    with pytest.raises(InputError) as told:
        write_labels(Path(FIRST), change.get("name"), change.get("add", ()), (), change.get("note"))
    status, found = post(server, {"folder": FIRST, **change})
    assert status == 400
    if change.get("note") != "\ud800":  # no JSON text may hold it
        assert found == {"error": str(told.value)}
    assert not (Path(FIRST) / "labels.json").exists()


@pytest.mark.parametrize(
    ("body", "headers", "status", "told"),
    [
        (b"{", {}, 400, "the body is not a change of labels"),
        (b"[]", {}, 400, "the body is not a change of labels"),
        (b'{"folder": 5}', {}, 400, "the body is not a change of labels"),
        (b'{"folder": "x", "other": 1}', {}, 400, "the body is not a change of labels"),
        (b"[" * 100_000, {}, 400, "the body is not a change of labels"),
        (b'{"folder": "runs/absent"}', {}, 404, "runs/absent: the board has no such run or sweep"),
        (b'{"folder": "../place/runs"}', {}, 404, "the board has no such run or sweep"),
        (b"{}", {"Content_Type": "text/plain"}, 415, "Content-Type must be application/json"),
        (b"", {"Content_Length": "1048577"}, 413, "may have 1,048,576 bytes"),
        (b"{}", {"Origin": "http://evil.example"}, 403, "answers only its own page"),
        (b"{}", {"Origin": "null"}, 403, "answers only its own page"),
        (b"{}", {"Host": "evil.example"}, 403, "the page is only at"),
    ],
)
def test_other_changes_are_refused(
    server: Server, body: bytes, headers: dict[str, str], status: int, told: str
) -> None:
    found = post(server, body, **headers)
    assert found[0] == status
    assert told in found[1]["error"]
    assert not [*Path().rglob("labels.json")]


# --- whom it answers, and what nobody gets --------------------------------------------------------


def test_whom_the_server_answers(server: Server) -> None:
    assert server.server_address[0] == ADDRESS
    status, headers, page = ask(server, "GET", "/")
    assert (status, b"<h1>Board</h1>" in page) == (200, True)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'sha256-" in policy
    assert "unsafe-inline" not in policy.partition("style-src")[0]
    for path in ("/", "/rows", f"/run?folder={FIRST}", f"/report?folder={FIRST}"):
        assert ask(server, "GET", path, Host="evil.example")[0] == 403
        assert ask(server, "GET", path, Host=f"evil.example:{server.server_port}")[0] == 403
        assert ask(server, "GET", path, Origin="http://evil.example")[0] == 403
    for site, mode, status in (
        ("cross-site", "no-cors", 403), ("same-site", "cors", 403), ("cross-site", "navigate", 200),
        ("same-origin", "cors", 200), ("none", "navigate", 200),
    ):  # fmt: skip
        told = ask(server, "GET", "/", Sec_Fetch_Site=site, Sec_Fetch_Mode=mode)[0]
        assert told == status, (site, mode)
    for method in ("PUT", "DELETE", "OPTIONS", "HEAD"):
        assert ask(server, method, "/rows")[0] == 501
    for path in ("/rows", "/", "/labels", "/label?x=1"):
        assert ask(server, "POST", path)[0] == 404
    assert ask(server, "GET", "/rows?" + "&" * 6000)[0] in (200, 400)
    assert ask(server, "GET", "/rows?" + "a=b&" * 6000)[0] == 400
    assert ask(server, "GET", "/rows?where=" + "x" * 70_000)[0] == 414


@pytest.mark.parametrize("path", ["/run", "/report", "/compare", "/curves", "/rows"])
def test_no_other_path_is_read(server: Server, place: Path, finished: Run, path: str) -> None:
    secret = fake_run(place.parent / "secret", finished, {"seed": "99123456"})
    (place / "link").symlink_to(secret.folder)
    for folder in (
        "../secret", "..", "/etc", ".", "runs", "runs/2026-03-01", "runs/../../secret", "link",
        f"{FIRST}/", f"./{FIRST}", f"{FIRST}/checkpoints", f"{FIRST}/../00-00-00", f"{SWEEP}/99",
        f"{SWEEP}/0/../1", f"{SWEEP}/+1", f"{SWEEP}/²", f"{SWEEP}/01", "", "\0", EVIL, "x" * 3000,
    ):  # fmt: skip
        if path in ("/curves", "/compare"):
            asked = urlencode(of_runs(folder, SECOND))
            status, _, found = ask(server, "GET", f"{path}?{asked}")
            assert status == (404 if path == "/compare" else 200), folder
            assert "99123456" not in json.dumps(found)
        elif path == "/rows":
            status = ask(server, "GET", f"{path}?{urlencode({'in': folder})}")[0]
            assert status == (404 if folder else 200), folder
        else:
            status, told = refused(server, path, ("folder", folder))
            assert (status, "has no such run or sweep" in told) == (404, True), folder


def test_a_file_that_becomes_a_link_is_not_read(server: Server, tmp_path: Path) -> None:
    assert get(server, "/rows")["total"] == 11
    for file in (Run(Path(FIRST)).history_file, Run(Path(SWEEP, "2")).result_file):
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
        folder = FIRST if file.parent == Path(FIRST) else SWEEP
        told = f"{file}: is a link, which the board does not follow"
        assert refused(server, "/run", ("folder", folder)) == (400, told)
        assert get(server, "/curves", ("folder", folder)) == {"charts": [], "skipped": [told]}


def test_logs_and_pictures_behind_links_are_not_shown(server: Server, tmp_path: Path) -> None:
    run, secret = Run(Path(FIRST)), tmp_path / "secret"
    secret.write_text("secret")
    run.log_file.unlink()
    run.log_file.symlink_to(secret)
    elsewhere = tmp_path / "pictures"
    elsewhere.mkdir()
    (elsewhere / "x.svg").write_text("<svg></svg>")
    (run.folder / "report").symlink_to(elsewhere)
    (Path(SECOND) / "report").mkdir()
    (Path(SECOND) / "report" / "x.svg").symlink_to(elsewhere / "x.svg")
    os.mkfifo(Path(SECOND) / "report" / "y.svg")  # a program that reads it would wait for ever
    for folder in (FIRST, SECOND):
        found = get(server, "/run", ("folder", folder))
        assert found["pictures"] == []
        assert "secret" not in json.dumps(found)


@pytest.mark.slow
@given(mutations=MUTATIONS, at=st.integers(0, 10**6))
@examples(2_000)
def test_mutated_files(mutations: Mutation, at: int, server: Server) -> None:
    """Whatever lies in the folders, each question gets an answer or a fault; other rows stay."""
    files = sorted(path for path in Path().rglob("*") if path.is_file())
    file = files[at % len(files)]
    content = file.read_bytes()
    file.write_bytes(mutated(content, mutations))
    try:
        server.board._tables.clear()
        rows = get(server, "/rows", ("sort", "best"), ("key", "model.dropout"))["rows"]
        assert len(rows) >= 10
        own = next(r["folder"] for r in rows if file.is_relative_to(r["folder"]))
        for path, pairs in (
            ("/rows", [("in", SWEEP)]), ("/curves", of_runs(own, SECOND)), ("/run", of_runs(own)),
            ("/chart", [("key", "optimizer.lr"), ("key", "seed")]), ("/report", of_runs(own)),
            ("/chart", [("key", "seed"), ("metric", "val/loss"), ("in", SWEEP)]),
            ("/compare", of_runs(own, SECOND)), ("/run", of_runs(f"{SWEEP}/0")),
        ):  # fmt: skip
            status, _, found = ask(server, "GET", f"{path}?{urlencode(pairs)}")
            assert status in (200, 400, 404), found
            assert isinstance(found, bytes) or not re.search("NaN|Infinity", json.dumps(found))
    finally:
        file.write_bytes(content)


def test_a_folder_that_is_no_board(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="absent: there is no such folder"):
        serve_board([tmp_path / "absent"], 0)


def test_a_board_of_nothing_waits(tmp_path: Path, finished: Run) -> None:
    with served(tmp_path) as server:
        found = get(server, "/rows")
        assert (found["total"], found["order"], found["rows"], found["first"]) == (0, [], [], [])
        with pytest.raises(AssertionError, match="tick 2 to 6"):
            get(server, "/compare")
        assert get(server, "/curves") == {"charts": [], "skipped": []}


# --- many and slow readers -----------------------------------------------------------------------


@pytest.mark.slow
def test_many_connections(place: Path) -> None:
    """Five hundred that say nothing, and fifty that ask for all rows at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("needs 2,048 open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    found: list[bytes] = []
    try:
        with served() as server, ExitStack() as held:
            for _ in range(500):
                where = (ADDRESS, server.server_port)
                held.enter_context(socket.create_connection(where, timeout=60))
            asking = [
                threading.Thread(target=lambda: found.append(ask(server, "GET", "/rows")[2]))
                for _ in range(50)
            ]
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join()
            assert len(found) == 50
            assert {json.dumps(each) for each in found} == {json.dumps(found[0])}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_slow_reader_keeps_nobody_waiting(server: Server) -> None:
    """Neither one that does not read its answer, nor one that writes a letter of its question."""
    request = f"GET / HTTP/1.1\r\nHost: {ADDRESS}:{server.server_port}\r\n\r\n".encode()
    with ExitStack() as held:
        for content in [request] * 20 + [request[:1]] * 20:
            slow = socket.socket()
            held.enter_context(slow)
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect((ADDRESS, server.server_port))
            slow.sendall(content)
        assert get(server, "/rows")["total"] == 11
        assert post(server, {"folder": FIRST, "name": "still"})[0] == 200
        assert get(server, "/run", ("folder", FIRST))["name"] == "still"


# --- in a browser --------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SECONDS", 0.2)
    monkeypatch.setattr(serving, "PAGE_SHARE", 1e9)


def texts(page: Page, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


def until(page: Page, condition: str) -> None:
    """Elements of the page are known by their ids."""
    page.wait_for_function(f"() => {condition}")


def rows_shown(page: Page) -> list[str]:
    until(page, "!told.textContent.includes('reading')")
    return texts(page, "#table td:nth-child(2) a")


@pytest.mark.slow
def test_ticked_runs_are_overlaid_with_bands(server: Server, browser: Browser) -> None:
    with opened(browser, server.url) as page:
        shown = rows_shown(page)
        assert shown[0] == SWEEP
        page.get_by_role("checkbox", name=f"tick {SWEEP}").check()
        page.wait_for_selector("#curves0 .main-svg >> nth=0")
        assert "ticked=" in page.url
        lines = page.locator("#curves0 select[name=lines]")
        lines.select_option("means")
        over = page.locator("#curves0 select[name=over]")
        over.select_option("step")
        traces = page.evaluate(
            "() => document.querySelector('#curves0 .chart').data.map(trace => ({x: trace.x, "
            "y: trace.y, fill: trace.fill, dash: trace.line?.dash, axis: trace.yaxis}))"
        )
        assert page.evaluate(
            "document.querySelector('#curves0 .chart').layout.xaxis.title.text"
        ) == "step"  # fmt: skip
        histories = [Run(Path(SWEEP, str(trial))).history for trial in (3, 4, 5)]  # the best rate
        values = np.array([[row["val/acc"] for row in rows] for rows in histories], float)
        steps = [row["step"] for row in histories[0]]
        band = next(t for t in traces if t["fill"] == "toself" and t["axis"] == "y")
        middle, off = values.mean(0), values.std(0, ddof=1)
        count = len(steps)
        assert band["x"] == steps + steps[::-1]
        assert band["y"][:count] == pytest.approx(middle + off, rel=1e-4)
        assert band["y"][count:] == pytest.approx((middle - off)[::-1], rel=1e-4)
        drawn = [t for t in traces if t["axis"] == "y" and not t["fill"] and not t["dash"]]
        assert any(
            [y for y in t["y"] if y is not None][:count] == pytest.approx(middle, rel=1e-4)
            for t in drawn
        )
        smoothing = page.locator("#curves0 select[name=smoothing]")
        smoothing.select_option("0.8")
        smooth, sums = 0.0, 0.0
        expected = [middle[0]]  # before training
        for value in middle[1:]:
            smooth, sums = 0.8 * smooth + 0.2 * value, 0.8 * sums + 0.2
            expected.append(smooth / sums)
        found = page.evaluate(
            "() => document.querySelector('#curves0 .chart').data.map(trace => trace.y)"
        )
        assert any(
            [y for y in ys if y is not None][:count] == pytest.approx(expected, rel=1e-4)
            for ys in found
        )
        for part in ("means=yes", "over=step", "smooth=0.8"):
            assert part in page.url
        page.get_by_role("button", name="untick all").click()
        until(page, "curves0.hidden")


@pytest.mark.slow
def test_a_single_curve_tells_its_run(server: Server, browser: Browser) -> None:
    """Its only training value, of one epoch, is a dot: a line of one point is invisible."""
    history = Run(Path(SECOND)).history_file
    history.write_text("".join(history.read_text().splitlines(True)[:3]))
    with opened(browser, f"{server.url}/#{urlencode(of_ticked(SECOND))}") as page:
        page.wait_for_selector("#curves0 .main-svg >> nth=0")
        caption = page.inner_text("#curves0 figcaption")
        assert caption == f"Run {SECOND}. {CURVES}"
        modes = page.evaluate("document.querySelector('#curves0 .chart').data.map(t => t.mode)")
        assert modes == ["lines+markers"] * 4  # validation and training of accuracy and loss


@pytest.mark.slow
def test_a_scatter_begins_with_the_first_key(
    server: Server, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless another was chosen; also among the trials of a sweep, and before the rows are there.
    The caption says how many rows are drawn, of the second chart too."""
    monkeypatch.setattr(charts, "MOST_SHOWN", 2)
    title = "document.querySelector('#slices0 .chart')?.layout?.xaxis.title.text"
    for view in ({}, {"in": SWEEP}, {"chart": "scatter"}):
        with opened(browser, f"{server.url}/#{urlencode(view)}") as page:
            rows_shown(page)
            page.select_option("#chart", "scatter")
            until(page, f"{title} === 'optimizer.lr'")
            assert page.input_value("#x") == "optimizer.lr"
            assert "x=" not in page.url
            count = "5 of 6 runs" if "in" in view else "5 of 11 runs"
            caption = page.locator("#slices0 figcaption")
            assert caption.inner_text().startswith(f"{count} are drawn. A dot per row: ")
            page.select_option("#x", "seed")
            until(page, f"{title} === 'seed'")
            until(page, "location.hash.includes('x=seed')")
            assert caption.inner_text().count("are drawn") == 1


@pytest.mark.slow
def test_an_address_restores_its_view(server: Server, browser: Browser) -> None:
    view = {
        "where": "kind=run best>10", "sort": "-optimizer.lr", "group": "optimizer.lr",
        "columns": "best,test,optimizer.lr,val/loss,model.dropout", "chart": "scatter",
        "x": "model.hidden_sizes", "y": "val/loss",
    }  # fmt: skip
    ticked = [("ticked", FIRST), ("ticked", SECOND), ("beside", "yes"), ("run", FIRST)]
    with opened(browser, f"{server.url}/#{urlencode([*view.items(), *ticked])}") as page:
        rows_shown(page)
        assert page.input_value("#where") == view["where"]
        assert texts(page, "#table thead th") == ["", "run", *view["columns"].split(",")]
        groups = texts(page, "#table tr.group")
        rates = [float(re.findall(r"▸ ([\d.]+):", text)[0]) for text in groups]
        assert rates == sorted(rates, reverse=True)
        rows = get(server, "/rows", ("where", view["where"]))["rows"]
        for text, rate in zip(groups, rates, strict=True):
            own = [r["best"] for r in rows if r["values"][0] == str(rate) and r["kind"] == "run"]
            spread = f" ± {np.std(own, ddof=1):.2%}" if len(own) > 1 else ""
            assert text == f"▸ {rate:g}: mean {np.mean(own):.2%}{spread} of {len(own)}"
        page.wait_for_selector("#slices0 .main-svg >> nth=0")
        labels = page.evaluate("document.querySelector('#slices0 .chart').layout.xaxis.title.text")
        assert labels == "model.hidden_sizes"
        page.select_option("#chart", "parallel")
        page.wait_for_selector("#parallel0 .main-svg >> nth=0")
        axes = page.evaluate(
            "document.querySelector('#parallel0 .chart').layout.annotations.map(each => each.text)"
        )
        assert [text for text in axes if text.startswith("<b>")] == [
            "<b>lr</b>", "<b>hidden_sizes</b>", "<b>val/loss</b>"
        ]  # fmt: skip
        page.wait_for_selector("#compared table")
        page.wait_for_selector("#run h2")
        assert page.inner_text("#run h2").endswith(f"({FIRST})")
        # Columns that are chosen are kept, and Back leads to the view before.
        page.goto("about:blank")
        page.goto(server.url)
        rows_shown(page)
        page.locator("#chooser summary").click()
        page.locator("#offered label", has_text="status").locator("input").uncheck()
        until(page, "!document.querySelector('thead').innerText.includes('status')")
        page.goto("about:blank")
        page.goto(server.url)
        assert rows_shown(page)
        assert "status" not in texts(page, "#table thead th")
        page.locator("#table td.number a").click()
        until(page, "told.innerText === '6 trials'")
        assert "trials of" in page.inner_text("#path")
        assert "test" not in page.inner_text("#table thead")
        page.get_by_role("checkbox", name=f"tick {SWEEP}/3").check()
        page.get_by_text("← all runs and sweeps").click()
        until(page, "told.innerText === '11 runs and sweeps'")
        assert page.inner_text("#ticks") == "1 ticked"
        page.go_back()
        until(page, "told.innerText === '6 trials'")
        page.go_back()
        until(page, "told.innerText === '11 runs and sweeps'")


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_groups_are_compared_and_ticked(
    place: Path, finished: Run, browser: Browser, width: int
) -> None:
    """By best values in the order of their means: the best row of all may be the luckiest."""
    runs, best = {"0.1": (0.05, -0.2), "0.3": (0.0, 0.01), "0.5": (-0.3, -0.3)}, {}
    for rate, several in runs.items():
        for seed, better in enumerate(several):
            settings = {"optimizer.lr": rate, "seed": str(seed)}
            run = fake_run(Path("own", rate, str(seed)), finished, settings, better)
            best[rate, seed] = run.result["best"]["val/acc"] or 0.0
    lost = fake_run(Path("own", "0.3", "2"), finished, {"optimizer.lr": "0.3", "seed": "2"})
    result = {**lost.result, "status": "diverged", "best": dict.fromkeys(lost.result["best"])}
    lost.result_file.write_text(json.dumps(result))
    assert max(best.values()) == best["0.1", 0]
    expected = [
        f"▸ {rate}: mean {np.mean(own):.2%} ± {np.std(own, ddof=1):.2%} of 2{more}"
        for rate, more in (("0.3", ", 1 more without a value"), ("0.1", ""), ("0.5", ""))
        for own in [[best[rate, 0], best[rate, 1]]]
    ]
    view = urlencode({"group": "optimizer.lr", "sort": "best"})
    with (
        served(Path("own")) as server,
        opened(browser, f"{server.url}/#{view}", width=width) as page,
    ):
        page.wait_for_selector("#table tr.group")
        assert texts(page, "#table tr.group") == expected
        told = (
            "7 runs and sweeps in 3 groups, with the mean ± standard deviation of their best values"
        )
        assert page.inner_text("#told") == told
        assert rows_shown(page) == []  # all groups are in view at once
        page.locator("#table tr.group span").nth(1).click()
        assert rows_shown(page) == ["own/0.1/0", "own/0.1/1"]
        assert texts(page, "#table tr.group")[1] == expected[1].replace("▸", "▾")
        page.get_by_role("checkbox", name="tick the rows of 0.1").check()
        assert page.inner_text("#ticks") == "2 ticked"
        assert texts(page, "#table tr.ticked a") == ["own/0.1/0", "own/0.1/1"]
        page.wait_for_selector("#curves0 .main-svg >> nth=0")
        page.locator("#table").evaluate("table => table.scrollLeft = 300")
        left = "span => span.getBoundingClientRect().left - table.getBoundingClientRect().left"
        assert 20 < page.locator("#table tr.group span").nth(1).evaluate(left) < 70
        page.get_by_role("checkbox", name="tick the rows of 0.1").uncheck()
        assert page.inner_text("#ticks") == "Tick rows to lay their curves over each other."
        page.focus("#table")
        page.keyboard.press("Home")
        page.keyboard.press(" ")
        until(page, "ticks.innerText === '3 ticked'")
        page.keyboard.press("Enter")  # unfolds the group
        assert rows_shown(page)[:3] == [f"own/0.3/{seed}" for seed in (1, 0, 2)]
        page.keyboard.press(" ")
        until(page, "ticks.innerText.startsWith('Tick rows')")
        page.select_option("#group", "seed")
        until(page, "told.innerText.includes('in 3 groups')")
        assert [text[:4] for text in texts(page, "#table tr.group")] == ["▸ 0:", "▸ 1:", "▸ 2:"]


@pytest.mark.slow
def test_a_large_group_is_ticked_by_a_condition(
    place: Path, finished: Run, browser: Browser
) -> None:
    """The address holds what is ticked."""
    assert len([*fake_runs(Path("many"), finished, 501)]) == 501
    view = urlencode({"group": "kind"})
    with served(Path("many")) as server, opened(browser, f"{server.url}/#{view}") as page:
        box = page.get_by_role("checkbox", name="tick the rows of run")
        assert box.is_disabled()
        page.focus("#table")
        page.keyboard.press(" ")
        assert not page.locator("#untick").is_visible()
        told = "more than 500 rows: choose some of them by a condition, such as seed<100"
        assert box.get_attribute("title") == told
        page.fill("#where", "seed<500")
        page.keyboard.press("Enter")
        until(page, "told.innerText.startsWith('500 of 501')")
        box.check()
        until(page, "ticks.innerText === '500 ticked'")
        page.wait_for_selector("#curves0 .main-svg >> nth=0")


@pytest.mark.slow
def test_short_times_have_two_digits(place: Path, finished: Run, browser: Browser) -> None:
    """A trial of a large stack takes a few milliseconds, which are not 0.0 seconds."""
    for name, fit in (("a", 0.00931), ("b", 0.5), ("c", 1.25), ("d", 1234.5)):
        run = fake_run(Path("timed", name), finished, {"optimizer.lr": "0.2"})
        run.result_file.write_text(json.dumps({**run.result, "seconds": {"fit": fit}}))
    view = urlencode({"sort": "folder", "columns": "seconds"})
    with served(Path("timed")) as server, opened(browser, f"{server.url}/#{view}") as page:
        rows_shown(page)
        assert texts(page, "#table td.number") == ["0.0093", "0.5", "1.3", "1,235"]


@pytest.mark.slow
def test_only_rows_in_view_are_in_the_page(place: Path, finished: Run, browser: Browser) -> None:
    runs = [*fake_runs(Path("many"), finished, 300, seed=1)]
    with served(Path("many")) as server, opened(browser, server.url) as page:
        assert rows_shown(page)[0] == os.fspath(runs[-1].folder)
        assert page.inner_text("#told") == "300 runs and sweeps"
        assert page.locator("#table tbody tr").count() < 80
        page.focus("#table")
        for key, shown in (("End", runs[0]), ("Home", runs[-1]), ("PageDown", None)):
            page.keyboard.press(key)
            page.wait_for_selector("#table tr.cursor")
            if shown is not None:
                name = read_labels(shown.folder).name or os.fspath(shown.folder)
                until(page, f"document.querySelector('tr.cursor a')?.innerText === '{name}'")
        inside = page.evaluate(
            "() => { const row = document.querySelector('tr.cursor').getBoundingClientRect(), "
            "all = table.getBoundingClientRect(); "
            "return row.top >= all.top && row.bottom <= all.bottom; }"
        )
        assert inside


@pytest.mark.slow
def test_the_keyboard(server: Server, browser: Browser) -> None:
    with opened(browser, server.url) as page:
        shown = rows_shown(page)
        page.keyboard.press("/")
        page.keyboard.type("kind=run")
        page.keyboard.press("Enter")
        until(page, "told.innerText.startsWith('10 of')")
        page.keyboard.press("Escape")
        page.keyboard.press("ArrowDown")
        page.keyboard.press(" ")
        page.keyboard.press("ArrowDown")
        page.keyboard.press(" ")
        names = [text for text in shown if text != SWEEP]
        assert texts(page, "#table tr.ticked a") == names[1:3]
        page.keyboard.press("s")
        page.wait_for_selector("#compared table")
        page.keyboard.press("Enter")
        page.wait_for_selector("#run h2")
        assert names[2] in page.inner_text("#run h2")
        page.fill("#note", "not saved yet")
        page.keyboard.press("Escape")  # leaves the field alone
        until(page, "document.activeElement === table")
        assert page.input_value("#note") == "not saved yet"
        page.fill("#note", "")
        page.keyboard.press("Escape")
        until(page, "run.hidden")
        page.keyboard.press("u")
        assert texts(page, "#table tr.ticked") == []
        page.keyboard.press("End")
        assert page.locator("#table tr.cursor a").inner_text() == names[-1]


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_pictures_and_logs_tell_what_they_are_of(
    server: Server, browser: Browser, width: int
) -> None:
    run, trial = Run(Path(FIRST)), Run(Path(SWEEP, "0"))
    (run.folder / "report").mkdir()
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="648pt" height="9pt"></svg>'
    save(PagePicture("a", "Rows: the true digit", "", ()), run.folder / "report", Drawn(b"", svg))
    trial.result_file.write_text(json.dumps({**trial.result, "stacked": 1200}))
    with opened(browser, f"{server.url}/#{urlencode({'run': FIRST})}", width=width) as page:
        rows_shown(page)
        image = page.get_by_role("img", name="Rows: the true digit")
        until(page, "(scrollTo(0, 1e6), document.querySelector('#run img')?.style.minWidth)")
        assert page.inner_text("#run figcaption") == "Rows: the true digit"
        wide = image.evaluate("image => image.getBoundingClientRect().width")
        assert wide == pytest.approx(864 if width == 1200 else 0.56 * 864, abs=0.1)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert "trained together" not in page.inner_text("#run")
    view = urlencode({"in": SWEEP, "run": os.fspath(trial.folder)})
    with opened(browser, f"{server.url}/#{view}", width=width) as page:
        page.wait_for_selector("#run pre")
        told = "of 1,200 trials that were trained together: best and median are theirs"
        assert page.inner_text("#run h3:text-is('Log') + p") == told


@pytest.mark.slow
def test_rows_side_by_side_come_into_view(server: Server, browser: Browser) -> None:
    """On a phone, their names stay in place, and no line breaks within a word."""
    view = urlencode(of_ticked(*(f"runs/2026-03-01/00-0{number}-00" for number in range(6))))
    with opened(browser, f"{server.url}/#{view}", width=390) as page:
        page.wait_for_selector("#curves0 .main-svg >> nth=0")
        page.get_by_role("button", name="side by side").click()
        page.wait_for_selector("#compared table")
        until(page, "compared.getBoundingClientRect().top < innerHeight / 2")
        left = "cell => cell.getBoundingClientRect().left"
        label = page.locator("#compared td", has_text="model.hidden_sizes")
        before = label.evaluate(left)
        page.locator("#compared > .wide").evaluate("wide => wide.scrollLeft = 60")
        assert page.locator("#compared > .wide").evaluate("wide => wide.scrollLeft") > 0
        assert label.evaluate(left) == before
        lines = """cell => { const texts = [...cell.querySelector("div").childNodes].filter(
            each => each.nodeType === 3), range = document.createRange();
            return texts.map(text => { range.selectNode(text);
                return [text.data, range.getClientRects().length]; }); }"""
        assert label.evaluate(lines) == [["model.", 1], ["hidden_", 1], ["sizes", 1]]


@pytest.mark.slow
def test_no_fact_breaks_within_its_name(server: Server, browser: Browser) -> None:
    """On a phone, beside a long status."""
    Run(Path(FIRST)).result_file.unlink()
    with opened(browser, f"{server.url}/#{urlencode({'run': FIRST})}", width=390) as page:
        page.wait_for_selector("#run td")
        lines = page.evaluate("""() => { const range = document.createRange();
            return [...document.querySelectorAll("#run .pair td:first-child .cell")].flatMap(
                cell => [...cell.childNodes].filter(each => each.nodeType === 3).map(text => {
                    range.selectNode(text); return [text.data, range.getClientRects().length]; }));
        }""")
        assert ["parameters", 1] in lines
        assert {count for text, count in lines if " " not in text} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 800])
def test_the_page_fits_a_phone(server: Server, browser: Browser, width: int) -> None:
    view = urlencode([*of_ticked(FIRST, SWEEP), ("beside", "yes"), ("run", FIRST)])
    with opened(browser, f"{server.url}/#{view}", width=width) as page:
        rows_shown(page)
        page.wait_for_selector("#curves0 .main-svg >> nth=0")
        page.wait_for_selector("#compared table")
        page.wait_for_selector("#run pre")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        box = "cell => [cell.innerText, cell.offsetWidth, cell.getBoundingClientRect().right]"
        heads = page.evaluate(f"[...document.querySelectorAll('#table th')].map({box})")
        _, (name, wide, _), (value, *_), (status, _, right) = heads[:4]
        assert (name, value, status) == ("run", "best", "status")
        assert wide < 0.4 * width
        assert right < width
        rows = "document.querySelectorAll('#table tbody tr:not(.space)')"
        assert {*page.evaluate(f"[...{rows}].map(row => row.offsetHeight)")} == {34}


def test_the_board_names_its_folders_plainly(place: Path) -> None:
    assert f'<p class="soft">of {place}/runs</p>' in Board([Path("sweeps/../runs")]).page


def of_ticked(*folders: str) -> list[tuple[str, str]]:
    return [("ticked", folder) for folder in folders]


@pytest.mark.slow
def test_dark_and_light(server: Server, browser: Browser) -> None:
    colours = []
    for scheme in ("light", "dark"):
        with opened(browser, server.url, scheme=scheme) as page:
            colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(251, 251, 252)", "rgb(18, 18, 20)"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_page_updates_itself(place: Path, finished: Run, browser: Browser) -> None:
    run = Run(Path(SECOND))
    result = run.result_file.read_text()
    run.result_file.unlink()
    page = browser.new_page()
    with served() as server:
        page.goto(f"{server.url}/#{urlencode(of_ticked(SECOND))}")
        rows_shown(page)
        page.wait_for_selector("#curves0 .main-svg >> nth=0")
        run.append_history([{**run.history[-1], "epoch": 77}])
        epochs = "document.querySelector('#curves0 .chart').data.flatMap(trace => trace.x)"
        page.wait_for_function(f"() => {epochs}.includes(77)")
        row = page.locator(
            "#table tbody tr", has=page.get_by_role("checkbox", name=f"tick {SECOND}")
        )
        assert "unfinished" in row.inner_text()
        run.result_file.write_text(result)
        until(page, "!table.innerText.includes('unfin')")
        fake_run(Path("cluster/new"), finished, {"seed": "3"})  # as rsync brings it
        until(page, "table.innerText.includes('cluster')")
        assert page.inner_text("#told") == "12 runs and sweeps"
        # The log of a run that is open goes on.
        run.result_file.unlink()
        page.goto(f"{server.url}/#{urlencode({'run': SECOND})}")
        page.wait_for_selector("#run pre")
        with run.log_file.open("a") as log:
            log.write("another line\n")
        until(page, "document.getElementById('run').innerText.includes('another line')")
        run.result_file.write_text(result)
        until(page, "document.getElementById('run').innerText.startsWith('" + SECOND + "')")
        until(page, "document.getElementById('run').innerText.includes('run, finished')")
        shutil.rmtree("cluster")
        until(page, "told.innerText.startsWith('11 ')")
        page.route("**/rows*", lambda route: route.abort())
        until(page, "!silent.hidden")
        page.unroute("**/rows*")
        until(page, "silent.hidden")
    page.close()


@pytest.mark.slow
def test_a_wrong_condition_and_labels_in_the_page(server: Server, browser: Browser) -> None:
    page = browser.new_page()  # a refused question is an error in its console
    page.goto(f"{server.url}/#where=bst%3E1")
    until(page, "!fault.hidden")
    assert page.inner_text("#fault").endswith("bst>1: unknown key; did you mean best?")
    assert page.inner_text("#told") == ""
    page.fill("#where", "best>1%")
    page.keyboard.press("Enter")
    until(page, "fault.hidden")
    page.goto(f"{server.url}/#run={FIRST}")
    page.fill("#name", "a/b")
    page.get_by_role("button", name="save").click()
    page.wait_for_selector("#run .labels .trouble")
    assert "1 to 64 letters" in page.inner_text("#run .labels")
    page.fill("#name", "fine")
    page.fill("#tags", "first, new")
    page.fill("#note", "two\nlines")
    page.get_by_role("button", name="save").click()
    page.wait_for_selector("#run .labels .finished")
    until(page, "table.innerText.includes('fine')")
    assert read_labels(Path(FIRST)).model_dump() == {
        "name": "fine", "tags": ["first", "new"], "note": "two\nlines"
    }  # fmt: skip
    page.close()


@pytest.mark.slow
def test_hostile_names_are_texts(place: Path, browser: Browser, finished: Run) -> None:
    """In folders, notes, keys, errors and logs, with markup, quotes, line ends, 3,000 letters."""
    evil = EVIL.replace("/", "∕")
    folder = Path(evil + "x" * 30) / evil / "r"
    run = fake_run(folder, finished, {"seed": "3"})
    run.log_file.write_text(EVIL)
    run.overrides_file.write_text(json.dumps([f"{EVIL}={EVIL}", f"data.path={'y' * 3000}"]))
    (folder / "labels.json").write_text(json.dumps({"note": EVIL + "z" * 1800}))
    (folder / "report").mkdir()
    save(PagePicture("x", EVIL, "", ()), folder / "report", Drawn(b"", "<svg></svg>"))
    failed = fake_run(Path("runs/failed"), finished, {"seed": "4"})
    failed.result_file.write_text(json.dumps({"status": "failed", "error": EVIL}))
    Run(Path(SECOND)).result_file.write_text(json.dumps({"status": EVIL}))
    name = os.fspath(folder)
    view = [*of_ticked(name, FIRST), ("beside", "yes"), ("run", name), ("group", EVIL),
            ("columns", f"best,{EVIL},data.path"), ("in", "")]  # fmt: skip
    with (
        served() as server,
        opened(browser, f"{server.url}/#{urlencode(view)}", width=390) as page,
    ):
        rows_shown(page)
        for group in page.locator("#table tr.group span").all():
            group.click()
        assert len(rows_shown(page)) > 5
        page.wait_for_selector("#compared table")
        page.wait_for_selector("#run pre")
        page.wait_for_selector("#curves0 .main-svg >> nth=0")
        assert page.locator("img").count() == 1
        assert " ".join(page.inner_text("#run figcaption").split()) == " ".join(EVIL.split())
        assert EVIL in page.inner_text("#run pre")
        for chart in ("scatter", "parallel"):
            page.select_option("#chart", chart)
            page.wait_for_timeout(200)
        page.keyboard.press("Escape")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.title() != "hit"
    shown_page = browser.new_page()  # whose errors are expected
    with served() as server:
        shown_page.goto(server.url)
        # The policy stops what would pass in spite of that.
        shown_page.evaluate("html => document.querySelector('main').innerHTML = html", EVIL)
        shown_page.wait_for_timeout(100)
        assert shown_page.title() != "hit"
    shown_page.close()


@pytest.mark.slow
def test_without_plotly_and_without_javascript(
    place: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = browser.new_context(java_script_enabled=False)
    with served() as server:
        page = context.new_page()
        page.goto(server.url)
        assert "The board needs JavaScript." in page.inner_text("body")
    context.close()
    monkeypatch.setitem(sys.modules, "plotly", None)
    with served() as server, opened(browser, f"{server.url}/#ticked={FIRST}") as page:
        assert len(rows_shown(page)) > 5
        until(page, "remark.innerText.includes('plotly')")
        told = "There are no charts, because plotly is not installed; type pip install"
        assert page.inner_text("#remark").startswith(told)


@pytest.mark.slow
def test_the_command_ends_in_good_order(place: Path) -> None:
    command = [sys.executable, "-m", "src.board", "runs"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert started.stdout is not None
    with started:
        line = started.stdout.readline()
        found = re.match(
            rf"the board of {place}/runs is served at http://127\.0\.0\.1:(\d+) ", line
        )
        assert found, line
        connection = http.client.HTTPConnection(ADDRESS, int(found[1]), timeout=60)
        connection.request("GET", "/rows")
        assert json.loads(connection.getresponse().read())["total"] == 10
        connection.close()
        started.send_signal(signal.SIGINT)
        assert started.stdout.read() == "stopped\n"
    assert started.returncode == 0


@pytest.mark.slow
def test_trials_of_a_named_sweep_have_their_numbers(browser: Browser, server: Server) -> None:
    """Its name, which each of them has, would tell none apart. And `best` has its metric where rows
    have several."""
    write_labels(Path(SWEEP), name="rates")
    for number in range(6):
        write_labels(Path(SWEEP, str(number)), name="rates")
    with opened(browser, f"{server.url}/#{urlencode({'in': SWEEP})}") as page:
        page.wait_for_selector("text=trial 5")
        rows = page.locator("tbody tr:not(.space)").all_inner_texts()
        names = sorted(re.search(r"trial \d|rates", row)[0] for row in rows)  # type: ignore[index]
        assert names == [f"trial {number}" for number in range(6)]
        assert not any("val/acc" in row for row in rows)
    result = json.loads(Run(Path(FIRST)).result_file.read_text())
    result |= {"monitor": "val/loss"}
    Run(Path(FIRST)).result_file.write_text(json.dumps(result))
    with opened(browser, server.url) as page:
        page.wait_for_selector("tbody >> text=val/loss")  # after a look at the folders
        rows = page.locator("tbody tr:not(.space)").all_inner_texts()
        assert sum("val/loss" in row for row in rows) == 1
        assert sum("val/acc" in row for row in rows) == 10
