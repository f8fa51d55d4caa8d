"""Regression: the outputs of a model are numbers, and so are the labels, standardised by the mean
and the deviation of the training samples (data/targets.py). The score is R²."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from kindling.config import schema
from kindling.config.measures import QUANTILES
from kindling.tasks.task import Task

MEDIANS = slice(QUANTILES.index(0.5), None, len(QUANTILES))


class Regression(Task):
    """Losses are means over the outputs, of torch.nn.MSELoss, torch.nn.HuberLoss, or of the pinball
    loss (Koenker and Bassett, Regression Quantiles, 1978; scikit-learn's mean_pinball_loss), for
    which each number has an output for each of QUANTILES."""

    real_scores: ClassVar[bool] = True
    says: ClassVar[str] = "numbers"

    def __init__(self, section: schema.Regression, labels: int) -> None:
        super().__init__(section, labels)
        self.delta = section.delta if section.loss == "huber" else None
        self.native = ("squared_error", 1.0) if self.delta is None else ("huber", self.delta)
        if self.quantiles:
            self.native = ("quantile", QUANTILES[0])

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self.quantiles:
            exact = torch.promote_types(outputs.dtype, torch.float32)  # as torch's own losses
            errors = outputs.to(exact) - labels.mT.to(exact).repeat_interleave(len(QUANTILES), -2)
            return (self._slopes(errors) * errors).mean(-2)
        targets = labels.mT.to(outputs.dtype)
        if self.delta is None:
            return F.mse_loss(outputs, targets, reduction="none").mean(-2)
        return F.huber_loss(outputs, targets, reduction="none", delta=self.delta).mean(-2)

    def _slopes(self, errors: Tensor) -> Tensor:
        """The slope of the loss at errors (…, outputs, N): 1 - quantile above the label, else
        -quantile."""
        slopes = (errors > 0).to(errors.dtype)
        for place, quantile in enumerate(QUANTILES):  # a tensor of them would wait for the device
            slopes[..., place :: len(QUANTILES), :].sub_(quantile)
        return slopes

    @property
    def quantiles(self) -> bool:
        return self.section.loss == "quantile"

    def central(self, outputs: Tensor) -> Tensor:
        return outputs[..., MEDIANS, :] if self.quantiles else outputs

    def predicted(self, said: Tensor) -> Tensor:
        return said[..., MEDIANS] if self.quantiles else said

    def scores(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Squared errors, summed over the labels, float64 where the device has it."""
        found = (self.central(outputs) - labels.mT.to(outputs.dtype)).square().sum(-2)
        return found if outputs.device.type == "mps" else found.double()

    def score(self, total: float, samples: float, spread: float) -> float:
        """R²: 1 less the squared errors as a share of the squared distances of the labels from
        their mean. Of several numbers, both sums go over all of them. Of equal labels, as in
        scikit-learn, 1 without an error, else 0."""
        if not spread:
            return float(total == 0)
        return 1 - total / (samples * spread)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs

    def mean(self, opinions: Tensor, votes: Sequence[int]) -> Tensor:
        shares = opinions.new_tensor(votes) / sum(votes)
        return (opinions * shares.unsqueeze(-1)).sum(1)

    def residual(self, outputs: Tensor, targets: Tensor, totals: Tensor | None) -> Tensor:
        del totals
        if self.quantiles:
            targets = targets.repeat_interleave(len(QUANTILES), 2)
        found = outputs.view(len(targets), -1, *outputs.shape[1:]) - targets
        if self.quantiles:
            return self._slopes(found).div_(self.outputs).view_as(outputs)
        if self.delta is not None:
            found.clamp_(-self.delta, self.delta)
        factor = 2 if self.delta is None else 1
        return found.mul_(factor / self.outputs).view_as(outputs)


def build(section: schema.Regression, labels: int) -> Task:
    return Regression(section, labels)


def r2(numbers: Tensor, labels: Tensor) -> list[float]:
    """R² of each column, of numbers (N, outputs) for labels (N, outputs); of equal labels, as in
    scikit-learn, 1 without an error, else 0."""
    errors = (labels - numbers).square().sum(0).tolist()
    spreads = (labels - labels.mean(0)).square().sum(0).tolist()
    return [
        1 - error / spread if spread else float(error == 0)
        for error, spread in zip(errors, spreads, strict=True)
    ]


def squared_errors(outputs: Tensor, labels: Tensor) -> Tensor:
    """(S, outputs, n) of outputs (S, outputs, n) for labels (n, outputs), in float64 where the
    device has it."""
    exact = torch.float32 if outputs.device.type == "mps" else torch.float64
    return (outputs.to(exact) - labels.mT.to(exact)).square()
