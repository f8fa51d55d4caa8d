"""torch's optimizers and the learning rate of every step, built from the checked configuration."""

import math
from collections.abc import Iterable

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from src import config as schema


def build_optimizer(config: schema.Optimizer, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The optimizer, fused: one kernel for all parameters, faster on CPU too."""
    match config:
        case schema.Sgd():
            return SGD(
                parameters,
                lr=config.lr,
                momentum=config.momentum,
                nesterov=config.nesterov,
                weight_decay=config.weight_decay,
                fused=True,
            )
        case schema.Adam():
            return Adam(parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True)
        case schema.AdamW():
            return AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True)


class Schedule:
    """The learning rate as a function of the optimizer step alone: a resume cannot miss one.

    Values are those of torch's MultiStepLR and CosineAnnealingLR (stepped per epoch) and
    OneCycleLR (stepped per step, cosine, momentum left alone). Past the last epoch the rate
    stays at its last value.
    """

    def __init__(
        self, config: schema.Scheduler, lr: float, epochs: int, steps_per_epoch: int
    ) -> None:
        self.config, self.lr = config, lr
        self.epochs, self.steps_per_epoch = epochs, steps_per_epoch

    def __call__(self, step: int) -> float:
        """The rate of optimizer step `step`, counted from 0 over the whole run."""
        step = min(step, self.epochs * self.steps_per_epoch - 1)
        epoch = step // self.steps_per_epoch
        match self.config:
            case schema.NoScheduler():
                return self.lr
            case schema.MultiStep(milestones=milestones, gamma=gamma):
                return self.lr * gamma ** sum(epoch >= milestone for milestone in milestones)
            case schema.Cosine(eta_min=low):
                return _cosine(self.lr, low, epoch / self.epochs)
            case schema.OneCycle():
                return self._one_cycle(self.config, step)

    def _one_cycle(self, config: schema.OneCycle, step: int) -> float:
        steps = self.epochs * self.steps_per_epoch
        peak = config.pct_start * steps - 1
        start = self.lr / config.div_factor
        if step <= peak:
            return _cosine(start, self.lr, step / peak)
        # A run of one or two steps has no way up: peak may lie before step 0.
        way = (step - peak) / (steps - 1 - peak) if steps - 1 > peak else 1.0
        return _cosine(self.lr, start / config.final_div_factor, way)


def _cosine(start: float, end: float, fraction: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * fraction)) / 2
