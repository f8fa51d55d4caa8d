"""The list of runs and sweeps: read from their folders, filtered, sorted and printed.

There is no index: a thousand runs are read in a second. Nothing here imports torch.
"""

import json
import math
import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tabulate import tabulate

from src.config.schema import UNTRAINED, sort_key
from src.config.written import flat, printable
from src.runs.folder import SEARCH, Run
from src.runs.labels import NONE, Labels, read_labels
from src.runs.lookup import BASES, TRAINED, Kind, began, kind_of, units
from src.runs.outcome import UNKNOWN, Outcome, best_places, format_metric, label_of, read_outcome
from src.runs.removal import bytes_of, why_in_use
from src.runs.sweep_folder import Sweep
from src.system.colour import with_best
from src.system.errors import InputError, first_line
from src.system.files import read_yaml
from src.system.terminal import progress
from src.system.units import size

FIELDS = ("folder", "name", "tag", "kind", "data", "status", "began", "best", "test", "seconds",
          "trials")  # fmt: skip
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
    found = sort([*select(entries(paths or None), conditions)], key)
    if as_json:
        return json.dumps([_json_values(entry) for entry in found], indent=2)
    if found:
        return table(found, most)
    where = ", ".join(map(str, paths or BASES))
    return f"no run in {where} meets the conditions" if conditions else f"no run in {where}"


@dataclass(frozen=True)
class Entry:
    """A run or a whole sweep. `best` and `test` of a sweep are those of its best trial."""

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
    outcome = read_outcome(Run(folder))
    status = outcome.status
    if status == "unfinished" and why_in_use(folder):
        status = "running"
    made = outcome.result.get("committee")
    typed = {"members": str(len(made["members"]))} if made else outcome.overrides
    data, test = outcome.data, _test(outcome)
    if not outcome.result and outcome.run.config_file.exists():
        data = outcome.run.config.data.name
    return {
        "typed": typed, "status": status, "data": data, "monitor": outcome.monitor,
        "best": outcome.value, "test": test, "seconds": outcome.seconds,
    }  # fmt: skip


def _test(outcome: Outcome) -> float | None:
    return outcome.metric("test/acc") if outcome.finished else None


def _sweep_fields(folder: Path, kind: Kind) -> dict[str, Any]:
    sweep = Sweep(folder)
    outcomes, begun = sweep.outcomes(), len(sweep.runs)
    counts = Counter(outcome.status for outcome in outcomes)
    ended = counts["finished"] + counts["failed"] + counts["diverged"]
    parts = [] if ended == begun else [f"{ended:,} of {begun:,} ended"]
    parts += [f"{counts[key]:,} {key}" for key in ("failed", "diverged") if counts[key]]
    if ended and ended == begun:
        parts = ["finished", *parts] if counts["finished"] else parts
    if why_in_use(folder):
        parts = ["running", *parts]
    best = min(outcomes, key=lambda outcome: outcome.rank, default=None)
    seconds = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
    return {
        "typed": _typed(folder, kind), "status": ", ".join(parts) or "unfinished",
        "data": best.data if best else "", "monitor": best.monitor if best else "val/acc",
        "best": best.value if best else None, "test": _test(best) if best else None,
        "seconds": sum(seconds) if seconds else None, "trials": begun,
    }  # fmt: skip


def _typed(folder: Path, kind: Kind) -> dict[str, str]:
    """The settings of the command of a sweep or a search. A confirmation has none."""
    if kind == "confirmation":
        return {}
    values = read_yaml(folder / (SEARCH if kind == "search" else "multirun.yaml"))
    try:
        texts = values if kind == "search" else values["hydra"]["overrides"]["task"]
        pairs = [text.partition("=") for text in texts]
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{folder}: its record is not that of a {kind}") from None
    return {key: value for key, _, value in pairs if key not in UNTRAINED}


# --- filter and sort ---------------------------------------------------------------------------


def select(found: Iterable[Entry], conditions: Sequence[str]) -> Iterator[Entry]:
    """The entries that meet all conditions: KEY, a comparison and a value, where KEY is one of
    FIELDS or a key of the configuration. Raises InputError for any other text."""
    tests = [_condition(text) for text in conditions]
    return (entry for entry in found if all(test(entry) for test in tests))


def _condition(text: str) -> Callable[[Entry], bool]:
    match = re.fullmatch(r"([\w./]+)(<=|>=|!=|=|<|>)(.+)", text, re.DOTALL)
    if match is None:
        raise InputError(
            f"--where {text}: must be KEY=VALUE, or with !=, <, <=, > or >=; for example "
            "--where status=finished 'best>0.97' model.hidden_sizes=[64]"
        )
    key, sign, wanted = match.groups()
    compare = COMPARISONS[sign]
    number = _number(wanted)
    ordered = sign not in ("=", "!=")
    if ordered and number is None and key != "began":
        raise InputError(f"--where {text}: {sign} needs a number, not {wanted}")

    def test(entry: Entry) -> bool:
        values = _values(entry, key)
        if key == "began" and ordered:  # DATE or DATE TIME, whose texts sort by time
            return compare(_when(entry.began)[: len(wanted)], wanted)
        same = any(_equal(value, wanted, number) for value in values)
        if not ordered:
            return same == (sign == "=")
        numbers = [n for n in map(_number, values) if n is not None]
        return any(compare(n, number) for n in numbers)

    return test


def _values(entry: Entry, key: str) -> Sequence[str]:
    """What a condition compares: all tags, and the one text of any other key."""
    if key == "tag":
        return entry.labels.tags
    value: object = None
    if key == "name":
        value = entry.labels.name
    elif key == "began":
        value = _when(entry.began)
    elif key in FIELDS:
        value = getattr(entry, key)
    elif not entry.fault:
        with suppress(InputError):
            value = entry.config.get(key)
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

    keys = {entry.folder: order(entry) for entry in found}
    if all(value == (math.inf, "") for value in keys.values()) and key not in FIELDS:
        raise InputError(
            f"--sort {key}: no run has this key; sort by {', '.join(FIELDS)} or a key such as "
            "optimizer.lr"
        )
    return sorted(newest, key=lambda entry: keys[entry.folder])


# --- printed -----------------------------------------------------------------------------------


def table(found: Sequence[Entry], most: int) -> str:
    """A row for each entry, at most so many, and a line that counts the others."""
    rows = [_row(entry) for entry in found[:most]]
    shown = [key for key in rows[0] if any(row[key] for row in rows)]
    right = ("best", "test", "seconds", "size")
    listed = tabulate(
        [[printable(row[key]) for key in shown] for row in rows], shown, disable_numparse=True,
        colalign=["right" if key in right else "left" for key in shown],
    )  # fmt: skip
    places = best_places(((e.data, e.monitor), sort_key(e.monitor, e.best)) for e in found[:most])
    parts = [with_best(listed, *places)]
    if len(found) > most:
        parts.append(f"… and {len(found) - most:,} more; --limit {len(found)} shows all")
    return "\n".join(parts)


def _row(entry: Entry) -> dict[str, str]:
    labels, best = entry.labels, format_metric(entry.monitor, entry.best)
    by = "" if entry.monitor == "val/acc" or entry.best is None else f"{entry.monitor} "
    trials = "" if entry.trials is None else f" of {entry.trials:,}"
    return {
        "folder": str(entry.folder),
        "name": labels.name or "",
        "tags": ", ".join(labels.tags),
        "kind": f"{entry.kind}{trials}",
        "began": _when(entry.began),
        "data": entry.data or UNKNOWN,
        "settings": entry.fault or label_of(entry.typed),
        "best": f"{by}{best}",
        "test": format_metric("test/acc", entry.test),
        "status": entry.status,
        "size": size(bytes_of(entry.folder)),
    }


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
