"""The groups of a sweep as a table: where each trains, how far it is, and when all will have ended.

A group is the trials that train together. Terminals and live reports show the same table. Nothing
here imports torch.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from src.config.schema import sort_key
from src.runs.folder import Result, Run
from src.runs.group_progress import GroupProgress
from src.runs.outcome import UNKNOWN, format_metric
from src.system.errors import InputError, first_line
from src.system.units import duration

# silent: nobody knows whether its process lives, and there was no news for long.
State = Literal["queued", "running", "silent", "ended", "failed", "cancelled"]
HEADER = ("group", "host", "device", "state", "epoch", "best", "left")
ORDER: Sequence[State] = ("running", "silent", "failed", "cancelled", "queued", "ended")
TRAINING: Sequence[State] = ("running", "silent")
DAMAGED = "?"  # in place of the values of a damaged progress.json
MOST_RANGES = 3  # of numbers of trials that are written out
OTHERS = 8  # groups that do not train are listed while the table has fewer rows


@dataclass(frozen=True)
class Results:
    """How trials ended. `failed` and `diverged` are part of `ended`."""

    ended: int = 0
    failed: int = 0
    diverged: int = 0
    seconds: float = 0.0  # a trial of a stack has an equal share of the stack's
    monitor: str = "val/acc"
    best: float | None = None

    def __add__(self, other: "Results") -> "Results":
        """The best value is that of the monitor of the first trials that have a value."""
        first, second = (self, other) if self.best is not None else (other, self)
        values = [first.best, second.best if second.monitor == first.monitor else None]
        return Results(
            self.ended + other.ended,
            self.failed + other.failed,
            self.diverged + other.diverged,
            self.seconds + other.seconds,
            first.monitor,
            min(values, key=lambda value: sort_key(first.monitor, value)),
        )


def one_result(result: Result) -> Results:
    """The results of one trial, which may not have ended."""
    status, monitor = result.get("status"), result.get("monitor", "val/acc")
    if status in (None, "interrupted"):
        return Results()
    return Results(
        1,
        status == "failed",
        status == "diverged",
        sum(result.get("seconds", {}).values()) / result.get("stacked", 1),
        monitor,
        result.get("best", {}).get(monitor),
    )


def results_of(runs: Iterable[Run]) -> tuple[Results, dict[str, list[Run]]]:
    """The results of the runs that have ended, and the runs that failed, by the line of their
    error. A damaged result counts as failed."""
    total, errors = Results(), dict[str, list[Run]]()
    for run in runs:
        try:
            result = run.result
        except InputError as error:
            result = {"status": "failed", "error": first_line(error)}
        if result.get("status") == "failed":
            text = next(iter(result.get("error", "").splitlines()), "")
            errors.setdefault(text, []).append(run)
        total += one_result(result)
    return total, errors


@dataclass(frozen=True)
class GroupStatus:
    """A group at this moment. `progress`: None while nothing is known; `damaged`: whether its file
    cannot be read. `results`: those of a group that has ended."""

    trials: Sequence[int]
    state: State
    progress: GroupProgress | None = None
    damaged: bool = False
    results: Results = Results()

    @property
    def cells(self) -> list[str]:
        """The texts of the table's row."""
        name, state, progress = shortened(self.trials), self.state, self.progress
        if self.damaged:
            return [name, DAMAGED, DAMAGED, state, DAMAGED, DAMAGED, DAMAGED]
        best = format_metric(self.results.monitor, self.results.best)
        if progress is None:
            return [name, UNKNOWN, UNKNOWN, state, UNKNOWN, best, UNKNOWN]
        left = progress.seconds_left if state == "running" else None
        return [
            name,
            progress.host,
            progress.device,
            state,
            f"{progress.epoch}/{progress.epochs}",
            format_metric(progress.monitor, progress.best),
            UNKNOWN if left is None else duration(left),
        ]


def shortened(trials: Sequence[int]) -> str:
    """Such as `trial 3`, `16 trials: 0–15` or `9 trials: 0, 2, … 16`; `the run` without numbers."""
    if len(trials) < 2:
        return f"trial {trials[0]}" if trials else "the run"
    return f"{len(trials):,} trials: {ranges(trials)}"


def ranges(trials: Sequence[int]) -> str:
    """The numbers as ranges; of many ranges, the first and the last."""
    found: list[list[int]] = []
    for trial in sorted(trials):
        if found and trial == found[-1][1] + 1:
            found[-1][1] = trial
        else:
            found.append([trial, trial])
    texts = [f"{first}" if first == last else f"{first}–{last}" for first, last in found]
    if len(texts) > MOST_RANGES:
        texts = [*texts[: MOST_RANGES - 1], f"… {texts[-1]}"]
    return ", ".join(texts)


def rows(groups: Sequence[GroupStatus], most: int) -> tuple[list[list[str]], str]:
    """At most so many rows, of groups that train first, and a line that counts the groups without
    a row, or ""."""
    ordered = sorted(groups, key=lambda group: ORDER.index(group.state))
    training = sum(group.state in TRAINING for group in ordered)
    count = min(max(training, OTHERS), most)
    omitted = Counter(group.state for group in ordered[count:])
    told = ", ".join(f"{omitted[state]:,} {state}" for state in ORDER if state in omitted)
    return [group.cells for group in ordered[:count]], f"and {told}" if told else ""


def seconds_left(groups: Sequence[GroupStatus], results: Results, trials: int) -> float | None:
    """An estimate until all `trials` have ended, if as many groups train at the same time as now.
    `results` are those of all trials that have ended. None while no epoch has ended.

    Trials that wait take as long as the others on average.
    """
    running = [group for group in groups if group.state == "running"]
    seconds, counted, lefts = results.seconds, results.ended, list[float]()
    for group in running:
        progress = group.progress
        if progress is not None and progress.seconds_left is not None:
            lefts.append(progress.seconds_left)
            seconds += progress.seconds + lefts[-1]
            counted += len(group.trials)
    if not running or not counted:
        return None
    waiting = max(0, trials - counted)
    return max([(math.fsum(lefts) + waiting * seconds / counted) / len(running), *lefts])


def overview(
    groups: Sequence[GroupStatus], results: Results, trials: int, *, count_groups: bool
) -> str:
    """The totals of a sweep of so many trials in a line. `results` are those of all trials that
    have ended. `count_groups`: whether `groups` are all groups of the sweep."""
    left = seconds_left(groups, results, trials)
    for group in groups:
        if group.progress is not None:
            results += Results(monitor=group.progress.monitor, best=group.progress.best)
    parts = []
    if count_groups:
        settled = sum(group.state in ("ended", "failed", "cancelled") for group in groups)
        parts.append(f"{settled:,} of {len(groups):,} groups ended")
    parts.append(f"{results.ended:,} of {trials:,} trials ended")
    parts += [f"{results.failed:,} failed"] if results.failed else []
    parts += [f"{results.diverged:,} diverged"] if results.diverged else []
    if results.best is not None:
        parts.append(f"best {results.monitor} {format_metric(results.monitor, results.best)}")
    parts += [f"about {duration(left)} left"] if left is not None else []
    return ", ".join(parts)
