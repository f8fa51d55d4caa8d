"""Small models, batches and gradients for the tests of stacks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kindling.models.closed_form import SegmentBatch
from kindling.models.logistic_regression import LogisticRegression
from kindling.models.mlp import Mlp
from kindling.steps.stack import Stack

INPUTS, CLASSES, BATCH = 12, 5, 9


def models_of(
    sizes: Sequence[list[int]],
    activation: str = "relu",
    dropout: float | list[float] = 0.0,
    **options: Any,
) -> list[nn.Module]:
    torch.manual_seed(1)
    models: list[nn.Module] = [
        Mlp(INPUTS, hidden, CLASSES, activation, dropout, **options).double()
        if hidden
        else LogisticRegression(INPUTS, CLASSES).double()
        for hidden in sizes
    ]
    return models


def batches(count: int) -> tuple[Tensor, Tensor]:
    """Features (R, B, inputs) and labels (R, B)."""
    torch.manual_seed(2)
    features = torch.randn(count, BATCH, INPUTS, dtype=torch.double)
    return features, torch.randint(CLASSES, (count, BATCH))


def accumulate_all(stack: Stack, features: Tensor, labels: Tensor) -> list[Tensor]:
    """Computes the gradients of the mean loss of each trial. Returns the logits of each segment."""
    targets = F.one_hot(labels, CLASSES).mT.double().unsqueeze(1)
    found = []
    for segment in stack.segments:
        segment.make_gradients()
        logits = torch.empty(len(segment.trials), CLASSES, BATCH, dtype=torch.double)
        batch = SegmentBatch(
            features[segment.batches], targets[segment.batches], None, 1 / BATCH, logits
        )
        segment.differentiate(
            batch,
            lambda layer, delta, inputs: layer.accumulate(delta, inputs, overwrite=True),
        )
        segment.attach_gradients()
        found.append(logits)
    return found
