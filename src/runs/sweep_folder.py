"""A sweep's folder: its trials and its table. Nothing here imports torch."""

import csv
import io
import logging
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tabulate import tabulate

from src.config.schema import standing
from src.runs.folder import Run
from src.system.files import alone, write_durably

log = logging.getLogger(__name__)

ACCURACIES = ("val/acc", "test/acc")
SHARE = "seconds of a trial of a stack: an equal share of the stack's time"
METRICS = ("val/acc", "val/loss", "test/acc", "test/loss")


class Sweep:
    """The folder of a multirun or a search, its trials in folders 0, 1, 2, …

    `stacks` is the folder within it that keeps the states of stacks: processes that train in the
    same sweep have one each.
    """

    def __init__(self, folder: Path, stacks: str = ".stacks") -> None:
        self.folder = folder
        self.stacks = folder / stacks
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
        with self.locked():
            rows = self.rows()
            header = list(dict.fromkeys(key for row in rows for key in row))
            text = io.StringIO()
            writer = csv.DictWriter(text, header, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            write_durably(self.results_file, text.getvalue())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Waits until no other process writes what all of them share."""
        with alone(self.folder / ".lock"):
            yield

    def table(self) -> str:
        """The trials best first, what went wrong with the others, and the best one's command.

        Trials that differ in their seed alone are summed up below, as mean ± standard deviation.
        Values on different data sets do not compare: each has a best trial of its own.
        """
        ranked = sorted(self.trials, key=lambda run: (*_finished_on(run), _rank(run)))
        rows = [_row(run) for run in ranked]
        swept = [key for key in (rows[0] if rows else {}) if _is_swept(key, rows)]
        shown = ["trial", "status", *swept, "val/acc", "test/acc", "seconds"]
        cells = [
            [shown_as(key, row[key]) if key in ACCURACIES else row.get(key) for key in shown]
            for row in rows
        ]
        texts = [shown.index(key) for key in ACCURACIES]
        alignment = ["right" if key in ACCURACIES else "global" for key in shown]
        parts = [tabulate(cells, shown, floatfmt=".4g", disable_numparse=texts, colalign=alignment)]
        if any(run.result.get("stacked", 1) != 1 for run in ranked):
            parts.append(SHARE)
        parts += [_over_seeds(rows, [key for key in swept if key != "seed"])]
        parts += [f"trial {row['trial']} failed: {row['error']}" for row in rows if row["error"]]
        best: dict[str, Run] = {}
        for run in ranked:
            unfinished, data = _finished_on(run)
            if not unfinished:
                best.setdefault(data, run)
        for data, run in best.items():
            parts.append(f"best alone{f' on {data}' if len(best) > 1 else ''}: {run.command}")
        return "\n".join([*filter(None, parts), f"table: {self.results_file}"])

    def failures(self) -> int:
        return sum(run.result["status"] == "failed" for run in self.trials)


def _row(run: Run) -> dict[str, Any]:
    result = run.result
    best: Mapping[str, Any] = result.get("best", {})
    values = {key: result.get(key, best.get(key)) for key in METRICS}
    seconds = result.get("seconds")
    return {
        "trial": int(run.folder.name),
        "status": result["status"],
        **run.overrides,
        **values,
        "epochs": result.get("epochs"),
        "seconds": round(sum(seconds.values()) / result.get("stacked", 1), 3) if seconds else None,
        "error": result.get("error"),
    }


def _finished_on(run: Run) -> tuple[bool, str]:
    """Whether it did not finish, and the data set really used; of the user's own, with its path."""
    result = run.result
    if result["status"] != "finished":
        return True, ""
    path = run.overrides.get("data.path", "")
    return False, f"{result.get('data', {}).get('name', '')} {path}".strip()


def _rank(run: Run) -> float:
    result = run.result
    finished = result["status"] == "finished"
    return standing(result.get("monitor", "val/acc"), run.monitored) if finished else math.inf


def _over_seeds(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> str:
    """A table of mean ± standard deviation over the seeds of each point, or nothing. Trials without
    an accuracy are left out."""
    points: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        known = None not in (row["val/acc"], row["test/acc"])
        if row["status"] == "finished" and known:
            points.setdefault(tuple(str(row.get(key)) for key in keys), []).append(row)
    if not any(len(found) > 1 for found in points.values()):
        return ""
    lines = []

    def rank(item: tuple[tuple[str, ...], list[dict[str, Any]]]) -> tuple[str, float]:
        first = item[1][0]
        return f"{first.get('data')} {first.get('data.path')}", -_mean(item[1], "val/acc")

    for point, found in sorted(points.items(), key=rank):
        values = [[row[metric] for row in found] for metric in ("val/acc", "test/acc")]
        lines.append([*point, len(found), *(spread(numbers) for numbers in values)])
    return "\n" + tabulate(lines, [*keys, "seeds", "val/acc", "test/acc"], disable_numparse=True)


def _mean(rows: Sequence[dict[str, Any]], metric: str) -> float:
    return statistics.fmean(row[metric] for row in rows)


def shown_as(name: str, value: float | None) -> str:
    """A metric as people read it: an accuracy in percent, a count with its thousands."""
    if value is None:
        return "–"
    if name.endswith("acc"):
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def spread(values: Sequence[float]) -> str:
    """Fractions as mean ± standard deviation, in percent; of one, itself."""
    deviation = f" ± {statistics.stdev(values):.2%}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2%}{deviation}"


def _is_swept(key: str, rows: list[dict[str, Any]]) -> bool:
    """Whether a column is a key of the command line that differs between trials."""
    known = {"trial", "status", *METRICS, "epochs", "seconds", "error"}
    return key not in known and len({str(row.get(key)) for row in rows}) > 1
