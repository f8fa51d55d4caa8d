"""The outcome of a run, read once from its files, and how the outcomes of several runs compare.

Reports, tables and comparisons ask here for status, metrics and rank. Nothing here imports torch.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from src.config.schema import is_fraction, measure_of, sort_key
from src.runs.confidence import t_interval
from src.runs.folder import Result, Row, Run

METRICS = ("val/acc", "val/loss", "test/acc", "test/loss")
INTERVAL = "95% interval"  # of the mean of a setting's trials
REPLICATED = ("seed", "data.fold")  # keys whose values are not chosen, only repeated
UNKNOWN = "–"  # in place of a value that a run does not have
SHARED_TIME = "seconds of a trial in a stack: an equal share of the stack's time"
REASON_LIMIT = 200  # characters of an error that are shown


def main_metrics(monitor: str) -> tuple[str, str]:
    """The fractions of the validation and of the test that tables show first: accuracies, or the
    measures that are monitored."""
    name = measure_of(monitor) or "acc"
    return f"val/{name}", f"test/{name}"


def in_words(metric: str) -> str:
    """The quantity of a metric as people write it, without the data: `accuracy` for `test/acc`."""
    name = metric.rpartition("/")[2]
    return {"acc": "accuracy", "f1": "F1"}.get(name, name)


def all_metrics(monitor: str) -> list[str]:
    """All metrics that a run with this monitor has."""
    return list(dict.fromkeys([*METRICS, *main_metrics(monitor)]))


@dataclass(frozen=True)
class Outcome:
    """A run as its files describe it."""

    run: Run
    result: Result  # {} while there is no result.json
    overrides: Mapping[str, str]  # the keys that the command line set, as typed
    settings: Mapping[str, str]  # every key of the configuration that was read, as typed
    history: Sequence[Row]

    @property
    def status(self) -> str:
        """The status of result.json, or `unfinished` while there is none."""
        return self.result.get("status", "unfinished")

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @property
    def monitor(self) -> str:
        """The name of the metric that decides which epoch, and which trial, is the best."""
        known: str | None = self.result.get("monitor")
        return known or self.settings.get("checkpoint.monitor", "val/acc")

    @property
    def data(self) -> str:
        """The data set that was used, with the path of a user's own files."""
        asked = self.settings.get("data.name", "")
        name = self.result.get("data", {}).get("name", asked)
        return " ".join(filter(None, [name, self.settings.get("data.path")]))

    @property
    def reason(self) -> str:
        """Why the run did not finish, in one line: a signal, an error, or the diverged step."""
        if self.status == "diverged":
            step = self.result.get("diverged_step")
            return "" if step is None else f"at step {step}"
        key: Any = "signal" if self.status == "interrupted" else "error"
        text = str(self.result.get(key, ""))
        return next(iter(text.strip().splitlines()), "")[:REASON_LIMIT]

    def metric(self, name: str) -> float | None:
        """A test metric, or a metric of the best epoch; without a result, the best so far."""
        measured = self.result if name.startswith("test/") else self.result.get("best")
        if measured is not None:
            return cast(Mapping[str, float | None], measured).get(name)
        # A folder from a stranger may lack the column of its monitor.
        rows = [row for row in self.history[1:] if _is_finite(row.get(self.monitor))]
        if not rows:
            return None
        best = min(rows, key=lambda row: sort_key(self.monitor, row[self.monitor]))
        return best[name] if _is_finite(best.get(name)) else None

    @property
    def value(self) -> float | None:
        """The best monitored value; None for a run that failed or diverged."""
        return None if self.status in ("failed", "diverged") else self.metric(self.monitor)

    @property
    def rank(self) -> float:
        """Sorts the best run first, and runs without a value last."""
        return sort_key(self.monitor, self.value)

    @property
    def epochs(self) -> int | None:
        known = self.result.get("epochs")
        return max(0, len(self.history) - 1) if known is None and self.history else known

    @property
    def stacked(self) -> int:
        """The number of trials that trained together."""
        return self.result.get("stacked", 1)

    @property
    def seconds(self) -> float | None:
        """Seconds of set-up, training and test. A trial of a stack gets an equal share of them."""
        parts = self.result.get("seconds")
        return sum(parts.values()) / self.stacked if parts else None


def read_outcome(run: Run) -> Outcome:
    """The outcome without configuration and history: `settings` are the overrides."""
    overrides = run.overrides
    return Outcome(run, run.result, overrides, overrides, [])


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def table_metrics(outcomes: Sequence[Outcome]) -> list[str]:
    """The fractions that the table of these runs shows, accuracies last."""
    monitored = (name for outcome in outcomes for name in main_metrics(outcome.monitor))
    accuracies = main_metrics("val/acc")
    return [*dict.fromkeys(name for name in monitored if name not in accuracies), *accuracies]


AnyOutcome = TypeVar("AnyOutcome", bound=Outcome)


def by_data(outcomes: Sequence[AnyOutcome]) -> dict[str, list[AnyOutcome]]:
    """The runs on each data set: values on different data sets cannot be compared."""
    groups: dict[str, list[AnyOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.data, []).append(outcome)
    return groups


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys whose values differ, or that some settings lack, in the order of the settings."""
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if len({values.get(key) for values in settings}) > 1]


@dataclass(frozen=True)
class Replicates:
    """Trials that differ only in their seed and in their fold."""

    values: Sequence[str]  # of the other keys
    trials: Sequence[Outcome]

    def known(self, metric: str) -> list[float]:
        values = (trial.metric(metric) for trial in self.trials)
        return [value for value in values if value is not None]

    @property
    def folds(self) -> int:
        """The number of folds of a cross-validation, else 0."""
        settings = self.trials[0].settings
        if settings.get("data.fold", UNKNOWN) in (UNKNOWN, "null"):
            return 0
        used = len({trial.settings.get("data.fold") for trial in self.trials})
        asked = settings.get("data.folds", "")  # unknown if an experiment has set it
        return max(2, int(asked) if asked.isdecimal() else used)

    def interval(self, metric: str) -> tuple[float, float] | None:
        """Where the true mean lies; None for fewer than two values."""
        known = self.known(metric)
        return t_interval(known, self.folds) if len(known) > 1 else None


def replicates(
    trials: Sequence[Outcome], keys: Sequence[str]
) -> tuple[list[str], list[Replicates]]:
    """The keys without those of REPLICATED, and the groups of two or more trials that differ only
    in those, sorted by data set, then by mean rank. Trials without a value are left out."""
    others = [key for key in keys if key not in REPLICATED]
    by_values: dict[tuple[str, ...], list[Outcome]] = {}
    for trial in trials if len(others) < len(keys) else ():
        if trial.value is not None:
            values = tuple(trial.settings.get(key, UNKNOWN) for key in others)
            by_values.setdefault(values, []).append(trial)
    groups = [Replicates(values, group) for values, group in by_values.items() if len(group) > 1]
    return others, sorted(groups, key=_mean_rank)


def _mean_rank(group: Replicates) -> tuple[str, float]:
    return group.trials[0].data, statistics.mean(trial.rank for trial in group.trials)


def format_metric(name: str, value: float | None) -> str:
    """A fraction in percent, a count with thousands separators, other numbers in four digits."""
    if value is None:
        return UNKNOWN
    if is_fraction(name):
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def format_spread(values: Sequence[float]) -> str:
    """Mean ± sample standard deviation of fractions, in percent; of one fraction, without ±."""
    if not values:
        return UNKNOWN
    deviation = f" ± {statistics.stdev(values):.2%}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2%}{deviation}"


def format_interval(interval: tuple[float, float] | None) -> str:
    """An interval of fractions, in percent."""
    return UNKNOWN if interval is None else " to ".join(f"{end:.2%}" for end in interval)
