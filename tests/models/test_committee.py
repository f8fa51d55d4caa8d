"""The mean of several models' probabilities."""

import math

import pytest
import torch
from torch import nn

from kindling.config.schema import OLD_TASK
from kindling.models.committee import Committee
from kindling.tasks.classification import log_mean
from kindling.tasks.task import build_task

TASK = build_task(OLD_TASK, 2)


def test_the_mean_by_hand() -> None:
    """Two members of two classes, the second with three votes of four."""
    members = [nn.Linear(1, 2), nn.Linear(1, 2)]
    for member, odds in zip(members, (3.0, 1 / 9), strict=True):
        nn.init.zeros_(member.weight)
        member.bias.data = torch.tensor([math.log(odds), 0.0])
    committee = Committee(members, [1, 3], TASK)
    probabilities = committee(torch.zeros(5, 1)).exp().detach()
    first = (1 * 0.75 + 3 * 0.1) / 4
    assert probabilities == pytest.approx(torch.tensor([[first, 1 - first]] * 5))
    assert committee.opinions(torch.zeros(5, 1)).shape == (5, 2, 2)


def test_members_of_different_precision() -> None:
    members = [nn.Linear(3, 4), nn.Linear(3, 4).double()]
    features = torch.rand(6, 3)
    logits = Committee(members, [1, 1], TASK)(features)
    exact = [member(features.to(member.weight.dtype)).double().softmax(-1) for member in members]
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.exp().double(), sum(exact) / 2, rtol=1e-6, atol=1e-7)
    assert Committee(members[::-1], [1, 1], TASK)(features).dtype == torch.float32
    assert Committee(members[1:], [1], TASK)(features).dtype == torch.float64


def test_small_probabilities_do_not_underflow() -> None:
    log_probabilities = torch.tensor([[[0.0, -300.0], [0.0, -200.0]]])
    assert log_mean(log_probabilities, [1, 1])[0].tolist() == pytest.approx(
        [0.0, -200.0 - math.log(2)]
    )
    expected = torch.rand(7, 5, 3, dtype=torch.float64).log()
    votes = [1, 2, 3, 4, 5]
    shares = torch.tensor(votes, dtype=torch.float64) / 15
    torch.testing.assert_close(
        log_mean(expected, votes), (expected + shares.log().unsqueeze(-1)).logsumexp(1)
    )
