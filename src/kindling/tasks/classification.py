"""Classification: the outputs of a model are logits, one for each class; a label is the number of
a class. The score is accuracy.

In logits of samples, (N, classes) or (S, classes, N), the second dimension is that of the classes.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from kindling.config import schema
from kindling.tasks.task import Task


def loss(
    logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """The mean over samples of torch.nn.CrossEntropyLoss, weighted by `weights` (classes,).
    `smoothing` is the share of each target that is spread over all classes."""
    return F.cross_entropy(logits, labels, weights, label_smoothing=smoothing)


def decide(logits: Tensor, dim: int = -1) -> Tensor:
    """The most probable class; of equal logits, the first. argmax over an inner dimension takes
    five times as long as max: a sixth of a fused step."""
    return logits.max(dim).indices


def confusion(decided: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Counts (classes, classes): [i, j] counts the samples of class i decided as j."""
    counts = torch.bincount(labels * classes + decided, minlength=classes**2)
    return counts.view(classes, classes)


def probabilities(logits: Tensor) -> Tensor:
    """Along the last dimension. Of two classes by the logistic function of their difference, in a
    seventh of the time: torch's softmax takes one sample after the other."""
    if logits.shape[-1] != 2:
        return logits.softmax(-1)
    return (logits - logits.flip(-1)).sigmoid_()


def log_probabilities(logits: Tensor, dim: int = -1) -> Tensor:
    return logits.log_softmax(dim)


def _mean_weights(labels: Tensor, weights: Tensor) -> Tensor:
    """The mean class weight of the samples of each batch: labels (…, B) to (…)."""
    # The last bits of a sum depend on the number of batches beside it, except in float64.
    exact = torch.float32 if labels.device.type == "mps" else torch.float64
    return weights[labels].mean(-1, dtype=exact).to(weights.dtype)


def log_mean(log_probabilities: Tensor, votes: Sequence[int]) -> Tensor:
    """The logarithm of the weighted mean over members of probabilities whose logarithms are
    (N, members, classes); returns (N, classes). No probability underflows: the largest is factored
    out of the sum. The same as torch.logsumexp in operations that every ONNX runtime has."""
    total = sum(votes)
    shares = log_probabilities.new_tensor([math.log(vote / total) for vote in votes])
    scores = log_probabilities + shares.unsqueeze(-1)
    largest = scores.amax(1, keepdim=True)
    return (scores - largest).exp().sum(1).log() + largest.squeeze(1)


class Classification(Task):
    native = ("cross_entropy", 1.0)
    says: ClassVar[str] = "logits"

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels, reduction="none")

    def loss(
        self,
        outputs: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
        factors: Tensor | None = None,
    ) -> Tensor:
        if factors is None:
            return loss(outputs, labels, weights, smoothing)
        return super().loss(outputs, labels, weights, smoothing, factors)

    def batch_losses(
        self,
        outputs: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
        factors: Tensor | None = None,
    ) -> Tensor:
        flat = F.cross_entropy(
            outputs.flatten(0, 1), labels.flatten(0, 1), weights, reduction="none",
            label_smoothing=smoothing,
        )  # fmt: skip
        found = flat.view(labels.shape)
        means = (found if factors is None else found * factors).mean(-1)
        return means if weights is None else means / _mean_weights(labels, weights)

    def scores(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return decide(outputs, -2) == labels

    def score(self, total: float, samples: float, spread: float) -> float:
        del spread
        return total / samples

    def probabilities(self, outputs: Tensor) -> Tensor:
        return probabilities(outputs)

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs

    def opinions(self, outputs: Tensor) -> Tensor:
        return log_probabilities(outputs)

    def mean(self, opinions: Tensor, votes: Sequence[int]) -> Tensor:
        return log_mean(opinions, votes)

    def confusion(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        return confusion(decide(outputs), labels, self.outputs)

    def targets(
        self,
        labels: Tensor,
        like: Tensor,
        weights: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> tuple[Tensor, Tensor | None]:
        """One-hot, smoothed and weighted; the sums are None where all are 1."""
        found = F.one_hot(labels, self.outputs).mT.to(like.dtype).unsqueeze(2)
        if smoothing:
            found = found.mul_(1 - smoothing).add_(smoothing / self.outputs)
        if weights is None:
            return found, None
        relative = weights / _mean_weights(labels, weights)[..., None]  # (K, R, classes)
        found = found.mul_(relative[:, :, None, :, None])
        return found, found.sum(3, keepdim=True)

    def residual(self, outputs: Tensor, targets: Tensor, totals: Tensor | None) -> Tensor:
        """softmax * totals - targets."""
        found = outputs.softmax(1)
        by_batch = found.view(len(targets), -1, *found.shape[1:])
        if totals is not None:
            by_batch.mul_(totals)
        by_batch.sub_(targets)
        return found

    def summed_losses(
        self, outputs: Tensor, targets: Tensor, factors: Tensor | None = None
    ) -> Tensor:
        by_batch = outputs.log_softmax(1).view(len(targets), -1, *outputs.shape[1:])
        targets = targets if factors is None else targets * factors
        return -(by_batch * targets).sum((2, 3)).view(-1)


def build(section: schema.Classification, outputs: int) -> Task:
    return Classification(section, outputs)
