"""A committee: several trained models whose probabilities are averaged.

The mean of the members' probabilities is the ensemble of Lakshminarayanan, Pritzel and Blundell,
Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles, 2017.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kindling.tasks import classification


class Committee(nn.Module):
    """Models of any kinds and precisions for the same samples and classes. `votes` has a whole
    number for each member: its weight in the mean, before division by the sum of all."""

    def __init__(self, members: Sequence[nn.Module], votes: Sequence[int]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.votes = tuple(votes)
        self.dtypes = tuple(next(member.parameters()).dtype for member in members)
        self.dtype = min(self.dtypes, key=lambda dtype: torch.finfo(dtype).bits)

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, *shape) to the logarithm of the mean probabilities, (N, classes), in the
        lowest precision of the members. A softmax of these logits gives the mean probabilities."""
        return log_mean(self.log_probabilities(features), self.votes)

    def log_probabilities(self, features: Tensor) -> Tensor:
        """The logarithm of each member's probabilities, (N, members, classes)."""
        return torch.stack(
            [
                classification.log_probabilities(member(features.to(dtype))).to(self.dtype)
                for member, dtype in zip(self.members, self.dtypes, strict=True)
            ],
            1,
        )


def logits_dtype(model: nn.Module) -> torch.dtype:
    return model.dtype if isinstance(model, Committee) else next(model.parameters()).dtype


def log_mean(log_probabilities: Tensor, votes: Sequence[int]) -> Tensor:
    """The logarithm of the weighted mean over members of probabilities whose logarithms are
    (N, members, classes); returns (N, classes). No probability underflows: the largest is factored
    out of the sum. The same as torch.logsumexp in operations that every ONNX runtime has."""
    total = sum(votes)
    shares = log_probabilities.new_tensor([math.log(vote / total) for vote in votes])
    scores = log_probabilities + shares.unsqueeze(-1)
    largest = scores.amax(1, keepdim=True)
    return (scores - largest).exp().sum(1).log() + largest.squeeze(1)
