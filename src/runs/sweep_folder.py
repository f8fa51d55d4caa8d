"""The folder of a sweep: its trials and their table. Nothing here imports torch."""

import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter
from tabulate import tabulate

from src.runs.folder import SEARCH, Fraction, Result, Run, csv_text
from src.runs.outcome import (
    INTERVAL,
    SHARED_TIME,
    Outcome,
    all_metrics,
    best_places,
    comparable,
    differing,
    format_interval,
    format_metric,
    format_spread,
    read_outcome,
    replicates,
    setting_command,
    short,
    table_metrics,
)
from src.system.colour import with_best
from src.system.errors import parsing
from src.system.files import read_bounded, read_yaml, wait_for_lock, write_durably

MOST_ROWS, MOST_ERRORS = 100, 20  # of the printed table
SHARE = 0.02  # of the time, to bring the files of a sweep up to date while it trains
IMPORTANCE = "importance.json"  # of each key, in the folder of a search that has ended
IMPORTANCE_LIMIT = 65_536  # bytes
DRAWN, LOG = re.compile(r"\b(interval|range)\("), re.compile(r"\s*tag\(\s*log\s*,")  # of a space
UNUSED = ("hardware", "versions")  # of a result: most of its memory

Identity = tuple[int, int, int]  # of a file's content: inode, time, size


@dataclass
class _Known:
    """The outcomes of a sweep's trials that this process has read, by number. A process with a
    thousand groups would otherwise read a million results."""

    outcomes: dict[int, tuple[Identity, Outcome]] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)  # no files to remove, now or later
    due: float = 0.0  # the earliest time of the next update


_KNOWN: dict[Path, _Known] = {}  # by the folder of the sweep
MOST_KNOWN = 8  # sweeps


class Sweep:
    """The folder of a multirun or a search, with its trials in folders 0, 1, 2, … `stacks` is the
    name of the folder for the states of stacks. Each process of a sweep has its own such folder."""

    def __init__(self, folder: Path, stacks: str = ".stacks") -> None:
        self.folder = folder
        self.stacks = folder / stacks
        self.results_file = folder / "results.csv"

    @property
    def runs(self) -> list[Run]:
        """All trials, also those without a result, sorted by number."""
        return [Run(self.folder / str(number)) for number in _numbers(self.folder)]

    @property
    def trials(self) -> list[Run]:
        """The trials that have a result, finished or not, sorted by number."""
        return [outcome.run for outcome in self.outcomes()]

    def outcomes(self) -> list[Outcome]:
        """The outcomes of the trials that have a result, sorted by number, without hardware and
        versions. Each result is read once in a process, until its file is replaced."""
        read = self._known.outcomes
        found: dict[int, tuple[Identity, Outcome]] = {}
        for run in self.runs:
            number = int(run.folder.name)
            with suppress(FileNotFoundError, NotADirectoryError):
                status = run.result_file.stat()
                identity = (status.st_ino, status.st_mtime_ns, status.st_size)
                if number not in read or read[number][0] != identity:
                    self._known.settled.discard(number)
                    read[number] = identity, _slim(read_outcome(run))
                found[number] = read[number]
        self._known.outcomes = found
        return [outcome for _, outcome in found.values()]

    @property
    def _known(self) -> _Known:
        folder = self.folder.absolute()
        if folder not in _KNOWN and len(_KNOWN) == MOST_KNOWN:
            _KNOWN.clear()
        return _KNOWN.setdefault(folder, _Known())

    def write_results(self) -> None:
        """Writes results.csv anew, from all trials with a result. Other processes may write too."""
        with self.locked():
            rows = [row_of(outcome) for outcome in self.outcomes()]
            header = list(dict.fromkeys(key for row in rows for key in row))
            write_durably(self.results_file, csv_text(header, rows))

    def remove_surplus(self) -> None:
        """Removes the checkpoints of ended trials whose checkpoint.keep is a number, and that are
        not among so many best trials on their data set; of equal trials, the lower number is
        better. A removed trial never comes back: the trials that are better have ended too."""
        with self.locked():
            settled = self._known.settled
            ended = [each for each in self.outcomes() if each.status in ("finished", "diverged")]
            for trials in comparable(ended).values():
                for place, outcome in enumerate(sorted(trials, key=lambda trial: trial.rank)):
                    number = int(outcome.run.folder.name)
                    if number not in settled and _is_settled(outcome.run, place):
                        settled.add(number)

    def update(self, keep: int | str) -> None:
        """Brings results.csv and the checkpoints up to date, unless that would take more than a
        fiftieth of the time. `keep` is checkpoint.keep of the trials."""
        began = time.monotonic()
        if began < self._known.due:
            return
        self.write_results()
        if isinstance(keep, int):
            self.remove_surplus()
        now = time.monotonic()
        self._known.due = now + (now - began) / SHARE

    def locked(self) -> AbstractContextManager[None]:
        """Waits until no other process writes the files that all of them share."""
        return wait_for_lock(self.folder / ".lock")

    def table(self) -> str:
        """The best trials; means over seeds and folds; the errors of failed trials; and the command
        of the best of comparable trials. Of a large sweep, the first rows of each."""
        ranked = self.ranked()
        finished = [trial for trial in ranked if trial.finished]
        swept = differing([trial.overrides for trial in ranked])
        parts = [_trial_table(ranked[:MOST_ROWS], swept)]
        if len(ranked) > MOST_ROWS:
            parts.append(f"… and {len(ranked) - MOST_ROWS:,} more trials in {self.results_file}")
        if any(trial.stacked > 1 for trial in ranked):
            parts.append(SHARED_TIME)
        ended = [trial for trial in ranked if trial.status != "interrupted"]
        parts.append(_settings_table(ended, swept))
        errors = [
            f"trial {trial.run.folder.name} failed: {error}"
            for trial in ranked
            if (error := trial.result.get("error"))
        ]
        parts += errors[:MOST_ERRORS]
        if len(errors) > MOST_ERRORS:
            parts.append(f"… and {len(errors) - MOST_ERRORS:,} more failed trials")
        groups = comparable(finished)
        for data, (best, *_) in groups.items():
            on = f" on {data}" if len(groups) > 1 else ""
            parts.append(f"best trial{on}, to train it alone: {best.run.command}")
        return "\n".join([*filter(None, parts), f"table: {self.results_file}"])

    def ranked(self) -> list[Outcome]:
        """The outcomes, the best of each data set first, and those of unfinished trials last."""
        trials = self.outcomes()
        finished = sorted((t for t in trials if t.finished), key=_order)
        return [*finished, *(trial for trial in trials if not trial.finished)]

    def failures(self) -> int:
        return sum(outcome.status == "failed" for outcome in self.outcomes())


def write_importance(folder: Path, shares: Mapping[str, float]) -> None:
    write_durably(folder / IMPORTANCE, f"{json.dumps(shares)}\n")


def read_importance(folder: Path) -> dict[str, float]:
    """The share of each key of a search, the largest first; empty before the search has ended.
    Raises InputError for a damaged file."""
    file = folder / IMPORTANCE
    if not file.exists():
        return {}
    content = read_bounded(file, IMPORTANCE_LIMIT)
    with parsing(f"{file}: is not the importance of keys", "; remove it"):
        return TypeAdapter(dict[str, Fraction]).validate_json(content)


def read_scales(folder: Path) -> dict[str, bool]:
    """The keys whose numbers a search draws, and whether on a logarithmic scale. Without a search,
    there are none. Raises InputError for a damaged file."""
    file = folder / SEARCH
    if not file.exists():
        return {}
    with parsing(f"{file}: is not the record of a search"):
        typed = TypeAdapter(list[str]).validate_python(read_yaml(file))
    spaces = (text.partition("=")[::2] for text in typed)
    return {key: bool(LOG.match(space)) for key, space in spaces if DRAWN.search(space)}


def _numbers(folder: Path) -> list[int]:
    with os.scandir(folder) as entries:
        return sorted(int(entry.name) for entry in entries if entry.name.isdecimal())


def _order(outcome: Outcome) -> tuple[str, str, float]:
    return outcome.data, outcome.monitor, outcome.rank


def _slim(outcome: Outcome) -> Outcome:
    kept = {key: value for key, value in outcome.result.items() if key not in UNUSED}
    return replace(outcome, result=cast(Result, kept))


def _is_settled(run: Run, place: int) -> bool:
    """Removes the checkpoints of a trial if so many trials are better that it may not keep them.
    Returns whether nothing is left to remove, whatever other trials come to."""
    if not run.checkpoints.exists():
        return True
    keep = run.config.checkpoint.keep
    if not isinstance(keep, int):
        return True
    if place < keep or not run.ended:
        return False
    run.remove_checkpoints(but_best=False)
    return True


def row_of(outcome: Outcome) -> dict[str, Any]:
    """A row of results.csv."""
    seconds = outcome.seconds
    return {
        "trial": int(outcome.run.folder.name),
        "status": outcome.ending,
        **outcome.overrides,
        **{name: outcome.metric(name) for name in all_metrics(outcome.monitor)},
        "epochs": outcome.epochs,
        "seconds": None if seconds is None else round(seconds, 3),
        "error": outcome.result.get("error"),
    }


def _trial_table(ranked: Sequence[Outcome], swept: Sequence[str]) -> str:
    rows_of_file = [row_of(outcome) for outcome in ranked]
    epochs = ["epochs"] * (len({row["epochs"] for row in rows_of_file} - {None}) > 1)
    metrics = table_metrics(ranked)
    numbers = (*metrics, *epochs, "seconds")
    shown = ["trial", "status", *swept, *numbers]
    rows = [
        [format_metric(key, row.get(key)) if key in numbers else row.get(key) for key in shown]
        for row in rows_of_file
    ]
    texts = [shown.index(key) for key in numbers]
    alignment = ["right" if key in numbers else "global" for key in shown]
    table = tabulate(rows, shown, floatfmt=".4g", disable_numparse=texts, colalign=alignment)
    places = best_places(
        ((trial.data, trial.monitor), trial.rank if trial.finished else math.inf)
        for trial in ranked
    )
    return with_best(table, *places)


def _settings_table(trials: Sequence[Outcome], swept: Sequence[str]) -> str:
    """Means over seeds and folds, and the command of the best setting, or "" where no trials differ
    only in these."""
    keys, groups = replicates(trials, swept)
    if not groups:
        return ""
    rows, metrics = [], groups[0].metrics
    *_, validation, test = metrics
    for group in groups[:MOST_ROWS]:
        *validated, tested = (format_spread(group.repeats(metric), metric) for metric in metrics)
        interval = format_interval(group.interval(validation), validation)
        rows.append([*map(short, group.values), group.count, *validated, interval, tested])
    header = [*keys, "trials", *metrics[:-1], INTERVAL, test]
    firsts = [group.trials[0] for group in groups]
    places = best_places(
        ((trial.data, trial.monitor), place) for place, trial in enumerate(firsts[:MOST_ROWS])
    )
    parts = ["", with_best(tabulate(rows, header, disable_numparse=True), *places)]
    if len(groups) > MOST_ROWS:
        parts.append(f"… and {len(groups) - MOST_ROWS:,} more")
    if any(trial.ending == "dropped" for trial in trials):
        parts.append("the means include trials that halving dropped after fewer epochs")
    for best, *_ in comparable(firsts).values():
        parts.append(f"best setting by its mean: {setting_command(best)}")
    return "\n".join(parts)
