"""What a run tells while it trains: a row of history and a line per epoch, a bar on a terminal."""

import logging
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from src.run import Row, Run
from src.training.classifier import Classifier

log = logging.getLogger(__name__)


class History(Callback):
    """Appends a row to each trial's history before training and after each epoch, and logs a line.

    A trial that has diverged gets no more rows after the one that shows it.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.before = 0.0  # seconds of training before a resume
        self.seconds = 0.0
        self.ended: set[int] = set()

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "ended": sorted(self.ended)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.before, self.ended = state_dict["seconds"], set(state_dict["ended"])

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, pl_module, epoch=0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.perf_counter() - self.before
        if trainer.is_global_zero:
            for run in self.runs:  # after a resume: what came after the checkpoint comes again
                run.cut_history(trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seconds = time.perf_counter() - self.started
        self._write(trainer, pl_module, trainer.current_epoch + 1)

    def _write(self, trainer: Trainer, pl_module: LightningModule, epoch: int) -> None:
        assert isinstance(pl_module, Classifier)
        rows = []
        for trial, metrics in enumerate(pl_module.metrics):
            rate = pl_module.schedules[trial](trainer.global_step - 1) if epoch else None
            row: Row = {"epoch": epoch, "step": trainer.global_step, "seconds": self.seconds}
            rows.append(row | {"lr": rate, **metrics})
            if trial not in self.ended and trainer.is_global_zero:
                self.runs[trial].append_history(rows[-1])
        self.ended |= set(pl_module.diverged)
        if trainer.is_global_zero:
            with tqdm.external_write_mode():  # a bar steps aside
                log.info("%s", _line(rows, trainer.max_epochs or 0, len(self.ended)))


def _line(rows: Sequence[Row], epochs: int, diverged: int) -> str:
    row = rows[0]
    width = len(str(epochs))
    parts = [f"epoch {row['epoch']:>{width}}/{epochs}"]
    if len(rows) > 1:
        accuracies = sorted(float(row["val/acc"] or 0) for row in rows)
        middle = statistics.median(accuracies)
        parts.append(f"{len(rows)} trials  val acc best {accuracies[-1]:.2%} median {middle:.2%}")
        if diverged:
            parts.append(f"{diverged} diverged")
    else:
        for part in ("train", "val"):
            loss, accuracy = row.get(f"{part}/loss"), row.get(f"{part}/acc")
            if loss is not None and accuracy is not None:
                parts.append(f"{part} loss {loss:.4f} acc {accuracy:7.2%}")
        if row["lr"] is not None:
            parts.append(f"lr {row['lr']:<8.4g}")
    if row["epoch"]:
        parts.append(f"{row['seconds']:6.1f} s")
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
            total=pl_module.when.batches_per_epoch * (trainer.max_epochs or 0),
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
        samples = correct.shape[1] * batch.labels[:, 0].numel()
        loss, accuracy = losses.mean().item(), correct.sum().item() / samples
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
        when = pl_module.when
        losses = outputs["losses"][:, 0].tolist()
        epoch = f"epoch {trainer.current_epoch + 1:03d}/{trainer.max_epochs:03d}"
        with tqdm.external_write_mode():
            for batch_number, loss in enumerate(losses, pl_module.batch - len(losses)):
                if when.completes(batch_number):
                    step = (
                        f"step {when.step_of(0, batch_number) + 1:03d}/{when.steps_per_epoch:03d}"
                    )
                    log.info("%s | %s | train loss %.2f", epoch, step, loss)
