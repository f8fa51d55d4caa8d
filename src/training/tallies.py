"""Measures of a classifier beside loss and accuracy, for many models at once: precision, recall,
F1, AUROC, top-5 accuracy, Brier score and expected calibration error.

torchmetrics and scikit-learn take a call of about a millisecond for each model and measure, and a
stack has up to thousands of models to validate after each epoch.

A measure has a tally of each chunk of samples. A tally holds whole numbers, so the bits of a value
depend neither on how the samples were divided nor on the number of models. AUROC, which compares
each sample with all others, keeps the probabilities instead.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BINS = 15  # of confidence
TOP = 5
UNIT = 2.0**-36  # of a sum of real numbers, which a tally holds as a whole number below 2^63


def tally(measure: str, logits: Tensor, labels: Tensor) -> Tensor:
    """The tally of S models with logits (S, classes, n) for labels (n,): (1, S, …), to be added to
    others; for AUROC (n, S, classes + 1), to be concatenated with others."""
    match measure:
        case "auroc":
            by_sample = probabilities(logits).transpose(0, 1)
            column = labels.to(by_sample)[:, None, None].expand_as(by_sample[..., :1])
            return torch.cat([by_sample, column], -1)
        case "top5":
            return among_best(logits, labels, TOP).sum(-1)[None]
        case "brier":
            return _brier_tally(probabilities(logits), labels)[None]
        case "ece":
            return calibration_tally(probabilities(logits), labels)[None]
    return count_classes(logits.argmax(1), labels, logits.shape[1])[None]


def joined(measure: str, parts: Sequence[Tensor]) -> Tensor:
    """The tally of all chunks."""
    together = torch.cat([*parts])
    return together if measure == "auroc" else together.sum(0, keepdim=True)


def values(measure: str, tallies: Tensor, samples: int) -> list[float]:
    """The measure of each of S models, from all tallies, (rows, S, …), of these samples. NaN where
    the measure is not defined."""
    tallies = tallies.cpu()
    if measure == "auroc":
        found = areas(tallies[..., :-1].transpose(0, 1), tallies[:, 0, -1].long())
        return [_mean(each) for each in found.tolist()]
    total = tallies.sum(0)
    match measure:
        case "top5":
            return [hits / samples for hits in total.tolist()]
        case "brier":
            return [_brier(each, samples) for each in total.tolist()]
        case "ece":
            return [_calibration_error(each, samples) for each in total.tolist()]
    # The last bits of torch's mean depend on the number of models.
    return [_mean(each) for each in by_class(total)[measure].tolist()]


def _mean(by_class: list[float]) -> float:
    """The plain mean over the classes that have a value."""
    known = [value for value in by_class if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan


def probabilities(logits: Tensor) -> Tensor:
    """The probabilities (S, n, classes) of logits (S, classes, n), in float64 where the device has
    it. Samples with the same logits have the same probabilities to the last bit: along an axis that
    is not the last, the last samples of a chunk would be computed in another way."""
    exact = torch.float32 if logits.device.type == "mps" else torch.float64
    return logits.mT.to(exact).contiguous().softmax(-1)


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


# --- the others ----------------------------------------------------------------------------------


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


def _brier_tally(probabilities: Tensor, labels: Tensor) -> Tensor:
    """(S, 2): the sum over the samples of the squared distance of the probabilities from the true
    class, in UNITs, and the number of samples whose distance is known."""
    own = probabilities.gather(2, labels.expand(len(probabilities), -1)[..., None]).squeeze(2)
    distances = probabilities.square().sum(-1) + 1 - 2 * own
    known = distances.isfinite()
    return torch.stack([_units(distances).sum(-1), known.sum(-1)], -1)


def _brier(total: list[int], samples: int) -> float:
    distance, known = total
    return distance * UNIT / samples if known == samples else math.nan


def calibration_tally(probabilities: Tensor, labels: Tensor) -> Tensor:
    """(S, 3, BINS) over bins of confidence, the highest probability of a sample; bin b of B holds
    those in (b/B, (b + 1)/B]: the number of samples, of those that are predicted correctly, and the
    sum of the confidences in UNITs. A confidence of NaN is in no bin."""
    confidence, predicted = probabilities.max(-1)
    number = (confidence * BINS).ceil().nan_to_num(0).long() - 1
    number = torch.where(confidence.isnan(), -1, number.clamp(0, BINS - 1))
    within = number[:, None] == torch.arange(BINS, device=number.device)[:, None]
    parts = (torch.ones_like(number), (predicted == labels).long(), _units(confidence))
    return torch.stack([(within * part[:, None]).sum(-1) for part in parts], 1)


def _calibration_error(total: list[list[int]], samples: int) -> float:
    """The mean distance, over samples, of the accuracy in a bin from the mean confidence in it."""
    counts, hits, confidences = total
    if sum(counts) != samples:
        return math.nan
    gaps = (abs(right - sure * UNIT) for right, sure in zip(hits, confidences, strict=True))
    return math.fsum(gaps) / samples


def _units(numbers: Tensor) -> Tensor:
    """Numbers as whole numbers of UNITs; 0 for NaN."""
    return (numbers / UNIT).nan_to_num(0).round().long()
