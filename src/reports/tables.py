"""The tables and key figures of a report."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from src.reports import analysis
from src.reports.collect import Entry, SweepEntries
from src.runs.folder import Result
from src.runs.outcome import (
    INTERVAL,
    LARGEST,
    SHARED_TIME,
    UNKNOWN,
    format_interval,
    format_metric,
    format_spread,
    in_full,
    in_words,
    main_metrics,
    replicates,
    setting_command,
    short,
    table_metrics,
)
from src.system.units import seconds

ENVIRONMENT_LIMIT = 1000  # characters
CONSTANTS = ("status", "epochs", "seconds", "parameters")  # columns that may be left out
MOST_ROWS = 1000  # a browser shows and sorts so many rows at once
MOST_UNFINISHED = 100  # of them: runs that did not finish, which are ranked last


@dataclass(frozen=True)
class Cell:
    """The text of a table's cell, and the value by which the page sorts."""

    text: str
    value: float | str
    number: bool = False


@dataclass
class Table:
    name: str
    header: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    shared: list[tuple[str, str]] = field(default_factory=list)  # columns that were left out

    def without_constants(self, names: Sequence[str]) -> "Table":
        """Without those of the named columns whose text is the same in all of several rows."""
        same = {
            name: column[0].text
            for name, column in zip(self.header, zip(*self.rows, strict=True), strict=True)
            if name in names and len(column) > 1 and len({cell.text for cell in column}) == 1
        }
        kept = [place for place, name in enumerate(self.header) if name not in same]
        rows: list[Sequence[Cell]] = [[row[place] for place in kept] for row in self.rows]
        return Table(self.name, [self.header[place] for place in kept], rows, [*same.items()])


def run_table(name: str, kind: str, entries: Sequence[Entry], keys: Sequence[str]) -> Table:
    """A row per run with its metrics and the settings `keys`; `kind` is `run` or `trial`. Of many
    runs, ranked from the best on, the first ones. Facts that all have in common are in `shared`."""
    entries = _first(entries)
    first, others = table_metrics(entries), ("val/loss", "test/loss")
    reasons = any(entry.reason for entry in entries)
    names = [kind, "status", *["reason"] * reasons, *first, *keys, *others]
    table = Table(name, [*names, "epochs", "seconds", "parameters"])
    for entry in entries:
        label = entry.run.folder.name if kind == "trial" else entry.title
        numbers = {
            **{metric: entry.metric(metric) for metric in others},
            "epochs": entry.epochs,
            "seconds": entry.seconds,
            "parameters": entry.result.get("parameters"),
        }
        table.rows.append(
            [
                _text_cell(label),
                _text_cell(entry.ending),
                *[Cell(entry.reason, entry.reason)] * reasons,
                *(_number_cell(metric, entry.metric(metric)) for metric in first),
                *(_text_cell(entry.settings.get(key, UNKNOWN)) for key in keys),
                *(_number_cell(key, value) for key, value in numbers.items()),
            ]
        )
    return table.without_constants(CONSTANTS)


def _first(ranked: Sequence[Entry]) -> Sequence[Entry]:
    if len(ranked) <= MOST_ROWS:
        return ranked
    unfinished = [entry for entry in ranked if not entry.finished][:MOST_UNFINISHED]
    finished = [entry for entry in ranked if entry.finished]
    return [*finished[: MOST_ROWS - len(unfinished)], *unfinished]


def settings_table(name: str, sweep: SweepEntries) -> Table | None:
    """Means over seeds and folds; None where no trials differ only in these."""
    keys, groups = replicates(sweep.trials, sweep.keys)
    if not groups:
        return None
    metrics = groups[0].metrics
    *_, validation, test = metrics
    table = Table(f"{name}-settings", [*keys, "trials", *metrics[:-1], INTERVAL, test])
    for group in groups[:MOST_ROWS]:
        interval = group.interval(validation)
        *validated, tested = (_spread_cell(group.repeats(metric), metric) for metric in metrics)
        between = Cell(
            format_interval(interval, validation), interval[0] if interval else "", number=True
        )
        count = Cell(group.count, len(group.trials), number=True)
        values = map(_text_cell, group.values)
        table.rows.append([*values, count, *validated, between, tested])
    return table


def _spread_cell(known: Sequence[float], name: str) -> Cell:
    return Cell(format_spread(known, name), statistics.mean(known) if known else "", number=True)


def _number_cell(name: str, value: float | None) -> Cell:
    return Cell(format_metric(name, value), "" if value is None else value, number=True)


def _text_cell(text: str) -> Cell:
    is_text, value, _ = analysis.by_size(text)
    return Cell(short(text), text if is_text else value)


def key_figures(entry: Entry, name: str | None) -> dict[str, Any] | None:
    """The figures and the command of the best run, called `name`; None without a value."""
    if entry.value is None:
        return None
    tested = dict.fromkeys([main_metrics(entry.monitor)[1], "test/acc"])
    figures = {
        f"best {entry.monitor}": (entry.monitor, entry.value),
        **{f"test {in_words(name)}": (name, entry.metric(name)) for name in tested},
        "parameters": ("parameters", entry.result.get("parameters")),
        "seconds": ("seconds", entry.seconds),
    }
    return {
        "name": name,
        "command": entry.run.command,
        "facts": [(title, format_metric(*figure)) for title, figure in figures.items()],
    }


def setting_figures(sweep: SweepEntries) -> dict[str, Any] | None:
    """The means and the command of the best setting, of several seeds or folds; None without any.
    The best of many single trials owes a part of its value to its seed or its fold."""
    keys, groups = replicates(sweep.trials, sweep.keys)
    if not groups:
        return None
    best = groups[0]
    *_, validation, _ = best.metrics
    facts = [
        *((name, format_spread(best.repeats(name), name)) for name in best.metrics),
        (INTERVAL, format_interval(best.interval(validation), validation)),
        ("parameters", format_metric("parameters", best.trials[0].result.get("parameters"))),
    ]
    setting = [in_full(dict(zip(keys, best.values, strict=True)))] * bool(keys)
    return {
        "name": ", ".join([*setting, f"mean of {best.count} trials"]),
        "command": setting_command(best.trials[0]),
        "facts": facts,
    }


def phases(entries: Sequence[Entry]) -> list[tuple[str, float, str]]:
    """The seconds of all runs by phase: a name, the share, and the seconds as text."""
    sums: dict[str, float] = {}
    for entry in entries:
        for phase, taken in entry.result.get("seconds", {}).items():
            sums[phase] = sums.get(phase, 0.0) + taken / entry.stacked
    total = sum(sums.values())
    if not 0 < total < LARGEST:
        return []
    return [(phase, taken / total, f"{seconds(taken)} s") for phase, taken in sums.items()]


def notes(kind: str, entries: Sequence[Entry], header: Sequence[str]) -> str | None:
    """How many runs a table leaves out, and how to read `seconds` of trials from a stack, if they
    are in the table's header."""
    found = []
    if len(entries) > MOST_ROWS:
        file = "; results.csv has all" if kind == "trial" else ""
        found.append(f"the first {MOST_ROWS:,} of {len(entries):,} {kind}s{file}")
    if "seconds" in header and any(entry.stacked > 1 for entry in entries):
        found.append(SHARED_TIME)
    return "; ".join(found) or None


def shared_settings(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """The settings that are the same in all runs."""
    return [
        (key, value)
        for key, value in entries[0].settings.items()
        if all(entry.settings.get(key) == value for entry in entries)
    ]


def environments(entries: Sequence[Entry]) -> list[str]:
    """Hardware, versions and commit in words: first what all runs have in common, then a line for
    each different rest, with the number of its runs, and the number of runs without a record."""
    known = [facts for entry in entries if (facts := _environment(entry.result))]
    shared = [fact for fact in known[0] if all(fact in facts for facts in known)] if known else []
    rests = Counter(_in_words(fact for fact in facts if fact not in shared) for facts in known)
    if known:
        rests["not recorded, because they did not finish"] = len(entries) - len(known)
    rest = [f"{n:,} of {len(entries):,} runs: {text}" for text, n in rests.items() if text and n]
    return [text for text in (_in_words(shared), *rest) if text]


def _environment(result: Result) -> list[tuple[str, str]]:
    facts: dict[str, Any] = {**result.get("hardware", {}), **result.get("versions", {})}
    if result.get("commit"):
        facts["commit"] = result["commit"]
    return [(key, str(value)) for key, value in facts.items()]


def _in_words(facts: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{key} {value}" for key, value in facts)[:ENVIRONMENT_LIMIT]
