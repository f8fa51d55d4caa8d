"""Pictures of a trained model: its mistakes or errors, first layer, and augmented samples."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from kindling.config.measures import (
    CLASSIFICATION,
    LEVEL,
    MULTILABEL,
    REGRESSION,
    in_words,
    score_of,
)
from kindling.config.schema import Config
from kindling.config.written import printable
from kindling.data.augmentation import build_augmentation
from kindling.data.loader import Block
from kindling.data.sources.source import Source, Split, as_float
from kindling.inference.evaluation import (
    Evaluation,
    bins,
    calibrate,
    ece_by_chance,
    evaluate,
    score,
)
from kindling.inference.importance import importances
from kindling.inference.multilabel import LabelsEvaluation
from kindling.inference.regression import NumbersEvaluation
from kindling.inference.samples import source_of
from kindling.inference.tables import AnyEvaluation
from kindling.plots.samples import Sample, noun
from kindling.records.confidence import wilson
from kindling.records.loading import Trained, open_trained
from kindling.records.outcome import format_metric
from kindling.reports.charts import spread
from kindling.reports.collect import Reported
from kindling.reports.pictures import INTERVALS, PagePicture
from kindling.tasks import classification
from kindling.tasks.measures import BINS

MISTAKES, UNITS, SEEN = 24, 32, 8
MOST_IMPORTANT = 20
MOST_DOTS, MOST_PANELS, MOST_BARS = 1000, 6, 40
MOST_ROWS = 200  # of a table of classes
DRAWN = "kindling.plots.pictures:"  # the module of the functions that draw


def evaluated(entry: Reported) -> tuple[Trained, Source, Any]:
    """The best model of a run, its data, and how it does on their test set. Raises InputError when
    the run has no model, or its data are not on this machine."""
    trained = open_trained(entry.run.folder)
    source = source_of(trained)
    return trained, source, evaluate(trained, source, trained_on=source)


def measure_table(found: AnyEvaluation) -> list[list[str]]:
    """The measures as texts: a header, a row for each class, label or number if there are not too
    many, and the averages."""
    header, *rows = found.table()
    return [header, *(rows if len(rows) <= MOST_ROWS else rows[-2:])]


def _of_classes(
    trained: Trained, source: Source, found: Evaluation, name: str
) -> Iterator[PagePicture]:
    test, kind = source.test, noun(source.labels)
    yield PagePicture(
        f"{name}-confusion",
        f"{found.accuracy:.2%} of {len(test):,} test samples are right. Rows: the true {kind}; "
        f"columns: the predicted {kind}",
        f"{DRAWN}confusion",
        (found.confusion.numpy(), source.labels),
    )
    logits = found.logits
    binned = bins(logits, test.labels)
    caption = (
        "Reliability: accuracy over confidence on the test set, with its 95% interval, which is "
        "long where few samples lie; on the diagonal both are equal. "
        f"Expected calibration error {score(logits, test.labels).ece:.2%} ({BINS} bins; of a "
        f"perfectly calibrated model, up to {ece_by_chance(logits):.2%} by chance)"
    )
    if trained.config.data.holds_out_validation:
        calibrated = calibrate(trained, source, logits, test.labels)
        temperature = format_metric("temperature", calibrated.temperature)
        caption += (
            f"; with the temperature {temperature}, fitted on the validation set, "
            f"{calibrated.after.ece:.2%}"
        )
    shares = zip(binned.accuracy, binned.counts, strict=True)
    ends = [wilson(share, count) if count else (0.0, 0.0) for share, count in shares]
    content = binned.counts, binned.confidence, binned.accuracy, ends
    yield PagePicture(f"{name}-reliability", caption, f"{DRAWN}reliability", content)
    if not _grey(source):
        return
    wrong, titles = most_confident_mistakes(logits, test, source.labels)
    if titles:
        shown = as_float(test.take(wrong).features)[:, 0]
        yield PagePicture(
            f"{name}-mistakes",
            f"The most confident mistakes: true {kind} → predicted {kind}, and its probability",
            f"{DRAWN}mistakes",
            (shown.numpy(), titles),
        )


def _of_numbers(
    trained: Trained, source: Source, found: NumbersEvaluation, name: str
) -> Iterator[PagePicture]:
    del trained, source
    some = spread(range(len(found.true)), MOST_DOTS)
    true, said = (each[some, :MOST_PANELS].numpy() for each in (found.true, found.predicted))
    names = [number.name for number in found.numbers][:MOST_PANELS]
    ends = None
    if found.ends is not None:
        low, high = (end[some, :MOST_PANELS].numpy() for end in found.ends)
        ends = low, high
    drawn = "red bars: the" if found.quantiles else "dashed: the"
    interval = "" if ends is None else f"; {drawn} {LEVEL}% interval"
    yield PagePicture(
        f"{name}-predicted",
        f"Predicted and true numbers of {len(some):,} of {len(found.true):,} test samples: on the "
        f"line both are equal{interval}",
        f"{DRAWN}predicted_and_true",
        (true, said, names, ends),
    )
    yield PagePicture(
        f"{name}-errors",
        f"Errors, predicted less true, over the predicted number{interval}",
        f"{DRAWN}errors",
        (true, said, names, ends),
    )


def _of_labels(
    trained: Trained, source: Source, found: LabelsEvaluation, name: str
) -> Iterator[PagePicture]:
    del trained, source
    counts = found.measures.samples
    most = sorted(range(len(counts)), key=lambda place: -counts[place])[:MOST_BARS]
    values = [found.measures.f1.per_class[place] for place in sorted(most)]
    caption = f"{found.score:.2%} of the labels of {found.samples:,} test samples are right. F1 of "
    caption += "each label" if len(most) == len(counts) else f"the {MOST_BARS} most frequent labels"
    names = [found.labels[place] for place in sorted(most)]
    yield PagePicture(f"{name}-labels", caption, f"{DRAWN}bars", (names, values, "F1"))


def _of_columns(trained: Trained, source: Source, name: str) -> Iterator[PagePicture]:
    known = [each for each in importances(trained, source) if math.isfinite(each.mean)]
    if not known:
        return
    score = in_words(score_of(trained.config.task.name))
    shown = [
        Sample(printable(each.column), each.lost, each.mean, each.interval)
        for each in known[:MOST_IMPORTANT]
    ]
    most = f"the {MOST_IMPORTANT} columns that it needs most"
    which = most if known[len(shown) :] else "its columns"
    yield PagePicture(
        f"{name}-columns",
        f"What the model loses of its {score} when the cells of one of {which} are exchanged "
        "among test rows. Of columns that say the same, each alone seems to matter little",
        INTERVALS,
        (shown, f"{score} lost", "an exchange", "mean, and its 95% interval", None, 6),
    )


PICTURES: dict[str, Callable[..., Iterator[PagePicture]]] = {
    CLASSIFICATION: _of_classes,
    REGRESSION: _of_numbers,
    MULTILABEL: _of_labels,
}


def _grey(source: Source) -> bool:
    return len(source.shape) == 3 and source.shape[0] == 1


def pictures(trained: Trained, source: Source, found: Any, name: str) -> Iterator[PagePicture]:
    """What a model does on the test set: of classes the confusion matrix, the reliability, and for
    grey pictures the most confident mistakes; of a table the columns that it needs. For grey
    pictures also the weights of the first layer, and augmented samples."""
    yield from PICTURES[trained.config.task.name](trained, source, found, name)
    yield from _of_columns(trained, source, name)
    if not _grey(source) or trained.members:  # each has weights and augmentation of its own
        return
    weights = _as_pictures(next(trained.model.parameters()).detach(), source.shape[1:])
    if weights is not None:
        yield PagePicture(
            f"{name}-weights",
            f"Weights of the first layer, {min(UNITS, len(weights))} of {len(weights)} units: "
            "red is positive, blue negative",
            f"{DRAWN}first_layer",
            (weights[:UNITS].float().numpy(),),
        )
    seen = augmented_samples(trained.config, source)
    if seen is not None:
        yield PagePicture(
            f"{name}-augmented",
            "Augmentation: each row shows one sample, first unchanged",
            f"{DRAWN}greys",
            (seen[:, :, 0].flatten(0, 1).numpy(), seen.shape[1]),
        )


def _as_pictures(weight: torch.Tensor, size: Sequence[int]) -> torch.Tensor | None:
    """The weights (units, height, width) of a linear layer for pictures of this size, or of a
    convolution of one channel; None for other layers."""
    if weight.dim() == 2 and weight.shape[1] == math.prod(size):
        return weight.view(-1, *size)
    return weight[:, 0] if weight.dim() == 4 and weight.shape[1] == 1 else None


def augmented_samples(config: Config, source: Source) -> torch.Tensor | None:
    """Training samples and augmented ones, (SEEN, 1 + SEEN, C, H, W). None without augmentation."""
    first = source.train.take(slice(SEEN))
    samples = as_float(first.features)
    augmentation = build_augmentation(config.augmentation, source, [config.seed], len(samples), 1)
    if augmentation is None:
        return None
    changed = samples.repeat(SEEN, 1, 1, 1, 1, 1)  # a block of SEEN batches
    augmentation(Block(changed, first.labels), 0, 0)
    return torch.cat([samples[:, None], changed[:, 0].transpose(0, 1)], 1)


def most_confident_mistakes(
    logits: torch.Tensor, split: Split, labels: Sequence[str], most: int = MISTAKES
) -> tuple[torch.Tensor, list[str]]:
    """Indices of the wrong samples with the highest probabilities, the highest first, and a title
    `true → predicted, probability` for each. `logits` are (N, classes)."""
    probabilities, predicted = classification.probabilities(logits.double()).max(-1)
    wrong = (predicted != split.labels).nonzero().squeeze(1)
    labels = [*map(printable, labels)]
    chosen = wrong[probabilities[wrong].argsort(descending=True, stable=True)[:most]]
    titles = [
        f"{labels[int(split.labels[i])]} → {labels[int(predicted[i])]}, {probabilities[i]:.0%}"
        for i in chosen.tolist()
    ]
    return chosen, titles
