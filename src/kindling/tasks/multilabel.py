"""Several labels: each output of a model is the logit of a label, which a sample has, 1, or has
not, 0. The score is the share of labels that are predicted correctly."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from kindling.config import schema
from kindling.tasks.classification import log_mean
from kindling.tasks.task import Task


class Multilabel(Task):
    """Losses are means over the labels of torch.nn.BCEWithLogitsLoss."""

    native = ("binary_cross_entropy", 1.0)
    says: ClassVar[str] = "probabilities"

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        targets = labels.mT.to(outputs.dtype)
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(-2)

    def scores(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return ((outputs > 0) == (labels.mT > 0.5)).sum(-2)

    def score(self, total: float, samples: float, spread: float) -> float:
        del spread
        return total / (samples * self.outputs)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def mean(self, opinions: Tensor, votes: Sequence[int]) -> Tensor:
        """The logits of the mean probabilities, none of which underflows."""
        both = yes_and_no(opinions)
        found = log_mean(both.flatten(2), votes).view(-1, *both.shape[2:])
        return (found * found.new_tensor([1.0, -1.0])).sum(-1)

    def residual(self, outputs: Tensor, targets: Tensor, totals: Tensor | None) -> Tensor:
        del totals
        found = outputs.sigmoid()
        by_batch = found.view(len(targets), -1, *found.shape[1:])
        by_batch.sub_(targets).mul_(1 / self.outputs)
        return found


def yes_and_no(logits: Tensor) -> Tensor:
    """The logarithms of the probabilities of each label and of its absence, (…, labels, 2)."""
    return (logits.unsqueeze(-1) * logits.new_tensor([1.0, 0.0])).log_softmax(-1)


def build(section: schema.Multilabel, outputs: int) -> Task:
    return Multilabel(section, outputs)
