"""What a run tells while it trains: a row of history and a line per epoch, a bar on a terminal."""

import logging
import sys
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from src.run import Row, Run
from src.training.classifier import Classifier

log = logging.getLogger(__name__)


class History(Callback):
    """Appends a row to history.csv before training and after each epoch, and logs it as a line."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.seconds = 0.0

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, pl_module, epoch=0, rate=None)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds = time.perf_counter() - self.started
        assert isinstance(pl_module, Classifier)
        rate = pl_module.schedule(trainer.global_step - 1)
        self._write(trainer, pl_module, trainer.current_epoch + 1, rate)

    def _write(
        self, trainer: Trainer, pl_module: LightningModule, epoch: int, rate: float | None
    ) -> None:
        if not trainer.is_global_zero:
            return
        assert isinstance(pl_module, Classifier)
        row: Row = {"epoch": epoch, "step": trainer.global_step, "seconds": self.seconds}
        row |= {"lr": rate, **pl_module.metrics}
        self.run.append_history(row)
        with tqdm.external_write_mode():  # a bar steps aside
            log.info("%s", _line(row, trainer.max_epochs or 0))


def _line(row: Row, epochs: int) -> str:
    width = len(str(epochs))
    parts = [f"epoch {row['epoch']:>{width}}/{epochs}"]
    for part in ("train", "val"):
        loss, accuracy = row.get(f"{part}/loss"), row.get(f"{part}/acc")
        if loss is not None and accuracy is not None:
            parts.append(f"{part} loss {loss:.4f} acc {accuracy:7.2%}")
    if row["lr"] is not None:
        parts.append(f"lr {row['lr']:<8.4g} {row['seconds']:6.1f} s")
    return "  ".join(parts)


class Progress(Callback):
    """A bar over the whole run's batches, with the running loss and accuracy.

    One bar, not one an epoch: an epoch may last a tenth of a second.
    """

    INTERVAL = 0.1  # seconds between drawings; only then the device is asked for values

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Classifier)
        self.pending, self.drawn = 0, 0.0
        self.bar = tqdm(
            total=pl_module.batches_per_epoch * (trainer.max_epochs or 0),
            unit="batch",
            leave=False,
            dynamic_ncols=True,
            mininterval=0,
            file=sys.stderr,
        )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        losses, correct = outputs["losses"], outputs["correct"]
        self.pending += len(losses)
        now = time.monotonic()
        if now - self.drawn < self.INTERVAL:
            return
        loss, accuracy = losses.mean().item(), correct.sum().item() / batch.labels.numel()
        epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        self.bar.set_description_str(epoch, refresh=False)
        self.bar.set_postfix_str(f"loss {loss:.4f} acc {accuracy:.2%}", refresh=False)
        self.bar.update(self.pending)
        self.pending, self.drawn = 0, now

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        if hasattr(self, "bar"):
            self.bar.close()


class StepLines(Callback):
    """A line per optimizer step: epoch, step within it, loss of its (last) batch."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Classifier)
        accumulate = pl_module.config.trainer.accumulate_grad_batches
        batches = pl_module.batches_per_epoch
        steps = -(-batches // accumulate)
        losses = outputs["losses"].tolist()
        epoch = f"epoch {trainer.current_epoch + 1:03d}/{trainer.max_epochs:03d}"
        with tqdm.external_write_mode():
            for number, loss in enumerate(losses, pl_module.batch - len(losses) + 1):
                if number % accumulate == 0 or number == batches:
                    step = -(-number // accumulate)
                    log.info("%s | step %03d/%03d | train loss %.2f", epoch, step, steps, loss)
