"""What a confirmation found: estimates for each setting, as text, as JSON and as a page.

Nothing here imports torch.
"""

import math
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from kindling.config.measures import bounds, higher_is_better, sort_key
from kindling.plots.samples import MEAN, Sample, interval_data
from kindling.records.confidence import LEVEL, fold_means, wilson
from kindling.records.confirm_record import MOST_SEEDS, Chosen, Record, trials, value_of
from kindling.records.labels import read_labels
from kindling.records.outcome import (
    UNKNOWN,
    Outcome,
    all_metrics,
    format_interval,
    format_metric,
    in_full,
    read_outcome,
    short,
)
from kindling.reports import estimates
from kindling.reports.charts import chart_content
from kindling.reports.drawing import draw, save
from kindling.reports.estimates import Difference, Estimate
from kindling.reports.page import now, render
from kindling.reports.pictures import INTERVALS, PagePicture
from kindling.reports.words import Sentence
from kindling.system.colour import with_best
from kindling.system.errors import InputError
from kindling.system.files import write_durably
from kindling.system.installation import as_command

MOST_ERRORS = 20  # that are printed
CHANCE = 1 - LEVEL  # a smaller p-value is no chance


@dataclass(frozen=True)
class Setting:
    """A setting and its trials, one for each seed."""

    record: Record
    chosen: Chosen
    trials: Sequence[Outcome]

    @cached_property
    def values(self) -> dict[str, str]:
        """What it has of the keys in which the sweep's settings differ."""
        return self.record.values(self.chosen)

    @cached_property
    def measured(self) -> list[float]:
        """The monitored value of each seed; NaN for a seed that diverged, failed, or is missing."""
        return self._measured(self.record.monitor)

    @cached_property
    def means_of_folds(self) -> list[float]:
        """The mean over the seeds of each fold; NaN without a value. Without folds, it is empty."""
        return fold_means(self.measured, self.record.fold_of) if self.record.fold_of else []

    @cached_property
    def estimate(self) -> Estimate:
        return self.estimate_of(self.record.monitor)

    @property
    def flattered(self) -> float | None:
        """By how much the value in the sweep was better than the confirmed mean."""
        mean = self.estimate.mean
        return None if mean is None else _sign(self.record) * (self.chosen.promised - mean)

    def seeds_with(self, status: str) -> list[int]:
        pairs = zip(self.record.seeds, self.trials, strict=True)
        return [seed for seed, trial in pairs if trial.status == status]

    def estimate_of(self, metric: str) -> Estimate:
        low, high = bounds(metric)
        return estimates.estimate(self._measured(metric), low, high, self.record.fold_of)

    def _measured(self, metric: str) -> list[float]:
        found = (value_of(trial, metric) for trial in self.trials)
        return [math.nan if value is None else value for value in found]


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
        Setting(record, chosen, [read_outcome(trial.run) for trial in of_setting])
        for chosen, of_setting in zip(record.settings, trials(folder, record), strict=True)
    ]
    settings.sort(key=lambda setting: sort_key(record.monitor, setting.estimate.mean))
    values = [setting.means_of_folds or setting.measured for setting in settings]
    signed = _sign(record) * np.array(values).T
    chances = estimates.chances_to_be_best(signed, folds=record.folds is not None)
    samples = [setting.measured for setting in settings]
    differences = estimates.differences_to_first(samples, record.fold_of)
    return Confirmation(folder, record, settings, chances, differences)


def _sign(record: Record) -> int:
    """1 if larger values are better, else -1."""
    return 1 if higher_is_better(record.monitor) else -1


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
        and {metric: _estimate_primitives(winner.estimate_of(metric)) for metric in _tested(found)},
    }


def _known(values: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


def _tested(found: Confirmation) -> list[str]:
    names = all_metrics(found.record.monitor, found.settings[0].trials[0].score)
    return [name for name in names if name.startswith("test/")]


def _estimate_primitives(found: Estimate) -> dict[str, Any]:
    return {
        "mean": found.mean,
        "interval": found.interval and [*found.interval],
        "standard_deviation": found.deviation,
        "count": found.count,
    }


# --- text ----------------------------------------------------------------------------------------


def describe_confirmation(found: Confirmation) -> str:
    """The paragraphs and tables as text for a terminal, which shows the first setting bold."""
    texts: list[str] = []
    settings = _settings_table(found)
    for part in _parts(found):
        text = (
            tabulate(part, "keys", disable_numparse=True) if isinstance(part, list) else str(part)
        )
        first = part == settings and found.winner is not None
        texts.append(with_best(text, 0) if first else text)
    return "\n\n".join(texts)


Rows = list[dict[str, str]]  # of a table: texts by the titles of their columns


def _parts(found: Confirmation) -> list[Sentence | Rows]:
    """What is best, the tables of settings and of differences, and the command that trains the
    first setting."""
    return [Sentence(part) if isinstance(part, str) else part for part in _texts_and_tables(found)]


def _texts_and_tables(found: Confirmation) -> list[str | Sentence | Rows]:
    record, winner, seeds = found.record, found.winner, found.record.seeds
    turns = "" if record.folds is None else f", which take turns on {record.folds} folds"
    parts: list[str | Sentence | Rows] = [
        f"{len(found.settings)} of {record.found:,} settings of {record.sweep}, each with "
        f"{len(seeds)} fresh seeds, {_listed(seeds)}{turns}",
        *_verdict(found),
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
    if found.differences:
        parts.append(_differences_table(found))
    tested = [f"{metric} {_spoken(metric, winner)}" for metric in _tested(found)]
    parts.append(f"test set, for setting 1 only: {'; '.join(tested)}")
    alone = "alone" if record.folds is None else "without folds,"
    told = f"to train it {alone} with seed {seeds[0]}"
    return [*parts, Sentence(told, _command(winner))]


def _command(setting: Setting) -> str:
    """Trains a setting with its first seed, without folds."""
    left_out = [] if setting.record.folds is None else ["data.folds", "data.fold"]
    return setting.trials[0].run.command_without(left_out)


def _verdict(found: Confirmation) -> list[Sentence]:
    """Whether the first setting is best beyond chance; otherwise the smallest of those that cannot
    be told apart from it, and how to tell them apart."""
    record, winner = found.record, found.winner
    if winner is None or not found.differences:
        return []
    corrected = [difference.corrected for difference in found.differences]
    alike = [place for place, p in enumerate(corrected, 2) if p is None or p > CHANCE]
    if not alike:
        most = max(p for p in corrected if p is not None)
        others = "the other" if len(corrected) == 1 else "each of the others"
        told = f"Setting 1 is better than {others}, beyond chance (p-value {_format_p(most)})"
        return [Sentence(told)]
    known = [p for place, p in enumerate(corrected, 2) if place in alike and p is not None]
    least = f" (p-value {_format_p(min(known))}{' or more' if alike[1:] else ''})" if known else ""
    named = f"{'settings' if alike[1:] else 'setting'} {', '.join(map(str, alike))}"
    sentences = [
        Sentence(f"Setting 1 cannot be told apart from {named} by {len(record.seeds)} seeds{least}")
    ]
    sizes = {
        place: size
        for place in (1, *alike)
        if (size := found.settings[place - 1].trials[0].run.result.get("parameters"))
    }
    if len(sizes) == 1 + len(alike) and len({*sizes.values()}) > 1:
        smallest = min(sizes, key=sizes.__getitem__)
        sentences.append(
            Sentence(
                f"The smallest of them is setting {smallest}, with {sizes[smallest]:,} parameters. "
                "To train it",
                _command(found.settings[smallest - 1]),
            )
        )
    more = 4 * len(record.seeds)
    if record.folds is not None:
        sentences.append(Sentence("More seeds add no folds, so the intervals would hardly shrink"))
    elif more <= MOST_SEEDS:
        folder = shlex.quote(f"{found.folder}-{more}")
        command = (
            f"{as_command('confirm')} {shlex.quote(record.sweep)} --top {len(found.settings)} "
            f"--seeds {more} --output {folder}"
        )
        sentences.append(Sentence("Four times the seeds halve the intervals", command))
    return sentences


def _settings_table(found: Confirmation) -> Rows:
    monitor = found.record.monitor
    return [
        {
            "": str(place),
            **{key: short(setting.values[key]) for key in found.record.keys},
            "seeds": str(sum(not math.isnan(value) for value in setting.measured)),
            f"mean {monitor}": format_metric(monitor, setting.estimate.mean),
            "95% interval": format_interval(setting.estimate.interval, monitor),
            "deviation": format_metric(monitor, setting.estimate.deviation),
            "promised": format_metric(monitor, setting.chosen.promised),
            "confirmed is": _compared(monitor, setting.flattered),
            "best with": UNKNOWN if chance is None else f"{chance:.0%}",
        }
        for place, (setting, chance) in enumerate(
            zip(found.settings, found.chances, strict=True), 1
        )
    ]


def _differences_table(found: Confirmation) -> Rows:
    monitor = found.record.monitor
    pairs = "pairs" if found.record.folds is None else "pairs of folds"
    rows = []
    for place, difference in enumerate(found.differences, 2):
        mean = difference.estimate
        ends = [_signed(monitor, end) for end in mean.interval or ()]
        rows.append(
            {
                "difference": f"1 − {place}",
                pairs: str(mean.count),
                f"mean {monitor}": _signed(monitor, mean.mean),
                "95% interval": " to ".join(ends) or UNKNOWN,
                "p-value (Holm)": _format_p(difference.corrected),
            }
        )
    return rows


def _format_p(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _unsuccessful(found: Confirmation) -> list[str]:
    """A line for each setting with seeds that diverged, for each fold without a value, and for
    each error."""
    named = {f"setting {place}": setting for place, setting in enumerate(found.settings, 1)}
    lines = [
        f"{name}: {len(seeds)} of {len(setting.trials)} seeds {status}, {_listed(seeds)}; the mean "
        "is over the others"
        for name, setting in named.items()
        for status in ("diverged", "failed")
        if (seeds := setting.seeds_with(status))
    ]
    lines += [
        f"{name}: no seed has a value on fold {fold}; the mean is over the other folds"
        for name, setting in named.items()
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


def _spoken(metric: str, setting: Setting) -> str:
    """The mean of the seeds, its interval, and how far other test samples could move a test
    accuracy: the seeds share the samples."""
    mean, interval = setting.estimate_of(metric).mean, setting.estimate_of(metric).interval
    ends = [f"95% interval {format_interval(interval, metric)}"] if interval else []
    samples = setting.trials[0].result.get("data", {}).get("test")
    if mean is not None and samples and metric == "test/acc" and 0 <= mean <= 1:
        low, high = wilson(mean, samples)
        ends = [f"{each} over seeds" for each in ends]
        ends.append(f"± {format_metric(metric, (high - low) / 2)} over {samples:,} test samples")
    told = f" ({', '.join(ends)})" if ends else ""
    return f"{format_metric(metric, mean)}{told}"


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
    page, record = found.folder / "confirm.html", found.record
    samples = [
        Sample(
            f"{place}: {in_full(setting.values or setting.chosen.overrides)}",
            [value for value in setting.measured if not math.isnan(value)],
            setting.estimate.mean,
            setting.estimate.interval,
            setting.chosen.promised,
        )
        for place, setting in enumerate(found.settings, 1)
    ]
    shown = samples, record.monitor, "a fresh seed", MEAN
    if record.folds is not None:
        of_folds = f"mean of the {record.folds} folds and 95% interval"
        shown = samples, record.monitor, "a fresh seed on its fold", of_folds
    caption = (
        f"{record.monitor} of each setting: a dot per fresh seed, the mean with its 95% "
        "interval, and what the sweep promised"
    )
    picture = PagePicture("confirm", caption, INTERVALS, shown)
    parts = _parts(found)
    first = next(place for place, part in enumerate(parts) if isinstance(part, list))
    content = {
        "title": _title(found),
        "when": now(),
        "words": parts[:first],
        "parts": parts[first:],
        "picture": save(picture, found.folder, draw(picture)),
        "data": {"intervals": interval_data(*shown)},
        **chart_content(),
    }
    write_durably(page, render("confirmation.html", content))
    return page


def _title(found: Confirmation) -> str:
    """A name of its own, or which sweep it confirms. A sweep that was typed with a name has given
    it to the confirmation."""
    own, *names = (_name(f) for f in (found.folder, found.folder.parent, found.record.sweep))
    of_sweep = next(filter(None, names), None)
    if own and own != of_sweep:
        return own
    return f"Confirmation of {of_sweep or found.record.sweep}"


def _name(folder: Path | str) -> str | None:
    with suppress(InputError):  # a damaged file
        return read_labels(Path(folder)).name
    return None
