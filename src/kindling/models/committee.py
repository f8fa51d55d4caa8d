"""A committee: several trained models whose probabilities, or numbers, are averaged.

The mean of the members' probabilities is the ensemble of Lakshminarayanan, Pritzel and Blundell,
Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles, 2017.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kindling.tasks.task import Task


class Committee(nn.Module):
    """Models of any kinds and precisions for the same samples and classes. `votes` has a whole
    number for each member: its weight in the mean, before division by the sum of all."""

    def __init__(self, members: Sequence[nn.Module], votes: Sequence[int], task: Task) -> None:
        super().__init__()
        self.task = task
        self.members = nn.ModuleList(members)
        self.votes = tuple(votes)
        self.dtypes = tuple(next(member.parameters()).dtype for member in members)
        self.dtype = min(self.dtypes, key=lambda dtype: torch.finfo(dtype).bits)

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, *shape) to outputs (N, outputs), in the lowest precision of the members. Of
        classes, the logarithm of the mean probabilities: their softmax gives the mean."""
        return self.task.mean(self.opinions(features), self.votes)

    def opinions(self, features: Tensor) -> Tensor:
        """What each member says, (N, members, outputs): of classes, the logarithm of its
        probabilities; else its outputs."""
        return torch.stack(
            [
                self.task.opinions(member(features.to(dtype))).to(self.dtype)
                for member, dtype in zip(self.members, self.dtypes, strict=True)
            ],
            1,
        )


def logits_dtype(model: nn.Module) -> torch.dtype:
    return model.dtype if isinstance(model, Committee) else next(model.parameters()).dtype
