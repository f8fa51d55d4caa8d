"""What the trials of a sweep, or a single run, came to, in sentences: the best and how sure that
is, what cannot be told apart from it, what looks wrong, and what to type next."""

import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kindling.config.measures import in_words, is_fraction
from kindling.config.written import counted, printable
from kindling.records.confidence import LEVEL, TWO_SIDED
from kindling.records.folder import resume_command
from kindling.records.lookup import CONFIRM
from kindling.records.outcome import (
    INTERVAL,
    Replicates,
    cross_validated,
    distinct,
    format_interval,
    format_metric,
    in_full,
    known_value,
)
from kindling.reports import analysis
from kindling.reports.collect import Part, Reported
from kindling.system.installation import as_command

MOST_NAMED = 3  # settings in a sentence
FEWEST_VALUES = 3  # of a key whose best value may lie at the edge
FEW_TRIALS = 5  # of each setting
SAMPLER, FOLDER = "search.sampler=", "search.folder="  # settings of a search
LATE, FALLEN = 0.2, 0.02  # of the epochs, and of the loss: still falling at the end
RISEN, APART = 1.1, 0.05  # times the least loss, and of the score: overfitted


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the command that goes on from there, if there is one."""

    text: str
    command: str | None = None

    def __str__(self) -> str:
        return self.text if self.command is None else f"{self.text}: {self.command}"


@dataclass(frozen=True)
class _Setting:
    """Trials that differ only in seed and fold, or a single one."""

    name: str
    first: Reported
    value: float  # the mean
    group: Replicates | None = None


def sentences(part: Part) -> list[Sentence]:
    """Of a sweep, a search, or a single run; [] for several runs, and where nothing has a value.
    People decide by these sentences, so the numbers must bear each of them."""
    if part.best is None or part.kind == "confirmation":
        return []
    if part.kind == "run":
        if len(part.entries) > 1:
            return []
        folds = part.best.result.get("committee", {}).get("folds")
        told = [Sentence(cross_validated(folds))] if folds else []
        return [*told, *_of_run(part.best)]
    return [*_of_sweep(part)]


# --- a sweep -------------------------------------------------------------------------------------


def _of_sweep(part: Part) -> Iterator[Sentence]:
    ranked = _settings(part)
    best, monitor = ranked[0], ranked[0].first.monitor
    value = format_metric(monitor, best.value)
    if best.group:
        interval = format_interval(best.group.interval(monitor), monitor)
        sure = f"a mean {monitor} of {value} over {best.group.count} trials ({INTERVAL} {interval})"
    else:
        sure = f"a {monitor} of {value}, from one trial"
    several = len(ranked) > 1
    if confirmed := _confirmation(part):
        yield Sentence(
            "The best settings were trained again with fresh seeds, which tell more than what "
            f"follows: see {confirmed}"
        )
    yield Sentence(
        f"The best of {len(ranked):,} settings is {best.name}: {sure}"
        if several
        else f"The only setting has {sure}"
    )
    yield from _guessing(best.first, monitor, best.value, "val")
    yield from _alike(part, ranked)
    yield from _edges(part, ranked)
    yield from _important(part)
    yield from _lost(part)
    yield from _budget(best.first)


def _confirmation(part: Part) -> Path | None:
    """The page of the confirmation in the folder of a sweep, if there is one."""
    page = None if part.folder is None else part.folder / CONFIRM / "confirm.html"
    return page if page and page.exists() else None


def _settings(part: Part) -> list[_Setting]:
    """The best first. Of a sweep over seeds or folds, those with two trials or more."""
    keys, groups = part.repeated
    if groups:
        return [
            _Setting(
                _named(dict(zip(keys, group.values, strict=True))),
                group.trials[0],  # type: ignore[arg-type]  # the trials of a part are reported
                statistics.mean(group.repeats(group.trials[0].monitor)),
                group,
            )
            for group in groups
        ]
    return [
        _Setting(_named({key: entry.setting(key) for key in part.keys}), entry, value)
        for entry in sorted(distinct(part.entries, part.keys), key=lambda entry: entry.rank)
        if (value := entry.value) is not None
    ]


def _named(settings: Mapping[str, str]) -> str:
    return printable(in_full(settings))


def _noise(first: Reported, monitor: str, value: float) -> float | None:
    """By how much two equally good settings may differ by chance, as measured on the same samples:
    TWO_SIDED standard errors of the difference of two shares, which is rather too much than too
    little. None if unknown."""
    samples = first.result.get("data", {}).get("val")
    if not (samples and is_fraction(monitor) and monitor == f"val/{first.score}"):
        return None
    return TWO_SIDED * math.sqrt(2) * _error(value, samples)


def within_chance(one: float, other: float, samples: int) -> bool:
    """Whether two shares of so many samples differ by at most TWO_SIDED standard errors of their
    difference."""
    return abs(one - other) <= TWO_SIDED * math.hypot(_error(one, samples), _error(other, samples))


def _error(share: float, samples: int) -> float:
    """The standard error of a share of so many samples. A stranger's file may have any number."""
    return math.sqrt(max(0.0, share * (1 - share)) / samples)


def _alike(part: Part, ranked: Sequence[_Setting]) -> Iterator[Sentence]:
    """The settings that may be as good as the best one."""
    best, *others = ranked
    monitor = best.first.monitor
    if not others:
        return
    if best.group:
        chances = _p_values([each.group for each in ranked if each.group], monitor)
        alike = [o for o, p in zip(others, chances, strict=True) if p is None or p > 1 - LEVEL]
        by = f"by {counted(len(best.group.trials), 'trial')} each"
    else:
        if _noise(best.first, monitor, best.value) is None:
            return
        samples = best.first.result["data"]["val"]
        alike = [each for each in others if within_chance(best.value, each.value, samples)]
        by = f"by {samples:,} validation samples and one trial each"
    assert part.folder is not None
    confirm = f"{as_command('confirm')} {shlex.quote(str(part.folder))}"
    if not alike:
        if best.group:
            told, few = f"{by.capitalize()}, the others are worse, beyond chance", FEW_TRIALS
            if len(best.group.trials) >= few or _confirmation(part):
                yield Sentence(told)
            else:
                yield Sentence(
                    f"{told}. Fewer than {few} trials may deceive; train the best with fresh seeds",
                    confirm,
                )
        return
    sizes = {each.name: each.first.result.get("parameters") or math.inf for each in (best, *alike)}
    smallest = min(sizes, key=sizes.__getitem__)
    size = sizes[smallest] if len({*sizes.values()}) > 1 else None
    named = "; ".join(each.name for each in alike[:MOST_NAMED])
    more = f"; and {len(alike) - MOST_NAMED} more" if len(alike) > MOST_NAMED else ""
    least = f". The smallest of them all is {smallest}, with {size:,} parameters" if size else ""
    told = f"{counted(len(alike), 'other')} cannot be told apart from it {by}: {named}{more}{least}"
    if _confirmation(part):
        yield Sentence(told)
    else:
        told += ". To find out which is best, train them with fresh seeds"
        yield Sentence(told, confirm)


def _p_values(groups: Sequence[Replicates], monitor: str) -> list[float | None]:
    """Of each difference to the first group, corrected for their number by Holm's method. The
    groups are sorted, the best first. Of folds by the paired test of estimates.py, since all
    settings share the folds. Of seeds by Student's test; a few seeds tell little about the variance
    of one setting, so the variance is that of all settings from the best to the compared one. Worse
    settings, of which some seeds may have failed, vary in another way."""
    from scipy.special import stdtr

    from kindling.reports.estimates import holm, paired_difference

    best, *others = groups
    if best.folds:
        found = [paired_difference(*_pairs(best, other, monitor)).p_value for other in others]
        return holm(found)
    samples = [group.repeats(monitor) for group in groups]
    p_values: list[float | None] = []
    first, squares, freedom = statistics.mean(samples[0]), *_within(samples[0])
    for sample in samples[1:]:
        own, degrees = _within(sample)
        squares, freedom = squares + own, freedom + degrees
        error = math.sqrt(squares / freedom * (1 / len(samples[0]) + 1 / len(sample)))
        difference = abs(first - statistics.mean(sample))
        p_values.append(
            2 * float(stdtr(freedom, -difference / error)) if error else float(difference == 0)
        )
    return holm(p_values)


def _within(sample: Sequence[float]) -> tuple[float, int]:
    """The sum of squared deviations from the mean, and the degrees of freedom, of two values or
    more."""
    return (len(sample) - 1) * statistics.variance(sample), len(sample) - 1


def _pairs(
    best: Replicates, other: Replicates, monitor: str
) -> tuple[list[float], list[float], list[int]]:
    """The values in the trials with the same seed and fold, and their folds by number."""
    values = [
        {
            (trial.settings.get("data.fold", ""), trial.settings.get("seed")): value
            for trial in group.trials
            if (value := trial.metric(monitor)) is not None
        }
        for group in (best, other)
    ]
    pairs = [pair for pair in values[0] if pair in values[1]]
    names = sorted({fold for fold, _ in pairs})
    first, second = ([each[pair] for pair in pairs] for each in values)
    return first, second, [names.index(fold) for fold, _ in pairs]


def _edges(part: Part, ranked: Sequence[_Setting]) -> Iterator[Sentence]:
    """Numbers that are best at the least or the largest value, by more than chance."""
    monitor = ranked[0].first.monitor
    for effect in analysis.effects(part):
        values = [level.best for level in effect.levels]
        if effect.scale == "category" or len(values) < FEWEST_VALUES:
            continue
        top = values.index(max(values) if part.higher else min(values))
        if top not in (0, len(values) - 1):
            continue
        beside = 1 if top == 0 else -2
        chance = _chance(part, ranked, values[beside])
        if chance is None or abs(values[top] - values[beside]) <= chance:
            continue
        end, way = ("least", "smaller") if top == 0 else ("largest", "larger")
        yield Sentence(
            f"{effect.key} is best at the {end} value that was tried, {effect.labels[top]} "
            f"({format_metric(monitor, values[top])}; {effect.labels[beside]}: "
            f"{format_metric(monitor, values[beside])}). Try {way} ones"
        )


def _chance(part: Part, ranked: Sequence[_Setting], least: float) -> float | None:
    """By how much the means of two equally good settings may differ in 95% of all cases: by
    Student's t with the variance of those settings that are not worse than `least`; of single
    trials as `_noise`. None if unknown."""
    from scipy.special import stdtrit

    best = ranked[0]
    monitor = best.first.monitor
    samples = [
        each.group.repeats(monitor)
        for each in ranked
        if each.group and (each.value >= least if part.higher else each.value <= least)
    ]
    if not samples:
        return _noise(best.first, monitor, best.value)
    squares, degrees = zip(*map(_within, samples), strict=True)
    quantile = float(stdtrit(sum(degrees), (1 + LEVEL) / 2))
    return quantile * math.sqrt(sum(squares) / sum(degrees) * 2 / min(map(len, samples)))


def _important(part: Part) -> Iterator[Sentence]:
    """Which key of a search matters most, or which keys may. Where the intervals of two shares
    overlap, the larger share may be chance: what one share gains, the others lose. Of a sampler
    that learns, most trials are near the best, so their shares are never said to be sure."""
    if len(part.importance) < 2:
        return
    (first, most), *others = part.importance.items()
    alike = [(key, each) for key, each in others if each.high >= most.low]
    is_random = f"{SAMPLER}random" in part.typed
    if not alike:
        if is_random:
            text = f"alone explains {most} of the differences between the trials"
            yield Sentence(f"{first} matters most: {first} {text}")
        return
    named = ", ".join(f"{key} {each}" for key, each in [(first, most), *alike][:MOST_NAMED])
    folds = len({entry.setting("data.fold") for entry in part.entries})
    count = len(part.entries) // folds  # as search.trials counts
    trials = counted(count, "trial")
    told = f"{trials} do not tell which key matters most, for the intervals overlap: {named}"
    if is_random:
        more = [f"resume={part.folder}", f"search.trials={2 * count}"]
        told += ". More trials tell more"
    else:
        kept = [text for text in part.typed if not text.startswith((SAMPLER, FOLDER))]
        more = [*kept, f"{SAMPLER}random"]
        told += ". Random trials tell more"
    yield Sentence(told, printable(f"{as_command('search')} {shlex.join(more)}"))


def _lost(part: Part) -> Iterator[Sentence]:
    """Trials that failed or diverged, and the values of keys that they alone have."""
    for ending in ("failed", "diverged"):
        lost = [entry for entry in part.entries if entry.status == ending]
        if not lost:
            continue
        rest = [entry for entry in part.entries if entry.status != ending]
        shared = {
            key: lost[0].setting(key)
            for key in part.keys
            if len({entry.setting(key) for entry in lost}) == 1
            and lost[0].setting(key) not in {entry.setting(key) for entry in rest}
        }
        why = f", which are all those with {_named(shared)}" if shared else ""
        yield Sentence(f"{counted(len(lost), 'trial')} {ending}{why}")
    stopped = [entry for entry in part.entries if entry.status == "interrupted"]
    if stopped:
        count, verb = len(stopped), "was" if len(stopped) == 1 else "were"
        told = f"{counted(count, 'trial')} {verb} interrupted"
        yield Sentence(told, printable(resume_command(stopped[0].run.resume_folder)))


# --- a run ---------------------------------------------------------------------------------------


def _of_run(run: Reported) -> Iterator[Sentence]:
    if run.status == "interrupted":
        after = "" if run.epochs is None else f" after {counted(run.epochs, 'epoch')}"
        yield Sentence(
            f"The run was interrupted{after}. To go on with it",
            printable(resume_command(run.run.resume_folder)),
        )
    score = f"test/{run.score}"
    tested = run.metric(score)
    if tested is not None:
        yield from _guessing(run, score, tested, "test")
    shared = run.result.get("data", {}).get("test_in_training")
    if shared:
        yield Sentence(
            f"{counted(shared, 'sample')} of the test set {'is' if shared == 1 else 'are'} in the "
            f"training set too, so {in_words(score)} on the test set promises too much"
        )
    yield from _overfitted(run)
    if run.status != "interrupted":  # its last epoch was not to be the last
        yield from _budget(run)


def _guessing(run: Reported, metric: str, value: float, part: str) -> Iterator[Sentence]:
    """An accuracy is worth what it is above that of always answering the most frequent class."""
    data: Mapping[str, Any] = run.result.get("data", {})
    share, samples = data.get(f"{part}_most_frequent_class"), data.get(part)
    if share is None or not samples or metric not in ("val/acc", "test/acc"):
        return
    reached = f"The {metric.replace('/', ' ')} of {format_metric('acc', value)}"
    always = f"always answering the most frequent class, {format_metric('acc', share)}"
    if value <= share + TWO_SIDED * _error(share, samples):
        yield Sentence(
            f"{reached} is no better than {always}, by {samples:,} samples: the accuracy shows "
            "nothing that was learned"
        )
    elif share > 1 / 2:
        yield Sentence(
            f"{reached} must be held against {always}; the recall of each class tells more",
            f"{as_command('evaluate')} {shlex.quote(str(run.run.folder))}",
        )


def _losses(run: Reported) -> list[float]:
    """The validation loss of each epoch from 1 on; [] if one is unknown."""
    rows = [row.get("val/loss") for row in run.history[1:]]
    known = [value for row in rows if (value := known_value(row)) is not None]
    return known if len(known) == len(rows) else []


def _loss(value: float) -> str:
    return format_metric("loss", value)


def _overfitted(run: Reported) -> Iterator[Sentence]:
    losses = _losses(run)
    last: Mapping[str, Any] = run.result.get("last") or {}
    train, val = (last.get(f"{split}/{run.score}") for split in ("train", "val"))
    if len(losses) < 2 or train is None or val is None or not min(losses) > 0:
        return
    if losses[-1] > RISEN * min(losses) and train - val > APART:
        epoch = losses.index(min(losses)) + 1
        yield Sentence(
            f"The model has overfitted: the validation loss was least after epoch {epoch}, "
            f"{_loss(min(losses))}, and rose to {_loss(losses[-1])}. "
            "trainer.early_stopping_patience=5, model.dropout=0.3 or more data may help"
        )


def _budget(run: Reported) -> Iterator[Sentence]:
    """A validation loss that still falls in the last epochs of a run that was not stopped."""
    losses = _losses(run)
    steps = max(1, round(LATE * len(losses)))
    if len(losses) < FEWEST_VALUES or run.result.get("stopped"):
        return
    before, last = losses[-1 - steps], losses[-1]
    if last == min(losses) and before > 0 and last < (1 - FALLEN) * before:
        longer = f"trainer.max_epochs={2 * len(losses)}"
        told = "the last epoch" if steps == 1 else f"the last {steps} epochs"
        yield Sentence(
            f"The validation loss still fell in {told}, from {_loss(before)} to {_loss(last)}: "
            f"more epochs, such as {longer}, should help"
        )
