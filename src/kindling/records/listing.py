"""The list of runs and sweeps: read from their folders, filtered, sorted and printed.

There is no index: a thousand runs are read in a second. Nothing here imports torch.
"""

import json
import math
import operator
import os
import re
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from tabulate import MIN_PADDING

from kindling.config.faults import did_you_mean, known_keys
from kindling.config.measures import is_fraction, monitors, sort_key
from kindling.config.schema import GROUPS, UNTRAINED
from kindling.config.written import printable
from kindling.records.confirm_record import read_record
from kindling.records.folder import ALWAYS, configured, runs_of
from kindling.records.labels import NONE, Labels, read_labels
from kindling.records.lookup import (
    BASES,
    SWEEP_RECORDS,
    TRAINED,
    Kind,
    began,
    kind_of,
    to_the_second,
    units,
)
from kindling.records.outcome import (
    LABEL_LIMIT,
    UNKNOWN,
    Outcome,
    differing,
    format_metric,
    in_full,
    read_outcome,
    read_settings,
    replicates,
    text_table,
)
from kindling.records.removal import bytes_of, why_in_use
from kindling.records.sweep_folder import Sweep
from kindling.system.colour import is_terminal
from kindling.system.errors import InputError, first_line
from kindling.system.files import read_yaml
from kindling.system.terminal import progress
from kindling.system.units import size

FIELDS = ("folder", "name", "tag", "note", "kind", "data", "status", "began", "best", "test",
          "seconds", "trials")  # fmt: skip
EXPENDABLE = ("began", "size", "kind", "tags", "data", "test")  # columns, in a narrow terminal
LEAST_SETTINGS = 24  # characters, while there are expendable columns
SHORTEST_SETTINGS = 10  # characters
DECIDING = ("data", "checkpoint", "experiment")  # sections that decide data set and monitor
ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


def listed(
    paths: Sequence[Path], conditions: Sequence[str], key: str, most: int, *, as_json: bool
) -> str:
    """The table of the runs and sweeps that meet the conditions, sorted by a key; or all of them as
    JSON. Without paths, those where commands write. Raises InputError as `entries`, `select` and
    `sort`, and for fewer than one row."""
    if most < 1:
        raise InputError(f"--limit {most}: must be 1 or more")
    known = entries(paths or None)
    found = sort([*select(known, conditions)], key)
    if as_json:
        return json.dumps([_json_values(entry) for entry in found], indent=2)
    if found:
        width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
        short = {} if paths else short_names([entry.folder for entry in known])
        return table(found, most, width, short)
    where = ", ".join(map(str, paths or BASES))
    return f"no run in {where} meets the conditions" if conditions else f"no run in {where}"


@dataclass(frozen=True)
class Entry:
    """A run or a whole sweep. `best`, `test` and `metrics` of a sweep are those of its best trial;
    if trials differ in seeds and folds alone, the means of the best setting."""

    folder: Path
    kind: Kind
    began: float  # seconds since 1970
    labels: Labels = NONE
    typed: Mapping[str, str] = field(default_factory=dict)  # the settings of its command line
    chosen: Mapping[str, str] = field(default_factory=dict)  # the settings that `best` is of
    status: str = "damaged"
    data: str = ""
    monitor: str = "val/acc"
    best: float | None = None  # of the monitored metric
    score: str = "acc"  # of the task
    test: float | None = None  # the score in the test
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the epoch of `best`
    seconds: float | None = None  # of training and test; of a sweep, of all trials
    trials: int | None = None  # of a sweep: how many have begun
    fault: str = ""  # why the folder cannot be read

    @property
    def group(self) -> tuple[str, str]:
        """Best values of others cannot be compared."""
        return self.data, self.monitor

    @property
    def rank(self) -> float:
        return sort_key(self.monitor, self.best)

    @cached_property
    def config(self) -> dict[str, str]:
        """The full configuration, with the settings as they were typed; of a sweep, that of its
        first trial, except for these, and of a confirmation that of its best setting. Nothing of a
        damaged run."""
        run = None if self.fault else configured(self.folder)
        with suppress(InputError):
            pairs = (read_settings(run) if run else {}) | dict(self.typed)
            pairs |= self.chosen if self.kind == "confirmation" else {}
            # Of many runs, most have the same keys and values.
            return {sys.intern(key): sys.intern(value) for key, value in pairs.items()}
        return {}


def entries(paths: Sequence[Path] | None = None) -> list[Entry]:
    """The runs and sweeps in these folders, by default where commands write. Raises InputError for
    a path that does not exist."""
    for path in paths or ():
        if not path.is_dir():
            raise InputError(f"{path}: there is no such folder; name runs, sweeps or folders")
    return [read_entry(folder) for folder in progress(list(units(paths)), "folders read")]


def read_entry(folder: Path) -> Entry:
    """Of a run or a sweep. A damaged one has `fault`. Raises InputError for any other folder."""
    kind = kind_of(folder)
    if kind is None:  # perhaps it has just been removed
        raise InputError(f"{folder}: is neither a run nor a sweep")
    entry = Entry(folder, kind, began(folder))
    try:
        return _with_outcomes(replace(entry, labels=read_labels(folder)))
    except InputError as error:
        return replace(entry, fault=first_line(error).removeprefix(f"{folder}/"))


def _with_outcomes(entry: Entry) -> Entry:
    outcomes = _outcomes(entry)
    if entry.kind not in TRAINED:
        status = _status_of_sweep(outcomes, running=why_in_use(entry.folder) is not None)
    else:
        status = outcomes[0].status
        if status == "unfinished" and why_in_use(entry.folder):
            status = "running"
    best = min(outcomes, key=lambda outcome: outcome.rank, default=None)
    _, groups = replicates(outcomes, differing([outcome.settings for outcome in outcomes]))
    top = [*groups[0].trials] if groups else [*filter(None, [best])]
    score = best.score if best else "acc"
    known = [(trial.value, trial.metric(f"test/{score}")) for trial in top]
    seconds = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
    return replace(
        entry,
        typed=_typed(entry, outcomes),
        chosen=_in_common(top),
        status=status,
        data=best.data if best else "",
        monitor=best.monitor if best else "val/acc",
        score=score,
        best=_mean(value for value, _ in known),
        test=_mean(tested for _, tested in known),
        metrics=_metrics(top),
        seconds=sum(seconds) if seconds else None,
        trials=None if entry.kind in TRAINED else len(outcomes),
    )


def _in_common(trials: Sequence[Outcome]) -> dict[str, str]:
    """The settings that all of the trials have."""
    first, *others = [trial.overrides for trial in trials] or [{}]
    return {k: own for k, own in first.items() if all(each.get(k) == own for each in others)}


def _metrics(trials: Sequence[Outcome]) -> dict[str, float]:
    """The mean of each metric of the validation and of the training."""
    rows = (trial.result.get("best") or next(iter(trial.history), {}) for trial in trials)
    names = sorted({name for row in rows for name in row} - {*ALWAYS})
    means = {name: _mean(trial.metric(name) for trial in trials) for name in names}
    return {sys.intern(name): mean for name, mean in means.items() if mean is not None}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def _outcomes(entry: Entry) -> list[Outcome]:
    """The outcome of the run, or those of all trials that have begun, sorted by number. Of those
    that have not ended, with history and settings, so that data set, monitor and best value so far
    are known. A sweep may have thousands of trials: only one configuration is read for each choice
    of data and monitor."""
    swept = [] if entry.kind in TRAINED else Sweep(entry.folder).outcomes()
    known = {outcome.run.folder: outcome for outcome in swept}
    settings: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    found = []
    for run in runs_of(entry.folder):
        outcome = known.get(run.folder) or read_outcome(run)
        if "committee" in outcome.result and run.config_file.exists():  # nobody typed its data
            outcome = replace(outcome, settings=read_settings(run))
        if "best" not in outcome.result and run.config_file.exists():
            pairs = outcome.overrides.items()
            chosen = tuple(each for each in pairs if each[0].partition(".")[0] in DECIDING)
            if chosen not in settings:
                settings[chosen] = read_settings(run)
            history = run.history if run.history_file.exists() else []
            own = {**settings[chosen], **outcome.overrides}
            outcome = replace(outcome, settings=own, history=history)
        found.append(outcome)
    return found


def _status_of_sweep(outcomes: Sequence[Outcome], *, running: bool) -> str:
    """One of the words that a run may have, and how many trials have ended how."""
    counts, begun = Counter(outcome.status for outcome in outcomes), len(outcomes)
    ended = counts["finished"] + counts["failed"] + counts["diverged"]
    if running:
        word = "running"
    elif ended < begun:
        word = "interrupted" if counts["interrupted"] else "unfinished"
    else:
        words = (word for word in ("finished", "diverged", "failed") if counts[word])
        word = next(words, "unfinished")
    parts = [f"{ended:,} of {begun:,} ended"] if ended < begun else []
    parts += [f"{counts[key]:,} {key}" for key in ("failed", "diverged") if counts[key]]
    return ", ".join([word, *parts])


def _typed(entry: Entry, outcomes: Sequence[Outcome]) -> Mapping[str, str]:
    """The settings of the command of a run, a sweep or a search; of a committee and a confirmation,
    how many they have."""
    if entry.kind in TRAINED:
        made = outcomes[0].result.get("committee")
        return {"members": str(len(made["members"]))} if made else outcomes[0].overrides
    if entry.kind == "confirmation":
        record = read_record(entry.folder)
        return {"settings": str(len(record.settings)), "seeds": str(len(record.seeds))}
    values = read_yaml(entry.folder / SWEEP_RECORDS[entry.kind])
    try:
        texts = values["hydra"]["overrides"]["task"] if entry.kind == "sweep" else values
        pairs = [text.partition("=") for text in texts]
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{entry.folder}: its record is not that of a {entry.kind}") from None
    return {key: value for key, _, value in pairs if key not in UNTRAINED}


# --- filter and sort ---------------------------------------------------------------------------


def select(found: Iterable[Entry], conditions: Sequence[str]) -> Iterator[Entry]:
    """The entries that meet all conditions: KEY, a comparison and a value, where KEY is one of
    FIELDS, a metric such as val/loss, or a key of the configuration. Raises InputError for any
    other text."""
    found = [*found]
    tests = [_condition(text, found) for text in conditions]
    return (entry for entry in found if all(test(entry) for test in tests))


def _unknown(key: str, found: Iterable[Entry]) -> str | None:
    """The fault of a key that no run can have, or None. Runs of an older version may have keys of
    their own."""
    groups = (f"{group}.name" for group in GROUPS)
    known = {*FIELDS, *GROUPS, *known_keys(), *groups, *monitors()}
    if key in known or any(key in entry.typed or key in entry.metrics for entry in found):
        return None
    others = f"; type one of {', '.join(FIELDS)}, or a key such as optimizer.lr"
    return f"unknown key{did_you_mean(key, [*FIELDS, *sorted(known)]) or others}"


def _condition(text: str, found: Sequence[Entry]) -> Callable[[Entry], bool]:
    match = re.fullmatch(r"([\w./]+)(<=|>=|!=|=|<|>)(.+)", text, re.DOTALL)
    if match is None:
        raise InputError(
            f"--where {text}: must be KEY=VALUE, or with !=, <, <=, > or >=; for example "
            "--where status=finished 'best>0.97' model.hidden_sizes=[64]"
        )
    key, sign, wanted = match.groups()
    if fault := _unknown(key, found):
        raise InputError(f"--where {text}: {fault}")
    number, ordered = _number(wanted), sign in ORDERS
    compare: Callable[[Any, Any], bool] = ORDERS.get(sign, operator.eq)
    if ordered and math.isnan(number) and key != "began":
        raise InputError(f"--where {text}: {sign} needs a number, not {wanted}")

    def test(entry: Entry) -> bool:
        if ordered and key == "began":  # DATE or DATE TIME, whose texts sort by time
            return compare(_when(entry.began)[: len(wanted)], wanted)
        values, asked = values_of(entry, key), _in_units_of(entry, key, wanted, number)
        found = any(compare(_number(value), asked) for value in values)
        return found if ordered else (found or wanted in values) == (sign == "=")

    return test


def _in_units_of(entry: Entry, key: str, wanted: str, number: float) -> float:
    """The number to compare a metric of the entry with: of a fraction, 97 means 97%. Percent are
    not compared with a loss; then the number is NaN."""
    percent = wanted.endswith("%")
    metric = entry.monitor if key == "best" else key
    if key == "test" or ((key == "best" or key in entry.metrics) and is_fraction(metric)):
        return number / 100 if number > 1 and not percent else number
    return math.nan if key == "best" and percent else number


def values_of(entry: Entry, key: str) -> Sequence[str]:
    """What a condition compares: all tags, the whole status and its first word, and the one text of
    any other key. A group such as model stands for model.name."""
    found: Sequence[object]
    if key == "tag":
        found = entry.labels.tags
    elif key == "status":
        found = [entry.status, entry.status.partition(",")[0]]
    elif key in FIELDS:
        labels = entry.labels
        own = {"name": labels.name, "note": labels.note, "began": _when(entry.began)}
        found = [own[key] if key in own else getattr(entry, key)]
    elif key in entry.metrics or key in entry.typed:
        found = [entry.metrics.get(key, entry.typed.get(key))]
    else:  # to read a configuration takes a millisecond
        config = entry.config
        found = [config.get(key, config.get(f"{key}.name"))]
    return [str(value) for value in found if value is not None]


def _number(text: str) -> float:
    """Percent count as such: 97% is 0.97. NaN for other texts, which equals no number."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return math.nan


def sort(found: Sequence[Entry], key: str) -> list[Entry]:
    """By `began` the newest first, by `best` the best first, a data set after the other, by any
    other key in ascending order; entries without a value last, of equal entries the newest first.
    """
    newest = sorted(found, key=lambda entry: -entry.began)
    if key == "began":
        return newest
    if key == "best":
        return sorted(newest, key=lambda each: (each.best is None, *each.group, each.rank))

    def order(entry: Entry) -> tuple[float, str]:
        text = next(iter(values_of(entry, key)), "")
        number = _number(text)
        return (math.inf, text) if math.isnan(number) else (number, "")

    if fault := _unknown(key, found):
        raise InputError(f"--sort {key}: {fault}")
    keys = {entry.folder: order(entry) for entry in found}
    return sorted(newest, key=lambda entry: keys[entry.folder])


# --- printed -----------------------------------------------------------------------------------


def table(
    found: Sequence[Entry], most: int, width: int | None = None, short: Mapping[Path, str] = {}
) -> str:
    """A row for each entry, at most so many, and a line that counts the others. A table for a
    terminal of `width` characters has the names `short` of folders, fewer columns and shorter
    settings, where it would otherwise be too wide."""
    entries = found[:most]
    rows = _rows(entries, [os.fspath(entry.folder) for entry in entries])
    shown = [key for key in rows[0] if any(row[key] for row in rows)]
    room = LABEL_LIMIT
    longest = max(SHORTEST_SETTINGS, *(len(row["settings"]) for row in rows))
    if width is not None and width - _width_of_others(rows, shown) < longest:
        names = [short.get(entry.folder, os.fspath(entry.folder)) for entry in entries]
        for key in ("", *EXPENDABLE):
            shown = [other for other in shown if other != key]
            rows = _rows(entries, names, narrow=True, with_data="data" in shown)
            room = width - _width_of_others(rows, shown)
            if room >= LEAST_SETTINGS:
                break
    if width is not None:  # a pipe gets the settings in full
        room = max(room, SHORTEST_SETTINGS)
        for row in rows:
            if len(row["settings"]) > room:
                row["settings"] = f"{row['settings'][: room - 1]}…"
    ranks = [(entry.group, entry.rank) for entry in entries]
    parts = [
        text_table(shown, [[row[key] for key in shown] for row in rows], ranks,
                   right=("best", "test", "size"))
    ]  # fmt: skip
    if len(found) > most:
        parts.append(f"… and {len(found) - most:,} more; --limit {len(found)} shows all")
    return "\n".join(parts)


def _width_of_others(rows: Sequence[Mapping[str, str]], shown: Sequence[str]) -> int:
    """The width of the table without the settings themselves."""
    others = [key for key in shown if key != "settings"]
    longest = [max(len(key) + MIN_PADDING, *(len(row[key]) for row in rows)) for key in others]
    return sum(longest) + 2 * len(others)


def _rows(
    entries: Sequence[Entry],
    folders: Sequence[str],
    *,
    narrow: bool = False,
    with_data: bool = True,
) -> list[dict[str, str]]:
    """The texts of the table. `narrow`: of keys, the last part; of a status, the first word.
    `with_data`: whether the settings need not tell the data set."""
    texts = zip(
        entries,
        folders,
        _data_texts(entries),
        _settings_texts(entries, with_data=with_data, narrow=narrow),
        strict=True,
    )
    rows = []
    for entry, folder, data, settings in texts:
        usual = entry.monitor == f"val/{entry.score}"
        by = "" if usual or entry.best is None else f"{entry.monitor} "
        row = {
            "folder": folder,
            "name": entry.labels.name or "",
            "tags": ", ".join(entry.labels.tags),
            "kind": entry.kind + ("" if entry.trials is None else f" of {entry.trials:,}"),
            "began": _when(entry.began),
            "data": data or UNKNOWN,
            "settings": settings,
            "best": f"{by}{format_metric(entry.monitor, entry.best)}",
            "test": format_metric(f"test/{entry.score}", entry.test),
            "status": entry.status.partition(",")[0] if narrow else entry.status,
            "size": size(bytes_of(entry.folder)),
        }
        rows.append({key: printable(text) for key, text in row.items()})
    return rows


def _data_texts(entries: Sequence[Entry]) -> list[str]:
    """The data set of each entry, with the last part of a path, if no other path ends so."""
    short = {}
    for data in {entry.data for entry in entries}:
        name, _, path = data.partition(" ")
        short[data] = " ".join(filter(None, [name, Path(path).name]))
    counts = Counter(short.values())
    return [short[e.data] if counts[short[e.data]] == 1 else e.data for e in entries]


def _settings_texts(entries: Sequence[Entry], *, with_data: bool, narrow: bool) -> list[str]:
    """The settings of each entry. Those that the fewest other entries have come first: they tell
    the entries apart."""
    counts = Counter(pair for entry in entries for pair in entry.typed.items())
    texts = []
    for entry in entries:
        name, _, path = entry.data.partition(" ")
        told = {("data", name), ("data.path", path)} if with_data else set()
        pairs = sorted(
            (pair for pair in entry.typed.items() if pair not in told), key=counts.__getitem__
        )
        named = {key.rpartition(".")[2] if narrow else key: value for key, value in pairs}
        texts.append(entry.fault or in_full(named if len(named) == len(pairs) else dict(pairs)))
    return texts


def short_names(folders: Sequence[Path]) -> dict[Path, str]:
    """DATE/TIME to the second, for each folder of which commands find it by this text."""
    texts = {folder: to_the_second(folder) for folder in folders}
    counts = Counter(texts.values())
    return {folder: text for folder, text in texts.items() if text and counts[text] == 1}


def _when(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def _json_values(entry: Entry) -> dict[str, Any]:
    return {
        "folder": os.fspath(entry.folder),
        "kind": entry.kind,
        "name": entry.labels.name,
        "tags": entry.labels.tags,
        "note": entry.labels.note,
        "began": datetime.fromtimestamp(entry.began).isoformat(),
        "status": entry.status,
        "data": entry.data or None,
        "settings": dict(entry.typed),
        "monitor": entry.monitor,
        "best": entry.best,
        f"test/{entry.score}": entry.test,
        "seconds": entry.seconds,
        "trials": entry.trials,
        "bytes": bytes_of(entry.folder),
        "fault": entry.fault or None,
    }
