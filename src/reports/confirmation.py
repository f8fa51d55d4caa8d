"""What a confirmation found: estimates for each setting, as text, as JSON and as a page.

Nothing here imports torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from tabulate import tabulate

from src.config.schema import higher_is_better, is_fraction, sort_key
from src.plots.intervals import MEAN, Sample, interval_data, intervals
from src.reports.estimates import (
    Difference,
    Estimate,
    chances_to_be_best,
    differences_to_first,
    estimate,
)
from src.reports.figures import Picture
from src.reports.page import chart_content, now, render
from src.runs.confidence import LEVEL, fold_means
from src.runs.confirm_record import Chosen, Record, trials, value_of
from src.runs.outcome import (
    UNKNOWN,
    Outcome,
    all_metrics,
    format_metric,
    in_full,
    read_outcome,
    short,
)
from src.system.colour import with_best
from src.system.files import write_durably

MOST_ERRORS = 20  # that are printed


@dataclass(frozen=True)
class Setting:
    """A setting and its trials, one for each seed."""

    chosen: Chosen
    values: dict[str, str]  # of the keys in which the sweep's settings differ
    seeds: Sequence[int]
    trials: Sequence[Outcome]
    monitor: str
    fold_of: Sequence[int] = ()  # the fold of each seed; without folds, none

    @cached_property
    def measured(self) -> list[float]:
        """The monitored value of each seed; NaN for a seed that diverged, failed, or is missing."""
        return [math.nan if value is None else value for value in map(value_of, self.trials)]

    @cached_property
    def means_of_folds(self) -> list[float]:
        """The mean over the seeds of each fold; NaN without a value. Without folds, it is empty."""
        return fold_means(self.measured, self.fold_of) if self.fold_of else []

    @cached_property
    def estimate(self) -> Estimate:
        return self._estimate(self.monitor, self.measured)

    @property
    def flattered(self) -> float | None:
        """By how much the value in the sweep was better than the confirmed mean."""
        mean = self.estimate.mean
        return None if mean is None else _sign(self.monitor) * (self.chosen.promised - mean)

    @property
    def rank(self) -> float:
        return sort_key(self.monitor, self.estimate.mean)

    @property
    def label(self) -> str:
        return in_full(self.values or self.chosen.overrides)

    def seeds_with(self, status: str) -> list[int]:
        pairs = zip(self.seeds, self.trials, strict=True)
        return [seed for seed, trial in pairs if trial.status == status]

    def test(self, metric: str) -> Estimate:
        found = (value_of(trial, metric) for trial in self.trials)
        return self._estimate(metric, [math.nan if value is None else value for value in found])

    def _estimate(self, metric: str, values: Sequence[float]) -> Estimate:
        return estimate(values, 0.0, 1.0 if is_fraction(metric) else math.inf, self.fold_of)


@dataclass(frozen=True)
class Confirmation:
    """The settings, sorted by their confirmed mean, and how the first compares with each."""

    folder: Path
    record: Record
    settings: Sequence[Setting]
    chances: Sequence[float | None]  # of each setting to be the best
    differences: Sequence[Difference]  # of the first setting minus each of the others

    @property
    def winner(self) -> Setting | None:
        """The first setting; None without a single value."""
        return self.settings[0] if self.settings[0].estimate.count else None

    @property
    def failures(self) -> int:
        return sum(len(setting.seeds_with("failed")) for setting in self.settings)


def read_confirmation(folder: Path, record: Record) -> Confirmation:
    """Reads the results of all trials. Raises InputError for a result that cannot be read."""
    settings = [
        Setting(
            chosen,
            record.values(chosen),
            record.seeds,
            [read_outcome(trial.run) for trial in of_setting],
            record.monitor,
            record.fold_of,
        )
        for chosen, of_setting in zip(record.settings, trials(folder, record), strict=True)
    ]
    settings.sort(key=lambda setting: setting.rank)
    values = [setting.means_of_folds or setting.measured for setting in settings]
    signed = _sign(record.monitor) * np.array(values).T
    chances = chances_to_be_best(signed, folds=record.folds is not None)
    samples = [setting.measured for setting in settings]
    differences = differences_to_first(samples, record.fold_of)
    return Confirmation(folder, record, settings, chances, differences)


def _sign(monitor: str) -> int:
    """1 if larger values are better, else -1."""
    return 1 if higher_is_better(monitor) else -1


# --- JSON ----------------------------------------------------------------------------------------


def to_primitives(found: Confirmation) -> dict[str, Any]:
    """The content of confirm.json. Values that are not known are null."""
    monitor, winner = found.record.monitor, found.winner
    return {
        "sweep": found.record.sweep,
        "settings_of_sweep": found.record.found,
        "monitor": monitor,
        "confidence": LEVEL,
        "seeds": list(found.record.seeds),
        "folds": found.record.folds,
        "fold_of_seed": found.record.fold_of or None,
        "settings": [
            {
                "values": setting.values,
                **_estimate_primitives(setting.estimate),
                "promised": setting.chosen.promised,
                "promised_by_trials": list(setting.chosen.trials),
                "flattered_by": setting.flattered,
                "chance_to_be_best": chance,
                "diverged_seeds": setting.seeds_with("diverged"),
                "failed_seeds": setting.seeds_with("failed"),
                "value_of_seed": _known(setting.measured),
                "mean_of_fold": _known(setting.means_of_folds) or None,
                "trials": [int(trial.run.folder.name) for trial in setting.trials],
            }
            for setting, chance in zip(found.settings, found.chances, strict=True)
        ],
        "first_minus_others": [
            {
                "values": setting.values,
                **_estimate_primitives(difference.estimate),
                "p_value": difference.p_value,
                "p_value_corrected": difference.corrected,
            }
            for setting, difference in zip(found.settings[1:], found.differences, strict=True)
        ],
        "test_of_first": winner
        and {metric: _estimate_primitives(winner.test(metric)) for metric in _tested(found)},
    }


def _known(values: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


def _tested(found: Confirmation) -> list[str]:
    return [name for name in all_metrics(found.record.monitor) if name.startswith("test/")]


def _estimate_primitives(found: Estimate) -> dict[str, Any]:
    return {
        "mean": found.mean,
        "interval": found.interval and [*found.interval],
        "standard_deviation": found.deviation,
        "count": found.count,
    }


# --- text ----------------------------------------------------------------------------------------


def describe(found: Confirmation) -> str:
    """The paragraphs and tables as text for a terminal, which shows the first setting bold."""
    texts: list[str] = []
    for part in _parts(found):
        text = part if isinstance(part, str) else tabulate(*part, disable_numparse=True)
        first = not isinstance(part, str) and len(texts) == 1 and found.winner is not None
        texts.append(with_best(text, 0) if first else text)
    return "\n\n".join(texts)


Table = tuple[list[list[str]], list[str]]  # rows, and the header


def _parts(found: Confirmation) -> list[str | Table]:
    """The tables of settings and of differences, and the command that trains the first setting."""
    record, winner = found.record, found.winner
    count, seeds = len(found.settings), record.seeds
    parts: list[str | Table] = [
        f"{count} of {record.found:,} settings of {record.sweep}, each with "
        f"{len(seeds)} fresh seeds, {_listed(seeds)}{_turns(record)}",
        _settings_table(found),
    ]
    if record.folds is not None:
        parts.append(
            "a fold counts as one value, the mean over its seeds; the intervals and p-values are "
            "corrected for the training samples that folds share"
        )
    parts += filter(None, ["\n".join(_unsuccessful(found))])
    if winner is None:
        return [*parts, "no setting has a value, so none is confirmed"]
    if count > 1:
        parts.append(_differences_table(found))
    tested = [f"{metric} {_spoken(metric, winner.test(metric))}" for metric in _tested(found)]
    parts.append(f"test set, for {_named(found, winner)} only: {'; '.join(tested)}")
    alone = "alone" if record.folds is None else "without folds,"
    left_out = [] if record.folds is None else ["data.folds", "data.fold"]
    command = winner.trials[0].run.command_without(left_out)
    return [*parts, f"to train it {alone} with seed {seeds[0]}: {command}"]


def _turns(record: Record) -> str:
    return "" if record.folds is None else f", which take turns on {record.folds} folds"


def _settings_table(found: Confirmation) -> Table:
    monitor, keys = found.record.monitor, found.record.keys
    header = [
        "", *keys, "seeds", f"mean {monitor}", "95% interval", "deviation", "promised",
        "confirmed is", "best with",
    ]  # fmt: skip
    rows = []
    for place, setting in enumerate(found.settings):
        mean, chance = setting.estimate, found.chances[place]
        rows.append(
            [
                str(place + 1),
                *(short(setting.values[key]) for key in keys),
                str(sum(not math.isnan(value) for value in setting.measured)),
                format_metric(monitor, mean.mean),
                _format_interval(monitor, mean),
                format_metric(monitor, mean.deviation),
                format_metric(monitor, setting.chosen.promised),
                _compared(monitor, setting.flattered),
                UNKNOWN if chance is None else f"{chance:.0%}",
            ]
        )
    return rows, header


def _differences_table(found: Confirmation) -> Table:
    monitor = found.record.monitor
    rows = [
        [
            f"1 − {place}",
            str(difference.estimate.count),
            _signed(monitor, difference.estimate.mean),
            _format_interval(monitor, difference.estimate, signed=True),
            _format_p(difference.corrected),
        ]
        for place, difference in enumerate(found.differences, 2)
    ]
    pairs = "pairs" if found.record.folds is None else "pairs of folds"
    header = ["difference", pairs, f"mean {monitor}", "95% interval", "p-value (Holm)"]
    return rows, header


def _format_p(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _unsuccessful(found: Confirmation) -> list[str]:
    """A line for each setting with seeds that diverged, for each fold without a value, and for
    each error."""
    lines = [
        f"{_named(found, setting)}: {len(seeds)} of {len(setting.seeds)} seeds {status}, "
        f"{_listed(seeds)}; the mean is over the others"
        for setting in found.settings
        for status in ("diverged", "failed")
        if (seeds := setting.seeds_with(status))
    ]
    lines += [
        f"{_named(found, setting)}: no seed has a value on fold {fold}; the mean is over the other "
        "folds"
        for setting in found.settings
        for fold, mean in enumerate(setting.means_of_folds)
        if math.isnan(mean)
    ]
    errors = [
        f"trial {trial.run.folder.name} failed: {trial.reason}"
        for setting in found.settings
        for trial in setting.trials
        if trial.status == "failed"
    ]
    lines += errors[:MOST_ERRORS]
    more = len(errors) - MOST_ERRORS
    return [*lines, *([f"… and {more:,} more failed trials"] if more > 0 else [])]


def _named(found: Confirmation, setting: Setting) -> str:
    return f"setting {found.settings.index(setting) + 1}"


def _spoken(metric: str, mean: Estimate) -> str:
    interval = _format_interval(metric, mean)
    known = format_metric(metric, mean.mean)
    return known if interval == UNKNOWN else f"{known} (95% interval {interval})"


def _format_interval(metric: str, mean: Estimate, *, signed: bool = False) -> str:
    if mean.interval is None:
        return UNKNOWN
    texts = (
        _signed(metric, end) if signed else format_metric(metric, end) for end in mean.interval
    )
    return " to ".join(texts)


def _signed(metric: str, value: float | None) -> str:
    text = format_metric(metric, value)
    return text if value is None or text.startswith("-") else f"+{text}"


def _compared(monitor: str, flattered: float | None) -> str:
    """How the confirmed mean compares with the value that the sweep promised."""
    if flattered is None:
        return UNKNOWN
    text = format_metric(monitor, abs(flattered))
    if text == format_metric(monitor, 0.0):
        return "as promised"
    return f"{text} {'worse' if flattered > 0 else 'better'}"


def _listed(seeds: Sequence[int]) -> str:
    """Seeds as people write them: 3 to 22, or 1, 5, 7."""
    if len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


# --- the page ------------------------------------------------------------------------------------


def write_page(found: Confirmation) -> Path:
    """Writes confirm.html with the tables and a chart, and beside it the picture that the chart
    replaces, as confirm.png and confirm.svg."""
    page, shown = found.folder / "confirm.html", _shown(found)
    caption = (
        f"{found.record.monitor} of each setting: a dot per fresh seed, the mean with its 95% "
        "interval, and what the sweep promised"
    )
    content = {
        "sweep": found.record.sweep,
        "when": now(),
        "parts": _parts(found),
        "svg": Markup(Picture("confirm", caption, partial(intervals, *shown)).save(found.folder)),
        "caption": caption,
        "data": {"intervals": interval_data(*shown)},
        **chart_content(),
    }
    write_durably(page, render("confirmation.html", content))
    return page


def _shown(found: Confirmation) -> tuple[list[Sample], str, str, str]:
    """The arguments of `intervals`, a row for each setting: its seeds, its mean with interval, and
    the promise of the sweep."""
    samples = []
    for place, setting in enumerate(found.settings, 1):
        mean = setting.estimate
        samples.append(
            Sample(
                f"{place}: {setting.label}",
                [value for value in setting.measured if not math.isnan(value)],
                mean.mean,
                mean.interval,
                setting.chosen.promised,
            )
        )
    if found.record.folds is None:
        return samples, found.record.monitor, "a fresh seed", MEAN
    of_folds = f"mean of the {found.record.folds} folds and 95% interval"
    return samples, found.record.monitor, "a fresh seed on its fold", of_folds
