"""Stops trials before their last epoch: by early stopping, by halving, by max_time, or because a
callback of the user stops the run."""

import logging
from collections.abc import Sequence

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Timer

from kindling.config.measures import sort_key
from kindling.models import count_parameters
from kindling.system.errors import InputError
from kindling.training.callbacks import RunsLast, stopped_by
from kindling.training.decisions import (
    CALLBACK,
    EARLY_STOPPING,
    HALVING,
    MAX_TIME,
    best,
    out_of_patience,
    rungs,
    sort_keys,
)
from kindling.training.history import History
from kindling.training.module import StackModule

log = logging.getLogger(__name__)


class Stopping(RunsLast):
    """Decides from the histories alone which trials stop. So a resume needs no state of this class.

    Lightning's EarlyStopping ends a whole run. Here the other trials of a stack continue. `halving`
    is the factor of successive halving (Jamieson and Talwalkar 2016), or None.
    """

    def __init__(self, history: History, halving: int | None, users: Sequence[Callback]) -> None:
        self.history, self.halving, self.users = history, halving, users

    def on_fit_start(self, trainer: Trainer, module: StackModule) -> None:
        """A resumed run may have no trial that still trains. Then no hook of an epoch is called."""
        trainer.should_stop |= not module.status.active_trials

    # FSDP loads the state between the two.
    on_train_start = on_fit_start  # type: ignore[assignment]

    def on_train_epoch_end(self, trainer: Trainer, module: StackModule) -> None:
        config, epoch, status = module.configs[0], trainer.current_epoch + 1, module.status
        done, batches = module.batches_done, module.step_plan.batches_per_epoch
        if done == batches and epoch == config.trainer.max_epochs:
            return
        where = f"after {done} of {batches} batches of epoch {epoch}"
        if config.trainer.max_time is not None:
            callbacks = trainer.callbacks  # type: ignore[attr-defined]
            (timer,) = (each for each in callbacks if isinstance(each, Timer))
            if _on_any_rank(trainer, (timer.time_remaining() or 0.0) <= 0):
                status.stop(status.active_trials, MAX_TIME)
                log.info("trainer.max_time=%s is over, %s", config.trainer.max_time, where)
        rows = {trial: self.history.rows[trial] for trial in status.active_trials}
        not_improving = [
            trial for trial in rows if out_of_patience(sort_keys(rows[trial], config), config)
        ]
        status.stop(not_improving, EARLY_STOPPING)
        if self.halving and epoch in rungs(config.trainer.max_epochs, self.halving):
            monitor = config.checkpoint.monitor
            values = {trial: sort_key(monitor, rows[trial][-1][monitor]) for trial in rows}
            costs = {trial: count_parameters(module.models[trial]) for trial in rows}
            status.stop(set(values) - best(values, costs, self.halving), HALVING)
            log.info("halving: %d of %d trials go on", len(status.active_trials), len(values))
        may_stop = epoch >= (config.trainer.min_epochs or 0)
        if status.active_trials and may_stop and _on_any_rank(trainer, trainer.should_stop):
            status.stop(status.active_trials, CALLBACK)
            log.info("a callback (%s) has stopped the run, %s", stopped_by(self.users), where)
        if not status.active_trials:
            trainer.should_stop, trainer.fit_loop.min_epochs = True, None

    def on_fit_end(self, trainer: Trainer, module: StackModule) -> None:
        """Time may be over when a resumed run begins; Lightning then trains no epoch."""
        if not self.history.epochs:
            raise InputError(
                "no step was taken: a callback has stopped the run before, or its training loader "
                "has no batch"
                if module.configs[0].trainer.max_time is None
                else "trainer.max_time is over before the first step; type a longer time"
            )
        config, status = module.configs[0].trainer, module.status
        if trainer.should_stop and trainer.current_epoch < config.max_epochs:
            status.stop(status.active_trials, CALLBACK if config.max_time is None else MAX_TIME)


def _on_any_rank(trainer: Trainer, decision: bool) -> bool:
    return trainer.strategy.reduce_boolean_decision(decision, all=False)
