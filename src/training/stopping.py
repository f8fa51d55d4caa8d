"""When a trial ends before its last epoch: by its own patience, or because others are better."""

import logging
from collections.abc import Mapping, Sequence
from itertools import accumulate

from lightning.pytorch import Callback, LightningModule, Trainer

from src.config import Config
from src.models import count_parameters
from src.run import Row
from src.training.callbacks import History
from src.training.classifier import Classifier

log = logging.getLogger(__name__)

EARLY, HALVED = "early_stopping", "halving"


class Stopping(Callback):
    """Ends trials after an epoch, as their histories say: nothing has to be kept for a resume.

    Lightning's EarlyStopping ends a whole run; here a trial leaves its stack and the others go on.
    `halving` is the factor of successive halving (Jamieson and Talwalkar 2016), None for none.
    """

    def __init__(self, history: History, halving: int | None) -> None:
        self.history, self.halving = history, halving

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A run that goes on may have come to its end already."""
        assert isinstance(pl_module, Classifier)
        trainer.should_stop |= not pl_module.going

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Classifier)
        config, epoch = pl_module.configs[0], trainer.current_epoch + 1
        if epoch == config.trainer.max_epochs:
            return
        rows = {trial: self.history.rows[trial] for trial in pl_module.going}
        early = [trial for trial in rows if out_of_patience(rows[trial], config)]
        pl_module.stopped |= dict.fromkeys(early, EARLY)
        if self.halving and epoch in rungs(config.trainer.max_epochs, self.halving):
            monitor, mode = config.checkpoint.monitor, config.checkpoint.mode
            values = {trial: float(rows[trial][-1][monitor] or 0) for trial in rows}
            costs = {trial: count_parameters(pl_module.models[trial]) for trial in rows}
            worse = set(values) - best(values, costs, self.halving, mode)
            pl_module.stopped |= dict.fromkeys(worse - set(early), HALVED)
            log.info("halving: %d of %d trials go on", len(pl_module.going), len(values))
        trainer.should_stop |= not pl_module.going


def out_of_patience(rows: Sequence[Row], config: Config) -> bool:
    """Whether the monitored value has not been better than all before for `patience` epochs, as
    Lightning's EarlyStopping counts them; row 0 is before training."""
    patience, monitor = config.trainer.early_stopping_patience, config.checkpoint.monitor
    values = [float(row[monitor] or 0) for row in rows[1:]]
    if patience is None or not values:
        return False
    pick = max if config.checkpoint.mode == "max" else min
    return len(values) - 1 - values.index(pick(values)) >= patience


def rungs(epochs: int, factor: int) -> list[int]:
    """The epochs after which trials are dropped: 1, factor, factor², … before the last. They do
    not depend on how many epochs follow, so that a sweep may be gone on with for more."""
    found, rung = [], 1
    while rung < epochs:
        found.append(rung)
        rung *= factor
    return found


def best(values: Mapping[int, float], costs: Mapping[int, int], factor: int, mode: str) -> set[int]:
    """As many of the best trials as together cost at most 1/factor of all, and at least one; of
    equals the first.

    The cost of a trial is its number of parameters, as its arithmetic is. By number of trials, a
    sweep over widths saves less than it says: the best are the widest, and the best eighth of the
    README's does a fifth of the arithmetic.
    """
    sign = -1 if mode == "max" else 1
    ranked = sorted(values, key=lambda trial: (sign * values[trial], trial))
    bound = sum(costs[trial] for trial in ranked) // factor
    spent = accumulate(costs[trial] for trial in ranked)
    return {trial for trial, cost in zip(ranked, spent, strict=True) if cost <= bound} | {ranked[0]}
