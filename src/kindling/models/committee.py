"""A committee: several trained models whose probabilities, or numbers, are averaged.

The mean of the members' probabilities is the ensemble of Lakshminarayanan, Pritzel and Blundell,
Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles, 2017.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kindling.tasks.task import Task


@dataclass(frozen=True)
class Adapter:
    """What a member takes of the features of a committee, their places, None: all; and how its
    outputs become those of the committee: outputs · factor + shift, float64, None: as they are."""

    places: Tensor | None = None
    factor: Tensor | None = None
    shift: Tensor | None = None


WHOLE = Adapter()


class Committee(nn.Module):
    """Models of any kinds and precisions for the same samples and classes. `votes` has a whole
    number for each member: its weight in the mean, before division by the sum of all. `adapters`
    are those of the members; by default all take all features, and say what the committee says."""

    def __init__(
        self, members: Sequence[nn.Module], votes: Sequence[int], task: Task,
        adapters: Sequence[Adapter] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.task = task
        self.members = nn.ModuleList(members)
        self.votes = tuple(votes)
        self.adapters = tuple(adapters or [WHOLE] * len(members))
        self.dtypes = tuple(next(member.parameters()).dtype for member in members)
        self.dtype = min(self.dtypes, key=lambda dtype: torch.finfo(dtype).bits)

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, *shape) to outputs (N, outputs), in the lowest precision of the members. Of
        classes, the logarithm of the mean probabilities: their softmax gives the mean."""
        return self.task.mean(self.opinions(features), self.votes)

    def opinions(self, features: Tensor) -> Tensor:
        """What each member says, (N, members, outputs): of classes, the logarithm of its
        probabilities; else its outputs."""
        said = []
        for number, (member, dtype) in enumerate(zip(self.members, self.dtypes, strict=True)):
            outputs = member(self.taken(number, features).to(dtype))
            said.append(self.task.opinions(self.converted(number, outputs)).to(self.dtype))
        return torch.stack(said, 1)

    def taken(self, number: int, features: Tensor) -> Tensor:
        """What a member takes of features (N, *shape)."""
        places = self.adapters[number].places
        return features if places is None else features.index_select(1, places)

    def converted(self, number: int, outputs: Tensor) -> Tensor:
        """The outputs (N, outputs) of a member as those of the committee."""
        own = self.adapters[number]
        if own.factor is None or own.shift is None:
            return outputs
        return outputs * own.factor.to(outputs.dtype) + own.shift.to(outputs.dtype)


def logits_dtype(model: nn.Module) -> torch.dtype:
    return model.dtype if isinstance(model, Committee) else next(model.parameters()).dtype
