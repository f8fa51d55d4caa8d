"""A page about runs and sweeps that are under way, served to this machine alone.

The page asks for itself again every few seconds, less often where it takes long to make.
"""

import os
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from markupsafe import Markup

from src.plots.style import COLOURS
from src.reports import tables
from src.reports.collect import NOT_BEGUN, Collection, Entry, Reader, collect
from src.reports.interactive import chart_data, library, library_source
from src.reports.page import CURVES, render
from src.runs.folder import Run, is_sweep
from src.runs.group_progress import NAME, read_progress
from src.runs.group_status import HEADER, GroupStatus, Results, one_result, overview, rows
from src.runs.labels import read_labels
from src.runs.outcome import comparable, differing
from src.system.errors import InputError
from src.system.page_server import PageHandler, PageServer, inline_scripts

SECONDS = 5  # between two looks at the folders
SHARE = 0.1  # of a core, for making pages
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
        self._fixed = {
            "title": ", ".join(map(_named, paths)),
            "colours": COLOURS,
            "library": Markup(library()),
        }

    def page(self) -> str:
        return self._page(self.current())

    @property
    def scripts(self) -> list[str]:
        """All scripts that the page runs."""
        return [*inline_scripts(self._page("")), library_source().decode()]

    def _page(self, main: str) -> str:
        return render("live.html", {**self._fixed, "main": Markup(main)})

    def current(self) -> str:
        """The element main."""
        with self._making:
            if time.monotonic() - self.made >= self.seconds / 2:
                began = time.thread_time()
                content = self._content()
                self.seconds = max(SECONDS, round((time.thread_time() - began) / SHARE))
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
        trials = sum(run.parent in sweeps and run.name.isdecimal() for run in runs)
        listed, omitted = rows([*groups.values()], MOST_GROUPS)
        return {
            "curves": CURVES,
            "when": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S"),
            "header": HEADER,
            "groups": listed,
            "omitted": omitted,
            "totals": _totals([*groups.values()], found, trials) if trials else "",
            "parts": _parts(found),
            "skipped": [pair for pair in found.skipped if pair[1] != NOT_BEGUN][:MOST_SKIPPED],
        }


def _named(path: Path) -> str:
    """The name that a run or sweep was given, else its path."""
    try:
        return read_labels(path).name or str(path)
    except InputError:  # a damaged file
        return str(path)


def _totals(groups: Sequence[GroupStatus], found: Collection, trials: int) -> str:
    entries = (trial for sweep in found.sweeps for trial in sweep.trials)
    results = sum((one_result(entry.result) for entry in entries), Results())
    return overview(groups, results, trials, count_groups=False)


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


def _parts(found: Collection) -> list[dict[str, Any]]:
    """A section for each sweep, and for the single runs; of comparable runs each."""
    parts = [("Runs", "run", group) for group in comparable(found.runs).values()]
    parts += [
        (f"{each.kind.capitalize()} {each.name}", "trial", list(each.trials))
        for each in found.sweeps
    ]
    return [_part(f"part{number}", *part) for number, part in enumerate(parts)]


def _part(name: str, title: str, kind: str, entries: Sequence[Entry]) -> dict[str, Any]:
    ranked = sorted(entries, key=lambda entry: entry.rank)
    keys = differing([entry.overrides or entry.settings for entry in entries])
    table = tables.run_table(name, kind, ranked[:MOST_ROWS], keys)
    trained = [entry for entry in entries if len(entry.history) > 1]
    names = {entry.name: entry.run.folder.name for entry in trained}
    more = len(entries) - MOST_ROWS
    return {
        "name": name,
        "title": title,
        "data": {"noun": kind, **chart_data(trained, keys, names)} if trained else None,
        "header": table.header,
        "rows": [[cell.text for cell in row] for row in table.rows],
        "omitted": f"and {more:,} more" if more > 0 else "",
    }


class Server(PageServer):
    def __init__(self, port: int, live: LivePage) -> None:
        self.live = live
        super().__init__(port, Handler, live.scripts)


class Handler(PageHandler):
    """Answers GET / and, for pages that update themselves, GET /main."""

    server: Server

    def get(self) -> None:
        if self.path == "/":
            self.send_page(self.server.live.page().encode())
        elif self.path == "/main":
            self.send_page(self.server.live.current().encode())
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "use GET /")
