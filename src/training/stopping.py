"""When a trial ends before its last epoch: by its own patience, or because others are better."""

import logging
import math
from collections.abc import Mapping, Sequence

from lightning.pytorch import Callback, LightningModule, Trainer

from src.config import Config
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
            worse = set(values) - set(best(values, self.halving, mode))
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


def rungs(epochs: int, factor: int) -> set[int]:
    """The epochs after which the best 1/factor go on: epochs/factor, epochs/factor², …, rounded
    down, to 1."""
    found, rung = set(), epochs // factor
    while rung:
        found.add(rung)
        rung //= factor
    return found


def best(values: Mapping[int, float], factor: int, mode: str) -> list[int]:
    """The trials of the best 1/factor of the values, rounded up; of equals the first."""
    sign = -1 if mode == "max" else 1
    ranked = sorted(values, key=lambda trial: (sign * values[trial], trial))
    return ranked[: math.ceil(len(values) / factor)]
