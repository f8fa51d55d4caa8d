"""How the measures of config/measures.py beside loss and accuracy are computed, for many models.

torchmetrics and scikit-learn take a call of about a millisecond for each model and measure, and a
stack has up to thousands of models to validate after each epoch.

A measure has a tally of each chunk of samples. A tally holds whole numbers, so the bits of a value
depend neither on how the samples were divided nor on the number of models. AUROC, which compares
each sample with all others, keeps the probabilities instead.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from pkgutil import resolve_name
from typing import NamedTuple

import torch
from torch import Tensor

from kindling.config import registry
from kindling.config.measures import CLASSIFICATION, MEASURES
from kindling.data.loader import CHUNK, Batch
from kindling.data.sources.source import as_float, float_copy
from kindling.data.targets import Targets
from kindling.system.errors import InputError, first_line, without_own_frames
from kindling.tasks import classification
from kindling.tasks.regression import squared_errors
from kindling.tasks.task import Task

BINS = 15  # of confidence
NO_CLASS = -1  # in place of a class, where samples have several labels
HIGH, LOW, LARGEST = 2.0**-16, 2.0**-46, 2.0**24  # of an error, in deviations of the labels
UNIT = 2.0**-36  # of a sum of real numbers, which a tally holds as a whole number below 2^63


class Tally(NamedTuple):
    # The tally (S, …) of outputs (S, outputs, n) for labels (n,), or (n, outputs) of numbers.
    of: Callable[[Tensor, Tensor], Tensor]
    # The values of S models from the sum of all tallies, on the CPU, and the number of samples.
    values: Callable[..., list[float]]
    # If not, a tally (n, S, …) is kept for each sample, and `values` gets all of them.
    summed: bool = True
    # Whether `values` gets the deviation of each number, too: the labels were divided by it.
    in_units: bool = False


def _tally_of(measure: str) -> Tally:
    if registry.location("measure", measure) is None:
        found: Tally = resolve_name(str(MEASURES[measure].tally))
        return found
    own: Tally = registry.resolve("measure", measure)
    # Copies, which the function may change in place.
    return own._replace(of=lambda logits, labels: own.of(logits.clone(), labels.clone()))


def tally(measure: str, logits: Tensor, labels: Tensor) -> Tensor:
    """The tally of S models with logits (S, classes, n) for labels (n, …), with rows to be `joined`
    with others."""
    kind = _tally_of(measure)
    found = kind.of(logits, labels)
    return found[None] if kind.summed else found


def joined(measure: str, parts: Sequence[Tensor]) -> Tensor:
    together = torch.cat([*parts])
    return together.sum(0, keepdim=True) if _tally_of(measure).summed else together


def values(
    measure: str, tallies: Tensor, samples: int, targets: Targets | None = None
) -> list[float]:
    """The measure of each of S models, from all tallies, (rows, S, …), of these samples. NaN where
    the measure is not defined. `targets` says how numbers were standardised."""
    kind, tallies = _tally_of(measure), tallies.cpu()
    units = [targets.units if targets else []] if kind.in_units else []
    found = kind.values(tallies.sum(0) if kind.summed else tallies, samples, *units)
    if where := registry.location("measure", measure):  # it may return a tensor or NumPy's floats
        try:
            return [float(value) for _, value in zip(tallies[0], found, strict=True)]
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                f"{_monitored(measure)}: the values of {where} are {found!r:.100}, must be a float "
                f"for each of {len(tallies[0])} models"
            ) from None
    return found


def try_own(measure: str, task: Task, targets: Targets | None) -> None:
    """Tries a measure of an extension on two models and two samples. Raises InputError if it cannot
    be used."""
    where = registry.location("measure", measure)
    if where is None:
        return
    outputs = torch.linspace(-1, 1, 4 * task.outputs).view(2, -1, 2)
    labels = torch.tensor([0, task.labels - 1])
    if task.section.name != CLASSIFICATION:
        labels = (torch.arange(2 * task.labels).view(2, -1) % 2).float()
    try:
        found = tally(measure, task.central(outputs), labels)
        values(measure, joined(measure, [found]), 2, targets)
    except InputError:
        raise
    except Exception as error:  # of any code
        raise InputError(
            f"{_monitored(measure)}: {where} fails for 2 models and 2 samples "
            f"({registry.place_of(error, where)}{type(error).__name__}: {first_line(error)}); its "
            "Tally gets outputs (models, outputs, samples) and labels (samples, …)"
        ) from without_own_frames(error)


def _monitored(measure: str) -> str:
    return f"checkpoint.monitor=val/{measure}"


def _mean(by_class: list[float]) -> float:
    """The plain mean over the classes that have a value. The last bits of torch's mean depend on
    the number of models."""
    known = [value for value in by_class if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def probabilities(logits: Tensor) -> Tensor:
    """The probabilities (S, n, classes) of logits (S, classes, n), in float64 where the device has
    it. Samples with the same logits have the same probabilities to the last bit: along an axis that
    is not the last, the last samples of a chunk would be computed in another way."""
    exact = torch.float32 if logits.device.type == "mps" else torch.float64
    return classification.probabilities(logits.mT.to(exact).contiguous())


# --- precision, recall, F1 -----------------------------------------------------------------------


def count_classes(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Counts (S, 3, classes) of the predictions (S, n) of S models for labels (n,): the samples of
    each class, the predictions of it, and those of them that are correct."""
    counts = torch.zeros(len(predicted), 3, classes, dtype=torch.int32, device=predicted.device)
    correct, labels = (predicted == labels).int(), labels.expand_as(predicted)
    counts[:, 0].scatter_add_(1, labels, torch.ones_like(correct))
    counts[:, 1].scatter_add_(1, predicted, torch.ones_like(correct))
    counts[:, 2].scatter_add_(1, predicted, correct)
    return counts.long()


def by_class(counts: Tensor) -> dict[str, Tensor]:
    """Precision, recall and F1, (…, classes) in float64, of counts (…, 3, classes) on the CPU.

    As in scikit-learn and torchmetrics, a class that has samples, but is never predicted, has
    precision 0; a class that is predicted, but has no samples, has recall 0. A class with neither
    has NaN.
    """
    samples, predictions, hits = counts.double().unbind(-2)
    absent = samples + predictions == 0
    found = {
        "precision": hits / predictions.clamp(min=1),
        "recall": hits / samples.clamp(min=1),
        "f1": 2 * hits / (samples + predictions),
    }
    return {name: values.masked_fill(absent, math.nan) for name, values in found.items()}


def count_labels(predicted: Tensor, labels: Tensor) -> Tensor:
    """Counts (S, 3, labels), as count_classes, of predictions (S, n, labels) for labels
    (n, labels), all 0 or 1: a label that samples have is a class of theirs."""
    predicted, labels = predicted.long(), labels.long()
    samples = labels.sum(0).expand(len(predicted), -1)
    return torch.stack([samples, predicted.sum(1), (predicted * labels).sum(1)], 1)


def _predictions(logits: Tensor, labels: Tensor) -> Tensor:
    if labels.dim() > 1:
        return count_labels(logits.mT > 0, labels)
    return count_classes(classification.decide(logits, 1), labels, logits.shape[1])


def _class_means(name: str) -> Tally:
    def means(total: Tensor, _: int) -> list[float]:
        return [_mean(each) for each in by_class(total)[name].tolist()]

    return Tally(_predictions, means)


F1, PRECISION, RECALL = (_class_means(name) for name in ("f1", "precision", "recall"))

# --- the others ----------------------------------------------------------------------------------


def _probabilities_and_labels(logits: Tensor, labels: Tensor) -> Tensor:
    if labels.dim() > 1:  # of each label; logits have the order of probabilities
        by_sample = logits.permute(2, 0, 1)
        found = labels.to(by_sample)[:, None].expand_as(by_sample)
        return torch.cat([by_sample, found, torch.full_like(found[..., :1], NO_CLASS)], -1)
    by_sample = probabilities(logits).transpose(0, 1)
    column = labels.to(by_sample)[:, None, None].expand_as(by_sample[..., :1])
    return torch.cat([by_sample, column], -1)


def _mean_areas(kept: Tensor, _: int) -> list[float]:
    by_model, last = kept[..., :-1].transpose(0, 1), kept[:, 0, -1].long()
    if (last == NO_CLASS).all():
        logits, labels = by_model.chunk(2, -1)
        found = label_areas(logits, labels[0])
    else:
        found = areas(by_model, last)
    return [_mean(each) for each in found.tolist()]


AUROC = Tally(_probabilities_and_labels, _mean_areas, summed=False)


def label_areas(scores: Tensor, labels: Tensor) -> Tensor:
    """The area under the ROC curve of each label, (S, labels), of scores (S, n, labels) for labels
    (n, labels), 0 or 1; as `areas`."""
    columns = [
        areas(scores[..., [number, number]], labels[:, number].long())[:, 1]
        for number in range(labels.shape[1])
    ]
    return torch.stack(columns, 1)


def areas(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The area under the ROC curve of each class against the rest, (S, classes) in float64, of
    probabilities (S, n, classes) for labels (n,): the share of the pairs of a sample of the class
    and another sample in which the first has the higher probability; equal ones count half (Mann
    and Whitney). NaN for a class without samples, for the only class with samples, and for all
    classes of a model with a probability of NaN."""
    found = torch.full_like(probabilities[:, 0], math.nan, dtype=torch.float64)
    for number in torch.unique(labels).tolist():
        mine, scores = labels == number, probabilities[..., number]
        first, others = scores[:, mine].contiguous(), scores[:, ~mine].sort(-1).values
        if others.shape[1]:
            below, not_above = (torch.searchsorted(others, first, right=r) for r in (False, True))
            pairs = first.shape[1] * others.shape[1]
            found[:, number] = (below + not_above).sum(-1).double() / (2 * pairs)
    return found.masked_fill(probabilities.isnan().any(-1).any(-1)[:, None], math.nan)


def among_best(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """Whether fewer than k other classes have a logit that is at least that of the label, (S, n),
    for logits (S, classes, n). False for a logit of NaN."""
    own = logits.gather(1, labels.expand(len(logits), 1, -1))
    return (~(logits < own)).sum(1) <= k


TOP5 = Tally(
    lambda logits, labels: among_best(logits, labels, 5).sum(-1),
    lambda total, samples: [hits / samples for hits in total.tolist()],
)


def _distances(logits: Tensor, labels: Tensor) -> Tensor:
    """(S, 2): the sum over the samples of the squared distance of the probabilities from the true
    class, in UNITs, and the number of samples whose distance is known."""
    found = probabilities(logits)
    own = found.gather(2, labels.expand(len(found), -1)[..., None]).squeeze(2)
    distances = found.square().sum(-1) + 1 - 2 * own
    known = distances.isfinite()
    return torch.stack([_units(distances).sum(-1), known.sum(-1)], -1)


def _brier_scores(total: Tensor, samples: int) -> list[float]:
    return [
        distance * UNIT / samples if known == samples else math.nan
        for distance, known in total.tolist()
    ]


BRIER = Tally(_distances, _brier_scores)


def calibration_tally(logits: Tensor, labels: Tensor) -> Tensor:
    """(S, 3, BINS) over bins of confidence, the highest probability of a sample; bin b of B holds
    those in (b/B, (b + 1)/B]: the number of samples, of those that are predicted correctly, and the
    sum of the confidences in UNITs. A confidence of NaN is in no bin."""
    confidence, predicted = probabilities(logits).max(-1)
    number = (confidence * BINS).ceil().nan_to_num(0).long() - 1
    number = torch.where(confidence.isnan(), -1, number.clamp(0, BINS - 1))
    within = number[:, None] == torch.arange(BINS, device=number.device)[:, None]
    parts = (torch.ones_like(number), (predicted == labels).long(), _units(confidence))
    return torch.stack([(within * part[:, None]).sum(-1) for part in parts], 1)


def _calibration_errors(total: Tensor, samples: int) -> list[float]:
    """The mean distance, over samples, of the accuracy in a bin from the mean confidence in it."""
    found = []
    for counts, hits, confidences in total.tolist():
        gaps = (abs(right - sure * UNIT) for right, sure in zip(hits, confidences, strict=True))
        found.append(math.fsum(gaps) / samples if sum(counts) == samples else math.nan)
    return found


ECE = Tally(calibration_tally, _calibration_errors)


def _units(numbers: Tensor) -> Tensor:
    """Numbers as whole numbers of UNITs; 0 for NaN."""
    return (numbers / UNIT).nan_to_num(0).round().long()


# --- of numbers ----------------------------------------------------------------------------------


def _exact(numbers: Tensor) -> Tensor:
    """Sums (S, outputs, 3) over samples of numbers (S, outputs, n), at least 0: whole numbers of
    HIGH, of LOW, and the count of those that are known. A sum does not depend on its order."""
    known = numbers < LARGEST
    high = (numbers.nan_to_num(0).clamp(max=LARGEST) / HIGH).floor()
    low = ((numbers.nan_to_num(0).clamp(max=LARGEST) - high * HIGH) / LOW).round()
    return torch.stack([part.long().sum(-1) for part in (high, low, known)], -1)


def _means(total: Tensor, samples: int) -> list[list[float]]:
    """The mean of each output of each model; NaN where a number is not known."""
    return [
        [
            (high * HIGH + low * LOW) / samples if known == samples else math.nan
            for high, low, known in of_model
        ]
        for of_model in total.tolist()
    ]


def _root_mean_squares(total: Tensor, samples: int, units: Sequence[float]) -> list[float]:
    return [_mean_in_units(map(math.sqrt, of_model), units) for of_model in _means(total, samples)]


def _absolute_means(total: Tensor, samples: int, units: Sequence[float]) -> list[float]:
    return [_mean_in_units(of_model, units) for of_model in _means(total, samples)]


def _mean_in_units(values: Iterable[float], units: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(values, units, strict=True)) / len(units)


# Of several numbers, the mean over them, each in the unit of its labels.
RMSE = Tally(
    lambda outputs, labels: _exact(squared_errors(outputs, labels)),
    _root_mean_squares,
    in_units=True,
)
MAE = Tally(
    lambda outputs, labels: _exact(squared_errors(outputs, labels).sqrt()),
    _absolute_means,
    in_units=True,
)


class Evaluated(NamedTuple):
    """What S models made of some samples: sums of the losses and of the task's scores of each
    chunk, (chunks, S); if asked for, the tally of a measure."""

    losses: Tensor
    scores: Tensor
    tally: Tensor | None = None


def evaluate(
    task: Task,
    forward: Callable[[Tensor], Tensor],
    batch: Batch,
    dtype: torch.dtype,
    trials: int = 1,
    *,
    measure: str | None = None,
    copied: bool = False,
) -> Evaluated:
    """Evaluates S models on a batch, with the tally of a measure if one is named. `copied`:
    `forward`, which may change its inputs in place, gets copies of the features.

    `forward` maps features (n, *shape) of `dtype` to logits (S, classes, n). With many trials the
    chunks are smaller, because otherwise hidden units would take more memory than weights.
    """
    losses, scores, parts = [], [], []
    chunk = min(CHUNK, max(CHUNK // 8, 16 * CHUNK // trials))
    with torch.no_grad():
        for start in range(0, len(batch.labels), chunk):
            features, labels, weights = (
                part if part is None else part[start : start + chunk] for part in batch
            )
            assert features is not None and labels is not None  # noqa: PT018
            convert = float_copy if copied else as_float
            logits = forward(convert(features).to(dtype))
            target = labels.expand(len(logits), *labels.shape)
            exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
            each = task.losses(exact, target), task.scores(logits, target)
            if weights is not None:
                each = each[0] * weights, each[1] * weights
            losses.append(each[0].sum(-1))
            scores.append(each[1].sum(-1))
            if measure is not None:
                parts.append(tally(measure, task.central(exact), labels))
    whole = None if measure is None else joined(measure, parts)
    return Evaluated(torch.stack(losses), torch.stack(scores), whole)
