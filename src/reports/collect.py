"""What there is to report: the runs and sweeps under some folders. Nothing here imports torch."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from tqdm import tqdm

from src.config.schema import flat, standing
from src.runs.folder import Result, Row, Run, is_sweep
from src.system.errors import InputError

LABEL = 60
REASON = 200  # characters of an error that are shown
TYPED = 8  # characters: few numbers that a person types have more


@dataclass(frozen=True)
class Entry:
    """A run as its files tell of it; what they do not tell is None or empty."""

    run: Run
    name: str  # its path from where all of them are
    label: str  # what was asked of it
    settings: Mapping[str, str]  # every key of its configuration, as typed
    overrides: Mapping[str, str]  # those that the command line set
    history: Sequence[Row]
    result: Result

    @property
    def status(self) -> str:
        return self.result.get("status", "unfinished")

    @property
    def monitor(self) -> str:
        return self.settings.get("checkpoint.monitor", "val/acc")

    @property
    def data(self) -> str:
        """The data set really used, as far as is known; of the user's own, with its path."""
        asked = self.settings.get("data.name", "")
        name = self.result.get("data", {}).get("name", asked)
        return " ".join(filter(None, [name, self.settings.get("data.path")]))

    @property
    def reason(self) -> str:
        """Why it did not finish, in one line: a signal, an error, or the step that diverged."""
        result = self.result
        if self.status == "diverged":
            step = result.get("diverged_step")
            return "" if step is None else f"at step {step}"
        signal, error = result.get("signal", ""), result.get("error", "")
        found = signal if self.status == "interrupted" else error
        return next(iter(found.strip().splitlines()), "")[:REASON]

    @property
    def value(self) -> float | None:
        """The best monitored value; None without one, and of a run that came to no good end."""
        return None if self.status in ("failed", "diverged") else self.best(self.monitor)

    def best(self, name: str) -> float | None:
        """A metric of the best epoch; of a run without a result, of the best so far."""
        if "best" in self.result:
            return self.number("best", name)
        rows = [row for row in self.history[1:] if _is_finite(row[self.monitor])]
        if not rows:
            return None
        best = min(rows, key=lambda row: standing(self.monitor, row[self.monitor]))
        return best[name] if _is_finite(best[name]) else None

    @property
    def epochs(self) -> float | None:
        known = self.number("epochs")
        return max(0, len(self.history) - 1) if known is None and self.history else known

    @property
    def higher_is_better(self) -> bool:
        return self.monitor.endswith("acc")

    @property
    def rank(self) -> tuple[bool, float]:
        """Sorts the best first, those without a value last."""
        value = self.value
        if value is None:
            return True, 0.0
        return False, -value if self.higher_is_better else value

    @property
    def seconds(self) -> float | None:
        """Of set-up, training and test; of a trial of a stack, its share."""
        parts = self.result.get("seconds")
        return None if parts is None else sum(parts.values()) / self.result.get("stacked", 1)

    def number(self, *path: str) -> float | None:
        """A number of the result, by the keys that lead to it."""
        value: Any = self.result
        for key in path:
            value = None if value is None else value.get(key)
        return cast(float | None, value)


@dataclass(frozen=True)
class SweepEntries:
    """A sweep, or its part on one data set: its trials in order of their number, and the keys in
    which they differ."""

    folder: Path
    name: str
    trials: Sequence[Entry]
    keys: Sequence[str]

    @property
    def best(self) -> Entry | None:
        return next(
            (
                trial
                for trial in sorted(self.trials, key=lambda t: t.rank)
                if trial.value is not None
            ),
            None,
        )


@dataclass(frozen=True)
class Collection:
    """What was found, and what was passed over: (path, reason)."""

    runs: Sequence[Entry]
    sweeps: Sequence[SweepEntries]
    skipped: Sequence[tuple[Path, str]] = field(default=())

    @property
    def entries(self) -> list[Entry]:
        return [*self.runs, *(trial for sweep in self.sweeps for trial in sweep.trials)]


def collect(paths: Sequence[Path]) -> Collection:
    """The runs and sweeps in the folders, however deep; links are not followed.

    A folder that holds none, or one that cannot be read, is passed over and named. Raises
    InputError when a path does not exist, and when nothing is left to report.
    """
    absent = [path for path in paths if not path.exists()]
    if absent:
        listed = ", ".join(map(str, absent))
        raise InputError(
            f"{listed}: there is no such folder; name runs, sweeps, or folders of them"
        )
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
    for folder in tqdm(found, "runs read", leave=False, disable=None):
        try:
            entry = _read(Run(folder), base)
        except InputError as error:
            skipped.append((folder, str(error).removeprefix(f"{folder}: ").split("\n")[0]))
            continue
        if is_sweep(folder.parent) and found[folder].absolute() != folder.absolute():
            trials.setdefault(folder.parent, []).append(entry)
        else:
            runs.append(entry)
    sweeps = [sweep for folder, found in trials.items() for sweep in _sweeps(folder, found, base)]
    if not runs and not sweeps:
        reasons = "".join(f"\n  {path}: {reason}" for path, reason in skipped)
        raise InputError(f"nothing to report; name runs, sweeps, or folders of them{reasons}")
    return Collection(runs, sweeps, skipped)


def by_data(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Those of each data set: values on different ones do not compare."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.data, []).append(entry)
    return found


def differing(entries: Sequence[Entry]) -> list[str]:
    """The keys of the configuration in which runs differ, in its order."""
    keys = list(dict.fromkeys(key for entry in entries for key in entry.settings))
    return [key for key in keys if len({entry.settings.get(key) for entry in entries}) > 1]


def _run_folders(path: Path) -> Iterator[Path]:
    """In the order of their names, numbers by their value."""
    for folder, inner, _files in os.walk(path):
        here = Path(folder)
        run = Run(here)
        if run.config_file.exists() or run.started:
            inner.clear()
            yield here
        inner.sort(key=lambda name: (len(name), name) if name.isdigit() else (0, name))


def _read(run: Run, base: Path) -> Entry:
    config, overrides = run.config.to_primitives(), run.overrides
    if not run.history_file.exists() and not run.result_file.exists():
        raise InputError(f"{run.folder}: has neither history.csv nor result.json yet")
    return Entry(
        run,
        _name(run.folder, base),
        _label(overrides),
        dict(flat(config)),
        overrides,
        run.history if run.history_file.exists() else [],
        run.result,
    )


def _name(folder: Path, base: Path) -> str:
    relative = os.path.relpath(folder.absolute(), base)
    return folder.name if relative == "." else relative


def _label(settings: Mapping[str, str]) -> str:
    """Short enough for a legend."""
    chosen = ", ".join(f"{key}={short(value)}" for key, value in settings.items()) or "defaults"
    return chosen if len(chosen) <= LABEL else f"{chosen[: LABEL - 1]}…"


def short(text: str) -> str:
    """A number that a sampler drew has more digits than anyone reads: four of them."""
    try:
        return text if len(text) <= TYPED else f"{float(text):.4g}"
    except ValueError:
        return text


def _sweeps(folder: Path, trials: Sequence[Entry], base: Path) -> list[SweepEntries]:
    """A part for each data set. The keys are those that were typed, where Hydra has left them;
    else those that differ."""
    parts = by_data(trials)
    name = _name(folder, base)
    return [
        _part(folder, f"{name} on {data}" if len(parts) > 1 else name, entries)
        for data, entries in parts.items()
    ]


def _part(folder: Path, name: str, trials: Sequence[Entry]) -> SweepEntries:
    typed = dict.fromkeys(key for trial in trials for key in trial.overrides)
    keys = [key for key in typed if len({trial.overrides.get(key) for trial in trials}) > 1]
    if keys:
        trials = [
            replace(trial, settings={**trial.settings, **trial.overrides}) for trial in trials
        ]
    else:
        keys = differing(trials)
    trials = [
        replace(trial, label=_label({key: trial.settings.get(key, "–") for key in keys}))
        for trial in trials
    ]
    return SweepEntries(folder, name, trials, keys)


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
