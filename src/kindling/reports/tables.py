"""The tables and key figures of a report."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kindling.config.measures import in_words, is_logged
from kindling.config.written import counted
from kindling.records.folder import Result
from kindling.records.outcome import (
    INTERVAL,
    LARGEST,
    SHARED_TIME,
    compared_rows,
    for_choice,
    format_interval,
    format_metric,
    format_spread,
    in_full,
    main_metrics,
    setting_command,
    short,
    table_metrics,
)
from kindling.reports import analysis
from kindling.reports.collect import Part, Reported
from kindling.system.units import seconds

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


@dataclass(frozen=True)
class PageTable:
    name: str
    rows: Sequence[Mapping[str, Cell]]  # at least one; all have the same columns
    # Columns that were left out, and settings, because all runs have the same.
    shared: Sequence[tuple[str, str]] = ()
    note: str = ""
    selected: str = ""  # which rows of a longer list these are

    @property
    def counted(self) -> str:
        return self.selected or counted(len(self.rows), "row")


def _text(text: str) -> Cell:
    is_text, value, _ = analysis.by_size(text)
    return Cell(short(text), text if is_text else value)


def _number(text: str, value: float | None) -> Cell:
    return Cell(text, "" if value is None else value, number=True)


def _figures(values: Mapping[str, float | None]) -> dict[str, Cell]:
    return {name: _number(format_metric(name, value), value) for name, value in values.items()}


def summary(part: Part) -> str:
    """How the trials of a sweep ended, and how long they took; "" for single runs."""
    if part.kind == "run":
        return ""
    endings = Counter(trial.ending for trial in part.ranked)
    told = ", ".join(f"{count:,} {ending}" for ending, count in endings.items())
    times = [trial.seconds for trial in part.entries if trial.seconds is not None]
    if times:
        told += f"; {seconds(sum(times))} s in all, {seconds(statistics.median(times))} s per trial"
    return told


def run_table(name: str, part: Part) -> PageTable:
    """A row per run with its metrics and the settings in which the runs differ. Of many runs, the
    best ones, and some of those that did not finish. Of trials, without figures of the test set."""
    ranked = part.ranked
    entries = _first(ranked)
    first = table_metrics(entries)
    known = not all(is_logged(entry.monitor) for entry in entries)
    others = [m for m in ("val/loss", "test/loss") if known and m not in first]
    if part.noun == "trial":
        first, others = for_choice(first), for_choice(others)
    reasons = any(entry.reason for entry in entries)
    rows = [
        {
            part.noun: _text(part.name_of(entry)),
            "status": _text(entry.ending),
            **({"reason": Cell(entry.reason, entry.reason)} if reasons else {}),
            **_figures({metric: entry.metric(metric) for metric in first}),
            **{key: _text(entry.setting(key)) for key in part.keys},
            **_figures({metric: entry.metric(metric) for metric in others}),
            **_figures({"epochs": entry.epochs, "seconds": entry.seconds}),
            **_figures({"parameters": entry.result.get("parameters")}),
        }
        for entry in entries
    ]
    same = {
        name: rows[0][name].text
        for name in CONSTANTS
        if len(rows) > 1 and len({row[name].text for row in rows}) == 1
    }
    rows = [{name: row[name] for name in row if name not in same} for row in rows]
    selected = note = ""
    if len(ranked) > MOST_ROWS:
        file = "; results.csv has all" if part.noun == "trial" else ""
        selected = f"the first {MOST_ROWS:,} of {len(ranked):,} {part.noun}s{file}"
    if "seconds" not in same and any(entry.stacked > 1 for entry in ranked):
        note = SHARED_TIME
    shared = _common([entry.settings for entry in ranked])
    return PageTable(name, rows, [*same.items(), *shared], note, selected)


def _first(ranked: Sequence[Reported]) -> Sequence[Reported]:
    if len(ranked) <= MOST_ROWS:
        return ranked
    unfinished = [entry for entry in ranked if not entry.finished][:MOST_UNFINISHED]
    finished = [entry for entry in ranked if entry.finished]
    return [*finished[: MOST_ROWS - len(unfinished)], *unfinished]


def settings_table(name: str, part: Part) -> PageTable | None:
    """Means over seeds and folds; None where no trials differ only in these."""
    keys, groups = part.repeated
    if not groups:
        return None
    *validated, _ = groups[0].metrics
    rows = []
    for group in groups[:MOST_ROWS]:
        means = {metric: _mean(group.repeats(metric), metric) for metric in validated}
        interval = group.interval(validated[-1])
        between = _number(format_interval(interval, validated[-1]), interval and interval[0])
        rows.append(
            {
                **{key: _text(value) for key, value in zip(keys, group.values, strict=True)},
                "trials": _number(group.count, len(group.trials)),
                **means,
                INTERVAL: between,
            }
        )
    return PageTable(f"{name}-settings", rows)


def _mean(known: Sequence[float], metric: str) -> Cell:
    return _number(format_spread(known, metric), statistics.mean(known) if known else None)


def key_figures(entry: Reported, name: str | None) -> dict[str, Any] | None:
    """The figures and the command of the best run, called `name`; None without a value."""
    if entry.value is None:
        return None
    own = [] if is_logged(entry.monitor) else [f"test/{entry.score}"]
    tested = dict.fromkeys([main_metrics(entry.monitor, entry.score)[1], *own])
    facts = [
        (f"best {entry.monitor}", format_metric(entry.monitor, entry.value)),
        *(
            (
                metric if is_logged(entry.monitor) else f"test {in_words(metric)}",
                format_metric(metric, entry.metric(metric)),
            )
            for metric in tested
        ),
        *_facts(entry.result),
        ("seconds", format_metric("seconds", entry.seconds)),
    ]
    return {"name": name, "command": entry.run.command, "facts": facts}


def setting_figures(part: Part) -> dict[str, Any] | None:
    """The means and the command of the best setting, of several seeds or folds; None without any.
    The best of many single trials owes a part of its value to its seed or its fold."""
    keys, groups = part.repeated
    if not groups:
        return None
    best = groups[0]
    *_, validation, _ = best.metrics
    facts = [
        *((metric, format_spread(best.repeats(metric), metric)) for metric in best.metrics),
        (f"{INTERVAL} of {validation}", format_interval(best.interval(validation), validation)),
        *_facts(best.trials[0].result),
    ]
    setting = [in_full(dict(zip(keys, best.values, strict=True)))] * bool(keys)
    name = ", ".join([*setting, f"mean of {best.count} trials"])
    return {"name": name, "command": setting_command(best.trials[0]), "facts": facts}


def _facts(result: Result) -> list[tuple[str, str]]:
    """The share to hold the accuracies against, if the result has it, and the parameters."""
    share = result.get("data", {}).get("test_most_frequent_class")
    known = [] if share is None else [("largest class", format_metric("acc", share))]
    return [*known, ("parameters", format_metric("parameters", result.get("parameters")))]


def compared(name: str, part: Part) -> PageTable | None:
    """A single model beside baselines; None where nothing was compared."""
    (entry, *others) = part.entries
    rows = [*compared_rows(entry.result.get("task"), entry.result.get("compared", []))]
    if others or not rows:
        return None
    first = next(iter(rows[0]))
    cells = [{k: Cell(text, text, number=k != first) for k, text in row.items()} for row in rows]
    return PageTable(f"{name}-compared", cells)


def phases(entries: Sequence[Reported]) -> list[tuple[str, float, str]]:
    """The seconds of all runs by phase: a name, the share, and the seconds as text."""
    sums: dict[str, float] = {}
    for entry in entries:
        for phase, taken in entry.result.get("seconds", {}).items():
            sums[phase] = sums.get(phase, 0.0) + taken / entry.stacked
    total = sum(sums.values())
    if not 0 < total < LARGEST:
        return []
    return [(phase, taken / total, f"{seconds(taken)} s") for phase, taken in sums.items()]


def environments(entries: Sequence[Reported]) -> list[str]:
    """Hardware, versions and commit in words: first what all runs have in common, then a line for
    each different rest, with the number of its runs, and the number of runs without a record."""
    known = [facts for entry in entries if (facts := _environment(entry.result))]
    shared = _common(known)
    rests = Counter(
        _in_words(fact for fact in facts.items() if fact not in shared) for facts in known
    )
    if known:
        rests["not recorded, because they did not finish"] = len(entries) - len(known)
    rest = [f"{n:,} of {len(entries):,} runs: {text}" for text, n in rests.items() if text and n]
    return [text for text in (_in_words(shared), *rest) if text]


def _environment(result: Result) -> dict[str, str]:
    commit = {"commit": result["commit"]} if result.get("commit") else {}
    facts = {**result.get("hardware", {}), **result.get("versions", {}), **commit}
    return {key: str(value) for key, value in facts.items()}


def _in_words(facts: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{key} {value}" for key, value in facts)[:ENVIRONMENT_LIMIT]


def _common(of_runs: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """The keys and values that all runs have."""
    first = of_runs[0].items() if of_runs else ()
    return [pair for pair in first if all(pair in each.items() for each in of_runs)]
