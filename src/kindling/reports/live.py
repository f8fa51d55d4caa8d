"""A page about runs and sweeps that are under way, served to this machine alone.

The page asks for itself again every few seconds, less often where it takes long to make.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from markupsafe import Markup

from kindling.records.folder import Run, is_sweep
from kindling.records.groups import (
    HEADER,
    NAME,
    GroupStatus,
    Results,
    one_result,
    overview,
    read_progress,
    rows,
)
from kindling.records.labels import read_labels
from kindling.reports import tables
from kindling.reports.charts import chart_content, chart_data, library_source
from kindling.reports.collect import NOT_BEGUN, Collection, Part, Reader, collect
from kindling.reports.page import render
from kindling.reports.pictures import CURVES
from kindling.system.errors import InputError
from kindling.system.page_server import PageHandler, PageServer, inline_scripts

SECONDS = 5  # between two looks at the folders
PAGE_SHARE = 0.1  # of a core, for making pages
MOST_GROUPS = 50
MOST_ROWS = 100
MOST_SKIPPED = 20


def serve_live(paths: Sequence[Path], port: int) -> None:
    """Serves the page until a signal ends the server. Port 0 chooses a free port. Raises InputError
    for a path without a run or sweep, and for a port that cannot be used."""
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: there is no such folder; name a run, a sweep, or both")
        if not _find(path)[0] and not is_sweep(path):
            raise InputError(f"{path}: holds no run; name a run, runs/DATE/TIME, or a sweep")
    with Server(port, LivePage(paths)) as server:
        server.serve_until_stopped(", ".join(map(str, paths)))


class LivePage:
    """Makes the page, and the part of the page that changes, its element main. Threads may ask at
    the same time; main is made anew if it is too old."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths, self.reader = paths, Reader()
        self.main, self.made, self.seconds = "", -1e9, SECONDS
        self._making = threading.Lock()
        self._fixed = {"title": ", ".join(map(_named, paths)), **chart_content()}

    def page(self) -> str:
        return self._page(self.current())

    @property
    def scripts(self) -> list[str]:
        """All scripts that the page runs."""
        return [*inline_scripts(self._page("")), (library_source() or b"").decode()]

    def _page(self, main: str) -> str:
        return render("live.html", {**self._fixed, "main": Markup(main)})

    def current(self) -> str:
        """The element main."""
        with self._making:
            if time.monotonic() - self.made >= self.seconds / 2:
                began = time.thread_time()
                content = self._content()
                self.seconds = max(SECONDS, round((time.thread_time() - began) / PAGE_SHARE))
                self.main = render("live_main.html", content | {"seconds": self.seconds})
                self.made = time.monotonic()
            return self.main

    def _content(self) -> dict[str, Any]:
        runs, groups = set[Path](), dict[Path, GroupStatus]()
        for path in self.paths:
            found_runs, found_groups = _find(path)
            runs |= found_runs
            groups |= found_groups
        try:
            found = collect(self.paths, self.reader)
        except InputError:  # no run has begun
            found = Collection([], [], [])
        sweeps = {folder for folder in {run.parent for run in runs} if is_sweep(folder)}
        inner = {folder for folder in sweeps if sweeps.intersection(folder.parents)}
        trials = sum(run.parent in sweeps - inner and run.name.isdecimal() for run in runs)
        listed, omitted = rows([*groups.values()], MOST_GROUPS)
        return {
            "curves": CURVES,
            "no_charts": self._fixed["no_charts"],
            "when": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S"),
            "header": HEADER,
            "groups": listed,
            "omitted": omitted,
            "totals": _totals(groups, found, trials, inner) if trials else "",
            "sections": [_section(name, part) for name, part in found.parts.items()],
            "skipped": [pair for pair in found.skipped if pair[1] != NOT_BEGUN][:MOST_SKIPPED],
        }


def _named(path: Path) -> str:
    """The name that a run or sweep was given, else its path."""
    try:
        return read_labels(path).name or str(path)
    except InputError:  # a damaged file
        return str(path)


def _totals(
    groups: Mapping[Path, GroupStatus], found: Collection, trials: int, inner: set[Path]
) -> str:
    """The totals of all sweeps but the `inner` ones, such as the confirmation of a sweep."""
    outer = [part for part in found.sweeps if part.folder and part.folder.absolute() not in inner]
    results = (one_result(trial.result) for part in outer for trial in part.entries)
    own = [group for folder, group in groups.items() if not inner & {*folder.parents}]
    return overview(own, sum(results, Results()), trials, count_groups=False)


def _find(path: Path) -> tuple[set[Path], dict[Path, GroupStatus]]:
    """The folders of runs below a path, also of runs that wait, and the groups that train."""
    runs, groups = set(), {}
    for name, inner, names in os.walk(path.absolute()):
        folder = Path(name)
        run = Run(folder)
        if run.config_file.exists() or run.started:
            runs.add(folder)
            inner[:] = [run.checkpoints.name] if run.checkpoints.is_dir() else []
        if NAME in names:
            groups[folder] = _group(folder)
    return runs, groups


def _group(folder: Path) -> GroupStatus:
    try:
        progress = read_progress(folder)
    except (InputError, OSError):
        return GroupStatus((), "silent", damaged=True)
    if progress is None:  # the group has just ended
        return GroupStatus((), "ended")
    return GroupStatus(progress.trials, "silent" if progress.silent else "running", progress)


def _section(name: str, part: Part) -> dict[str, Any]:
    trained = [entry for entry in part.entries if len(entry.history) > 1]
    more = len(part.entries) - MOST_ROWS
    table = tables.run_table(name, replace(part, entries=part.ranked[:MOST_ROWS]))
    return {
        "name": name,
        "title": part.title or "Runs",
        "data": chart_data(part, trained, part.keys) if trained else None,
        "waits": any(entry.status == "unfinished" for entry in part.entries),
        "header": list(table.rows[0]),
        "rows": [[cell.text for cell in row.values()] for row in table.rows],
        "omitted": f"and {more:,} more" if more > 0 else "",
    }


class Server(PageServer):
    def __init__(self, port: int, live: LivePage) -> None:
        self.live = live
        super().__init__(port, Handler, live.scripts)


class Handler(PageHandler):
    """Answers GET / and, for pages that update themselves, GET /main."""

    server: Server

    def do_GET(self) -> None:  # noqa: N802
        if self.path == "/":
            self.send_page(self.server.live.page().encode())
        elif self.path == "/main":
            self.send_page(self.server.live.current().encode())
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "use GET /")
