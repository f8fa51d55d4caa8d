"""Metrics of an epoch against torchmetrics."""

import pytest
import torch
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from src.training.metrics import EpochMetrics


def test_metrics_equal_torchmetrics_however_batches_are_grouped() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 50, 10), torch.randint(10, (6, 50))
    losses = torch.stack([F.cross_entropy(a, b) for a, b in zip(logits, labels, strict=True)])
    correct = (logits.argmax(-1) == labels).sum(-1)
    both = torch.stack([losses, 2 * losses], 1) * 50, torch.stack([correct, correct // 2], 1)
    values = []
    for groups in ([6], [1] * 6, [2, 1, 3]):
        metrics = EpochMetrics(2)
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
    metrics = EpochMetrics()
    metrics.update(torch.tensor([[4.0], [4.0]]), torch.tensor([[3], [1]]), 8)
    metrics.update(torch.tensor([[12.0]]), torch.tensor([[2]]), 2)
    assert metrics.compute() == [{"loss": 2.0, "acc": 0.6}]
