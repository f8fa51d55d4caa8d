"""A self-contained page about runs and sweeps, with its pictures as files beside it."""

import hashlib
import os
import re
import secrets
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from src.plots.intervals import interval_data, intervals
from src.plots.style import COLOURS
from src.reports import analysis, figures, tables
from src.reports.collect import Collection, Entry, SweepEntries, collect
from src.reports.figures import Picture
from src.reports.interactive import chart_data, library
from src.runs.folder import is_search
from src.runs.outcome import REPLICATED, comparable, differing, replicates
from src.system.errors import InputError
from src.system.files import open_regular, write_durably
from src.system.process import importing, status_line
from src.system.terminal import progress
from src.system.units import seconds

MARK = '<meta name="generator" content="kindling report">'
CURVES = (
    "Values on the validation set after each epoch. Epoch 0 is the model before training. The axes "
    "are chosen for the later epochs, so epoch 0 may lie outside the picture"
)
MOST_MODELS = 4  # single runs that have a section of their own
LONGEST_NAME = 80  # characters of the names of several paths in a file's name
MOST_LISTED = 4  # keys or data sets in a title


def write_report(
    paths: Sequence[Path], output: Path | None = None, *, force: bool = False, models: bool = True
) -> Path:
    """Writes the page, and its pictures into a folder of the same name beside it.

    `output` is by default PATH/report.html, or for several paths report-NAMES.html in the folder
    that all paths have in common.
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
        "title": title_of(found),
        "when": now(),
        "skipped": found.skipped,
        "runs": sections.all_runs(found.runs),
        "sweeps": [
            sections.sweep(number, sweep)
            for number, sweep in enumerate(progress(found.sweeps, "sweeps drawn"), 1)
        ],
        "environments": tables.environments(found.entries),
        "pictures": folder.name,
        **chart_content(),
    }
    write_durably(page, render("page.html", content))
    return page


def now() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")


def chart_content() -> dict[str, Any]:
    """What a page with charts needs beside their data."""
    return {"nonce": secrets.token_hex(16), "colours": COLOURS, "library": Markup(library())}


def render(template: str, content: Mapping[str, Any]) -> str:
    """The page of a template beside this file. Texts in the content are escaped."""
    templates = Environment(
        loader=PackageLoader("src.reports", "."), autoescape=select_autoescape(("html",))
    )
    return templates.get_template(template).render(content)


def _default_page(paths: Sequence[Path]) -> Path:
    """PATH/report.html. A page of several paths is in their common folder, which may have a report
    of its own, so the name of the page has the names of the paths."""
    absolute = sorted({path.absolute() for path in paths})
    if len(absolute) == 1:
        return paths[0] / "report.html"
    common = Path(os.path.commonpath(absolute))
    inner = ((path.relative_to(common).as_posix(), path.name) for path in absolute)
    name = "+".join(last if text == "." else text.replace("/", "-") for text, last in inner)
    if len(name) > LONGEST_NAME or not re.fullmatch(r"[\w.+-]+", name, re.ASCII):
        digest = hashlib.sha256("\n".join(map(str, absolute)).encode(errors="surrogateescape"))
        name = f"{len(absolute)}-folders-{digest.hexdigest()[:8]}"
    return Path(os.path.relpath(common)) / f"report-{name}.html"


def _require_replaceable(page: Path, force: bool) -> None:
    if not page.parent.is_dir():
        raise InputError(f"{page}: there is no folder {page.parent}; make it first")
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


def title_of(found: Collection) -> str:
    """The names of the runs and sweeps, as they were typed, else what they are about."""
    parts = []
    if len(found.runs) == 1:
        (run,) = found.runs
        parts.append(run.called or _at_the_start(f"{_model(run)} on {run.data}"))
    elif found.runs:
        parts.append(f"{len(found.runs):,} runs on {_listed(run.data for run in found.runs)}")
    sweeps = [each for each in found.sweeps if each.kind != "confirmation"] or found.sweeps
    folders = len({sweep.folder for sweep in sweeps})
    if folders > 1:
        parts.append(f"{folders:,} sweeps on {_listed(map(_data, sweeps))}")
    elif sweeps:
        keys = _seeds_last(dict.fromkeys(key for sweep in sweeps for key in sweep.keys))
        about = f"a {sweeps[0].kind}"
        if keys:
            about += f" over {_listed(key.rpartition('.')[2] for key in keys)}"
        about = sweeps[0].called or (about if parts else _at_the_start(about))
        trials = sum(len(sweep.trials) for sweep in sweeps)
        count = "1 trial" if trials == 1 else f"{trials:,} trials"
        confirmed = ", and a confirmation" if len(sweeps) < len(found.sweeps) else ""
        parts.append(f"{about} on {_listed(map(_data, sweeps))}: {count}{confirmed}")
    return "; ".join(parts)


def _seeds_last(keys: Iterable[str]) -> list[str]:
    """Nobody chooses seeds and folds."""
    return sorted(keys, key=lambda key: key in REPLICATED)


def _at_the_start(text: str) -> str:
    return text[:1].upper() + text[1:]


def _model(entry: Entry) -> str:
    if "committee" in entry.result:
        return entry.label
    name, sizes = (entry.settings.get(f"model.{key}", "") for key in ("name", "hidden_sizes"))
    return " ".join(filter(None, ["MLP" if name == "mlp" else name.replace("_", " "), sizes]))


def _data(sweep: SweepEntries) -> str:
    return sweep.trials[0].data


def _listed(texts: Iterable[str]) -> str:
    """Each text once; of many, the first ones and the number of the others."""
    different = [*dict.fromkeys(texts)]
    others = len(different) - MOST_LISTED
    more = [f"{others} more"] if others > 0 else []
    return ", ".join([*different[:MOST_LISTED], *more])


class _Sections:
    """The content of the page's sections, as page.html takes it."""

    def __init__(self, folder: Path, models: bool) -> None:
        self.folder, self.with_models = folder, models

    def _show(self, picture: Picture) -> dict[str, Any]:
        svg = Markup(picture.save(self.folder))
        return {
            "svg": svg,
            "caption": picture.caption,
            "name": picture.name,
            "chart": picture.chart,
        }

    def _show_all(self, pictures: Iterator[Picture]) -> list[dict[str, Any]]:
        with status_line("drawing pictures ..."):
            return [self._show(picture) for picture in pictures]

    def all_runs(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """A section for each data set, because values on different ones cannot be compared."""
        groups = comparable(entries)
        if len(groups) == 1:
            return [self.runs("runs", "run", "Runs" if len(entries) > 1 else "", entries)]
        return [
            self.runs(f"runs{number}", f"run{number}", f"Runs on {data}", found)
            for number, (data, found) in enumerate(groups.items(), 1)
        ]

    def runs(self, name: str, prefix: str, title: str, entries: Sequence[Entry]) -> dict[str, Any]:
        keys = _seeds_last(differing([entry.settings for entry in entries]))
        ranked = sorted(entries, key=lambda entry: entry.rank)
        chosen = ranked[: MOST_MODELS if len(entries) <= MOST_MODELS else 1]
        trained = [entry for entry in entries if "committee" not in entry.result]
        names = {entry.name: entry.title for entry in entries}
        return {
            "name": name,
            "title": title,
            "best": tables.key_figures(ranked[0], ranked[0].title if len(entries) > 1 else None),
            "curves": trained
            and self._show(Picture(name, CURVES, partial(figures.curves, trained), "curves")),
            "data": trained and {"noun": "run", **chart_data(trained, keys, names)},
            "table": (table := tables.run_table(name, "run", ranked, keys)),
            "note": tables.notes("run", entries, table.header),
            "phases": tables.phases(entries),
            "shared": [*table.shared, *tables.shared_settings(entries)],
            "models": self._models({entry.title: entry for entry in chosen}, prefix),
        }

    def sweep(self, number: int, sweep: SweepEntries) -> dict[str, Any]:
        name = f"sweep{number}"
        ranked = sorted(sweep.trials, key=lambda entry: entry.rank)
        best = sweep.best
        times = [trial.seconds for trial in sweep.trials if trial.seconds is not None]
        names = {trial.name: trial.run.folder.name for trial in sweep.trials}
        keys = analysis.by_strength(sweep)
        data = {"noun": "trial", **chart_data(ranked, keys, names, sweep.scales)}
        return {
            "name": name,
            "title": f"{sweep.kind.capitalize()} "
            + (f"{sweep.called} ({sweep.name})" if sweep.called else sweep.name),
            "data": data,
            "best": tables.setting_figures(sweep)
            or (best and tables.key_figures(best, f"trial {best.run.folder.name}")),
            "statuses": list(Counter(trial.ending for trial in ranked).items()),
            "seconds": times
            and f"{seconds(sum(times))} s in all, {seconds(statistics.median(times))} s per trial",
            "phases": tables.phases(sweep.trials),
            "pictures": self._show_all(_sweep_pictures(name, sweep, ranked, times, data)),
            "settings": tables.settings_table(name, sweep),
            "table": (table := tables.run_table(name, "trial", ranked, sweep.keys)),
            "note": tables.notes("trial", sweep.trials, table.header),
            "shared": [*table.shared, *tables.shared_settings(sweep.trials)],
            "models": self._models({f"trial {best.run.folder.name}": best}, name) if best else [],
        }

    def _models(self, entries: Mapping[str, Entry], prefix: str) -> list[dict[str, Any]]:
        if not self.with_models:
            return []
        with importing():
            from src.reports import model_pictures  # imports torch

        sections = []
        for number, (title, entry) in enumerate(progress(entries.items(), "models tested"), 1):
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
                    "title": title,
                    "label": entry.label,
                    "pictures": pictures,
                    "measures": measures,
                    "why_none": reason,
                }
            )
        return sections


def _sweep_pictures(
    name: str,
    sweep: SweepEntries,
    ranked: Sequence[Entry],
    seconds: Sequence[float],
    data: dict[str, Any],
) -> Iterator[Picture]:
    """The pictures of a sweep. Their charts find in `data` what chart_data does not have."""
    monitor = ranked[0].monitor
    effects, grid = analysis.effects(sweep), analysis.grid(sweep)
    if is_search(sweep.folder) and any(trial.value is not None for trial in ranked):
        yield Picture(
            f"{name}-history",
            f"{monitor} of each trial in the order of the search, and the best so far",
            partial(figures.history, sweep.trials),
            "history",
        )
    if sweep.importance:
        yield Picture(
            f"{name}-importance",
            "Importance of each key: its share in the difference between good trials and all "
            "trials (PED-ANOVA)",
            partial(figures.importance, sweep.importance),
        )
    if grid is not None:
        data["heat"] = figures.heat_data(grid, monitor)
        yield Picture(
            f"{name}-heat-map",
            f"Mean {monitor} over {grid.row_key} and {grid.column_key}, the keys with the "
            f"strongest effects: {figures.colours_in_words(grid, monitor)}",
            partial(figures.heat_map, grid, monitor),
            "heat",
        )
    if effects:
        yield Picture(
            f"{name}-effects",
            "Effect of each key: a dot per trial, and the mean over all other keys ± standard "
            "deviation",
            partial(figures.effects, effects, monitor),
            "slices",
        )
    keys, groups = replicates(sweep.trials, sweep.keys)
    if samples := figures.best_settings(groups, keys, monitor):
        data["intervals"] = interval_data(samples, monitor, "a trial")
        yield Picture(
            f"{name}-settings",
            f"{monitor} of the best settings: a dot per seed and fold, and the mean with its 95% "
            "interval",
            partial(intervals, samples, monitor, "a trial"),
            "intervals",
        )
    yield Picture(f"{name}-curves", CURVES, partial(figures.curves, sweep.trials), "curves")
    if seconds and all(trial.stacked == 1 for trial in ranked):  # a stack has equal shares
        yield Picture(
            f"{name}-time",
            "Time per trial",
            partial(figures.times, ranked),
        )
