"""Labels that are numbers: standardised for the training, and given back in their own unit."""

from typing import Self

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from kindling.config.measures import REGRESSION
from kindling.data.tables.columns import FiniteFloat, Positive, scale
from kindling.system.errors import InputError


class Targets(BaseModel):
    """A model's outputs are (label - mean) / deviation, with a mean and a deviation for each label.
    A label may have several outputs, side by side. If `raw`, the outputs have the unit of the
    labels."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    means: list[FiniteFloat]
    deviations: list[Positive]
    raw: bool = False

    @classmethod
    def learn(
        cls,
        labels: Tensor,
        names: tuple[str, ...],
        weights: Tensor | None = None,
        *,
        raw: bool = False,
    ) -> Self:
        """From the labels (N, outputs) of the training samples, float64, and their weights (N,).
        Raises InputError for labels that are all equal."""
        if weights is not None:
            labels, weights = labels[weights > 0], weights[weights > 0]
        means, deviations = list[float](), list[float]()
        for name, column in zip(names, labels.T.numpy(), strict=True):
            mean, deviation, constant = scale(column)
            if constant:
                raise InputError(
                    f"task=regression: the label {name} of all {len(labels):,} training samples is "
                    f"{mean:g}, so there is nothing to learn; name another column or array"
                )
            means.append(mean)
            deviations.append(deviation)
        if weights is not None:
            shares = (weights.double() / weights.double().sum())[:, None]
            middle = (shares * labels).sum(0)
            means = middle.tolist()
            deviations = (shares * (labels - middle).square()).sum(0).sqrt().tolist()
        return cls(means=means, deviations=deviations, raw=raw)

    def standardised(self, labels: Tensor) -> Tensor:
        """(N, outputs), float32, of labels or outputs in their own unit."""
        return self.exact(labels).float()

    def exact(self, labels: Tensor) -> Tensor:
        """As `standardised`, in float64."""
        if self.raw:
            return labels.double()
        means, deviations = self._tensors(labels.shape[-1])
        return (labels.double() - means) / deviations

    def restored(self, outputs: Tensor) -> Tensor:
        """(…, outputs), float64, in the unit of the labels."""
        if self.raw:
            return outputs.double()
        means, deviations = self._tensors(outputs.shape[-1])
        return outputs.double() * deviations + means

    @property
    def units(self) -> list[float]:
        """What an error of 1 in each output is in the unit of its label."""
        return [1.0] * len(self.means) if self.raw else self.deviations

    def _tensors(self, outputs: int) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each output."""
        both = torch.tensor([self.means, self.deviations], dtype=torch.float64)
        means, deviations = both.repeat_interleave(outputs // len(self.means), 1)
        return means, deviations


def require_scaling(targets: Targets | None, task: str, outputs: int) -> None:
    """Raises ValueError unless a regression, and no other task, has the scaling of each output."""
    known = None if targets is None else {len(targets.means), len(targets.deviations)}
    if known != ({outputs} if task == REGRESSION else None):
        raise ValueError(f"its scaling of numbers does not fit {outputs} outputs, task={task}")


def spread(labels: Tensor, weights: Tensor | None = None) -> float:
    """The variance of numbers (N, outputs), summed over the outputs; of classes (N,) 0. `weights`
    are those of the samples, (N,)."""
    if labels.dtype == torch.int64:
        return 0.0
    numbers = labels.double()
    if weights is None:
        return float(numbers.var(0, correction=0).sum())
    shares = (weights.double() / weights.double().sum())[:, None]
    return float(((numbers - (shares * numbers).sum(0)).square() * shares).sum())
