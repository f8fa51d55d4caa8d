"""What happens inside a block: optimizer steps without the framework between them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from src.data.loader import Block


class Stepped(NamedTuple):
    """Per batch of a block: mean loss (K,) and correctly classified samples (K,), detached."""

    losses: Tensor
    correct: Tensor


class AutogradSteps:
    """One optimizer step per batch, or per `accumulate` batches, with torch's autograd.

    Gradients accumulate as in Lightning: each batch's loss is divided by `accumulate`, and an
    epoch's last batch steps whatever has come together. `average` is called on the gradients
    before clipping (ranks exchange them there); `clip` bounds their joint 2-norm; `scaler` scales
    the loss of fp16.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        rate: Callable[[int], float],
        batches_per_epoch: int,
        *,
        accumulate: int = 1,
        clip: float | None = None,
        scaler: "torch.amp.GradScaler | None" = None,
        average: Callable[[list[Tensor]], None] | None = None,
    ) -> None:
        self.model, self.optimizer, self.rate = model, optimizer, rate
        self.parameters = list(model.parameters())
        self.batches_per_epoch, self.accumulate = batches_per_epoch, accumulate
        self.clip, self.scaler, self.average = clip, scaler, average

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.batches_per_epoch // self.accumulate)

    def __call__(self, block: Block, epoch: int, batch: int) -> Stepped:
        """Trains on a block whose first batch is number `batch` of `epoch`, both from 0."""
        losses, logits = [], []
        autocast = torch.is_autocast_enabled(block.features.device.type)
        for features, labels in zip(block.features.unbind(), block.labels.unbind(), strict=True):
            if batch % self.accumulate == 0:
                for parameter in self.parameters:
                    parameter.grad = None
            output = self.model(features)
            loss = F.cross_entropy(output, labels)
            losses.append(loss.detach())
            logits.append(output.detach())
            self._backward(loss)
            batch += 1
            if batch % self.accumulate == 0 or batch == self.batches_per_epoch:
                self._step(epoch * self.steps_per_epoch + (batch - 1) // self.accumulate)
                if autocast:
                    # It keeps its low-precision copies of the weights until the block ends.
                    torch.clear_autocast_cache()
        correct = (torch.stack(logits).argmax(-1) == block.labels).sum(-1)
        return Stepped(torch.stack(losses), correct)

    def _backward(self, loss: Tensor) -> None:
        if self.accumulate > 1:
            loss = loss / self.accumulate
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    def _step(self, step: int) -> None:
        rate = self.rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if self.average is not None:
            self.average(gradients)
        if self.scaler is not None and self.clip is not None:
            self.scaler.unscale_(self.optimizer)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
