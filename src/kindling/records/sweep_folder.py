"""The folder of a sweep: its trials and their table. Nothing here imports torch."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from kindling.records.folder import SEARCH, Proportion, Run, csv_text, read_json, trials_of
from kindling.records.outcome import (
    SHARED_TIME,
    Outcome,
    comparable,
    differing,
    format_metric,
    main_metrics,
    read_outcome,
    row_of,
    settings_table,
    trial_table,
)
from kindling.system.errors import parsing
from kindling.system.files import read_yaml, wait_for_lock, write_durably

MOST_ROWS, MOST_ERRORS = 100, 20  # of the printed table
UPDATE_SHARE = 0.02  # of the time, to bring the files of a sweep up to date while it trains
IMPORTANCE = "importance.json"  # of each key, in the folder of a search that has ended
EXPLAINED = "explained alone"  # in this file
IMPORTANCE_LIMIT = 65_536  # bytes
DRAWN, LOG = re.compile(r"\b(interval|range)\("), re.compile(r"\s*tag\(\s*log\s*,")  # of a space


@dataclass
class _Known:
    """The outcomes of a sweep's trials that this process has read, by number. A process with a
    thousand groups would otherwise read a million results."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)
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
        return trials_of(self.folder)

    def outcomes(self) -> list[Outcome]:
        """The outcomes of the trials that have a result, sorted by number. Each is read once in a
        process, until its result is replaced."""
        read = self._known.outcomes
        found: dict[int, Outcome] = {}
        for run in self.runs:
            number, result = int(run.folder.name), run.result
            if not result:
                continue
            if number not in read or read[number].result is not result:
                self._known.settled.discard(number)
                read[number] = read_outcome(run)
            found[number] = read[number]
        self._known.outcomes = found
        return [*found.values()]

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
        self._known.due = now + (now - began) / UPDATE_SHARE

    def locked(self) -> AbstractContextManager[None]:
        """Waits until no other process writes the files that all of them share."""
        return wait_for_lock(self.folder / ".lock")

    def table(self) -> str:
        """The best trials; means over seeds and folds; the errors of failed trials; and the command
        of the best of comparable trials. Of a large sweep, the first rows of each."""
        ranked = self.ranked()
        finished = [trial for trial in ranked if trial.finished]
        swept = differing([trial.overrides for trial in ranked])
        parts = [trial_table(ranked[:MOST_ROWS], swept)]
        if len(ranked) > MOST_ROWS:
            parts.append(f"… and {len(ranked) - MOST_ROWS:,} more trials in {self.results_file}")
        if any(trial.stacked > 1 for trial in ranked):
            parts.append(SHARED_TIME)
        ended = [trial for trial in ranked if trial.status != "interrupted"]
        parts.append(settings := settings_table(ended, swept, MOST_ROWS))
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
            if not settings:  # the best of several seeds is the luckiest one
                tested = main_metrics(best.monitor, best.score)[1]
                parts.append(f"its {tested}: {format_metric(tested, best.metric(tested))}")
        return "\n".join([*filter(None, parts), f"table: {self.results_file}"])

    def ranked(self) -> list[Outcome]:
        """The outcomes, the best of each data set first, and those of unfinished trials last."""
        trials = self.outcomes()
        finished = (trial for trial in trials if trial.finished)
        ranked = sorted(finished, key=lambda trial: (trial.group, trial.rank))
        return [*ranked, *(trial for trial in trials if not trial.finished)]

    def failures(self) -> int:
        return sum(outcome.status == "failed" for outcome in self.outcomes())


class KeyImportance(NamedTuple):
    """The share of the differences between the trials of a search that a key explains alone, and
    the ends of its interval."""

    share: Proportion
    low: Proportion
    high: Proportion

    def __str__(self) -> str:
        return f"{self.share:.0%} ({self.low:.0%} to {self.high:.0%})"


def write_importance(folder: Path, importances: Mapping[str, KeyImportance]) -> None:
    write_durably(folder / IMPORTANCE, f"{json.dumps({EXPLAINED: importances})}\n")


def read_importance(folder: Path) -> dict[str, KeyImportance]:
    """Of each key of a search, the most important first; empty before the search has ended, and for
    older searches, whose file has shares of another meaning (PED-ANOVA). Raises InputError for a
    damaged file."""
    older = KeyImportance | Proportion
    parse = TypeAdapter(dict[str, older | dict[str, KeyImportance]]).validate_json
    what = "the importance of keys"
    found = read_json(folder / IMPORTANCE, IMPORTANCE_LIMIT, parse, what, "; remove it") or {}
    explained = found.get(EXPLAINED)
    return explained if isinstance(explained, dict) else {}


def read_search(folder: Path) -> list[str]:
    """What was typed after the name of the command of a search, [] without a search. Raises
    InputError for a damaged file."""
    file = folder / SEARCH
    if not file.exists():
        return []
    with parsing(f"{file}: is not the record of a search"):
        return TypeAdapter(list[str]).validate_python(read_yaml(file))


def scales(typed: Sequence[str]) -> dict[str, bool]:
    """The keys whose numbers a search draws, and whether on a logarithmic scale."""
    spaces = (text.partition("=")[::2] for text in typed)
    return {key: bool(LOG.match(space)) for key, space in spaces if DRAWN.search(space)}


def _is_settled(run: Run, place: int) -> bool:
    """Removes the checkpoints of a trial if so many trials are better that it may not keep them.
    Returns whether nothing is left to remove, whatever other trials come to."""
    if not run.checkpoints.exists() or not isinstance(keep := run.config.checkpoint.keep, int):
        return True
    if place < keep or not run.ended:
        return False
    run.remove_checkpoints(but_best=False)
    return True
