"""Loss and accuracy over an epoch, for one rank or many."""

import torch
from torch import Tensor
from torchmetrics import Metric


class EpochMetrics(Metric):
    """Mean loss and accuracy over samples, the same to the last bit however batches are grouped.

    torchmetrics' MeanMetric adds in float32, so its mean depends on how many batches come with
    an update; here the losses of all batches are kept and added once, in float64.
    """

    full_state_update = False
    losses: list[Tensor]
    correct: Tensor
    samples: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("losses", [], dist_reduce_fx="cat")
        self.add_state("correct", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("samples", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, losses: Tensor, correct: Tensor, batch_size: int) -> None:
        """Mean losses (K,) and correct predictions (K,) of K batches of `batch_size` samples."""
        self.losses.append(losses * batch_size)
        self.correct += correct.sum()
        self.samples += batch_size * len(losses)

    def compute(self) -> dict[str, float]:
        """`loss` and `acc` as Python floats, over all ranks; empty when nothing was seen."""
        if not self.samples:
            return {}
        losses = self.losses if isinstance(self.losses, Tensor) else torch.cat(self.losses)
        samples = int(self.samples)
        # On the CPU: MPS has no float64.
        loss = losses.cpu().double().sum().item() / samples
        return {"loss": loss, "acc": int(self.correct) / samples}
