"""The rows of a board: runs and sweeps, or the trials of a sweep, kept in memory and read again
when their files change. Nothing here imports torch."""

import json
import os
import re
import shlex
import stat
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from kindling.config.measures import is_fraction
from kindling.records.folder import trials_of
from kindling.records.listing import Entry, read_entry, select, sort, values_of
from kindling.records.lookup import SWEEP_RECORDS, began, kind_of
from kindling.records.outcome import differing, known_value
from kindling.reports.collect import seeds_last
from kindling.system.errors import InputError, parsing

FIRST_KEYS = 4  # columns of settings at first
# What a row is read from: the folder and its files.
OF_RUN = ("", "/history.csv", "/result.json", "/labels.json", "/.hydra", "/.hydra/config.yaml",
          "/.hydra/overrides.yaml")  # fmt: skip
OF_SWEEP = [f"/{name}" for name in SWEEP_RECORDS.values()]
SETTLED = ("finished", "failed", "diverged", "damaged")
NOT_FOR_CHOICE = (
    "the test set is for the setting that was chosen; the best of many test figures promises too "
    "much. Choose by another key"
)


@dataclass(frozen=True)
class Row:
    entry: Entry
    stamp: int | None  # changes with the files
    number: int  # stands for the folder in lists
    version: int  # of the table, when the entry changed last


@dataclass(frozen=True)
class BoardTable:
    """All runs and sweeps, or the trials of one sweep, at one moment."""

    rows: Mapping[str, Row]  # by folder
    version: int  # grows with each change
    of_trials: bool = False
    typed: Sequence[str] = ()  # the keys of the command lines, the most frequent first
    first: Sequence[str] = ()  # those that differ, and are shown at first
    _texts: dict[tuple[str, ...], bytes] = field(default_factory=dict)  # many may ask at once

    def entries(self, where: str = "", key: str = "began") -> list[Entry]:
        """Those that meet the conditions, typed as for `runs --where`, sorted by a key. Raises
        InputError as `select` and `sort`, and for figures of the test set of trials."""
        with parsing(f"{where}: cannot be read"):
            conditions = shlex.split(where)
        if self.of_trials and any(re.match(r"test(?!\w)", text) for text in (*conditions, key)):
            raise InputError(NOT_FOR_CHOICE)
        try:
            return sort([*select([row.entry for row in self.rows.values()], conditions)], key)
        except InputError as error:  # nobody typed the option here
            raise InputError(str(error).replace("--where ", "")) from None

    def listed(self, where: str, key: str, keys: Sequence[str], since: int) -> bytes:
        """The numbers of the rows that meet the conditions, in order, and the cells of all rows
        that have changed since a version, as JSON. `keys`: further columns beside `first`."""
        columns = tuple(dict.fromkeys([*self.first, *keys]))
        numbers = {id(row.entry): row.number for row in self.rows.values()}
        about = {
            "version": self.version,
            "total": len(self.rows),
            "order": [numbers[id(entry)] for entry in self.entries(where, key)],
            "keys": columns,
            "first": self.first,
            "typed": self.typed,
            "whole": not self.of_trials,
        }
        text = None if since else self._texts.get(columns)
        if text is None:
            changed = [self._cells(row, columns) for row in self.rows.values()
                       if row.version > since]  # fmt: skip
            text = json.dumps(changed).encode()
        if not since:
            self._texts.clear()
            self._texts[columns] = text
        return json.dumps(about)[:-1].encode() + b', "rows": ' + text + b"}"

    def _cells(self, row: Row, keys: Sequence[str]) -> dict[str, Any]:
        entry = row.entry
        test = {} if self.of_trials else {"test": known_value(entry.test)}
        return {
            "number": row.number,
            "folder": os.fspath(entry.folder),
            "name": entry.labels.name,
            "tag": entry.labels.tags,
            "note": entry.labels.note,
            "kind": entry.kind,
            "data": entry.data,
            "status": entry.status,
            "began": values_of(entry, "began")[0],
            "monitor": entry.monitor,
            "fraction": is_fraction(entry.monitor),
            "best": known_value(entry.best),
            **test,
            "score": is_fraction(f"test/{entry.score}"),
            "seconds": known_value(entry.seconds),
            "trials": entry.trials,
            "fault": entry.fault,
            "metrics": {
                name: [known_value(value), is_fraction(name)]
                for name, value in entry.metrics.items()
            },
            "values": [next(iter(values_of(entry, key)), None) for key in keys],
        }


def read_table(
    folders: Iterable[Path], known: BoardTable | None, *, of_trials: bool = False
) -> BoardTable:
    """The table of these folders. Reads the folders whose files have changed since `known` was
    read, and those whose status is not in their files alone. Damaged folders are rows with a fault,
    and so are those with links: the board shows nothing that lies outside of its folders."""
    # Above all versions of a server before.
    old_rows, version = (known.rows, known.version + 1) if known else ({}, time.time_ns() // 10**6)
    numbers = count(max((row.number for row in old_rows.values()), default=-1) + 1)
    rows = {}
    for folder in folders:
        name = os.fspath(folder)
        old, now, fault = old_rows.get(name), None, ""
        try:
            now = stamp(folder)
        except InputError as error:
            fault = str(error)
        if old and now == old.stamp is not None and _is_settled(old.entry):
            rows[name] = old
            continue
        with suppress(OSError, InputError):  # the folder has just been removed
            kind = kind_of(folder) if fault else None
            entry = Entry(folder, kind, began(folder), fault=fault) if kind else read_entry(folder)
            if of_trials:
                entry = replace(entry, test=None)
            if old and old.entry == entry:
                rows[name] = replace(old, stamp=now)
            else:
                rows[name] = Row(entry, now, old.number if old else next(numbers), version)
    changed = any(row.version == version for row in rows.values())
    if known and not changed and rows.keys() == old_rows.keys():
        return replace(known, rows=rows)
    entries = [row.entry for row in rows.values()]
    counts = Counter(key for entry in entries for key in entry.typed)
    typed = [key for key, _ in counts.most_common()]
    varied = {*differing([entry.typed for entry in entries])}
    first = seeds_last(key for key in typed if key in varied)[:FIRST_KEYS]
    return BoardTable(rows, version, of_trials, typed, first)


def stamp(folder: Path) -> int:
    """Changes with the files that a row is read from. Raises InputError for a link among them."""
    found, place = list[Any](), os.fspath(folder)
    names = [place + name for name in OF_RUN[1:]]  # the board may be asked for a link itself
    if not os.path.lexists(names[0]):
        trials = [os.fspath(trial.folder) for trial in trials_of(folder)]
        names += [place + name for name in OF_SWEEP]
        names += [trial + name for trial in trials for name in OF_RUN]
    for name in names:
        try:
            status = os.lstat(name)
        except OSError:
            found.append(None)
            continue
        if stat.S_ISLNK(status.st_mode):
            raise InputError(f"{name}: is a link, which the board does not follow")
        found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return hash(tuple(found))


def _is_settled(entry: Entry) -> bool:
    """Whether nothing but its files tells the status: a lock of another process tells some."""
    return entry.status.partition(",")[0] in SETTLED
