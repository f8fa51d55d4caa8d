"""A self-contained page about runs and sweeps, with its pictures as files beside it."""

import os
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from src.reports import analysis, figures, tables
from src.reports.collect import Collection, Entry, SweepEntries, collect
from src.reports.figures import Picture
from src.runs.outcome import comparable, differing, replicates
from src.system.errors import InputError
from src.system.files import open_regular, write_durably
from src.system.process import importing, status_line
from src.system.terminal import progress
from src.system.units import seconds

MARK = '<meta name="generator" content="kindling report">'
CURVES = (
    "Accuracy, loss and a monitored measure, if any, over epochs. The axes fit the values from "
    "epoch 1 on; epoch 0, before training, may lie outside"
)
MOST_MODELS = 4  # single runs that have a section of their own


def write_report(
    paths: Sequence[Path], output: Path | None = None, *, force: bool = False, models: bool = True
) -> Path:
    """Writes the page, and its pictures into a folder of the same name beside it.

    `output` is by default report.html in the path, or in the folder that all paths have in common.
    An older report is replaced, any other file only with `force`. With `models`, pictures of the
    best models are drawn too. Raises InputError as `collect`, and for a file in the way.
    """
    found = collect(paths)
    page = output or _default_page(paths)
    _require_replaceable(page, force)
    folder = page.with_suffix("")
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder}: is not a folder, but pictures must go there; remove it")
    folder.mkdir(parents=True, exist_ok=True)
    sections = _Sections(folder, models)
    content = {
        "mark": Markup(MARK),
        "title": _title(found),
        "when": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        "skipped": found.skipped,
        "runs": sections.all_runs(found.runs),
        "sweeps": [
            sections.sweep(number, sweep)
            for number, sweep in enumerate(progress(found.sweeps, "sweeps drawn"), 1)
        ],
        "environments": tables.environments(found.entries),
        "pictures": folder.name,
    }
    write_durably(page, render("page.html", content))
    return page


def render(template: str, content: Mapping[str, Any]) -> str:
    """The page of a template beside this file. Texts in the content are escaped."""
    templates = Environment(
        loader=PackageLoader("src.reports", "."), autoescape=select_autoescape(("html",))
    )
    return templates.get_template(template).render(content)


def _default_page(paths: Sequence[Path]) -> Path:
    common = Path(os.path.commonpath([path.absolute() for path in paths]))
    folder = paths[0] if len(paths) == 1 else Path(os.path.relpath(common))
    return folder / "report.html"


def _require_replaceable(page: Path, force: bool) -> None:
    if page.is_dir() or (page.exists() and not force and MARK not in _beginning(page)):
        raise InputError(
            f"{page}: exists already and is not a report of this project; type --output FILE"
            + ("" if page.is_dir() else ", or --force to replace it")
        )
    if page.suffix != ".html":
        raise InputError(f"{page}: must end in .html; type --output {page.with_suffix('.html')}")


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
        one = f"a sweep in {len(found.sweeps)} parts"
        parts.append(one if folders == 1 else f"{folders:,} sweeps")
    return " and ".join(parts)


class _Sections:
    """The content of the page's sections, as page.html takes it."""

    def __init__(self, folder: Path, models: bool) -> None:
        self.folder, self.with_models = folder, models

    def _show(self, picture: Picture) -> dict[str, Any]:
        svg = Markup(picture.save(self.folder))
        return {"svg": svg, "caption": picture.caption, "name": picture.name}

    def _show_all(self, pictures: Iterator[Picture]) -> list[dict[str, Any]]:
        with status_line("drawing pictures ..."):
            return [self._show(picture) for picture in pictures]

    def all_runs(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """A section for each data set, because values on different ones cannot be compared."""
        groups = comparable(entries)
        if len(groups) == 1:
            return [self.runs("runs", "run", "Runs", entries)]
        return [
            self.runs(f"runs{number}", f"run{number}", f"Runs on {data}", found)
            for number, (data, found) in enumerate(groups.items(), 1)
        ]

    def runs(self, name: str, prefix: str, title: str, entries: Sequence[Entry]) -> dict[str, Any]:
        keys = differing([entry.settings for entry in entries])
        ranked = sorted(entries, key=lambda entry: entry.rank)
        chosen = ranked[: MOST_MODELS if len(entries) <= MOST_MODELS else 1]
        trained = [entry for entry in entries if "committee" not in entry.result]
        return {
            "title": title,
            "best": tables.key_figures(ranked[0], ranked[0].name if len(entries) > 1 else None),
            "curves": trained
            and self._show(Picture(name, CURVES, partial(figures.curves, trained))),
            "table": tables.run_table(name, "run", ranked, keys),
            "note": tables.notes("run", entries),
            "shared": tables.shared_settings(entries),
            "models": self._models(chosen, prefix),
        }

    def sweep(self, number: int, sweep: SweepEntries) -> dict[str, Any]:
        name = f"sweep{number}"
        ranked = sorted(sweep.trials, key=lambda entry: entry.rank)
        best = sweep.best
        times = [trial.seconds for trial in sweep.trials if trial.seconds is not None]
        return {
            "name": sweep.name,
            "best": best and tables.key_figures(best, f"trial {best.run.folder.name}"),
            "statuses": list(Counter(trial.status for trial in sweep.trials).items()),
            "seconds": times
            and f"{seconds(sum(times))} s in all, {seconds(statistics.median(times))} s per trial",
            "pictures": self._show_all(_sweep_pictures(name, sweep, ranked, times)),
            "settings": tables.settings_table(name, sweep),
            "table": tables.run_table(name, "trial", ranked, sweep.keys),
            "note": tables.notes("trial", sweep.trials),
            "shared": tables.shared_settings(sweep.trials),
            "models": self._models([best], name) if best else [],
        }

    def _models(self, entries: Sequence[Entry], prefix: str) -> list[dict[str, Any]]:
        if not self.with_models:
            return []
        with importing():
            from src.reports import model_pictures  # imports torch

        sections = []
        for number, entry in enumerate(progress(entries, "models tested"), 1):
            pictures, measures, reason, name = [], [], None, f"{prefix}-model{number}"
            try:
                model = model_pictures.evaluated(entry)
                measures = model_pictures.measure_table(model)
                pictures = self._show_all(model_pictures.pictures(model, name))
            except InputError as error:
                reason = str(error).split("\n")[0]
            sections.append(
                {
                    "name": name,
                    "entry": entry,
                    "pictures": pictures,
                    "measures": measures,
                    "why_none": reason,
                }
            )
        return sections


def _sweep_pictures(
    name: str, sweep: SweepEntries, ranked: Sequence[Entry], seconds: Sequence[float]
) -> Iterator[Picture]:
    monitor = ranked[0].monitor
    effects, grid = analysis.effects(sweep), analysis.grid(sweep)
    if grid is not None:
        yield Picture(
            f"{name}-heat-map",
            f"Mean {monitor} over {grid.row_key} and {grid.column_key}, the keys with the "
            "strongest effects",
            partial(figures.heat_map, grid, monitor),
        )
    if effects:
        yield Picture(
            f"{name}-effects",
            "Effect of each key: a dot per trial, and the mean over all other keys ± standard "
            "deviation",
            partial(figures.effects, effects, monitor),
        )
    keys, groups = replicates(sweep.trials, sweep.keys)
    if any(group.known(monitor) for group in groups):
        yield Picture(
            f"{name}-settings",
            f"{monitor} of the best settings: a dot per seed and fold, and the mean with its 95% "
            "interval",
            partial(figures.settings, groups, keys, monitor),
        )
    yield Picture(f"{name}-curves", CURVES, partial(figures.curves, sweep.trials))
    if seconds and max(seconds) > 1.05 * min(seconds):  # one stack has equal shares
        yield Picture(
            f"{name}-time",
            "Time per trial; a trial of a stack has an equal share of the stack's time",
            partial(figures.times, ranked),
        )
