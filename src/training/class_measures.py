"""Precision, recall and F1 of each class, for many models at once.

torchmetrics and scikit-learn take a call of about a millisecond for each model and measure, and a
stack has up to thousands of models to validate after each epoch.
"""

import math

import torch
from torch import Tensor


def count_classes(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Counts (S, 3, classes) of the predictions (S, N) of S models for labels (N,): the samples of
    each class, the predictions of it, and those of them that are correct."""
    counts = torch.zeros(len(predicted), 3, classes, dtype=torch.int32, device=predicted.device)
    correct, labels = (predicted == labels).int(), labels.expand_as(predicted)
    counts[:, 0].scatter_add_(1, labels, torch.ones_like(correct))
    counts[:, 1].scatter_add_(1, predicted, torch.ones_like(correct))
    counts[:, 2].scatter_add_(1, predicted, correct)
    return counts.long()


def by_class(counts: Tensor) -> dict[str, Tensor]:
    """The measures (…, classes), in float64, of counts (…, 3, classes) on the CPU.

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


def macro(counts: Tensor, measure: str) -> list[float]:
    """The plain mean of a measure over the classes that have one, for counts (S, 3, classes)."""
    means = []
    # The last bits of torch's mean depend on the number of models.
    for values in by_class(counts.cpu())[measure].tolist():
        known = [value for value in values if not math.isnan(value)]
        means.append(math.fsum(known) / len(known))
    return means
