"""Several labels: each output of a model is the logit of a label, which a sample has, 1, or has
not, 0. The score is the share of labels that are predicted correctly."""

from torch import Tensor
from torch.nn import functional as F

from kindling.config import schema
from kindling.tasks.task import Task


class Multilabel(Task):
    """Losses are means over the labels of torch.nn.BCEWithLogitsLoss."""

    native = ("binary_cross_entropy", 1.0)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        targets = labels.mT.to(outputs.dtype)
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(-2)

    def scores(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return ((outputs > 0) == (labels.mT > 0.5)).sum(-2)

    def score(self, total: float, samples: int, spread: float) -> float:
        del spread
        return total / (samples * self.outputs)

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def residual(self, outputs: Tensor, targets: Tensor, totals: Tensor | None) -> Tensor:
        del totals
        found = outputs.sigmoid()
        by_batch = found.view(len(targets), -1, *found.shape[1:])
        by_batch.sub_(targets).mul_(1 / self.outputs)
        return found


def build(section: schema.Multilabel, outputs: int) -> Task:
    return Multilabel(section, outputs)
