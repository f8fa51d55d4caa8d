"""Metrics of an epoch against torchmetrics."""

import math

import pytest
import torch
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from kindling.config.measures import MEASURES, tallied
from kindling.data.loader import Batch
from kindling.tasks.measures import evaluate, tally, values
from kindling.tasks.metrics import EpochMetrics
from tests.helpers.tasks import classes


def test_metrics_equal_torchmetrics_however_batches_are_grouped() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 50, 10), torch.randint(10, (6, 50))
    losses = torch.stack([F.cross_entropy(a, b) for a, b in zip(logits, labels, strict=True)])
    correct = (logits.argmax(-1) == labels).sum(-1)
    both = torch.stack([losses, 2 * losses], 1) * 50, torch.stack([correct, correct // 2], 1)
    values = []
    for groups in ([6], [1] * 6, [2, 1, 3]):
        metrics = EpochMetrics(classes(4), [0.0] * 2)
        for loss, hits in zip(*(torch.split(t, groups) for t in both), strict=True):
            metrics.update(loss, hits, 50 * len(loss))
        values.append(metrics.compute())
    assert values[0] == values[1] == values[2]  # to the last bit
    mean, accuracy = MeanMetric(), MulticlassAccuracy(10, average="micro")
    mean.update(losses)
    accuracy.update(logits.flatten(0, 1), labels.flatten())
    first, second = values[0]
    assert first["loss"] == pytest.approx(mean.compute().item(), rel=1e-6)
    assert first["acc"] == pytest.approx(accuracy.compute().item(), rel=1e-6)
    assert second["loss"] == pytest.approx(2 * first["loss"], rel=1e-6)
    assert second["acc"] == int((correct // 2).sum()) / 300


def test_metrics_weigh_batches_by_their_samples() -> None:
    metrics = EpochMetrics(classes(4), [0.0])
    metrics.update(torch.tensor([[4.0], [4.0]]), torch.tensor([[3], [1]]), 8)
    metrics.update(torch.tensor([[12.0]]), torch.tensor([[2]]), 2)
    assert metrics.compute() == [{"loss": 2.0, "acc": 0.6}]


def test_a_trial_has_the_same_sums_whoever_is_beside() -> None:
    torch.manual_seed(0)
    losses = torch.rand(997, 7, dtype=torch.float64)
    correct = torch.randint(9, (997, 7))
    together = EpochMetrics(classes(4), [0.0] * 7)
    together.update(losses, correct, 9 * 997)
    for trial, expected in enumerate(together.compute()):
        alone = EpochMetrics(classes(4), [0.0])
        for rows in torch.split(torch.arange(997), 13):
            column = slice(trial, trial + 1)
            alone.update(losses[rows, column], correct[rows, column], 9 * len(rows))
        assert alone.compute() == [expected]


@pytest.mark.parametrize(
    "measure", [name for name in tallied() if "classification" in MEASURES[name].tasks]
)
def test_a_measure_is_that_of_all_samples(measure: str) -> None:
    """However samples come in batches, and batches in chunks, and only if a measure is named."""
    stream = torch.Generator().manual_seed(0)
    features = torch.randn(2600, 12, generator=stream)
    labels = torch.randint(6, (2600,), generator=stream)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 2, 6).permute(1, 2, 0)

    metrics = EpochMetrics(classes(4), [0.0] * 2, measure)
    for part in (slice(2100), slice(2100, None)):
        batch = Batch(features[part], labels[part])
        losses, correct, found = evaluate(
            classes(4), forward, batch, torch.float32, 2, measure=measure
        )
        metrics.update(losses, correct, len(batch.labels), found)
    whole = values(measure, tally(measure, forward(features), labels), 2600)
    assert [found[measure] for found in metrics.compute()] == whole
    assert whole[0] != whole[1]
    metrics.reset()
    assert not metrics.tallies
    assert evaluate(classes(4), forward, Batch(features, labels), torch.float32, 2).tally is None


@pytest.mark.parametrize(("value", "expected"), [(1e308, math.inf), (math.nan, math.nan)])
def test_losses_beyond_all_numbers(value: float, expected: float) -> None:
    metrics = EpochMetrics(classes(4), [0.0])
    metrics.update(torch.full((3, 1), value, dtype=torch.float64), torch.zeros(3, 1).long(), 6)
    assert metrics.compute()[0]["loss"] == pytest.approx(expected, nan_ok=True)
