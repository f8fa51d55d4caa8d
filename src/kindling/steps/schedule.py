"""The learning rate of each optimizer step."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kindling.config import registry, schema
from kindling.config.section import SchedulerSection
from kindling.system.errors import InputError

THRESHOLD = 1e-4  # a better value is better by so much of the best one
Rates = NDArray[np.float64]


class Schedule:
    """The learning rate as a function of the optimizer step, and with scheduler=plateau of the
    history too. So a resume needs no saved state.

    Values are those of torch's MultiStepLR, CosineAnnealingLR and ReduceLROnPlateau (stepped per
    epoch) and OneCycleLR (stepped per step, cosine, without its momentum). Over the first
    `warmup_epochs` the rate is multiplied by a factor that grows linearly to 1 (Goyal et al. 2017,
    section 2.2).
    """

    def __init__(
        self, config: schema.Scheduler, lr: float, epochs: int, steps_per_epoch: int
    ) -> None:
        self.config, self.lr = config, lr
        self.epochs, self.steps_per_epoch = epochs, steps_per_epoch
        # Sort keys of the monitored values of the epochs so far: the smaller, the better.
        self.sort_keys: Callable[[], Sequence[float]] = list
        self._epoch, self._rates = -1, np.empty(0)  # the last result of `of_epoch`

    def __call__(self, step: int) -> float:
        """The rate of a step, counted from 0 over the whole run. After the run, the last rate."""
        step = min(step, self.epochs * self.steps_per_epoch - 1)
        return float(self.of_epoch(step // self.steps_per_epoch)[step % self.steps_per_epoch])

    def of_epoch(self, epoch: int) -> Rates:
        """The rates of the steps of an epoch, (steps_per_epoch,)."""
        if epoch != self._epoch:
            self._epoch, self._rates = epoch, self._compute(epoch)
        return self._rates

    def _compute(self, epoch: int) -> Rates:
        if isinstance(self.config, schema.OneCycle):
            return self._one_cycle(self.config, epoch)
        rate = self._by_epoch(self.config, epoch)
        rates = np.full(self.steps_per_epoch, rate)
        warmup = round(self.config.warmup_epochs * self.steps_per_epoch)
        steps = np.arange(self.steps_per_epoch) + epoch * self.steps_per_epoch
        early = steps < warmup
        rates[early] = (steps[early] + 1) / warmup * rate
        return rates

    def _by_epoch(
        self,
        config: SchedulerSection,
        epoch: int,
    ) -> float:
        match config:
            case schema.NoScheduler():
                return self.lr
            case schema.MultiStep(milestones=milestones, gamma=gamma):
                return self.lr * gamma ** sum(epoch >= milestone for milestone in milestones)
            case schema.Cosine(eta_min=low):
                fall = 1 + math.cos(math.pi * (epoch / self.epochs))
                return low + (self.lr - low) * fall / 2
            case schema.Plateau(factor=factor, patience=patience, min_lr=lowest):
                falls = plateaus(self.sort_keys()[:epoch], patience)
                return max(self.lr * factor**falls, min(lowest, self.lr))
            case _:
                return self._by_extension(config, epoch)

    def _by_extension(self, config: SchedulerSection, epoch: int) -> float:
        name = config.name
        found = registry.resolve("scheduler", name)(config, self.lr, epoch, self.epochs)
        rate = math.nan
        with suppress(TypeError, ValueError, RuntimeError):  # numbers of NumPy and torch are taken
            rate = float(found)
        if not 0 <= rate < math.inf:
            raise InputError(
                f"scheduler={name}: {registry.location('scheduler', name)} returned {found!r:.100} "
                f"for epoch {epoch} of {self.epochs}, must return a number of 0 or more"
            )
        return rate

    def _one_cycle(self, config: schema.OneCycle, epoch: int) -> Rates:
        rises, falls = _cycle(config.pct_start, self.epochs, self.steps_per_epoch, epoch)
        start = self.lr / config.div_factor
        end = start / config.final_div_factor
        rising = self.lr + (start - self.lr) * rises / 2
        falling = end + (self.lr - end) * falls / 2
        return np.concatenate([rising, falling])


def plateaus(sort_keys: Sequence[float], patience: int) -> int:
    """How often more than `patience` epochs brought nothing better. After each time, counting
    begins anew, but the best value stays."""
    best, waited, found = math.inf, 0, 0
    for key in sort_keys:
        if key < math.inf and not key >= best - THRESHOLD * abs(best if best < math.inf else 0):
            best, waited = key, 0
        else:
            waited += 1
        if waited > patience:
            found, waited = found + 1, 0
    return found


@lru_cache(maxsize=64)
def _cycle(pct_start: float, epochs: int, steps_per_epoch: int, epoch: int) -> tuple[Rates, Rates]:
    """1 + cos for the steps of an epoch before and after the peak: from 2 to 0. The many trials of
    a stack differ in their rates more often than in their curves."""
    steps = epochs * steps_per_epoch
    peak = pct_start * steps - 1
    rises, falls = [], []
    for step in range(epoch * steps_per_epoch, (epoch + 1) * steps_per_epoch):
        if step < peak:
            rises.append(1 + math.cos(math.pi * (step / peak)))
        else:
            # In a short run the peak may lie on step 0, or before it.
            fraction = (step - peak) / (steps - 1 - peak) if steps - 1 > peak else 1.0
            falls.append(1 + math.cos(math.pi * fraction))
    return np.array(rises), np.array(falls)
