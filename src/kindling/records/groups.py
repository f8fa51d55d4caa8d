"""How far a run or a stack is: progress.json, which lies beside its checkpoints while it trains.
And the groups of a sweep, which are the trials that train together, as a table: where each trains,
how far it is, and when all will have ended.

The process that trains writes the file; sweeps and live reports read it and show the same table.
Nothing here imports torch. The file may be hostile: its size and each of its values are limited.
"""

import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from kindling.config.measures import sort_key
from kindling.config.schema import MAX_EPOCHS, Monitor
from kindling.records.folder import Count, Number, Result, Run, Seconds, best_value, read_json
from kindling.records.outcome import UNKNOWN, format_metric
from kindling.system.errors import InputError, first_line
from kindling.system.files import replace_quickly, temporary_path
from kindling.system.units import MIB, duration

NAME = "progress.json"
SILENT_SECONDS = 180.0  # after so long without news, a process may have died
SILENT_EPOCHS = 3.0  # but longer epochs bring news less often

Name = Annotated[str, Field(max_length=100, pattern=r"^[A-Za-z0-9_.:-]*$")]
Epoch = Annotated[int, Field(ge=0, le=MAX_EPOCHS)]

# silent: nobody knows whether its process lives, and there was no news for long.
State = Literal["queued", "running", "silent", "ended", "failed", "cancelled"]
HEADER = ("group", "host", "device", "state", "epoch", "best", "left")
ORDER: Sequence[State] = ("running", "silent", "failed", "cancelled", "queued", "ended")
TRAINING: Sequence[State] = ("running", "silent")
DAMAGED = "?"  # in place of the values of a damaged progress.json
MOST_RANGES = 3  # of numbers of trials that are written out
OTHERS = 8  # groups that do not train are listed while the table has fewer rows


class GroupProgress(BaseModel):
    """How far a run, or the trials of a stack, are."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    host: Name
    process: Annotated[int, Field(gt=0, lt=2**63)]
    device: Name  # cpu, mps or cuda:N
    trials: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=100_000)]
    training: Annotated[int, Field(ge=0, le=100_000)]  # trials that have not stopped or diverged
    epoch: Epoch  # the last complete one
    epochs: Epoch
    batch: Count = 0  # of the epoch that has begun
    batches: Count = 0  # of an epoch; 0: unknown
    monitor: Monitor
    best: Number | None  # of all trials and epochs so far
    seconds: Seconds  # of training, with those before a resume
    epoch_seconds: Seconds | None  # of the latest epochs, or the begun one; None before a batch
    written: Seconds  # since 1970

    @property
    def age(self) -> float:
        """Seconds since the file was written; 0 if the clock of its machine is ahead."""
        return max(0.0, time.time() - self.written)

    @property
    def silent(self) -> bool:
        """Whether there should have been news since."""
        return self.age > max(SILENT_SECONDS, SILENT_EPOCHS * (self.epoch_seconds or 0.0))

    @property
    def batch_told(self) -> str:
        """How far the epoch is that has begun."""
        of = f" of {self.batches:,}" if self.batches else ""
        return f", batch {self.batch:,}{of}" if self.batch else ""

    @property
    def seconds_left(self) -> float | None:
        """An estimate until the last epoch; None before the first batch."""
        if self.epoch_seconds is None:
            return None
        begun = self.batch / self.batches if self.batches else 0
        return max(0.0, (self.epochs - self.epoch - begun) * self.epoch_seconds - self.age)


def trial_numbers(folders: Sequence[Path]) -> list[int]:
    """The numbers of trials; empty for a run that is not a trial."""
    names = [folder.name for folder in folders]
    numbered = all(re.fullmatch("[0-9]{1,9}", name) for name in names)
    return [int(name) for name in names] if numbered else []


def write_progress(folder: Path, progress: GroupProgress) -> None:
    """Raises OSError or InputError when the file cannot be replaced."""
    replace_quickly(folder / NAME, progress.model_dump_json())


def read_progress(folder: Path) -> GroupProgress | None:
    """The progress of the run or stack with its checkpoints in this folder; None without a file.
    Raises InputError for any other file than `write_progress` writes."""
    parse = GroupProgress.model_validate_json
    return read_json(folder / NAME, MIB, parse, "the progress of a run")


def remove_progress(folder: Path) -> None:
    """Also removes what a killed process has left of a file."""
    for path in (folder / NAME, temporary_path(folder / NAME)):
        with suppress(OSError):  # the result of the run matters more
            path.unlink(missing_ok=True)


# --- the table of a sweep -----------------------------------------------------------------------


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
        best_value(result),
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
            f"{progress.epoch}/{progress.epochs}{progress.batch_told}",
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
