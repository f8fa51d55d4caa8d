"""Loss, score and a further measure of each trial in an epoch, over all ranks. Only training
imports this module, because torchmetrics is slow to import."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from kindling.config.measures import SCORES
from kindling.data.targets import Targets
from kindling.tasks.measures import values
from kindling.tasks.task import Task


class EpochMetrics(Metric):
    """Mean loss and score over samples, and a tallied measure if one is named. All losses, and
    scores that are real numbers, are kept, and are added once, exactly. torchmetrics' MeanMetric
    adds in float32, so its bits depend on the batches in an update."""

    full_state_update = False
    losses: list[Tensor]
    errors: list[Tensor]
    correct: Tensor
    samples: Tensor
    weights: list[Tensor]  # sums over batches, if the samples have weights
    tallies: list[Tensor]

    def __init__(
        self,
        task: Task,
        spreads: Sequence[float],
        measure: str | None = None,
        targets: Targets | None = None,
    ) -> None:
        """`spreads` are those of the labels of each trial, see data/targets.py."""
        super().__init__()
        self.task, self.spreads, self.measure = task, spreads, measure
        self.targets = targets
        self.add_state("losses", [], dist_reduce_fx="cat")
        self.add_state("errors", [], dist_reduce_fx="cat")
        counts = torch.zeros(len(spreads), dtype=torch.long)
        self.add_state("correct", counts, dist_reduce_fx="sum")
        self.add_state("samples", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("weights", [], dist_reduce_fx="cat")
        if measure is not None:
            self.add_state("tallies", [], dist_reduce_fx="cat")

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
            self.correct += scores.sum(0)
        self.samples += samples
        if tally is not None:
            self.tallies.append(tally)

    def sums(self) -> tuple[Tensor, Tensor, int]:
        """The arguments of one `update` that equals all updates of this rank so far."""
        scores = _joined(self.errors) if self.errors else self.correct.unsqueeze(0)
        return _joined(self.losses), scores, int(self.samples)

    def compute(self) -> list[dict[str, float]]:
        """`loss`, the score and the measure of each trial, as Python floats, over all ranks."""
        samples, totals = int(self.samples), self.correct.tolist()
        weight: float = samples
        if len(self.weights):
            weight = _sum(_joined(self.weights).tolist()) or 1.0
        if len(self.errors):
            totals = [_sum(errors) for errors in _by_trial(self.errors)]
        name = SCORES[self.task.section.name]
        found = [
            {"loss": _sum(losses) / weight, name: self.task.score(total, weight, spread)}
            for losses, total, spread in zip(
                _by_trial(self.losses), totals, self.spreads, strict=True
            )
        ]
        if self.measure is not None:
            measured = values(self.measure, _joined(self.tallies), samples, self.targets)
            for of_trial, value in zip(found, measured, strict=True):
                of_trial[self.measure] = value
        return found

    def first_above(self, bound: float) -> Tensor:
        """For each trial (S,), the first batch of this rank, from 0, whose sum of losses is NaN or
        above the bound. The number of batches if there is none."""
        good = (_joined(self.losses) <= bound).long()
        return torch.where(good.all(0), len(good), good.argmin(0))  # argmin finds the first 0


def _by_trial(parts: list[Tensor] | Tensor) -> list[list[float]]:
    found: list[list[float]] = _joined(parts).cpu().double().T.tolist()  # MPS has no float64
    return found


def _joined(parts: list[Tensor] | Tensor) -> Tensor:
    """The parts of a state, which torchmetrics has joined already where ranks were gathered."""
    return parts if isinstance(parts, Tensor) else torch.cat(parts)


def _sum(losses: list[float]) -> float:
    """The exact sum, rounded once: the last bits of torch's sum depend on the number of trials."""
    try:
        return math.fsum(losses)
    except OverflowError:
        return math.inf
