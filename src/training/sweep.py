"""A sweep: its folder, its table, and its trials trained as stacks."""

import csv
import fcntl
import hashlib
import io
import json
import logging
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tabulate import tabulate

from src.config import Config
from src.errors import InputError
from src.files import MIB, read_bounded, write_durably
from src.run import Run
from src.training.fit import fit_stack
from src.training.fusion import Group, plan

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
            write_durably(self.results_file, text.getvalue())

    def groups(self, configs: Sequence[Config], max_trials: int | None) -> list[Group]:
        """What trains together, planned once: a sweep that goes on keeps its stacks, whatever the
        memory is that is free by then."""
        name = _digest(configs)
        kept = self.folder / ".stacks" / f"{name}.json"
        if kept.exists():
            try:
                found = json.loads(read_bounded(kept, MIB))
                groups = [
                    Group([int(t) for t in group["trials"]], group["alone"]) for group in found
                ]
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise InputError(f"{kept}: cannot be read ({error})") from None
            if sorted(t for group in groups for t in group.trials) == list(range(len(configs))):
                return groups
        groups = plan(configs, max_trials)
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_durably(kept, json.dumps([asdict(group) for group in groups]))
        return groups

    def forget_groups(self, configs: Sequence[Config]) -> None:
        """Removes the plan of trials that have all ended."""
        stacks = self.folder / ".stacks"
        (stacks / f"{_digest(configs)}.json").unlink(missing_ok=True)
        with suppress(OSError):
            stacks.rmdir()

    def state_folder(self, configs: Sequence[Config]) -> Path:
        """Where a stack keeps its common state until it ends; named by what it trains."""
        return self.folder / ".stacks" / _digest(configs)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def table(self) -> str:
        """The trials best first, what went wrong with the others, and the best one's command.

        Trials that differ in their seed alone are summed up below, as mean ± standard deviation.
        """
        ranked = sorted(self.trials, key=_rank)
        rows = [_row(run) for run in ranked]
        swept = [key for key in (rows[0] if rows else {}) if _is_swept(key, rows)]
        shown = ["trial", "status", *swept, "val/acc", "test/acc", "seconds"]
        parts = [tabulate([[row.get(key) for key in shown] for row in rows], shown, floatfmt=".4g")]
        parts += [_over_seeds(rows, [key for key in swept if key != "seed"])]
        parts += [f"trial {row['trial']} failed: {row['error']}" for row in rows if row["error"]]
        if ranked and ranked[0].result["status"] == "finished":
            chosen = " ".join(f"{key}={value}" for key, value in ranked[0].overrides.items())
            parts.append(f"best alone: python -m src.train {chosen}")
        return "\n".join([*filter(None, parts), f"table: {self.results_file}"])

    def failures(self) -> int:
        return sum(run.result["status"] == "failed" for run in self.trials)


def train_trials(
    configs: Sequence[Config], folders: Sequence[Path], sweep: Sweep, max_trials: int | None
) -> list[float]:
    """Trains every trial into its folder, in stacks where they fit; returns the monitored values.

    Trials that have ended already are left as they are, and a stack that was interrupted goes on
    from its last checkpoint. A stack that fails marks its trials `failed` and the others go on.
    """
    runs = [Run(folder) for folder in folders]
    groups = sweep.groups(configs, max_trials)
    stacked = [len(group.trials) for group in groups if len(group.trials) > 1]
    log.info("%d trials: %s", len(configs), _overview(stacked, len(groups) - len(stacked)))
    for reason in dict.fromkeys(group.alone for group in groups if group.alone):
        alone = [str(trial) for group in groups if group.alone == reason for trial in group.trials]
        log.info("trained alone, for %s: trial %s", reason, ", ".join(alone))
    for group in groups:
        chosen = [configs[trial] for trial in group.trials]
        try:
            fit_stack(
                chosen, [folders[trial] for trial in group.trials], sweep.state_folder(chosen)
            )
        except InputError as error:
            log.error("error: %s", error)
        except Exception:
            log.exception("trials %s failed", ", ".join(map(str, group.trials)))
        finally:
            sweep.write_results()
    if all(run.ended for run in runs):
        sweep.forget_groups(configs)
    return [run.monitored for run in runs]


def _digest(configs: Sequence[Config]) -> str:
    joined = "".join(config.hash() for config in configs)
    return hashlib.sha256(joined.encode()).hexdigest()[:12]


def _overview(stacked: Sequence[int], alone: int) -> str:
    parts = [f"{len(stacked)} stack{'s'[: len(stacked) > 1]} of {', '.join(map(str, stacked))}"]
    return " and ".join([*(parts if stacked else []), *([f"{alone} alone"] if alone else [])])


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
        "seconds": round(sum(seconds.values()) / result["stacked"], 3) if seconds else None,
        "error": result.get("error"),
    }


def _rank(run: Run) -> tuple[bool, float]:
    result = run.result
    if result["status"] != "finished":
        return True, 0.0
    value = run.monitored
    worse_first = -value if result["monitor"].endswith("acc") else value
    return math.isnan(value), worse_first


def _over_seeds(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> str:
    """A table of mean ± standard deviation over the seeds of each point, or nothing."""
    points: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["status"] == "finished":
            points.setdefault(tuple(str(row.get(key)) for key in keys), []).append(row)
    if not any(len(found) > 1 for found in points.values()):
        return ""
    lines = []
    for point, found in points.items():
        values = [[row[metric] for row in found] for metric in ("val/acc", "test/acc")]
        lines.append([*point, len(found), *(_spread(numbers) for numbers in values)])
    lines.sort(key=lambda line: str(line[-2]), reverse=True)
    return "\n" + tabulate(lines, [*keys, "seeds", "val/acc", "test/acc"], disable_numparse=True)


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2%}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2%}{deviation}"


def _is_swept(key: str, rows: list[dict[str, Any]]) -> bool:
    """Whether a column is a key of the command line that differs between trials."""
    known = {"trial", "status", *METRICS, "epochs", "seconds", "error"}
    return key not in known and len({str(row.get(key)) for row in rows}) > 1
