"""The runs and sweeps under some folders, read for a report. Nothing here imports torch."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from src.config.written import flat
from src.runs.folder import Result, Row, Run, is_confirmation, is_search, is_sweep
from src.runs.labels import read_labels
from src.runs.outcome import UNKNOWN, Outcome, comparable, differing, in_full
from src.runs.sweep_folder import read_importance, read_scales
from src.system.errors import InputError, reading
from src.system.terminal import progress

NOT_BEGUN = "has neither history.csv nor result.json yet"
SEVERAL = "several"


@dataclass(frozen=True)
class Entry(Outcome):
    """A run in a report."""

    name: str  # its path from the folder that all runs have in common
    label: str  # the keys that were set, and their values
    called: str | None = None  # the name that it was given

    @property
    def title(self) -> str:
        """The name that the run was given, with its path, else the path."""
        return f"{self.called} ({self.name})" if self.called else self.name


@dataclass(frozen=True)
class SweepEntries:
    """A sweep, or its part on one data set."""

    folder: Path
    name: str
    trials: Sequence[Entry]  # sorted by number
    keys: Sequence[str]  # those in which the trials differ
    called: str | None = None  # the name that it was given
    importance: Mapping[str, float] = field(default_factory=dict)  # of a search: shares of its keys
    scales: Mapping[str, bool] = field(default_factory=dict)  # see read_scales

    @property
    def kind(self) -> str:
        if is_confirmation(self.folder):
            return "confirmation"
        return "search" if is_search(self.folder) else "sweep"

    @property
    def best(self) -> Entry | None:
        best = min(self.trials, key=lambda trial: trial.rank)
        return None if best.value is None else best


@dataclass(frozen=True)
class Collection:
    """The runs and sweeps that were found, and the folders that were skipped: (path, reason)."""

    runs: Sequence[Entry]
    sweeps: Sequence[SweepEntries]
    skipped: Sequence[tuple[Path, str]]

    @property
    def entries(self) -> list[Entry]:
        return [*self.runs, *(trial for sweep in self.sweeps for trial in sweep.trials)]


class Reader:
    """Reads run folders. A folder is read again only if its history or its result has changed, and
    its configuration only once."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[list[tuple[int, int] | None], Entry]] = {}

    def read(self, run: Run, base: Path) -> Entry:
        """Raises InputError for a run that cannot be read, or that has not begun."""
        stamps = [_stamp(file) for file in (run.history_file, run.result_file)]
        if stamps == [None, None]:
            raise InputError(f"{run.folder}: {NOT_BEGUN}")
        known, entry = self._known.get(run.folder, (None, None))
        if entry is None or stamps != known:
            history = run.history if stamps[0] else []
            if entry is None:
                entry = _first_read(run, base)
            entry = _with_result(entry, run.result, history)
            self._known[run.folder] = stamps, entry
        return entry


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
    found: dict[Path, Path] = {}  # run folder → the path under which it was found
    skipped: list[tuple[Path, str]] = []
    for path in paths:
        folders = list(_run_folders(path))
        found |= {folder: path for folder in folders if folder not in found}
        if not folders:
            skipped.append((path, "holds no run"))
    runs: list[Entry] = []
    trials: dict[Path, list[Entry]] = {}
    base = Path(os.path.commonpath([path.absolute() for path in paths]))
    reader = reader or Reader()
    for folder in progress(found, "runs read"):
        try:
            entry = reader.read(Run(folder), base)
        except InputError as error:
            skipped.append((folder, str(error).removeprefix(f"{folder}: ").split("\n")[0]))
            continue
        # A trial that was named itself is reported as a single run, and so is a committee.
        named = found[folder].absolute() == folder.absolute()
        if is_sweep(folder.parent) and not named and "committee" not in entry.result:
            trials.setdefault(folder.parent, []).append(entry)
        else:
            runs.append(entry)
    sweeps = [sweep for folder, found in trials.items() for sweep in _sweeps(folder, found, base)]
    runs = [replace(run, called=_read(_called, run.run.folder, skipped)) for run in runs]
    sweeps = [
        replace(
            sweep,
            called=_read(_called, sweep.folder, skipped),
            importance=_read(read_importance, sweep.folder, skipped) or {},
            scales=_read(read_scales, sweep.folder, skipped) or {},
        )
        for sweep in sweeps
    ]
    sweeps.sort(key=lambda sweep: sweep.kind == "confirmation")  # after what they confirm
    if not runs and not sweeps:
        reasons = "".join(f"\n  {path}: {reason}" for path, reason in skipped)
        raise InputError(f"nothing to report; name runs, sweeps or folders of them{reasons}")
    return Collection(runs, sweeps, skipped)


Content = TypeVar("Content")


def _read(
    reader: Callable[[Path], Content], folder: Path, skipped: list[tuple[Path, str]]
) -> Content | None:
    """What a reader finds in a folder; None, with a line in `skipped`, for a damaged file."""
    try:
        return reader(folder)
    except InputError as error:
        skipped.append((folder, str(error).split("\n")[0]))
        return None


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


def _stamp(file: Path) -> tuple[int, int] | None:
    """Changes with the content of a file; None without a file."""
    with reading(file), suppress(FileNotFoundError):
        status = file.stat()
        return status.st_mtime_ns, status.st_size
    return None


def _first_read(run: Run, base: Path) -> Entry:
    config, overrides = run.config.identity_values(), run.overrides
    return Entry(
        run=run,
        result={},
        overrides=overrides,
        settings=dict(flat(config)),
        history=[],
        name=_name(run.folder, base),
        label=in_full(overrides),
    )


def _with_result(entry: Entry, result: Result, history: Sequence[Row]) -> Entry:
    """The entry with its result. For a committee, a setting in which its members differ is
    SEVERAL."""
    entry = replace(entry, result=result, history=history)
    made = result.get("committee")
    if made is None:
        return entry
    settings = {**entry.settings, **dict.fromkeys(made["differing"], SEVERAL)}
    return replace(entry, settings=settings, label=f"committee of {len(made['members'])}")


def _name(folder: Path, base: Path) -> str:
    relative = os.path.relpath(folder.absolute(), base)
    return folder.name if relative == "." else relative


def _sweeps(folder: Path, trials: Sequence[Entry], base: Path) -> Iterator[SweepEntries]:
    """The parts of a sweep whose trials can be compared."""
    parts = comparable(trials)
    for data, entries in parts.items():
        name = _name(folder, base) + (f" on {data}" if len(parts) > 1 else "")
        yield _part(folder, name, entries)


def _part(folder: Path, name: str, trials: Sequence[Entry]) -> SweepEntries:
    """Labels use the keys of the command line; without overrides.yaml, the keys that differ."""
    typed = differing([trial.overrides for trial in trials])
    keys = typed or differing([trial.settings for trial in trials])
    found = []
    for trial in trials:
        settings = {**trial.settings, **trial.overrides} if typed else trial.settings
        label = in_full({key: settings.get(key, UNKNOWN) for key in keys})
        found.append(replace(trial, settings=settings, label=label))
    return SweepEntries(folder, name, found, keys)
