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
from pathlib import Path
from typing import Any

from tabulate import MIN_PADDING, tabulate

from src.config.faults import did_you_mean, known_keys
from src.config.schema import GROUPS, UNTRAINED, is_fraction, sort_key
from src.config.written import flat, printable
from src.runs.confirm_record import read_record
from src.runs.folder import RANGE_TEST, SEARCH, Run
from src.runs.labels import NONE, Labels, read_labels
from src.runs.lookup import BASES, TRAINED, Kind, began, kind_of, to_the_second, units
from src.runs.outcome import (
    LABEL_LIMIT,
    UNKNOWN,
    Outcome,
    Replicates,
    best_places,
    differing,
    format_metric,
    in_full,
    read_outcome,
    read_settings,
    replicates,
    so_far,
)
from src.runs.removal import bytes_of, why_in_use
from src.runs.sweep_folder import Sweep
from src.system.colour import is_terminal, with_best
from src.system.errors import InputError, first_line
from src.system.files import read_yaml
from src.system.terminal import progress
from src.system.units import size

FIELDS = ("folder", "name", "tag", "kind", "data", "status", "began", "best", "test", "seconds",
          "trials")  # fmt: skip
EXPENDABLE = ("began", "size", "kind", "tags", "data", "test")  # columns, in a narrow terminal
LEAST_SETTINGS = 24  # characters, while there are expendable columns
SHORTEST_SETTINGS = 10  # characters
DECIDING = ("data", "checkpoint", "experiment")  # sections that decide data set and monitor
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "!=": operator.ne, "=": operator.eq, "<": operator.lt,
    ">": operator.gt,
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
    """A run or a whole sweep. `best` and `test` of a sweep are those of its best trial; if trials
    differ in seeds and folds alone, the means of the best setting."""

    folder: Path
    kind: Kind
    began: float  # seconds since 1970
    labels: Labels = NONE
    typed: Mapping[str, str] = field(default_factory=dict)  # the settings of its command line
    status: str = "damaged"
    data: str = ""
    monitor: str = "val/acc"
    best: float | None = None  # of the monitored metric
    test: float | None = None  # accuracy
    seconds: float | None = None  # of training and test; of a sweep, of all trials
    trials: int | None = None  # of a sweep: how many have begun
    fault: str = ""  # why the folder cannot be read

    @property
    def config(self) -> dict[str, str]:
        """The full configuration, with the settings as they were typed; of a sweep, that of its
        first trial, except for these."""
        for run in (Run(self.folder), Run(self.folder / "0")):
            if run.config_file.exists():
                return {**dict(flat(run.config.to_primitives())), **self.typed}
        return dict(self.typed)


def entries(paths: Sequence[Path] | None = None) -> list[Entry]:
    """The runs and sweeps in these folders, by default where commands write. Raises InputError for
    a path that does not exist."""
    for path in paths or ():
        if not path.is_dir():
            raise InputError(f"{path}: there is no such folder; name runs, sweeps or folders")
    return [read_entry(folder) for folder in progress(list(units(paths)), "folders read")]


def read_entry(folder: Path) -> Entry:
    """Of a folder that is a run or a sweep. A damaged one has `fault`."""
    kind = kind_of(folder)
    assert kind is not None
    entry = Entry(folder, kind, began(folder))
    try:
        found = _run_fields(folder) if kind in TRAINED else _sweep_fields(folder, kind)
        return replace(entry, labels=read_labels(folder), **found)
    except InputError as error:
        return replace(entry, fault=first_line(error).removeprefix(f"{folder}/"))


def _run_fields(folder: Path) -> dict[str, Any]:
    outcome = so_far(read_outcome(Run(folder)))
    status = outcome.status
    if status == "unfinished" and why_in_use(folder):
        status = "running"
    made = outcome.result.get("committee")
    typed = {"members": str(len(made["members"]))} if made else outcome.overrides
    return {
        "typed": typed, "status": status, "data": outcome.data, "monitor": outcome.monitor,
        "best": outcome.value, "test": _test(outcome), "seconds": outcome.seconds,
    }  # fmt: skip


def _test(outcome: Outcome) -> float | None:
    return outcome.metric("test/acc") if outcome.finished else None


def _sweep_fields(folder: Path, kind: Kind) -> dict[str, Any]:
    outcomes = _trials(Sweep(folder))
    counts = Counter(outcome.status for outcome in outcomes)
    best = min(outcomes, key=lambda outcome: outcome.rank, default=None)
    _, groups = replicates(outcomes, differing([outcome.settings for outcome in outcomes]))
    tops = groups[:1] or ([Replicates((), [best])] if best and best.value is not None else [])
    seconds = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
    return {
        "typed": _typed(folder, kind),
        "status": _status_of_sweep(counts, running=why_in_use(folder) is not None),
        "data": best.data if best else "", "monitor": best.monitor if best else "val/acc",
        "best": _mean(tops, best.monitor) if best else None, "test": _mean(tops, "test/acc"),
        "seconds": sum(seconds) if seconds else None, "trials": len(outcomes),
    }  # fmt: skip


def _mean(tops: Sequence[Replicates], metric: str) -> float | None:
    values = [trial.metric(metric) for top in tops for trial in top.trials]
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def _trials(sweep: Sweep) -> list[Outcome]:
    """The outcomes of all trials that have begun, sorted by number. Of those that have not ended,
    only one configuration is read for each choice of data and monitor: a sweep may have thousands
    of trials."""
    known = {outcome.run.folder.name: outcome for outcome in sweep.outcomes()}
    settings: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    found = []
    for run in sweep.runs:
        outcome = known.get(run.folder.name) or read_outcome(run)
        if "best" not in outcome.result and run.config_file.exists():
            pairs = outcome.overrides.items()
            chosen = tuple(each for each in pairs if each[0].partition(".")[0] in DECIDING)
            if chosen not in settings:
                settings[chosen] = read_settings(run)
            outcome = so_far(outcome, settings[chosen])
        found.append(outcome)
    return found


def _status_of_sweep(counts: Mapping[str, int], *, running: bool) -> str:
    """One of the words that a run may have, and how many trials have ended how."""
    begun = sum(counts.values())
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


def _typed(folder: Path, kind: Kind) -> dict[str, str]:
    """The settings of the command of a sweep or a search; how many a confirmation has."""
    if kind == "confirmation":
        record = read_record(folder)
        return {"settings": str(len(record.settings)), "seeds": str(len(record.seeds))}
    listed = {"search": SEARCH, "lr_find": RANGE_TEST}
    values = read_yaml(folder / listed.get(kind, "multirun.yaml"))
    try:
        texts = values if kind in listed else values["hydra"]["overrides"]["task"]
        pairs = [text.partition("=") for text in texts]
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{folder}: its record is not that of a {kind}") from None
    return {key: value for key, _, value in pairs if key not in UNTRAINED}


# --- filter and sort ---------------------------------------------------------------------------


def select(found: Iterable[Entry], conditions: Sequence[str]) -> Iterator[Entry]:
    """The entries that meet all conditions: KEY, a comparison and a value, where KEY is one of
    FIELDS or a key of the configuration. Raises InputError for any other text."""
    found = [*found]
    tests = [_condition(text, found) for text in conditions]
    return (entry for entry in found if all(test(entry) for test in tests))


def _unknown(key: str, found: Iterable[Entry]) -> str | None:
    """The fault of a key that no run can have, or None. Runs of an older version may have keys of
    their own."""
    known = {*FIELDS, *GROUPS, *known_keys(), *(f"{group}.name" for group in GROUPS)}
    if key in known or any(key in entry.typed for entry in found):
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
    compare = COMPARISONS[sign]
    number = _number(wanted)
    ordered = sign not in ("=", "!=")
    if ordered and number is None and key != "began":
        raise InputError(f"--where {text}: {sign} needs a number, not {wanted}")

    def test(entry: Entry) -> bool:
        values = _values(entry, key)
        if key == "began" and ordered:  # DATE or DATE TIME, whose texts sort by time
            return compare(_when(entry.began)[: len(wanted)], wanted)
        asked = _in_units_of(entry, key, wanted, number)
        same = any(_equal(value, wanted, asked) for value in values)
        if not ordered:
            return same == (sign == "=")
        numbers = [n for n in map(_number, values) if n is not None and asked is not None]
        return any(compare(n, asked) for n in numbers)

    return test


def _in_units_of(entry: Entry, key: str, wanted: str, number: float | None) -> float | None:
    """The number to compare a metric of the entry with: of a fraction, 97 means 97%. Percent are
    not compared with a loss; then the number is None."""
    if key not in ("best", "test") or number is None:
        return number
    if key == "test" or is_fraction(entry.monitor):
        return number / 100 if number > 1 and not wanted.endswith("%") else number
    return None if wanted.endswith("%") else number


def _values(entry: Entry, key: str) -> Sequence[str]:
    """What a condition compares: all tags, the whole status and its first word, and the one text of
    any other key. A group such as model stands for model.name."""
    if key == "tag":
        return entry.labels.tags
    if key == "status":
        return [entry.status, entry.status.partition(",")[0]]
    value: object = None
    if key == "name":
        value = entry.labels.name
    elif key == "began":
        value = _when(entry.began)
    elif key in FIELDS:
        value = getattr(entry, key)
    elif not entry.fault:
        with suppress(InputError):
            config = entry.config
            value = config.get(key, config.get(f"{key}.name"))
    return [] if value is None else [str(value)]


def _equal(value: str, wanted: str, number: float | None) -> bool:
    return value == wanted or (number is not None and _number(value) == number)


def _number(text: str) -> float | None:
    """Percent count as such: 97% is 0.97."""
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


def sort(found: Sequence[Entry], key: str) -> list[Entry]:
    """By `began` the newest first, by `best` the best of each data set first, by any other key in
    ascending order; entries without a value last, and of equal entries the newest first."""
    newest = sorted(found, key=lambda entry: -entry.began)
    if key == "began":
        return newest
    if key == "best":
        return sorted(newest, key=lambda e: (e.data, e.monitor, sort_key(e.monitor, e.best)))

    def order(entry: Entry) -> tuple[float, str]:
        text = next(iter(_values(entry, key)), None)
        if text is None:
            return math.inf, ""
        number = _number(text)
        return (math.inf, text) if number is None else (number, "")

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
    if width is not None and _without_settings(rows, shown) + _longest(rows, "settings") > width:
        names = [short.get(entry.folder, os.fspath(entry.folder)) for entry in entries]
        for key in ("", *EXPENDABLE):
            shown = [other for other in shown if other != key]
            rows = _rows(entries, names, narrow=True, with_data="data" in shown)
            room = width - _without_settings(rows, shown)
            if room >= LEAST_SETTINGS:
                break
    if width is not None:  # a pipe gets the settings in full
        rows = [
            {**row, "settings": _cut(row["settings"], max(room, SHORTEST_SETTINGS))} for row in rows
        ]
    right = ("best", "test", "seconds", "size")
    listed = tabulate(
        [[row[key] for key in shown] for row in rows], shown, disable_numparse=True,
        colalign=["right" if key in right else "left" for key in shown],
    )  # fmt: skip
    places = best_places(((e.data, e.monitor), sort_key(e.monitor, e.best)) for e in entries)
    parts = [with_best(listed, *places)]
    if len(found) > most:
        parts.append(f"… and {len(found) - most:,} more; --limit {len(found)} shows all")
    return "\n".join(parts)


def _without_settings(rows: Sequence[Mapping[str, str]], shown: Sequence[str]) -> int:
    """The width of the table without the settings themselves."""
    return sum(_longest(rows, key) for key in shown if key != "settings") + 2 * (len(shown) - 1)


def _longest(rows: Sequence[Mapping[str, str]], key: str) -> int:
    return max(len(key) + MIN_PADDING, *(len(row[key]) for row in rows))


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _rows(
    entries: Sequence[Entry],
    folders: Sequence[str],
    *,
    narrow: bool = False,
    with_data: bool = True,
) -> list[dict[str, str]]:
    """The texts of the table. `narrow`: of keys, the last part; of a status, the first word.
    `with_data`: whether the settings need not tell the data set."""
    data = _data_texts(entries)
    settings = _settings_texts(entries, with_data=with_data, narrow=narrow)
    rows = [
        {key: printable(text) for key, text in _row(*each).items()}
        for each in zip(entries, folders, data, settings, strict=True)
    ]
    if narrow:
        rows = [{**row, "status": row["status"].partition(",")[0]} for row in rows]
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


def _row(entry: Entry, folder: str, data: str, settings: str) -> dict[str, str]:
    labels, best = entry.labels, format_metric(entry.monitor, entry.best)
    by = "" if entry.monitor == "val/acc" or entry.best is None else f"{entry.monitor} "
    trials = "" if entry.trials is None else f" of {entry.trials:,}"
    return {
        "folder": folder,
        "name": labels.name or "",
        "tags": ", ".join(labels.tags),
        "kind": f"{entry.kind}{trials}",
        "began": _when(entry.began),
        "data": data or UNKNOWN,
        "settings": settings,
        "best": f"{by}{best}",
        "test": format_metric("test/acc", entry.test),
        "status": entry.status,
        "size": size(bytes_of(entry.folder)),
    }


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
        "began": datetime.fromtimestamp(entry.began).isoformat(),
        "status": entry.status,
        "data": entry.data or None,
        "settings": dict(entry.typed),
        "monitor": entry.monitor,
        "best": entry.best,
        "test/acc": entry.test,
        "seconds": entry.seconds,
        "trials": entry.trials,
        "bytes": bytes_of(entry.folder),
        "fault": entry.fault or None,
    }
