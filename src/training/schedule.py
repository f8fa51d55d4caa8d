"""The learning rate of each optimizer step."""

import math

import numpy as np
from numpy.typing import NDArray

from src.config import schema


class Schedule:
    """The learning rate as a function of the optimizer step. So a resume needs no saved state.

    Values are those of torch's MultiStepLR and CosineAnnealingLR (stepped per epoch) and
    OneCycleLR (stepped per step, cosine, without its momentum). Over the first `warmup_epochs` the
    rate is multiplied by a factor that grows linearly to 1 (Goyal et al. 2017, section 2.2).
    """

    def __init__(
        self, config: schema.Scheduler, lr: float, epochs: int, steps_per_epoch: int
    ) -> None:
        self.config, self.lr = config, lr
        self.epochs, self.steps_per_epoch = epochs, steps_per_epoch
        self._epoch, self._rates = -1, np.empty(0)  # the last result of `of_epoch`

    def __call__(self, step: int) -> float:
        """The rate of a step, counted from 0 over the whole run. After the run, the last rate."""
        step = min(step, self.epochs * self.steps_per_epoch - 1)
        if isinstance(self.config, schema.OneCycle):
            return self._one_cycle(self.config, step)
        warmup = round(self.config.warmup_epochs * self.steps_per_epoch)
        factor = (step + 1) / warmup if step < warmup else 1.0
        return factor * self._by_epoch(self.config, step // self.steps_per_epoch)

    def of_epoch(self, epoch: int) -> NDArray[np.float64]:
        """The rates of the steps of an epoch, (steps_per_epoch,)."""
        if epoch != self._epoch:
            steps = range(epoch * self.steps_per_epoch, (epoch + 1) * self.steps_per_epoch)
            constant = not isinstance(self.config, schema.OneCycle) and (
                epoch >= self.config.warmup_epochs and epoch < self.epochs
            )
            rates = [self(steps[0])] * len(steps) if constant else map(self, steps)
            self._epoch, self._rates = epoch, np.fromiter(rates, np.float64, len(steps))
        return self._rates

    def _by_epoch(
        self, config: schema.NoScheduler | schema.MultiStep | schema.Cosine, epoch: int
    ) -> float:
        match config:
            case schema.NoScheduler():
                return self.lr
            case schema.MultiStep(milestones=milestones, gamma=gamma):
                return self.lr * gamma ** sum(epoch >= milestone for milestone in milestones)
            case schema.Cosine(eta_min=low):
                return _cosine(self.lr, low, epoch / self.epochs)

    def _one_cycle(self, config: schema.OneCycle, step: int) -> float:
        steps = self.epochs * self.steps_per_epoch
        peak = config.pct_start * steps - 1
        start = self.lr / config.div_factor
        if step < peak:
            return _cosine(start, self.lr, step / peak)
        # In a short run the peak may lie on step 0, or before it.
        fraction = (step - peak) / (steps - 1 - peak) if steps - 1 > peak else 1.0
        return _cosine(self.lr, start / config.final_div_factor, fraction)


def _cosine(start: float, end: float, fraction: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * fraction)) / 2
