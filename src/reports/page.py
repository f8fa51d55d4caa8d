"""One self-contained page of runs and sweeps, and its pictures as files beside it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from src.reports import analysis, figures
from src.reports.collect import Collection, Entry, SweepEntries, by_data, collect, differing
from src.reports.figures import Picture
from src.runs.sweep_folder import SHARE, shown_as, spread
from src.system.errors import InputError
from src.system.files import open_regular, write_durably

MARK = '<meta name="generator" content="kindling report">'
CURVES = (
    "Accuracy and loss over epochs; the axes fit the epochs from 1 on, and epoch 0, before "
    "training, may lie beyond them"
)
MOST_MODELS = 4  # of single runs, those with a section of their own


@dataclass(frozen=True)
class Shown:
    """A picture in the page."""

    svg: Markup
    caption: str
    name: str


@dataclass(frozen=True)
class Cell:
    """A table's cell: what is read, and what is sorted by."""

    text: str
    value: float | str
    number: bool = False


@dataclass
class Table:
    name: str
    header: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)


def write_report(
    paths: Sequence[Path], output: Path | None = None, *, force: bool = False, models: bool = True
) -> Path:
    """Writes the page, and its pictures into a folder of the same name beside it.

    Without `output` it is report.html in the path, or in the folder that all paths have in
    common. An older report is replaced; any other file only with `force`. Raises InputError for
    that, and where there is nothing to report.
    """
    found = collect(paths)
    page = output or _beside(paths)
    _refuse_strangers(page, force)
    folder = page.with_suffix("")
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder}: is no folder, and pictures are written there; remove it")
    folder.mkdir(parents=True, exist_ok=True)
    sections = _Sections(folder, models)
    content = {
        "mark": Markup(MARK),
        "title": _title(found),
        "when": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        "skipped": found.skipped,
        "runs": sections.all_runs(found.runs),
        "sweeps": [sections.sweep(number, sweep) for number, sweep in enumerate(found.sweeps, 1)],
        "environments": _environments(found.entries),
        "pictures": folder.name,
    }
    templates = Environment(
        loader=PackageLoader("src.reports", "."), autoescape=select_autoescape(("html",))
    )
    write_durably(page, templates.get_template("page.html").render(content))
    return page


def _beside(paths: Sequence[Path]) -> Path:
    import os

    common = Path(os.path.commonpath([path.absolute() for path in paths]))
    folder = paths[0] if len(paths) == 1 else Path(os.path.relpath(common))
    return folder / "report.html"


def _refuse_strangers(page: Path, force: bool) -> None:
    if page.is_dir() or (page.exists() and not force and MARK not in _beginning(page)):
        raise InputError(
            f"{page}: is there already and no report of this project; type --output FILE"
            + ("" if page.is_dir() else ", or --force to replace it")
        )
    if page.suffix != ".html":
        raise InputError(f"{page}: a report is a page; type --output {page.with_suffix('.html')}")


def _beginning(path: Path) -> str:
    with open_regular(path) as file:
        return file.read(4096).decode(errors="replace")


def _title(found: Collection) -> str:
    parts = []
    if found.runs:
        parts.append(f"{len(found.runs):,} run{'s'[: len(found.runs) > 1]}")
    if len(found.sweeps) == 1:
        parts.append(f"a sweep of {len(found.sweeps[0].trials):,} trials")
    elif found.sweeps:
        folders = len({sweep.folder for sweep in found.sweeps})
        sets = f"on {len(found.sweeps)} data sets" if folders == 1 else ""
        parts.append(f"a sweep {sets}" if sets else f"{folders:,} sweeps")
    return " and ".join(parts)


class _Sections:
    def __init__(self, folder: Path, models: bool) -> None:
        self.folder, self.with_models = folder, models

    def _show(self, name: str, caption: str, draw: Any) -> Shown:
        return self._shown(Picture(name, caption, draw))

    def _shown(self, picture: Picture) -> Shown:
        return Shown(Markup(picture.save(self.folder)), picture.caption, picture.name)

    def all_runs(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """A section for each data set: values on different ones do not compare."""
        groups = by_data(entries)
        if len(groups) == 1:
            return [self.runs("runs", "run", "Runs", entries)]
        return [
            self.runs(f"runs{number}", f"run{number}", f"Runs on {data}", found)
            for number, (data, found) in enumerate(groups.items(), 1)
        ]

    def runs(self, name: str, prefix: str, title: str, entries: Sequence[Entry]) -> dict[str, Any]:
        keys = differing(entries)
        ranked = sorted(entries, key=lambda entry: entry.rank)
        chosen = ranked[: MOST_MODELS if len(entries) <= MOST_MODELS else 1]
        return {
            "title": title,
            "best": _best(ranked[0], ranked[0].name if len(entries) > 1 else None),
            "curves": self._show(name, CURVES, partial(figures.curves, entries)),
            "table": _table(name, "run", ranked, keys),
            "share": _share(entries),
            "shared": _shared(entries),
            "models": self._models(chosen, prefix),
        }

    def sweep(self, number: int, sweep: SweepEntries) -> dict[str, Any]:
        name = f"sweep{number}"
        ranked = sorted(sweep.trials, key=lambda entry: entry.rank)
        shown = []
        monitor = ranked[0].monitor
        found = analysis.effects(sweep)
        cells = analysis.grid(sweep)
        if cells is not None:
            caption = (
                f"Mean {monitor} over {cells.row_key} and {cells.column_key}, "
                "the keys with the strongest effects"
            )
            draw = partial(figures.heat_map, cells, monitor)
            shown.append(self._show(f"{name}-heat-map", caption, draw))
        if found:
            caption = (
                "Effect of each key: a dot per trial, the mean over all other keys ± deviation"
            )
            draw = partial(figures.effects, found, monitor)
            shown.append(self._show(f"{name}-effects", caption, draw))
        shown.append(self._show(f"{name}-curves", CURVES, partial(figures.curves, sweep.trials)))
        seconds = [trial.seconds for trial in sweep.trials if trial.seconds is not None]
        if seconds and max(seconds) > 1.05 * min(seconds):  # else one stack, of equal shares
            caption = "Time per trial; of a stack, an equal share"
            shown.append(self._show(f"{name}-time", caption, partial(figures.times, ranked)))
        best = sweep.best
        return {
            "name": sweep.name,
            "best": _best(best, f"trial {best.run.folder.name}") if best else None,
            "statuses": _statuses(sweep.trials),
            "seconds": seconds
            and f"{sum(seconds):.3g} s, {statistics.median(seconds):.2g} s a trial",
            "pictures": shown,
            "seeds": _seeds(name, sweep),
            "table": _table(name, "trial", ranked, sweep.keys),
            "share": _share(sweep.trials),
            "shared": _shared(sweep.trials),
            "models": self._models([best], name) if best else [],
        }

    def _models(self, entries: Sequence[Entry], prefix: str) -> list[dict[str, Any]]:
        if not self.with_models:
            return []
        from src.reports import model_pictures as models  # torch, only now

        sections = []
        for number, entry in enumerate(entries, 1):
            try:
                pictures = [
                    self._shown(picture)
                    for picture in models.pictures(entry, f"{prefix}-model{number}")
                ]
                sections.append({"entry": entry, "pictures": pictures, "why_none": None})
            except InputError as error:
                why = str(error).split("\n")[0]
                sections.append({"entry": entry, "pictures": [], "why_none": why})
        return sections


def _best(entry: Entry, name: str | None) -> dict[str, Any] | None:
    if entry.value is None:
        return None
    test, seconds = entry.number("test/acc"), entry.seconds
    parameters = entry.number("parameters")
    return {
        "name": name,
        "command": entry.run.command,
        "facts": [
            (f"best {entry.monitor}", shown_as(entry.monitor, entry.value)),
            ("test accuracy", shown_as("acc", test)),
            ("parameters", shown_as("parameters", parameters)),
            ("seconds", shown_as("seconds", seconds)),
        ],
    }


def _cell(name: str, value: float | None) -> Cell:
    return Cell(shown_as(name, value), "" if value is None else value, number=True)


def _table(name: str, kind: str, entries: Sequence[Entry], keys: Sequence[str]) -> Table:
    first, others = ("val/acc", "test/acc"), ("val/loss", "test/loss")
    reasons = any(entry.reason for entry in entries)
    names = [kind, "status", *["reason"] * reasons, *first, *keys, *others]
    table = Table(name, [*names, "epochs", "seconds", "parameters"])
    for entry in entries:
        numbers = {
            "val/acc": entry.best("val/acc"),
            "val/loss": entry.best("val/loss"),
            "test/acc": entry.number("test/acc"),
            "test/loss": entry.number("test/loss"),
            "epochs": entry.epochs,
            "seconds": entry.seconds,
            "parameters": entry.number("parameters"),
        }
        label = entry.run.folder.name if kind == "trial" else entry.name
        settings = [entry.settings.get(key, "–") for key in keys]
        table.rows.append(
            [
                _of_text(label),
                _of_text(entry.status),
                *[Cell(entry.reason, entry.reason)] * reasons,
                *(_cell(key, numbers[key]) for key in first),
                *map(_of_text, settings),
                *(_cell(key, value) for key, value in numbers.items() if key not in first),
            ]
        )
    return table


def _of_text(text: str) -> Cell:
    is_text, value, _ = analysis.by_size(text)
    return Cell(text, text if is_text else value)


def _seeds(name: str, sweep: SweepEntries) -> Table | None:
    keys, points = analysis.over_seeds(sweep)
    if not points:
        return None
    table = Table(f"{name}-seeds", [*keys, "seeds", "val/acc", "test/acc"])
    for point in points:
        cells = [_of_text(value) for value in point.values]
        cells.append(_cell("seeds", len(point.trials)))
        for metric in (("best", "val/acc"), ("test/acc",)):
            numbers = [trial.number(*metric) for trial in point.trials]
            known = [number for number in numbers if number is not None]
            text = spread(known) if known else "–"
            cells.append(Cell(text, statistics.mean(known) if known else "", number=True))
        table.rows.append(cells)
    return table


def _statuses(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    names = [entry.status for entry in entries]
    return [(name, names.count(name)) for name in dict.fromkeys(names)]


def _share(entries: Sequence[Entry]) -> str | None:
    return SHARE if any((entry.number("stacked") or 1) > 1 for entry in entries) else None


def _shared(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """The settings that all of them have in common."""
    first = entries[0].settings
    return [
        (key, value)
        for key, value in first.items()
        if all(entry.settings.get(key) == value for entry in entries)
    ]


def _environments(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """Hardware, versions and commit in words, and how many runs each had."""
    counts: dict[str, int] = {}
    for entry in entries:
        sections = (entry.result.get("hardware", {}), entry.result.get("versions", {}))
        parts = [f"{key} {value}" for section in sections for key, value in section.items()]
        if entry.result.get("commit"):
            parts.append(f"commit {entry.result['commit']}")
        if parts:
            text = ", ".join(parts)[:1000]
            counts[text] = counts.get(text, 0) + 1
    return list(counts.items())
