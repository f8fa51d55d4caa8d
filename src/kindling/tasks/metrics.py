"""Loss, accuracy and a further measure of each trial in an epoch, over all ranks. Only training
imports this module, because torchmetrics is slow to import."""

import math

import torch
from torch import Tensor
from torchmetrics import Metric

from kindling.tasks.measures import values


class EpochMetrics(Metric):
    """Mean loss and accuracy over samples, and a tallied measure if one is named. All losses
    are kept, and are added once, exactly. torchmetrics' MeanMetric adds in float32, so its bits
    depend on the batches in an update."""

    full_state_update = False
    losses: list[Tensor]
    correct: Tensor
    samples: Tensor
    tallies: list[Tensor]

    def __init__(self, trials: int = 1, measure: str | None = None) -> None:
        super().__init__()
        self.measure = measure
        self.add_state("losses", [], dist_reduce_fx="cat")
        self.add_state("correct", torch.zeros(trials, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("samples", torch.tensor(0), dist_reduce_fx="sum")
        if measure is not None:
            self.add_state("tallies", [], dist_reduce_fx="cat")

    def update(
        self, losses: Tensor, correct: Tensor, samples: int, tally: Tensor | None = None
    ) -> None:
        """Adds K batches: sums of losses (K, S), correct predictions (K, S), number of samples; for
        a measure, the tally of them."""
        self.losses.append(losses)
        self.correct += correct.sum(0)
        self.samples += samples
        if tally is not None:
            self.tallies.append(tally)

    def sums(self) -> tuple[Tensor, Tensor, int]:
        """The arguments of one `update` that equals all updates of this rank so far."""
        return _joined(self.losses), self.correct.unsqueeze(0), int(self.samples)

    def compute(self) -> list[dict[str, float]]:
        """`loss`, `acc` and the measure of each trial, as Python floats, over all ranks."""
        samples = int(self.samples)
        by_trial = _joined(self.losses).cpu().double().T.tolist()  # MPS has no float64
        found = [
            {"loss": _sum(losses) / samples, "acc": correct / samples}
            for losses, correct in zip(by_trial, self.correct.tolist(), strict=True)
        ]
        if self.measure is not None:
            measured = values(self.measure, _joined(self.tallies), samples)
            for of_trial, value in zip(found, measured, strict=True):
                of_trial[self.measure] = value
        return found

    def first_above(self, bound: float) -> Tensor:
        """For each trial (S,), the first batch of this rank, from 0, whose sum of losses is NaN or
        above the bound. The number of batches if there is none."""
        good = (_joined(self.losses) <= bound).long()
        return torch.where(good.all(0), len(good), good.argmin(0))  # argmin finds the first 0


def _joined(parts: list[Tensor] | Tensor) -> Tensor:
    """The parts of a state, which torchmetrics has joined already where ranks were gathered."""
    return parts if isinstance(parts, Tensor) else torch.cat(parts)


def _sum(losses: list[float]) -> float:
    """The exact sum, rounded once: the last bits of torch's sum depend on the number of trials."""
    try:
        return math.fsum(losses)
    except OverflowError:
        return math.inf
