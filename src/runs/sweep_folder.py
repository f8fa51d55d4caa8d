"""The folder of a sweep: its trials and their table. Nothing here imports torch."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tabulate import tabulate

from src.runs.folder import Run, csv_text
from src.runs.outcome import (
    METRICS,
    SHARED_TIME,
    Outcome,
    by_data,
    differing,
    format_metric,
    format_spread,
    over_seeds,
    read_outcome,
)
from src.system.files import wait_for_lock, write_durably

ACCURACIES = ("val/acc", "test/acc")


class Sweep:
    """The folder of a multirun or a search, with its trials in folders 0, 1, 2, … `stacks` is the
    name of the folder for the states of stacks. Each process of a sweep has its own such folder."""

    def __init__(self, folder: Path, stacks: str = ".stacks") -> None:
        self.folder = folder
        self.stacks = folder / stacks
        self.results_file = folder / "results.csv"

    @property
    def trials(self) -> list[Run]:
        """The trials that have a result, finished or not, sorted by number."""
        numbers = [int(path.name) for path in self.folder.iterdir() if path.name.isdigit()]
        runs = [Run(self.folder / str(number)) for number in sorted(numbers)]
        return [run for run in runs if run.result_file.exists()]

    def outcomes(self) -> list[Outcome]:
        return [read_outcome(run) for run in self.trials]

    def write_results(self) -> None:
        """Writes results.csv anew, from all trials with a result. Other processes may write too."""
        with self.locked():
            rows = [_row(outcome) for outcome in self.outcomes()]
            header = list(dict.fromkeys(key for row in rows for key in row))
            write_durably(self.results_file, csv_text(header, rows))

    def locked(self) -> AbstractContextManager[None]:
        """Waits until no other process writes the files that all of them share."""
        return wait_for_lock(self.folder / ".lock")

    def table(self) -> str:
        """The trials, the best first; mean ± standard deviation over seeds; the errors of failed
        trials; and the command of the best trial on each data set."""
        trials = self.outcomes()
        finished = sorted((t for t in trials if t.finished), key=lambda t: (t.data, t.rank))
        ranked = [*finished, *(trial for trial in trials if not trial.finished)]
        swept = differing([trial.overrides for trial in ranked])
        parts = [_trial_table(ranked, swept)]
        if any(trial.stacked > 1 for trial in ranked):
            parts.append(SHARED_TIME)
        parts.append(_seed_table(finished, swept))
        parts += [
            f"trial {trial.run.folder.name} failed: {error}"
            for trial in ranked
            if (error := trial.result.get("error"))
        ]
        groups = by_data(finished)
        for data, (best, *_) in groups.items():
            on = f" on {data}" if len(groups) > 1 else ""
            parts.append(f"best trial{on}, to train it alone: {best.run.command}")
        return "\n".join([*filter(None, parts), f"table: {self.results_file}"])

    def failures(self) -> int:
        return sum(outcome.status == "failed" for outcome in self.outcomes())


def _row(outcome: Outcome) -> dict[str, Any]:
    """A row of results.csv."""
    seconds = outcome.seconds
    return {
        "trial": int(outcome.run.folder.name),
        "status": outcome.status,
        **outcome.overrides,
        **{name: outcome.metric(name) for name in METRICS},
        "epochs": outcome.epochs,
        "seconds": None if seconds is None else round(seconds, 3),
        "error": outcome.result.get("error"),
    }


def _trial_table(ranked: Sequence[Outcome], swept: Sequence[str]) -> str:
    shown = ["trial", "status", *swept, *ACCURACIES, "seconds"]
    rows = [
        [format_metric(key, row[key]) if key in ACCURACIES else row.get(key) for key in shown]
        for row in map(_row, ranked)
    ]
    texts = [shown.index(key) for key in ACCURACIES]
    alignment = ["right" if key in ACCURACIES else "global" for key in shown]
    return tabulate(rows, shown, floatfmt=".4g", disable_numparse=texts, colalign=alignment)


def _seed_table(finished: Sequence[Outcome], swept: Sequence[str]) -> str:
    """Mean ± standard deviation over seeds, or "" where no trials differ only in their seed."""
    keys, groups = over_seeds(finished, swept)
    rows = []
    for group in groups:
        spreads = (format_spread(group.known(metric)) for metric in ACCURACIES)
        rows.append([*group.values, len(group.trials), *spreads])
    header = [*keys, "seeds", *ACCURACIES]
    return "\n" + tabulate(rows, header, disable_numparse=True) if rows else ""
