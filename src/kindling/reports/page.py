"""A self-contained page about runs and sweeps, with its pictures as files beside it."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from kindling.config.schema import MODEL_SECTIONS
from kindling.config.section import ModelSection
from kindling.reports import analysis, pictures, tables
from kindling.reports.charts import chart_content, chart_data
from kindling.reports.collect import Collection, Part, Reported, collect, seeds_last
from kindling.reports.drawing import Begin, Drawn, begin_here, save
from kindling.reports.pictures import PagePicture
from kindling.reports.words import sentences
from kindling.system.errors import InputError
from kindling.system.files import open_regular, write_durably
from kindling.system.process import importing, status_line
from kindling.system.terminal import progress

MARK = '<meta name="generator" content="kindling report">'
MOST_MODELS = 4  # single runs that have a section of their own
LONGEST_NAME = 80  # characters of the names of several paths in a file's name
MOST_LISTED = 4  # keys or data sets in a title
Begun = tuple[PagePicture, Callable[[], Drawn]]  # and what waits for the picture


def write_report(
    paths: Sequence[Path],
    output: Path | None = None,
    *,
    force: bool = False,
    models: bool = True,
    tell: Callable[[str], object] | None = None,
    begin: Begin = begin_here,
) -> Path:
    """Writes the page, and its pictures into a folder of the same name beside it.

    `output` is by default PATH/report.html, or for several paths report-NAMES.html in the folder
    that all paths have in common.
    An older report is replaced, any other file only with `force`. With `models`, pictures of the
    best models are drawn too. `tell` is called with each sentence of the page. `begin` draws
    (drawing.py). Raises InputError as `collect`, and for a file in the way.
    """
    found = collect(paths)
    page = output or _default_page(paths)
    _require_replaceable(page, force)
    folder = page.with_suffix("")
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder}: is not a folder, but pictures must go there; remove it")
    folder.mkdir(parents=True, exist_ok=True)
    content = page_content(found, folder, models=models, begin=begin) | {"pictures": folder.name}
    write_durably(page, render("page.html", content))
    if tell is not None:
        told = [section for section in content["sections"] if section["words"]]
        for section in told:
            if len(told) > 1:
                tell(f"{section['title']}:")
            for sentence in section["words"]:
                tell(str(sentence))
    return page


def page_content(
    found: Collection, folder: Path, *, models: bool, begin: Begin = begin_here
) -> dict[str, Any]:
    """The content of page.html. Its pictures go into the folder."""
    sections = [
        _section(name, part, begin, with_models=models)
        for name, part in progress(found.parts.items(), "sections drawn")
    ]
    content = {
        "mark": Markup(MARK),
        "title": title_of(found),
        "when": now(),
        "skipped": found.skipped,
        "sections": sections,
        "environments": tables.environments(found.entries),
        **chart_content(),
    }
    with status_line("drawing pictures ..."):  # others draw meanwhile
        for section in sections:
            for each in (section, *section["models"]):
                begun: list[Begun] = each.get("pictures", [])
                each["pictures"] = [save(picture, folder, wait()) for picture, wait in begun]
    return content


def now() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")


def render(template: str, content: Mapping[str, Any]) -> str:
    """The page of a template beside this file. Texts in the content are escaped."""
    templates = Environment(
        loader=PackageLoader("kindling.reports", "."), autoescape=select_autoescape(("html",))
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
        parts.append(f"{run.called or _at_the_start(_model(run))} on {run.data}")
    elif found.runs:
        parts.append(f"{len(found.runs):,} runs on {_listed(run.data for run in found.runs)}")
    sweeps = [each for each in found.sweeps if each.kind != "confirmation"] or found.sweeps
    folders = len({sweep.folder for sweep in sweeps})
    data = _listed(sweep.entries[0].data for sweep in sweeps)
    if folders > 1:
        parts.append(f"{folders:,} sweeps on {data}")
    elif sweeps:
        keys = seeds_last(key for sweep in sweeps for key in sweep.keys)
        about = f"a {sweeps[0].kind}"
        if keys:
            about += f" over {_listed(key.rpartition('.')[2] for key in keys)}"
        about = sweeps[0].called or (about if parts else _at_the_start(about))
        trials = sum(len(sweep.entries) for sweep in sweeps)
        count = "1 trial" if trials == 1 else f"{trials:,} trials"
        confirmed = ", and a confirmation" if len(sweeps) < len(found.sweeps) else ""
        parts.append(f"{about} on {data}: {count}{confirmed}")
    return "; ".join(parts)


def _at_the_start(text: str) -> str:
    return text[:1].upper() + text[1:]


def _model(entry: Reported) -> str:
    if "committee" in entry.result:
        return entry.label
    name = entry.settings.get("model.name", "")
    section = MODEL_SECTIONS.get(name, ModelSection)
    sizes = entry.settings.get(f"model.{section.sizes_key}")
    return " ".join(filter(None, [section.words or name.replace("_", " "), sizes]))


def _listed(texts: Iterable[str]) -> str:
    """Each text once; of many, the first ones and the number of the others."""
    different = [*dict.fromkeys(texts)]
    others = len(different) - MOST_LISTED
    more = [f"{others} more"] if others > 0 else []
    return ", ".join([*different[:MOST_LISTED], *more])


def _section(name: str, part: Part, begin: Begin, *, with_models: bool) -> dict[str, Any]:
    """The content of a section, as page.html takes it, but with the pictures that were begun."""
    ranked, best = part.ranked, part.best
    tested = [part.shown] if part.shown else []
    if part.kind == "run" and len(ranked) <= MOST_MODELS:
        tested = [(entry, part.title_of(entry)) for entry in ranked]
    alone = part.kind == "run" and len(ranked) == 1
    trained = [entry for entry in part.entries if "committee" not in entry.result]
    data = chart_data(part, trained, analysis.by_strength(part)) if trained else {}
    return {
        "name": name,
        "title": part.title,
        "kind": part.kind,
        "data": data,
        "summary": tables.summary(part),
        "words": sentences(part),
        "best": tables.setting_figures(part)
        or (best and tables.key_figures(best, None if alone else part.title_of(best))),
        "compared": tables.compared(name, part),
        "pictures": _begun(pictures.pictures(name, part, trained, data), begin),
        "settings": tables.settings_table(name, part),
        "table": tables.run_table(name, part),
        "phases": tables.phases(ranked),
        "models": _models(name, tested, begin) if tested and with_models else [],
    }


def _begun(pictures: Iterable[PagePicture], begin: Begin) -> list[Begun]:
    return [(picture, begin(picture)) for picture in pictures]


def _models(
    part_name: str, tested: Sequence[tuple[Reported, str]], begin: Begin
) -> list[dict[str, Any]]:
    """`tested` are entries and their titles."""
    with importing():
        from kindling.reports import model_pictures  # imports torch

    sections = []
    for number, (entry, title) in enumerate(progress(tested, "models tested"), 1):
        name = f"{part_name.replace('runs', 'run')}-model{number}"
        section: dict[str, Any] = {
            "name": name,
            "title": title,
            "label": entry.label,
        }
        try:
            trained, source, found = model_pictures.evaluated(entry)
            section["measures"] = model_pictures.measure_table(found)
            section["measured"] = found.measured
            of_model = model_pictures.pictures(trained, source, found, name)
            section["pictures"] = _begun(of_model, begin)
        except InputError as error:
            section["why_none"] = str(error).split("\n")[0]
        sections.append(section)
    return sections
