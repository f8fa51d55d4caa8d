"""The outcome of a run, read once from its files, and how the outcomes of several runs compare.

Reports, tables and comparisons ask here for status, metrics and rank. Nothing here imports torch.
"""

import math
import re
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from tabulate import tabulate

from kindling.config.measures import (
    CLASSIFICATION,
    LOSSES,
    bounds,
    in_words,
    is_fraction,
    is_logged,
    measure_of,
    score_of,
    sort_key,
)
from kindling.config.written import flat, unquoted
from kindling.records.confidence import fold_means, t_interval
from kindling.records.folder import Result, Row, Run
from kindling.system.colour import with_best
from kindling.system.units import seconds

INTERVAL = "95% interval"  # of the mean of a setting's trials
REPLICATED = ("seed", "data.fold")  # keys whose values are not chosen, only repeated
LARGEST = 1e100  # of a metric
UNKNOWN = "–"  # in place of a value that a run does not have
SHARED_TIME = "seconds of a trial in a stack: an equal share of the stack's time"
LABEL_LIMIT = 60  # characters
REASON_LIMIT = 200  # characters of an error that are shown
TYPED_LIMIT = 8  # characters; people rarely type longer numbers


def main_metrics(monitor: str, score: str = "acc") -> tuple[str, str]:
    """The metrics of the validation and of the test that tables show first: the score of the task,
    or the measures that are monitored. Beside `val_mse`, a LightningModule logs `test_mse`."""
    if is_logged(monitor):
        split = re.match(r"val(id|idation)?(?=[/_-])", monitor)
        return monitor, f"test{monitor[split.end() :]}" if split else f"test/{monitor}"
    name = measure_of(monitor) or score
    return f"val/{name}", f"test/{name}"


def all_metrics(monitor: str, score: str = "acc") -> list[str]:
    """All metrics that a run with this monitor and this score has."""
    own = (f"val/{score}", "val/loss", f"test/{score}", "test/loss")
    main = main_metrics(monitor, score)
    return list(dict.fromkeys(main if is_logged(monitor) else [*own, monitor, *main]))


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
    def ending(self) -> str:
        """The status in tables: `dropped` for a finished trial that halving has ended early."""
        dropped = self.finished and self.result.get("stopped") == "halving"
        return "dropped" if dropped else self.status

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @property
    def monitor(self) -> str:
        """The name of the metric that decides which epoch, and which trial, is the best."""
        known: str | None = self.result.get("monitor")
        return known or self.settings.get("checkpoint.monitor", f"val/{self.score}")

    @property
    def score(self) -> str:
        """The measure that the run has beside its loss."""
        return score_of(self.task)

    @property
    def task(self) -> str:
        known = (self.result.get("task"), self.settings.get("task.name"), self.settings.get("task"))
        return next(filter(None, known), CLASSIFICATION)

    @property
    def data(self) -> str:
        """The data set that was used, with the path of a user's own files."""
        asked = self.settings.get("data.name", "")
        name = self.result.get("data", {}).get("name", asked)
        return " ".join(filter(None, [name, unquoted(self.settings.get("data.path", ""))]))

    @property
    def group(self) -> tuple[str, str]:
        """Data set and monitor: values of runs with others cannot be compared. A monitored loss is
        named, unless the loss is the usual one of the task."""
        usual = LOSSES.get(self.task, ("",))[0]
        loss = self.settings.get("task.loss", usual)
        if loss == usual or not self.monitor.endswith("/loss"):
            return self.data, self.monitor
        delta = f" {self.settings.get('task.delta', '1.0')}" if loss == "huber" else ""
        return self.data, f"{self.monitor} of {loss}{delta}"

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
        measured = self.result if name.startswith("test") else self.result.get("best")
        if measured is not None:
            return known_value(cast(Mapping[str, float | None], measured).get(name))
        # A folder from a stranger may lack the column of its monitor.
        rows = [row for row in self.history[1:] if known_value(row.get(self.monitor)) is not None]
        best = min(rows, key=lambda row: sort_key(self.monitor, row[self.monitor]), default=Row())
        return known_value(best.get(name))

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


def read_settings(run: Run) -> dict[str, str]:
    """Every key of the configuration, as people type the value."""
    return dict(flat(run.config.to_primitives()))


def known_value(value: float | None) -> float | None:
    """The value; None for NaN, and above LARGEST, where sums, means and axes overflow."""
    return value if value is not None and abs(value) < LARGEST else None


def table_metrics(outcomes: Sequence[Outcome]) -> list[str]:
    """The metrics that the table of these runs shows: the monitored ones, by which runs are ranked,
    first, and accuracies last."""
    pairs = dict.fromkeys((outcome.monitor, outcome.score) for outcome in outcomes)
    monitored = (name for pair in pairs for name in (pair[0], *main_metrics(*pair)))
    scored = dict.fromkeys(score for monitor, score in pairs if not is_logged(monitor))
    own = (main_metrics(f"val/{score}", score) for score in scored)
    scores = [name for names in own for name in names]
    return [*dict.fromkeys(name for name in monitored if name not in scores), *scores]


def for_choice(metrics: Iterable[str]) -> list[str]:
    """The metrics by which somebody may choose among trials. The test set is for the one that was
    chosen: the best of many test figures promises too much."""
    return [name for name in metrics if not name.startswith("test")]


AnyOutcome = TypeVar("AnyOutcome", bound=Outcome)


def comparable(outcomes: Sequence[AnyOutcome]) -> dict[str, list[AnyOutcome]]:
    """The runs whose values can be compared. The name of a group is the data set, with the monitor
    where the data set has several."""
    groups: dict[tuple[str, str], list[AnyOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.group, []).append(outcome)
    monitors = Counter(data for data, _ in groups)
    return {
        data if monitors[data] == 1 else f"{data} by {monitor}": group
        for (data, monitor), group in groups.items()
    }


def best_places(ranks: Iterable[tuple[Hashable, float]]) -> list[int]:
    """The places of the lowest ranks, one for each group; of equal ranks the first one's. `ranks`
    are groups and ranks; an infinite rank is never the best."""
    best: dict[Hashable, tuple[float, int]] = {}
    for place, (group, rank) in enumerate(ranks):
        if rank < best.get(group, (math.inf, 0))[0]:
            best[group] = rank, place
    return [place for _, place in best.values()]


def text_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    ranks: Iterable[tuple[Hashable, float]] = (),
    right: Sequence[str] = (),
) -> str:
    """A table to be printed, with the rows of `best_places` bold. `right`: the names of columns
    that are aligned at the right. "" without rows."""
    if not rows:
        return ""
    alignment = ["right" if name in right else "left" for name in header]
    text = tabulate(rows, header, disable_numparse=True, colalign=alignment)
    return with_best(text, *best_places(ranks))


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys whose values differ, or that some settings lack, in the order of the settings."""
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if len({values.get(key) for values in settings}) > 1]


@dataclass(frozen=True)
class Replicates:
    """Trials that differ only in their seed and in their fold."""

    values: Sequence[str]  # of the other keys
    trials: Sequence[Outcome]  # those that have a value
    lost: int = 0  # the number of those that failed or diverged

    @property
    def count(self) -> str:
        """The number of trials with a value, and of all if some have none."""
        known = len(self.trials)
        return f"{known:,} of {known + self.lost:,}" if self.lost else f"{known:,}"

    @property
    def metrics(self) -> list[str]:
        """The metrics whose means a table shows: the monitored metric, by which settings are
        ranked, and at the end the fractions of the validation and of the test."""
        monitor = self.trials[0].monitor
        main = main_metrics(monitor, self.trials[0].score)
        return [*({monitor} - {*main}), *main]

    def known(self, metric: str) -> list[float]:
        """The value of each trial that has the metric."""
        return [
            value for value in (trial.metric(metric) for trial in self.trials) if value is not None
        ]

    def repeats(self, metric: str) -> list[float]:
        """The values that mean, deviation and interval are of: those of the trials; with folds, one
        of each fold, the mean over its seeds."""
        if not self.folds:
            return self.known(metric)
        trials = [trial for trial in self.trials if trial.metric(metric) is not None]
        return fold_means(self.known(metric), [trial.settings.get("data.fold") for trial in trials])

    @property
    def folds(self) -> int:
        """The number of folds of a cross-validation, else 0, also for repeats of a single fold."""
        used = len({trial.settings.get("data.fold") for trial in self.trials})
        asked = self.trials[0].settings.get("data.folds", "")  # unknown if an experiment has set it
        if used < 2:
            return 0
        return max(used, int(asked)) if asked.isdecimal() and len(asked) < 10 else used

    def interval(self, metric: str) -> tuple[float, float] | None:
        """Where the true mean lies; None for fewer than two values. Ends at possible values."""
        values, (low, high) = self.repeats(metric), bounds(metric)
        return t_interval(values, self.folds, low=low, high=high) if len(values) > 1 else None


def distinct(trials: Iterable[AnyOutcome], keys: Sequence[str]) -> list[AnyOutcome]:
    """One trial of each setting and seed, if possible one with a value: a search may draw the same
    again, and equal trials end alike."""
    found = dict[tuple[str | None, ...], AnyOutcome]()
    for trial in trials:
        place = tuple(trial.settings.get(key) for key in keys)
        if place not in found or found[place].value is None:
            found[place] = trial
    return list(found.values())


def replicates(
    trials: Sequence[Outcome], keys: Sequence[str]
) -> tuple[list[str], list[Replicates]]:
    """The keys without those of REPLICATED, and the groups of trials that differ only in those, two
    or more of them with a value. Sorted by data set, monitor and mean rank; after them come groups
    with trials that failed or diverged, because the mean of the others is too good."""
    others = [key for key in keys if key not in REPLICATED]
    by_values: dict[tuple[str, ...], list[Outcome]] = {}
    for trial in distinct(trials, keys) if len(others) < len(keys) else ():
        values = tuple(trial.settings.get(key, UNKNOWN) for key in others)
        by_values.setdefault(values, []).append(trial)
    groups = [
        Replicates(
            values,
            [trial for trial in group if trial.value is not None],
            sum(trial.status in ("failed", "diverged") for trial in group),
        )
        for values, group in by_values.items()
    ]
    return others, sorted((group for group in groups if len(group.trials) > 1), key=_mean_rank)


def _mean_rank(group: Replicates) -> tuple[tuple[str, str], bool, float]:
    first = group.trials[0]
    mean = statistics.mean(group.repeats(first.monitor))
    return first.group, group.lost > 0, sort_key(first.monitor, mean)


def cross_validated(folds: int) -> str:
    """What the validation figures of a committee of so many folds are."""
    return (
        f"The committee's val figures are those of a cross-validation: each of the {folds} folds "
        "was judged by the members that were not trained on its samples"
    )


def setting_command(trial: Outcome) -> str:
    """The command that trains the setting of a trial once, without its seed and its folds."""
    return trial.run.command_without((*REPLICATED, "data.folds"))


def in_full(settings: Mapping[str, str]) -> str:
    """All settings in one line, with short numbers."""
    return ", ".join(f"{key}={short(value)}" for key, value in settings.items()) or "defaults"


def short(text: str) -> str:
    """Shortens a long number to four significant digits; other texts stay unchanged."""
    try:
        return text if len(text) <= TYPED_LIMIT else f"{float(text):.4g}"
    except ValueError:
        return text


def format_metric(name: str, value: float | None) -> str:
    """A fraction in percent, a count with thousands separators, `seconds` as measured times; losses
    and all other numbers with four decimals, very small and large ones in four digits."""
    if value is None:
        return UNKNOWN
    if is_fraction(name):
        return f"{value:.2%}"
    if name == "seconds":
        return seconds(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 1000 else f"{value:.4g}"


def largest_class(share: float | None) -> str:
    """What every accuracy must be held against: the accuracy of always answering the most frequent
    class. "" if unknown, as in the results of older versions."""
    return "" if share is None else f"largest class {format_metric('acc', share)}"


def format_spread(values: Sequence[float], name: str = "acc") -> str:
    """Mean ± sample standard deviation of a metric; of one value, without ±."""
    if not values:
        return UNKNOWN
    deviation = f" ± {format_metric(name, statistics.stdev(values))}" if len(values) > 1 else ""
    return f"{format_metric(name, statistics.mean(values))}{deviation}"


def format_interval(interval: tuple[float, float] | None, name: str = "acc") -> str:
    """An interval of a metric."""
    ends = interval or ()
    return " to ".join(format_metric(name, end) for end in ends) or UNKNOWN


def compared_rows(task: str | None, found: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """A row of texts for each entry of `compared` in result.json: a model beside baselines on the
    same test rows."""
    score = score_of(task)
    scale, digits, unit = (100, 1, ", points") if score == "acc" else (1, 3, "")
    for each in found:
        less = [f"{scale * value:+.{digits}f}" for value in each["less"] or ()]
        yield {
            "on the test rows": each["name"],
            in_words(score): format_metric(score, each["score"]),
            INTERVAL: format_interval((each["low"], each["high"]), score),
            f"behind the model{unit}": less[0] if less else "",
            f"its {INTERVAL}": f"{less[1]} to {less[2]}" if less else "",
        }


# --- the tables of a sweep ----------------------------------------------------------------------


def row_of(outcome: Outcome) -> dict[str, Any]:
    """A row of results.csv."""
    seconds = outcome.seconds
    return {
        "trial": int(outcome.run.folder.name),
        "status": outcome.ending,
        **outcome.overrides,
        **{name: outcome.metric(name) for name in all_metrics(outcome.monitor, outcome.score)},
        "epochs": outcome.epochs,
        "seconds": None if seconds is None else round(seconds, 3),
        "error": outcome.result.get("error"),
    }


def trial_table(ranked: Sequence[Outcome], swept: Sequence[str]) -> str:
    """A row for each trial, with the keys that were swept, without figures of the test set."""
    records = [row_of(outcome) for outcome in ranked]
    epochs = ["epochs"] * (len({row["epochs"] for row in records} - {None}) > 1)
    numbers = (*for_choice(table_metrics(ranked)), *epochs, "seconds")
    shown = ["trial", "status", *swept, *numbers]
    rows = [
        [format_metric(key, row.get(key)) if key in numbers else row.get(key) for key in shown]
        for row in records
    ]
    texts = [shown.index(key) for key in numbers]
    alignment = ["right" if key in numbers else "global" for key in shown]
    text = tabulate(rows, shown, floatfmt=".4g", disable_numparse=texts, colalign=alignment)
    ranks = [trial.rank if trial.finished else math.inf for trial in ranked]
    groups = (trial.group for trial in ranked)
    return with_best(text, *best_places(zip(groups, ranks, strict=True)))


def settings_table(trials: Sequence[Outcome], swept: Sequence[str], most: int) -> str:
    """Means over seeds and folds, of the first `most` settings, and the command of the best one
    with its mean on the test set; "" where no trials differ only in these."""
    keys, groups = replicates(trials, swept)
    if not groups:
        return ""
    rows, metrics = [], groups[0].metrics
    *_, validation, test = metrics
    for group in groups[:most]:
        validated = [format_spread(group.repeats(metric), metric) for metric in metrics[:-1]]
        interval = format_interval(group.interval(validation), validation)
        rows.append([*map(short, group.values), group.count, *validated, interval])
    header = [*keys, "trials", *metrics[:-1], INTERVAL]
    firsts = [group.trials[0] for group in groups]
    ranks = [(first.group, place) for place, first in enumerate(firsts)]
    parts = ["", text_table(header, rows, ranks[:most])]
    if len(groups) > most:
        parts.append(f"… and {len(groups) - most:,} more")
    if any(trial.ending == "dropped" for trial in trials):
        parts.append("the means include trials that halving dropped after fewer epochs")
    for best, *_ in comparable(firsts).values():
        parts.append(f"best setting by its mean: {setting_command(best)}")
        (group,) = (group for group in groups if group.trials[0] is best)
        if tested := group.repeats(test):
            parts.append(f"its mean {test}: {format_spread(tested, test)}")
    return "\n".join(parts)
