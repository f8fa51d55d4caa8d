"""Loss, its gradient and decision, computed anew by plain sums."""

import math

import pytest
import torch
from scipy.special import softmax

from kindling.tasks import classification
from tests.helpers import tasks

LOGITS = torch.tensor([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]], dtype=torch.float64)
LABELS = torch.tensor([1, 0])
TASK = tasks.classes(3)
WEIGHTS = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)


def log_softmax(row: list[float]) -> list[float]:
    total = math.log(sum(math.exp(value) for value in row))
    return [value - total for value in row]


def one_by_one(smoothing: float, weights: list[float]) -> float:
    """The weighted mean loss, sample by sample."""
    losses, total = 0.0, 0.0
    for row, label in zip(LOGITS.tolist(), LABELS.tolist(), strict=True):
        logs = log_softmax(row)
        for number, value in enumerate(logs):
            target = (number == label) * (1 - smoothing) + smoothing / len(logs)
            losses -= target * weights[number] * value
        total += weights[label]
    return losses / total


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_the_loss_and_its_written_out_gradient(
    smoothing: float, weights: torch.Tensor | None
) -> None:
    expected = one_by_one(smoothing, [1.0] * 3 if weights is None else weights.tolist())
    logits = LOGITS.clone().requires_grad_()
    loss = TASK.loss(logits, LABELS, weights, smoothing)
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    batches = LOGITS.mT[None, None]  # (K, S, classes, B)
    labels = LABELS[None, None]
    found = TASK.batch_losses(batches, labels, weights, smoothing)
    assert found.tolist() == [[pytest.approx(expected, abs=1e-12)]]

    targets, totals = TASK.targets(labels, LOGITS, weights, smoothing)
    out = TASK.residual(batches[0], targets[0], None if totals is None else totals[0])
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(out[0].mT / len(LABELS), gradient)
    summed = TASK.summed_losses(batches[0], targets[0])
    assert summed.tolist() == [pytest.approx(2 * expected, abs=1e-12)]


def test_of_equal_logits_the_first_class_is_decided() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]])
    assert classification.decide(logits).tolist() == [1, 0]
    assert classification.decide(logits.mT, 0).tolist() == [1, 0]
    assert TASK.losses(logits, torch.tensor([2, 2])).tolist() == pytest.approx(
        [-log_softmax([1, 3, 3])[2], -log_softmax([2, 2, 0])[2]]
    )


def test_probabilities_and_their_logarithms() -> None:
    rows = [log_softmax(row) for row in LOGITS.tolist()]
    logarithms = classification.log_probabilities(LOGITS)
    assert logarithms.flatten().tolist() == pytest.approx([value for row in rows for value in row])
    probabilities = classification.probabilities(LOGITS)
    torch.testing.assert_close(probabilities, logarithms.exp())


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("size", [1e-30, 1.0, 40.0, 700.0, 1e30])
def test_probabilities_of_any_size(classes: int, size: float) -> None:
    stream = torch.Generator().manual_seed(0)
    logits = size * torch.randn(500, classes, generator=stream, dtype=torch.float64)
    found = classification.probabilities(logits)
    torch.testing.assert_close(found, torch.from_numpy(softmax(logits.numpy(), 1)))
    torch.testing.assert_close(found.sum(1), torch.ones(500, dtype=torch.float64))
    alone = torch.cat([classification.probabilities(row[None]) for row in logits])
    torch.testing.assert_close(alone, found, rtol=1e-14, atol=0)
