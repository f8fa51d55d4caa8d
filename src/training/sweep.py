"""A sweep's folder: one row per trial, best first."""

import csv
import fcntl
import io
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tabulate import tabulate

from src.run import Run, write_atomically

log = logging.getLogger(__name__)

METRICS = ("val/acc", "val/loss", "test/acc", "test/loss")


class Sweep:
    """The folder of a multirun, its trials in folders 0, 1, 2, …"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results_file = folder / "results.csv"

    @property
    def trials(self) -> list[Run]:
        """Those that have a result, finished or failed, in order of their number."""
        numbers = [int(path.name) for path in self.folder.iterdir() if path.name.isdigit()]
        runs = [Run(self.folder / str(number)) for number in sorted(numbers)]
        return [run for run in runs if run.result_file.exists()]

    def rows(self) -> list[dict[str, Any]]:
        return [_row(run) for run in self.trials]

    def write_results(self) -> None:
        """Writes results.csv anew from the trials that have ended; safe beside other writers."""
        with self._locked():
            rows = self.rows()
            header = list(dict.fromkeys(key for row in rows for key in row))
            text = io.StringIO()
            writer = csv.DictWriter(text, header, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            write_atomically(self.results_file, text.getvalue())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def table(self) -> str:
        """The trials best first, what went wrong with the others, and the best one's command."""
        runs = self.trials
        ranked = sorted(runs, key=_rank)
        rows = [_row(run) for run in ranked]
        swept = [key for key in (rows[0] if rows else {}) if _is_swept(key, rows)]
        shown = ["trial", "status", *swept, "val/acc", "test/acc", "seconds"]
        table = tabulate([[row.get(key) for key in shown] for row in rows], shown, floatfmt=".4g")
        lines = [table]
        lines += [f"trial {row['trial']} failed: {row['error']}" for row in rows if row["error"]]
        if ranked and ranked[0].result["status"] == "finished":
            chosen = " ".join(f"{key}={value}" for key, value in ranked[0].overrides.items())
            lines.append(f"best alone: python -m src.train {chosen}")
        return "\n".join([*lines, f"table: {self.results_file}"])

    def failures(self) -> int:
        return sum(run.result["status"] != "finished" for run in self.trials)


def _row(run: Run) -> dict[str, Any]:
    result = run.result
    best = result.get("best", {})
    values = {key: result.get(key, best.get(key)) for key in METRICS}
    seconds = result.get("seconds", {})
    return {
        "trial": int(run.folder.name),
        "status": result["status"],
        **run.overrides,
        **values,
        "epochs": result.get("epochs"),
        "seconds": round(sum(seconds.values()), 3) if seconds else None,
        "error": result.get("error"),
    }


def _rank(run: Run) -> tuple[bool, float]:
    result = run.result
    if result["status"] != "finished":
        return True, 0.0
    value = run.monitored
    worse_first = -value if result["monitor"].endswith("acc") else value
    return math.isnan(value), worse_first


def _is_swept(key: str, rows: list[dict[str, Any]]) -> bool:
    """Whether a column is a key of the command line that differs between trials."""
    known = {"trial", "status", *METRICS, "epochs", "seconds", "error"}
    return key not in known and len({str(row.get(key)) for row in rows}) > 1
