"""The page of a run or sweep that is under way."""

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Browser

from kindling.records.folder import Row, Run
from kindling.records.groups import remove_progress, write_progress
from kindling.records.labels import write_labels
from kindling.reports import live
from kindling.reports.collect import Reader, collect
from kindling.reports.live import LivePage, Server, serve_live
from kindling.system.errors import InputError
from tests.helpers.browser import opened
from tests.helpers.commands import ROOT
from tests.helpers.page_server import answering
from tests.helpers.progress import progress
from tests.helpers.tasks import HISTORY

EVIL = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"


def served(*paths: Path) -> AbstractContextManager[Server]:
    return answering(Server(0, LivePage(paths)))


@pytest.fixture
def sweep(tmp_path: Path, finished: Run) -> Path:
    """A sweep of four trials: 0 has finished, 1 and 2 train, 3 waits."""
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "multirun.yaml").touch()
    for number in range(4):
        run = Run(shutil.copytree(finished.folder, folder / str(number)))
        run.overrides_file.write_text(f"- seed={number}\n")
        if number:
            run.result_file.unlink()
        if number == 3:
            run.history_file.unlink()
    state = folder / ".stacks" / "x"
    state.mkdir(parents=True)
    write_progress(state, progress(trials=[1, 2]))
    return folder


def content(*paths: Path) -> str:
    return LivePage(paths).page()


def cells(page: str) -> list[list[str]]:
    """The texts of all rows of all tables."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]


@pytest.mark.slow
def test_the_page_of_a_sweep(sweep: Path) -> None:
    assert f"<h1>{sweep}</h1>" in content(sweep)
    write_labels(sweep, name="wide")
    page = content(sweep)
    assert "<h1>wide</h1>" in page
    rows = cells(page)
    assert rows[0] == ["group", "host", "device", "state", "epoch", "best", "left"]
    assert rows[1][:6] == ["2 trials: 1–2", "node1", "cpu", "running", "3/10", "97.31%"]
    assert re.search(r"1 of 4 trials ended, best val/acc 97.31%, about .* left", page)
    run = Run(sweep / "1")
    best = max(row["val/acc"] or 0 for row in run.history[1:])
    results = {row[0]: row for row in rows[3:]}
    assert set(results) == {"0", "1", "2"}
    assert results["0"][1:3] == ["finished", f"{best:.2%}"]
    assert results["1"][1:3] == ["unfinished", f"{best:.2%}"]
    assert not [name for name in rows[2] if "test" in name]
    assert page.count('data-chart="curves"') == 1
    (data,) = re.findall(r'id="sweep1-data">(.*?)</script>', page)
    drawn = {trial["name"]: trial for trial in json.loads(data)["trials"]}
    assert [*drawn] == [row[0] for row in rows[3:]]  # the best first
    assert drawn["1"]["settings"] == ["1"]
    assert drawn["1"]["epochs"] == [row["epoch"] for row in run.history]
    assert "history.csv" not in page  # of trial 3, which waits


def test_a_committee_is_no_trial(sweep: Path) -> None:
    made = Run(shutil.copytree(sweep / "0", sweep / "committee"))
    made.result_file.write_text(json.dumps({**made.result, "committee": {"members": []}}))
    assert "1 of 4 trials ended" in content(sweep)


def test_a_finished_committee_gets_no_curves(tmp_path: Path, finished: Run) -> None:
    made = Run(shutil.copytree(finished.folder, tmp_path / "committee"))
    made.result_file.write_text(
        json.dumps({**made.result, "committee": {"members": [], "differing": []}})
    )
    made.history_file.unlink()
    page = content(tmp_path)
    assert "committee" in page
    assert "Curves appear" not in page


def test_a_confirmation_inside_a_sweep_is_not_counted(sweep: Path) -> None:
    """Neither its trials nor its groups; a page of its own counts them."""
    shutil.copytree(sweep, sweep / "confirm", ignore=shutil.ignore_patterns("confirm"))
    page = content(sweep)
    assert "1 of 4 trials ended" in page
    assert page.count("2 trials: 1–2") == 2
    assert "1 of 4 trials ended" in content(sweep / "confirm")


def test_a_page_before_anything_has_ended(tmp_path: Path, finished: Run) -> None:
    (tmp_path / "multirun.yaml").touch()
    page = content(tmp_path)
    assert "Nothing trains at the moment." in page
    assert "No epoch has ended yet." in page
    run = Run(shutil.copytree(finished.folder, tmp_path / "0"))
    run.result_file.unlink()
    run.write_history(run.history[:1])
    page = content(tmp_path)
    assert "Curves appear after the first epoch." in page
    assert "0 of 1 trials ended" in page


def test_a_single_run(tmp_path: Path, finished: Run) -> None:
    run = Run(shutil.copytree(finished.folder, tmp_path / "run"))
    run.result_file.unlink()
    write_progress(run.checkpoints, progress(trials=[]))
    page = content(run.folder)
    assert ["the run", "node1", "cpu", "running"] in [row[:4] for row in cells(page)]
    assert "trials ended" not in page
    remove_progress(run.checkpoints)
    assert "Nothing trains at the moment." in content(run.folder)


@pytest.mark.slow
def test_a_strangers_folder_cannot_inject(sweep: Path, browser: Browser) -> None:
    Run(sweep / "1").overrides_file.write_text(json.dumps([f"seed={EVIL}"]))
    Run(sweep / "2").write_result({"status": "failed", "error": EVIL})
    Run(sweep / "3").result_file.write_text(json.dumps({"status": EVIL}))
    (sweep / ".stacks" / "x" / "progress.json").write_text(json.dumps({"host": EVIL}))
    (sweep / ".stacks" / "evil").mkdir()
    evil = progress().model_dump() | {"device": EVIL}
    (sweep / ".stacks" / "evil" / "progress.json").write_text(json.dumps(evil))
    page = content(sweep)
    assert "<img" not in page
    assert page.count("<script>") == 2
    assert [row[1] for row in cells(page)[1:3]] == ["?", "?"]
    with served(sweep) as server, opened(browser, server.url) as shown:
        assert shown.title() == str(sweep)
        assert EVIL in shown.inner_text("main")
    shown = browser.new_page()  # whose errors are expected
    with served(sweep) as server:
        shown.goto(server.url)
        # The policy stops what the escapes would let pass.
        shown.evaluate("html => document.querySelector('main').innerHTML = html", EVIL)
        shown.wait_for_timeout(100)
        assert shown.title() == str(sweep)
    shown.close()


@pytest.mark.slow
def test_without_plotly_the_page_has_no_curves(
    sweep: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what to install, and its tables are updated."""
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setattr(live, "SECONDS", 0.2)
    monkeypatch.setattr(live, "PAGE_SHARE", 1e9)
    with served(sweep) as server, opened(browser, server.url) as page:
        told = "There are no curves, because plotly is not installed; type pip install"
        assert told in page.inner_text("main")
        assert page.locator("[data-chart]").count() == 0
        write_progress(sweep / ".stacks" / "x", progress(epoch=7))
        page.wait_for_function("() => document.body.innerText.includes('7/10')")
        assert page.locator("[role=alert]").is_hidden()


@pytest.mark.slow
def test_the_page_updates_itself(
    sweep: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.2)
    monkeypatch.setattr(live, "PAGE_SHARE", 1e9)
    page = browser.new_page()
    with served(sweep) as server:
        page.goto(server.url)
        assert "3/10" in page.inner_text("main")
        scale = page.locator(".controls label", has_text="scale").locator("select")
        scale.select_option("log")
        panel = page.locator(".chart .nsewdrag").first.bounding_box()
        assert panel is not None
        left, top, width, height = (panel[side] for side in ("x", "y", "width", "height"))
        page.mouse.move(left + 0.2 * width, top + 0.2 * height)
        page.mouse.down()
        page.mouse.move(left + 0.6 * width, top + 0.7 * height, steps=5)
        page.mouse.up()
        axis = "document.querySelector('.chart').layout.xaxis"
        page.wait_for_function(f"() => {axis}.autorange === false")
        zoomed = page.evaluate(f"{axis}.range")
        run = Run(sweep / "1")
        run.append_history([{**run.history[-1], "epoch": 77}])
        write_progress(sweep / ".stacks" / "x", progress(epoch=7))
        page.wait_for_function("() => document.body.innerText.includes('7/10')")
        # The chart has the new epoch, and is as the viewer has left it.
        epochs = "document.querySelector('.chart').data.flatMap(trace => trace.x)"
        page.wait_for_function(f"() => {epochs}.includes(77)")
        assert page.evaluate(f"{axis}.range") == zoomed
        assert scale.input_value() == "log"
        remove_progress(sweep / ".stacks" / "x")
        for number in (1, 2, 3):
            Run(sweep / str(number)).write_result({"status": "failed", "error": "OSError: no"})
        ended = "4 of 4 trials ended, 3 failed"  # the page may be made between two of the files
        page.wait_for_function(f"() => document.body.innerText.includes('{ended}')")
        assert "Nothing trains" in page.inner_text("main")
        assert page.locator("[role=alert]").is_hidden()
        page.route("**/main", lambda route: route.fulfill(status=500))
        page.wait_for_function("() => !document.querySelector('[role=alert]').hidden")
        page.unroute("**/main")
        page.wait_for_function("() => document.querySelector('[role=alert]').hidden")
    page.close()


def test_only_what_has_changed_is_read_again(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()
    first = collect([sweep], reader)
    read: list[str] = []
    history = Run.history

    def noted(run: Run) -> list[Row]:
        read.append(run.folder.name)
        return history.fget(run)  # type: ignore[attr-defined,no-any-return]

    monkeypatch.setattr(Run, "history", property(noted))
    monkeypatch.delattr(Run, "config")
    assert collect([sweep], reader) == first
    assert read == []
    run = Run(sweep / "1")
    run.append_history(
        [dict.fromkeys(HISTORY) | {"epoch": 3, "step": 36, "seconds": 1.0, "val/acc": 0.99}]
    )
    second = collect([sweep], reader)
    assert read == ["1"]
    (entry,) = (entry for entry in second.entries if entry.run.folder.name == "1")
    assert entry.value == 0.99


def ask(server: Server, method: str, path: str, **headers: str) -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    found = response.status, response.headers, response.read()
    connection.close()
    return found


def test_a_page_that_costs_much_is_made_less_often(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most a tenth of a core."""
    clock = iter([0.0, 0.2, 10.0, 13.0])
    monkeypatch.setattr(live, "time", SimpleNamespace(
        thread_time=lambda: next(clock), monotonic=iter([0.0, 0.0, 99.0, 99.0, 100.0]).__next__,
    ))  # fmt: skip
    page = LivePage([sweep])
    told = [re.search('data-seconds="([0-9]+)"', page.current()) for _ in range(3)]
    assert [each and each[1] for each in told] == ["5", "30", "30"]


def test_whom_the_server_answers(sweep: Path) -> None:
    with served(sweep) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, headers, page = ask(server, "GET", "/")
        assert (status, b"sweep" in page) == (200, True)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'sha256-" in policy
        assert "unsafe-inline" not in policy.partition("style-src")[0]
        assert ask(server, "GET", "/", Host="evil.example")[0] == 403
        assert ask(server, "GET", "/", Origin="http://evil.example")[0] == 403
        assert ask(server, "GET", "/../pyproject.toml")[0] == 404
        assert ask(server, "GET", "/0/result.json")[0] == 404
        assert ask(server, "POST", "/")[0] == 404


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run; name a run, runs/DATE/TIME, or a sweep"):
        serve_live([tmp_path], 0)
    with pytest.raises(InputError, match="there is no such folder"):
        serve_live([tmp_path / "absent"], 0)


@pytest.mark.slow
def test_the_command_ends_in_good_order(sweep: Path) -> None:
    command = [sys.executable, "-m", "src.report", str(sweep), "--live"]
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    with started:
        line = started.stdout.readline()
        assert line.startswith(f"{sweep} is served at http://127.0.0.1:")
        url = line.split(" is served at ")[1].split()[0]
        directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with directly.open(url) as response:
            assert b"2 trials: 1" in response.read()
        started.send_signal(signal.SIGINT)
        assert started.stdout.read() == "stopped\n"
    assert started.returncode == 0
    assert not (sweep / "report.html").exists()
