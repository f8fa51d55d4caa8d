"""Stops trials before their last epoch: by early stopping, by halving, or by max_time."""

import logging
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Timer

from src.config.schema import Config, sort_key
from src.models import count_parameters
from src.runs.folder import Row
from src.training.classifier import Classifier
from src.training.history import History, sort_keys
from src.training.trial_status import EARLY_STOPPING, HALVING, MAX_TIME

log = logging.getLogger(__name__)


class Stopping(Callback):
    """Decides from the histories alone which trials stop. So a resume needs no state of this class.

    Lightning's EarlyStopping ends a whole run. Here the other trials of a stack continue. `halving`
    is the factor of successive halving (Jamieson and Talwalkar 2016), or None.
    """

    def __init__(self, history: History, halving: int | None) -> None:
        self.history, self.halving = history, halving

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A resumed run may have no trial that still trains."""
        assert isinstance(pl_module, Classifier)
        trainer.should_stop |= not pl_module.status.active_trials

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Classifier)
        config, epoch, status = pl_module.configs[0], trainer.current_epoch + 1, pl_module.status
        done, batches = pl_module.batches_done, pl_module.step_plan.batches_per_epoch
        if done == batches and epoch == config.trainer.max_epochs:
            return
        if _time_is_over(trainer):
            status.stop(status.active_trials, MAX_TIME)
            log.info(
                f"trainer.max_time={config.trainer.max_time} is over, after {done} of {batches} "
                f"batches of epoch {epoch}"
            )
        rows = {trial: self.history.rows[trial] for trial in status.active_trials}
        not_improving = [trial for trial in rows if out_of_patience(rows[trial], config)]
        status.stop(not_improving, EARLY_STOPPING)
        if self.halving and epoch in rungs(config.trainer.max_epochs, self.halving):
            monitor = config.checkpoint.monitor
            values = {trial: sort_key(monitor, rows[trial][-1][monitor]) for trial in rows}
            costs = {trial: count_parameters(pl_module.models[trial]) for trial in rows}
            status.stop(set(values) - best(values, costs, self.halving), HALVING)
            log.info("halving: %d of %d trials go on", len(status.active_trials), len(values))
        trainer.should_stop |= not status.active_trials


def _time_is_over(trainer: Trainer) -> bool:
    """Whether trainer.max_time is over on any rank."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    timer = next((callback for callback in callbacks if isinstance(callback, Timer)), None)
    remaining = timer.time_remaining() if timer else None
    if remaining is None:
        return False
    return trainer.strategy.reduce_boolean_decision(remaining <= 0, all=False)


def out_of_patience(rows: Sequence[Row], config: Config) -> bool:
    """Whether the best epoch is early_stopping_patience epochs ago."""
    patience, keys = config.trainer.early_stopping_patience, sort_keys(rows, config)
    return patience is not None and bool(keys) and len(keys) - 1 - keys.index(min(keys)) >= patience


def rungs(epochs: int, factor: int) -> list[int]:
    """The epochs after which trials are dropped: 1, factor, factor², …, without the last epoch. A
    larger number of epochs only adds rungs, so a sweep can be resumed with more epochs."""
    found, rung = [], 1
    while rung < epochs:
        found.append(rung)
        rung *= factor
    return found


def best(sort_keys: Mapping[int, float], costs: Mapping[int, int], factor: int) -> set[int]:
    """The best trials, as many as together cost at most 1/factor of all, but at least one. Equal
    trials are ordered by number. A trial without a finite value is only kept as the single one.

    The cost of a trial is its number of parameters. Counting trials instead would save less in a
    sweep over widths, where the widest trials are the best: in the README's sweep, the best eighth
    of the trials does a fifth of the arithmetic.
    """
    ranked = sorted(sort_keys, key=lambda trial: (sort_keys[trial], trial))
    bound = sum(costs.values()) // factor
    spent = accumulate(costs[trial] for trial in ranked)
    affordable = {trial for trial, cost in zip(ranked, spent, strict=True) if cost <= bound}
    return {trial for trial in affordable if math.isfinite(sort_keys[trial])} | {ranked[0]}
