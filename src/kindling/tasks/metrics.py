"""Loss, score and a further measure of each trial in an epoch, over all ranks."""

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from kindling.config.measures import SCORES
from kindling.data.targets import Targets
from kindling.tasks.measures import values
from kindling.tasks.task import Task

# What one rank has summed → that of all ranks, in their order.
Gather = Callable[[dict[str, Any]], list[dict[str, Any]]]


class EpochMetrics:
    """Mean loss and score over samples, and a tallied measure if one is named. All losses, and
    scores that are real numbers, are kept, and are added once, exactly: the bits of a mean do not
    depend on the batches in an update. The bits of torchmetrics' MeanMetric do, because it adds in
    float32."""

    def __init__(
        self,
        task: Task,
        spreads: Sequence[float],
        measure: str | None = None,
        targets: Targets | None = None,
    ) -> None:
        """`spreads` are those of the labels of each trial, see data/targets.py."""
        self.task, self.spreads, self.measure = task, spreads, measure
        self.targets = targets
        self.reset()

    def reset(self) -> None:
        self.losses: list[Tensor] = []
        self.errors: list[Tensor] = []
        self.correct = torch.zeros(len(self.spreads), dtype=torch.long)
        self.samples = 0
        self.weights: list[Tensor] = []  # sums over batches, if the samples have weights
        self.tallies: list[Tensor] = []

    def update(
        self,
        losses: Tensor,
        scores: Tensor,
        samples: int,
        tally: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> None:
        """Adds K batches: sums of losses (K, S) and of scores (K, S), number of samples; for a
        measure, the tally of them. `weights` are those of the samples, by which the sums are
        weighted."""
        if weights is not None:
            self.weights.append(weights.sum(dtype=scores.dtype).view(1))
        self.losses.append(losses)
        if scores.is_floating_point():
            self.errors.append(scores)
        else:
            self.correct = self.correct.to(scores.device) + scores.sum(0)
        self.samples += samples
        if tally is not None:
            self.tallies.append(tally)

    def sums(self) -> tuple[Tensor, Tensor, int]:
        """The arguments of one `update` that equals all updates of this rank so far."""
        scores = _joined(self.errors) if self.errors else self.correct.unsqueeze(0)
        return _joined(self.losses), scores, self.samples

    def compute(self, gather: Gather | None = None) -> list[dict[str, float]]:
        """`loss`, the score and the measure of each trial, as Python floats: of this rank, or with
        `gather` of all ranks, which then call it together."""
        if gather is not None:
            return self._of_all(gather).compute()
        weight: float = self.samples
        if self.weights:
            weight = exact_sum(_joined(self.weights).tolist()) or 1.0
        totals: list[float] = self.correct.tolist()
        if self.errors:
            totals = [exact_sum(errors) for errors in _by_trial(self.errors)]
        found = [
            loss_and_score(self.task, losses, total, weight, spread)
            for losses, total, spread in zip(
                _by_trial(self.losses), totals, self.spreads, strict=True
            )
        ]
        if self.measure is not None:
            measured = values(self.measure, _joined(self.tallies), self.samples, self.targets)
            for of_trial, value in zip(found, measured, strict=True):
                of_trial[self.measure] = value
        return found

    def _of_all(self, gather: Gather) -> "EpochMetrics":
        """The sums of all ranks."""
        lists = ("losses", "errors", "weights", "tallies")
        own = {name: [_joined(parts)] if (parts := getattr(self, name)) else [] for name in lists}
        given = gather({**own, "correct": self.correct, "samples": self.samples})
        whole = EpochMetrics(self.task, self.spreads, self.measure, self.targets)
        for name in lists:
            setattr(whole, name, [*chain.from_iterable(each[name] for each in given)])
        whole.correct = sum((each["correct"] for each in given), whole.correct)
        whole.samples = sum(each["samples"] for each in given)
        return whole

    def first_above(self, bound: float) -> Tensor:
        """For each trial (S,), the first batch of this rank, from 0, whose sum of losses is NaN or
        above the bound. The number of batches if there is none."""
        good = _joined(self.losses) <= bound
        if good.all():
            return torch.full((good.shape[1],), len(good), device=good.device)
        return torch.where(good.all(0), len(good), good.long().argmin(0))  # the first 0


def _by_trial(parts: list[Tensor]) -> list[list[float]]:
    found: list[list[float]] = _joined(parts).cpu().double().T.tolist()  # MPS has no float64
    return found


def _joined(parts: list[Tensor]) -> Tensor:
    """The first part may be that of a checkpoint, which lies on the CPU."""
    return torch.cat([part.to(parts[-1].device) for part in parts])


def loss_and_score(
    task: Task, losses: Sequence[float], total: float, weight: float, spread: float
) -> dict[str, float]:
    """Of one trial, from sums of losses, the sum of scores, and that of the weights of samples."""
    name = SCORES[task.section.name]
    return {"loss": exact_sum(losses) / weight, name: task.score(total, weight, spread)}


def exact_sum(losses: Sequence[float]) -> float:
    """The exact sum, rounded once: the last bits of torch's sum depend on the number of trials."""
    try:
        return math.fsum(losses)
    except OverflowError:
        return math.inf
