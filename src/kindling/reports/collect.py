"""The runs and sweeps under some folders, read for a report. Nothing here imports torch."""

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from kindling.config.measures import higher_is_better
from kindling.config.written import flat
from kindling.records.folder import Row, Run, is_confirmation, is_search, is_sweep
from kindling.records.labels import read_labels
from kindling.records.outcome import (
    REPLICATED,
    UNKNOWN,
    Outcome,
    Replicates,
    comparable,
    differing,
    in_full,
    replicates,
)
from kindling.records.sweep_folder import KeyImportance, read_importance, read_search, scales
from kindling.system.errors import InputError, reading
from kindling.system.terminal import progress

NOT_BEGUN = "has neither history.csv nor result.json yet"
SEVERAL = "several"


@dataclass(frozen=True)
class Reported(Outcome):
    """A run in a report."""

    name: str  # its path from the folder that all runs have in common
    label: str  # the keys that were set, and their values
    called: str | None = None  # the name that it was given

    @property
    def title(self) -> str:
        """The name that the run was given, with its path, else the path."""
        return f"{self.called} ({self.name})" if self.called else self.name

    def setting(self, key: str) -> str:
        """The value of a key of the configuration, as typed."""
        return self.settings.get(key, UNKNOWN)


@dataclass(frozen=True)
class Part:
    """Comparable runs: a sweep or its part on one data set, or single runs on one data set."""

    folder: Path | None  # of a sweep
    name: str
    entries: Sequence[Reported]  # the trials of a sweep are sorted by number
    keys: Sequence[str]  # those in which the entries differ
    called: str | None = None  # the name that the sweep was given
    importance: Mapping[str, KeyImportance] = field(default_factory=dict)  # of keys of a search
    scales: Mapping[str, bool] = field(default_factory=dict)  # of the numbers that were drawn
    typed: Sequence[str] = ()  # after the name of the command of a search

    @property
    def kind(self) -> str:
        if self.folder is None:
            return "run"
        if is_confirmation(self.folder):
            return "confirmation"
        return "search" if is_search(self.folder) else "sweep"

    @property
    def noun(self) -> str:
        """What an entry is called."""
        return "run" if self.folder is None else "trial"

    @property
    def title(self) -> str:
        if self.folder is None:
            return self.name
        name = f"{self.called} ({self.name})" if self.called else self.name
        return f"{self.kind.capitalize()} {name}"

    def name_of(self, entry: Reported) -> str:
        """The number of a trial, or the title of a single run."""
        return entry.title if self.folder is None else entry.run.folder.name

    def title_of(self, entry: Reported) -> str:
        return entry.title if self.folder is None else f"trial {entry.run.folder.name}"

    @cached_property
    def ranked(self) -> list[Reported]:
        return sorted(self.entries, key=lambda entry: entry.rank)

    @cached_property
    def valued(self) -> list[tuple[Reported, float]]:
        """The entries that have a value, with the value."""
        return [(entry, value) for entry in self.entries if (value := entry.value) is not None]

    @cached_property
    def settings(self) -> list[tuple[int, float]]:
        """The place in `valued` of a trial of each setting, and the mean value of the setting's
        trials, which differ in seed and fold."""
        chosen = [key for key in self.keys if key not in REPLICATED]
        groups: dict[tuple[str, ...], list[tuple[int, float]]] = {}
        for place, (entry, value) in enumerate(self.valued):
            groups.setdefault(tuple(map(entry.setting, chosen)), []).append((place, value))
        return [(group[0][0], statistics.mean(v for _, v in group)) for group in groups.values()]

    @property
    def best(self) -> Reported | None:
        return self.ranked[0] if self.valued else None

    @property
    def shown(self) -> tuple[Reported, str] | None:
        """The trial whose model is shown, and what to say of it. The best; but of settings with
        several trials that would be a lucky seed or an easy fold, so the middle one of the best
        setting, of an even number the better one. Of trials without weights, as checkpoint.keep
        leaves them, there is nothing to show."""
        if self.best is None:
            return None
        groups = self.repeated[1]
        trials = sorted(groups[0].trials, key=lambda trial: trial.rank) if groups else []
        kept = [trial for trial in trials if trial.run.best_checkpoint.exists()]
        if not kept:
            return self.best, self.title_of(self.best)
        trial, among = kept[(len(kept) - 1) // 2], f"of {len(trials):,} of the best setting"
        assert isinstance(trial, Reported)
        which = f"the middle one {among}"
        if len(kept) < len(trials):
            which = f"the middle one of {len(kept):,}, {among}, whose weights were kept"
            if len(kept) == 1:
                which = f"the only one {among} whose weights were kept"
        return trial, f"{self.title_of(trial)}, {which}"

    @property
    def higher(self) -> bool:
        """Whether higher values of the monitor are better."""
        return higher_is_better(self.ranked[0].monitor)

    @cached_property
    def repeated(self) -> tuple[list[str], list[Replicates]]:
        """The keys that are chosen, and the trials that differ only in seed and fold."""
        return replicates(self.entries if self.folder else (), self.keys)


@dataclass(frozen=True)
class Collection:
    """The runs and sweeps that were found, and the folders that were skipped: (path, reason)."""

    runs: Sequence[Reported]
    sweeps: Sequence[Part]
    skipped: Sequence[tuple[Path, str]]

    @property
    def entries(self) -> list[Reported]:
        return [*self.runs, *(trial for sweep in self.sweeps for trial in sweep.entries)]

    @property
    def parts(self) -> dict[str, Part]:
        """The single runs by data set and the sweeps, by the names of their sections in a page."""
        parts, groups = {}, comparable(self.runs)
        for number, (data, runs) in enumerate(groups.items(), 1):
            name, title = f"runs{number}", f"Runs on {data}"
            if len(groups) == 1:
                name, title = "runs", "Runs" if len(runs) > 1 else ""
            keys = seeds_last(differing([run.settings for run in runs]))
            parts[name] = Part(None, title, runs, keys)
        return parts | {f"sweep{number}": sweep for number, sweep in enumerate(self.sweeps, 1)}


def seeds_last(keys: Iterable[str]) -> list[str]:
    """Each key once; seeds and folds, which nobody chooses, at the end."""
    return sorted(dict.fromkeys(keys), key=lambda key: key in REPLICATED)


class Reader:
    """Reads run folders. A folder is read again only if its history or its result has changed, and
    its configuration only once."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[list[tuple[int, int] | None], Reported]] = {}

    def read(self, run: Run, base: Path) -> Reported:
        """Raises InputError for a run that cannot be read, or that has not begun."""
        stamps = [_stamp(file) for file in (run.history_file, run.result_file)]
        if stamps == [None, None]:
            raise InputError(f"{run.folder}: {NOT_BEGUN}")
        known, entry = self._known.get(run.folder, (None, None))
        if entry is None or stamps != known:
            history = run.history if stamps[0] else []
            entry = _read_entry(run, base, entry, history)
            self._known[run.folder] = stamps, entry
        return entry


def _stamp(file: Path) -> tuple[int, int] | None:
    """Changes with the content of a file; None without a file."""
    with reading(file), suppress(FileNotFoundError):
        status = file.stat()
        return status.st_mtime_ns, status.st_size
    return None


def _read_entry(run: Run, base: Path, known: Reported | None, history: Sequence[Row]) -> Reported:
    """The entry of a run, of which an earlier one has the configuration. For a committee, a setting
    in which its members differ is SEVERAL."""
    if known is None:
        settings, overrides = dict(flat(run.config.identity_values())), run.overrides
        name, label = _name(run.folder, base), in_full(overrides)
        known = Reported(run, {}, overrides, settings, history, name, label)
    entry = replace(known, result=run.result, history=history)
    made = entry.result.get("committee")
    if made is None:
        return entry
    settings = {**entry.settings, **dict.fromkeys(made["differing"], SEVERAL)}
    return replace(entry, settings=settings, label=f"committee of {len(made['members'])}")


def _name(folder: Path, base: Path) -> str:
    relative = os.path.relpath(folder.absolute(), base)
    return folder.name if relative == "." else relative


Content = TypeVar("Content")


def collect(paths: Sequence[Path], reader: Reader | None = None) -> Collection:
    """The runs and sweeps in the folders, at any depth; links are not followed. A `reader` that is
    used again reads only what has changed.

    Folders without a run and unreadable runs are skipped and listed. Raises InputError when a path
    does not exist, and when there is nothing to report.
    """
    absent = [path for path in paths if not path.exists()]
    if absent:
        listed = ", ".join(map(str, absent))
        raise InputError(f"{listed}: there is no such folder; name runs, sweeps or folders of them")
    base = Path(os.path.commonpath([path.absolute() for path in paths]))
    reader = reader or Reader()
    skipped: list[tuple[Path, str]] = []

    def attempt(read: Callable[[Path], Content], folder: Path) -> Content | None:
        """What is read in a folder; None, with a line in `skipped`, for a damaged file."""
        try:
            return read(folder)
        except InputError as error:
            skipped.append((folder, str(error).removeprefix(f"{folder}: ").split("\n")[0]))
            return None

    found: dict[Path, Path] = {}  # run folder → the path under which it was found
    for path in paths:
        folders = [*_run_folders(path)]
        found |= {folder: path for folder in folders if folder not in found}
        if not folders:
            skipped.append((path, "holds no run"))
    runs: list[Reported] = []
    trials: dict[Path, list[Reported]] = {}
    for folder in progress(found, "runs read"):
        entry = attempt(lambda folder: reader.read(Run(folder), base), folder)
        if entry is None:
            continue
        # A trial that was named itself is reported as a single run, and so is a committee.
        named = found[folder] == folder
        if is_sweep(folder.parent) and not named and "committee" not in entry.result:
            trials.setdefault(folder.parent, []).append(entry)
        else:
            runs.append(replace(entry, called=attempt(_called, folder)))
    sweeps: list[Part] = []
    for folder, entries in trials.items():
        called, importance = attempt(_called, folder), attempt(read_importance, folder) or {}
        typed = attempt(read_search, folder) or []
        sweeps += [
            Part(folder, *part, called, importance, scales(typed), typed)
            for part in _parts(_name(folder, base), entries)
        ]
    sweeps.sort(key=lambda sweep: sweep.kind == "confirmation")  # after what they confirm
    if not runs and not sweeps:
        reasons = "".join(f"\n  {path}: {reason}" for path, reason in skipped)
        raise InputError(f"nothing to report; name runs, sweeps or folders of them{reasons}")
    return Collection(runs, sweeps, skipped)


def _called(folder: Path) -> str | None:
    return read_labels(folder).name


def _run_folders(path: Path) -> Iterator[Path]:
    """The run folders under a path, sorted by name; numbers are sorted by value."""
    for folder, inner, _files in os.walk(path):
        here = Path(folder)
        run = Run(here)
        if run.config_file.exists() or run.started:
            inner.clear()
            yield here
        inner.sort(key=lambda name: (len(name), name) if name.isdigit() else (0, name))


def _parts(
    name: str, trials: Sequence[Reported]
) -> Iterator[tuple[str, list[Reported], list[str]]]:
    """The parts of a sweep whose trials can be compared: name, trials and keys. Labels use the keys
    of the command line; without overrides.yaml, the keys that differ."""
    parts = comparable(trials)
    for data, entries in parts.items():
        typed = differing([trial.overrides for trial in entries])
        keys = typed or differing([trial.settings for trial in entries])
        found = []
        for trial in entries:
            settings = {**trial.settings, **trial.overrides} if typed else trial.settings
            label = in_full({key: settings.get(key, UNKNOWN) for key in keys})
            found.append(replace(trial, settings=settings, label=label))
        yield name + (f" on {data}" if len(parts) > 1 else ""), found, keys
