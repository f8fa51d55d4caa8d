"""A page over all runs and sweeps below some folders, served to this machine alone.

The folders are the truth: nothing is stored but names, tags and notes, in the folders themselves.
What was read stays in memory, and a folder is read again when one of its files has changed. The
page shows only what lies in the folders: links out of them are refused.
"""

import base64
import html
import math
import os
import re
import shlex
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from pydantic import Field

from kindling.config.faults import known_keys
from kindling.config.measures import is_fraction
from kindling.config.schema import UNTRAINED
from kindling.config.section import Section
from kindling.records.folder import Run, runs_of, trials_of
from kindling.records.labels import write_labels
from kindling.records.listing import FIELDS, Entry, values_of
from kindling.records.lookup import TRAINED, units
from kindling.records.outcome import (
    REPLICATED,
    differing,
    format_metric,
    in_full,
    known_value,
    read_outcome,
    short,
)
from kindling.reports.analysis import by_size
from kindling.reports.board_table import NOT_FOR_CHOICE, BoardTable, read_table, stamp
from kindling.reports.charts import chart_content, chart_data, library_source
from kindling.reports.collect import (
    NOT_BEGUN,
    Collection,
    Part,
    Reader,
    Reported,
    collect,
    seeds_last,
)
from kindling.reports.drawing import themed
from kindling.reports.page import page_content, render
from kindling.reports.pictures import CURVES
from kindling.reports.words import within_chance
from kindling.system.errors import InputError, first_line, parsing
from kindling.system.files import open_regular
from kindling.system.installation import as_command
from kindling.system.page_server import PageHandler, PageServer, inline_scripts
from kindling.system.units import MIB

SECONDS = 5  # between two looks at the folders
PAGE_SHARE = 0.1  # of a core, for looks at the folders
LONGEST = 60.0  # seconds, after which every question looks
GONE = (FileNotFoundError, NotADirectoryError, PermissionError)  # of a folder, meanwhile
OVER = ("step", "seconds")  # columns of a history, beside the epoch
MOST_SWEEPS = 16  # that are open at the same time
LOG_LIMIT = 65_536  # bytes at the end of a log
MOST_PICTURES, PICTURE_LIMIT = 24, 2 * MIB
FEWEST_COMPARED, MOST_COMPARED = 2, 6
DECADE = 10  # the largest over the least of numbers on a logarithmic axis
# A report runs a script, and shows what may be a stranger's: it gets no rights of the board.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src "
    "'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def serve_board(paths: Sequence[Path], port: int) -> None:
    """Serves the page until a signal ends the server. Port 0 chooses a free port. Raises InputError
    for a path that is not a folder, and for a port that cannot be used."""
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: there is no such folder; name runs, sweeps or folders")
    with Server(port, Board(paths)) as server:
        server.serve_until_stopped(f"the board of {_title(paths)}")


def _title(paths: Sequence[Path]) -> str:
    return ", ".join(map(os.path.abspath, paths))  # without ..


class Change(Section):
    """What POST /label asks; see `write_labels`."""

    folder: str
    name: str | None = None
    add: list[str] = Field(default=[])
    remove: list[str] = Field(default=[])
    note: str | None = None


@dataclass(frozen=True)
class Look:
    """A look at the folders."""

    table: BoardTable
    seconds: float  # until the next one
    made: float


class AbsentError(InputError):
    """The board has no such run."""


def _metric_of(entry: Entry, name: str) -> tuple[str, float | None]:
    """The full name and the value of `best`, `test`, `seconds`, `trials` or a metric."""
    match name:
        case "best":
            return entry.monitor, known_value(entry.best)
        case "test":
            return f"test/{entry.score}", known_value(entry.test)
        case "seconds" | "trials":
            return name, known_value(getattr(entry, name))
    return name, known_value(entry.metrics.get(name))


def _wide(drawn: Sequence[Reported], key: str) -> bool | None:
    """Whether the numbers of a key want a logarithmic axis, if all are above 0; None for texts."""
    found = [by_size(each.setting(key)) for each in drawn]
    numbers = [number for is_text, number, _ in found if not is_text and math.isfinite(number)]
    if len(numbers) < len(found):
        return None
    return DECADE * min(numbers) <= max(numbers)


class Board:
    """Answers the questions of the page. Threads may ask at the same time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths, self.reader = paths, Reader()
        self._tables: dict[str, Look] = {}  # by the folder of a sweep; "" for all
        self._reading, self._drawing = threading.Lock(), threading.Lock()
        charts = chart_content()
        about = {"fields": FIELDS, "curves": CURVES, "no_charts": charts["no_charts"],
                 "most": MOST_COMPARED, "seconds": SECONDS}  # fmt: skip
        known = {"title": _title(paths), "keys": sorted(known_keys()), "about": about}
        self.page = render("board.html", {**charts, **known})

    @property
    def scripts(self) -> list[str]:
        """All scripts that the page runs."""
        return [*inline_scripts(self.page), (library_source() or b"").decode()]

    def table(self, sweep: str = "", *, fresh: bool = False) -> BoardTable:
        """All runs and sweeps, or the trials of a sweep: with `fresh` as they are now, else as they
        were at the last look, which nobody waits for. Raises AbsentError."""
        inside = self._found(sweep) if sweep else None
        if inside and inside.kind in TRAINED:
            raise AbsentError(f"{sweep}: is a {inside.kind}, which has no trials")
        known = self._tables.get(sweep)
        if known and time.monotonic() - known.made < (known.seconds / 2 if fresh else LONGEST):
            return known.table
        with self._reading:
            if self._tables.get(sweep) is known:  # else another thread has just looked
                start = time.thread_time()
                trials = (run.folder for run in trials_of(inside.folder)) if inside else None
                folders = dict.fromkeys(units(self.paths)) if trials is None else trials
                table = read_table(folders, known.table if known else None, of_trials=bool(inside))
                # To read all costs more than any later look.
                cost = (time.thread_time() - start) / PAGE_SHARE if known else 0.0
                kept = [name for name in self._tables if name not in ("", sweep)]
                for name in kept[: 1 - MOST_SWEEPS]:
                    del self._tables[name]
                self._tables[sweep] = Look(table, max(SECONDS, cost), time.monotonic())
            return self._tables[sweep].table

    def _found(self, folder: str, sweep: str = "") -> Entry:
        rows = self.table(sweep).rows
        if folder not in rows:
            raise AbsentError(f"{folder}: the board has no such run or sweep")
        return rows[folder].entry

    def entry(self, folder: str) -> tuple[Entry, bool]:
        """The entry of a folder that the board has listed, and whether that is a trial. No other
        folder is ever read. Raises AbsentError, and InputError for a damaged folder."""
        sweep, _, number = folder.rpartition("/")
        trial = folder not in self.table().rows and number.isdecimal()
        entry = self._found(folder, sweep if trial else "")
        if entry.fault:
            raise InputError(f"{folder}: {entry.fault}")
        stamp(entry.folder)  # since the last look, a file may have become a link
        return entry, trial

    def curves(self, folders: Sequence[str]) -> dict[str, Any]:
        """The charts of these runs and of all trials of these sweeps, one for each data set. Of
        several sweeps, a key tells which."""
        found, skipped = list[Reported](), list[str]()
        runs: dict[Path, tuple[str | None, str]] = {}  # with the names of single runs, and sweeps
        for folder in folders:
            try:
                entry, trial = self.entry(folder)
            except InputError as error:
                skipped.append(first_line(error))
                continue
            for run in runs_of(entry.folder):
                alone = run.folder == entry.folder
                sweep = (folder.rpartition("/")[0] if trial else "") if alone else folder
                runs[run.folder] = (entry.labels.name if alone else None, sweep)
        several = len({sweep for _, sweep in runs.values()}) > 1
        for place, (called, sweep) in runs.items():
            try:
                read = self.reader.read(Run(place), Path.cwd())
            except InputError as error:  # perhaps a trial that waits
                skipped += [first_line(error)] * (NOT_BEGUN not in str(error))
                continue
            if len(read.history) > 1:
                settings = {**read.settings, **({"sweep": sweep or "none"} if several else {})}
                found.append(replace(read, called=called, settings=settings))
            elif os.fspath(place) in folders:
                skipped.append(f"{called or place}: no epoch has ended")
        # Runs without a curve have no part in the keys that tell the others apart.
        parts = Collection(found, [], []).parts.values()
        return {
            "charts": [
                {"title": part.title, "data": chart_data(part, part.entries, part.keys, OVER)}
                for part in parts
            ],
            "skipped": skipped,
        }

    def chart(self, sweep: str, where: str, keys: Sequence[str], metric: str) -> dict[str, Any]:
        """The data of a scatter or of parallel coordinates: keys and a metric of the rows that meet
        the conditions. Of rows that cannot be compared, those of the largest group."""
        table = self.table(sweep)
        if table.of_trials and metric == "test":
            raise InputError(NOT_FOR_CHOICE)
        entries = table.entries(where)
        if len(keys) > 1:
            keys = [key for key in keys if key not in REPLICATED]  # nobody chooses them
        groups: dict[tuple[str, str], list[Reported]] = {}
        for entry in entries:
            name, value = _metric_of(entry, metric)
            # Of a sweep, the values of the best setting, and not the list that was typed.
            typed = () if entry.kind in TRAINED else entry.typed
            own = {k: text for k in keys if k not in typed for text in values_of(entry, k)[:1]}
            own.update(entry.chosen)
            if value is not None and own.keys() & {*keys}:
                known = {name: value}  # of the test set, or of the best epoch
                result: Any = {"status": "finished", "monitor": name, "best": known, **known}
                called, folder = entry.labels.name, os.fspath(entry.folder)
                groups.setdefault((entry.data, name), []).append(
                    Reported(Run(entry.folder), result, own, own, [], folder, "", called)
                )
        largest = max(groups, key=lambda group: len(groups[group]), default=None)
        if largest is None:
            return {"data": None, "left_out": len(entries)}
        # Keys that most rows have; rows on other data may have keys of their own.
        every = Counter(key for each in groups[largest] for key in each.settings)
        keys = [key for key in keys if 2 * every[key] >= len(groups[largest])] or keys[:1]
        drawn = [each for each in groups[largest] if each.settings.keys() >= {*keys}]
        varied = seeds_last([*differing([each.settings for each in drawn]), *keys])
        scales = {key: wide for key in keys if (wide := _wide(drawn, key)) is not None}
        data = chart_data(Part(None, "", drawn, varied, scales=scales), drawn, keys)
        if len(keys) == 1:
            data["keys"][0]["repeated"] = False  # also a seed, if it is asked for
        names = {"group": " ".join(filter(None, largest)), "left_out": len(entries) - len(drawn)}
        return {"data": data, **names, "rows": len(drawn)}

    def details(self, folder: str) -> dict[str, Any]:
        """A run or sweep: facts, settings, the end of its log, and the pictures of its reports."""
        entry, trial = self.entry(folder)
        log, omitted = _tail(Run(entry.folder).log_file)
        if trial:
            log = re.sub(r"(?m)^test .*\n?", "", log)
        return {
            "folder": folder,
            "name": entry.labels.name,
            "tags": entry.labels.tags,
            "note": entry.labels.note,
            "kind": "trial" if trial else entry.kind,
            "status": entry.status,
            "sweep": folder.rpartition("/")[0] if trial else None,
            "facts": _facts(entry, trial=trial),
            "machine": _machine(entry),
            "settings": [[key, own, key in entry.typed] for key, own in _settings(entry).items()],
            "command": Run(entry.folder).command if entry.kind in TRAINED else None,
            "log": log,
            "omitted": omitted,
            "stacked": Run(entry.folder).result.get("stacked", 1) if entry.kind in TRAINED else 1,
            # The pictures of a model show how it does on the test set.
            "pictures": [] if trial else _pictures(entry.folder),
            "draw": None if trial else f"{as_command('report')} {shlex.quote(folder)}",
        }

    def compare(self, folders: Sequence[str]) -> dict[str, Any]:
        """Two to six runs side by side: facts, and the settings that differ."""
        several = list(dict.fromkeys(folders))
        if not FEWEST_COMPARED <= len(several) <= MOST_COMPARED:
            raise InputError(
                f"{len(several)} rows are ticked; tick {FEWEST_COMPARED} to {MOST_COMPARED} to see "
                "them side by side"
            )
        found = [self.entry(folder) for folder in several]
        entries = [entry for entry, _ in found]
        names = [_name(*each) for each in found]
        # Side by side is for choosing, so without figures of the test set.
        facts = [dict([*_facts(entry, trial=True), *_machine(entry)]) for entry in entries]
        configs = [_settings(entry) for entry in entries]
        if all(entry.kind in TRAINED for entry in entries):  # data.name tells more than data
            configs = [{k: own[k] for k in own if f"{k}.name" not in own} for own in configs]
        counts, keys = Counter(name for own in facts for name in own), differing(configs)
        return {
            "folders": several,
            "names": names,
            "facts": [
                [name, *(own.get(name, "") for own in facts)]
                for name, count in counts.items()
                if count > 1
            ],
            "settings": [[key, *(own.get(key, "") for own in configs)] for key in seeds_last(keys)],
            "same": len({key for own in configs for key in own}) - len(keys),
            "chance": _chance(entries, names),
        }

    def report(self, folder: str) -> str:
        """The report of a run or sweep, made anew from the data, without the pictures of a model,
        which need its data. The report.html in a folder may be a stranger's and is never served."""
        entry, trial = self.entry(folder)
        if trial:
            raise InputError(f"{folder}: is a trial; see the report of its sweep")
        _require_no_links(entry.folder)
        with self._drawing, tempfile.TemporaryDirectory() as pictures:
            content = page_content(collect([entry.folder]), Path(pictures), models=False)
        return render("page.html", {**content, "back": f"/#{urlencode({'run': folder})}"})

    def label(self, body: bytes) -> dict[str, Any]:
        """Changes name, tags and note as `runs label` does, and raises InputError as it does."""
        with parsing("the body is not a change of labels"):
            asked = Change.model_validate_json(body)
        entry, _ = self.entry(asked.folder)
        labels = write_labels(entry.folder, asked.name, asked.add, asked.remove, asked.note)
        with self._reading:  # the next question sees the change
            self._tables = {key: replace(look, made=-LONGEST) for key, look in self._tables.items()}
        return labels.model_dump()


def _facts(entry: Entry, *, trial: bool) -> list[tuple[str, str]]:
    """Names and texts; beside trials, without figures of the test set."""
    metrics = {f"best {entry.monitor}": entry.best, **entry.metrics}
    metrics.pop(entry.monitor, None)
    if not trial:
        metrics[f"test/{entry.score}"] = entry.test
    told = [(name, values_of(entry, name)[0]) for name in ("began", "data")]
    figures = [(name, format_metric(name, known_value(value))) for name, value in metrics.items()]
    seconds = ("seconds", format_metric("seconds", known_value(entry.seconds)))
    if entry.kind not in TRAINED:
        best = {k: own for k, own in entry.chosen.items() if entry.typed.get(k) != own}
        told += [("best setting", in_full(best))] if best else []
        trials = ("trials", f"{entry.trials:,}")
        return [("status", entry.status), *told, *figures, trials, seconds]
    outcome = read_outcome(Run(entry.folder))
    numbers = {"epochs": outcome.epochs, "parameters": outcome.result.get("parameters")}
    figures += [(name, format_metric(name, number)) for name, number in numbers.items()]
    return [("status", _status(entry.status, outcome.reason)), *told, *figures, seconds]


def _status(status: str, reason: str) -> str:
    """How a run ended, and why."""
    match status:
        case "unfinished":
            return "unfinished: its process was killed, or has not begun to train"
        case "diverged" if reason:
            return f"diverged {reason}"
        case "interrupted" if reason:
            return f"interrupted by {reason}"
    return f"{status}: {reason}" if reason else status


def _name(entry: Entry, trial: bool) -> str:
    """The name of a run, for those of one sweep with their numbers, or the folder."""
    called = entry.labels.name
    return (f"{called}/{entry.folder.name}" if trial else called) if called else str(entry.folder)


def _chance(entries: Sequence[Entry], names: Sequence[str]) -> str:
    """Which of several single runs cannot be told apart from the best; "" if nothing tells it."""
    ranked = sorted(zip(entries, names, strict=True), key=lambda pair: pair[0].rank)
    valued = [(each, name, known_value(each.best)) for each, name in ranked]
    known = [(each, name, value) for each, name, value in valued if value is not None]
    single = all(entry.kind in TRAINED for entry in entries)
    if not single or len(known) < 2 or len({entry.group for entry, *_ in known}) > 1:
        return ""
    (best, first, value), *others = known
    samples = {Run(entry.folder).result.get("data", {}).get("val") for entry, *_ in known}
    share = is_fraction(best.monitor) and best.monitor == f"val/{best.score}"
    if not share or len(samples) > 1 or not (count := samples.pop()):
        return ""
    alike = [name for _, name, own in others if within_chance(value, own, count)]
    start = f"{first} has the best {best.monitor}. By {count:,} validation samples and one run each"
    listed = _listed(alike or [name for _, name, _ in others])
    if alike:
        return f"{start}, {listed} cannot be told apart from it."
    return f"{start}, {listed} {'are' if others[1:] else 'is'} worse, beyond chance."


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _machine(entry: Entry) -> list[tuple[str, str]]:
    """Hardware and versions of a run."""
    result = Run(entry.folder).result if entry.kind in TRAINED else {}
    found = {**result.get("hardware", {}), **result.get("versions", {})}
    return [(name, short(str(text))) for name, text in found.items()]


def _settings(entry: Entry) -> dict[str, str]:
    return {key: text for key, text in entry.config.items() if key not in UNTRAINED}


def _tail(file: Path) -> tuple[str, int]:
    """The end of a log, and how many bytes are before it. A link is not followed."""
    with suppress(OSError, InputError):
        if not file.is_symlink():
            with open_regular(file) as opened:
                omitted = max(0, os.fstat(opened.fileno()).st_size - LOG_LIMIT)
                opened.seek(omitted)
                return opened.read(LOG_LIMIT).decode(errors="replace"), omitted
    return "", 0


def _pictures(folder: Path) -> list[dict[str, str]]:
    """The SVG pictures that reports have left in a folder, as addresses with the content, in the
    colours of the reader's theme. A browser runs no script of such a picture."""
    found, colours = [], files("kindling.reports").joinpath("colours.css").read_text("utf-8")
    places = [place for place in (folder / "report", folder / "confirm") if not place.is_symlink()]
    for file in sorted(file for place in places for file in place.glob("*.svg"))[:MOST_PICTURES]:
        with suppress(OSError, InputError, UnicodeDecodeError):
            if not file.is_symlink():
                with open_regular(file) as opened:
                    content = opened.read(PICTURE_LIMIT + 1)
                kind = "model" if "-model" in file.stem else ""
                start = rf'<svg class="{kind}"\1><style>{colours}</style>'
                text, count = re.subn("<svg([^>]*)>", start, themed(content.decode()), count=1)
                if count and len(content) <= PICTURE_LIMIT:
                    told = re.search(r'<svg[^>]* aria-label="([^"]+)"', text)
                    caption = html.unescape(told[1]) if told else file.stem  # of an older report
                    packed = base64.b64encode(text.encode()).decode()
                    src = f"data:image/svg+xml;base64,{packed}"
                    found.append({"name": file.stem, "caption": caption, "src": src})
    return found


def _require_no_links(folder: Path) -> None:
    """Raises InputError for a link that leads out of the folder."""
    whole = folder.resolve()
    for inside, folders, names in os.walk(folder):
        for path in (Path(inside, name) for name in (*folders, *names)):
            if path.is_symlink() and not path.resolve().is_relative_to(whole):
                raise InputError(f"{path}: is a link, which the board does not follow")


class Server(PageServer):
    def __init__(self, port: int, board: Board) -> None:
        self.board = board
        super().__init__(port, Handler, board.scripts)


class Handler(PageHandler):
    """Answers GET / and the questions of the page, and POST /label."""

    server: Server

    def do_GET(self) -> None:  # noqa: N802
        board, address = self.server.board, urlsplit(self.path)
        try:
            with parsing(f"the address {address.path} has a fault"):
                asked = parse_qs(address.query, keep_blank_values=True, max_num_fields=5000)
            given = {name: values[-1] for name, values in asked.items()}
            sweep, where = given.get("in", ""), given.get("where", "")
            match address.path:
                case "/":
                    self.send_page(board.page.encode(errors="replace"))
                case "/rows":
                    since, key = given.get("since", ""), given.get("sort", "began")
                    number = int(since) if re.fullmatch("[0-9]{1,18}", since) else 0
                    keys = asked.get("key", [])
                    table = board.table(sweep, fresh="fresh" in given)
                    self.send_bytes(table.listed(where, key, keys, number))
                case "/curves":
                    self.send_json(HTTPStatus.OK, board.curves(asked.get("folder", [])))
                case "/chart":
                    metric = given.get("metric", "best")
                    found = board.chart(sweep, where, asked.get("key", []), metric)
                    self.send_json(HTTPStatus.OK, found)
                case "/run":
                    self.send_json(HTTPStatus.OK, board.details(given.get("folder", "")))
                case "/compare":
                    self.send_json(HTTPStatus.OK, board.compare(asked.get("folder", [])))
                case "/report":
                    page = board.report(given.get("folder", ""))
                    self.send_page(page.encode(errors="replace"), REPORT_POLICY)
                case _:
                    self.refuse(HTTPStatus.NOT_FOUND, "use GET /")
        except (InputError, *GONE) as error:
            self._refuse(error)

    def do_POST(self) -> None:  # noqa: N802
        body = self.body("/label", "application/json", MIB, "a change of labels")
        if body is not None:
            try:
                self.send_json(HTTPStatus.OK, self.server.board.label(body))
            except (InputError, *GONE) as error:
                self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        absent = isinstance(error, (AbsentError, *GONE))
        status = HTTPStatus.NOT_FOUND if absent else HTTPStatus.BAD_REQUEST
        self.send_json(status, {"error": str(error)})
