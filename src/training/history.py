"""What a run tells while it trains: a row of history and a line per epoch, a bar on a terminal."""

import logging
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from tqdm import tqdm

from src.runs.folder import HISTORY, Row, Run
from src.training.classifier import Classifier

log = logging.getLogger(__name__)


class History(Callback):
    """Appends a row to each trial's history before training and after each epoch, and logs a line.

    A trial that has diverged gets no more rows after the one that shows it, nor one that stopped.
    All rows are part of the state: a file that a crash left behind or ahead of its checkpoint is
    written anew from it.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.rows: list[list[Row]] = [[] for _ in runs]
        self.before = 0.0  # seconds of training before a resume
        self.started: float | None = None
        self.ended: set[int] = set()

    @property
    def seconds(self) -> float:
        """Of training, over all processes that had a part in it."""
        return self.before + (time.perf_counter() - self.started if self.started else 0.0)

    def state_dict(self) -> dict[str, Any]:
        rows = [[[row.get(name) for name in HISTORY] for row in trial] for trial in self.rows]
        return {"seconds": self.seconds, "ended": sorted(self.ended), "rows": rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.before, self.ended = state_dict["seconds"], set(state_dict["ended"])
        self.rows = [
            [dict(zip(HISTORY, row, strict=True)) for row in trial] for trial in state_dict["rows"]
        ]

    def rewrite(self) -> None:
        for run, rows in zip(self.runs, self.rows, strict=True):
            if rows:
                run.write_history(rows)

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, pl_module, epoch=0)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, pl_module, trainer.current_epoch + 1)

    def _write(self, trainer: Trainer, pl_module: LightningModule, epoch: int) -> None:
        assert isinstance(pl_module, Classifier)
        lines, seconds = [], self.seconds
        for trial, metrics in pl_module.metrics.items():
            rate = pl_module.schedules[trial](trainer.global_step - 1) if epoch else None
            row: Row = {"epoch": epoch, "step": trainer.global_step, "seconds": seconds}
            lines.append(row | {"lr": rate, **metrics})
            if trial not in self.ended:
                self.rows[trial].append(lines[-1])
                if trainer.is_global_zero:
                    self.runs[trial].append_history(lines[-1])
        self.ended |= set(pl_module.diverged)
        if trainer.is_global_zero:
            with tqdm.external_write_mode():  # a bar steps aside
                diverged = len(pl_module.diverged)
            log.info("%s", _line(lines, trainer.max_epochs or 0, len(self.runs) > 1, diverged))


def _line(rows: Sequence[Row], epochs: int, stacked: bool, diverged: int) -> str:
    row = rows[0]
    width = len(str(epochs))
    parts = [f"epoch {row['epoch']:>{width}}/{epochs}"]
    if stacked:
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
        batches = pl_module.when.batches_per_epoch
        self.bar = tqdm(
            total=batches * (trainer.max_epochs or 0),
            initial=trainer.current_epoch * batches + pl_module.batch % batches,
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


class Utilisation(Callback):
    """Says at the end how busy the GPU was, and what to try where it waited more than it worked."""

    INTERVAL = 0.2  # seconds between samples, each the share of the last moments as NVML has it
    ENOUGH = 80  # per cent

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.taken = 0.0
        self.readable = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        if not self.readable or now - self.taken < self.INTERVAL:
            return
        self.taken = now
        try:
            self.samples.append(torch.cuda.utilization(pl_module.device))
        except Exception as error:  # NVML has many ways to be absent; none of them ends a run
            self.readable = False
            log.info("GPU utilisation cannot be read (%s)", error)

    @property
    def mean(self) -> float | None:
        """Per cent, over the training."""
        return statistics.mean(self.samples) if self.samples else None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        mean = self.mean
        if mean is None:
            return
        advice = (
            "; it waited for work: try larger blocks (trainer.steps_per_call), a larger "
            "data.batch_size, data.loader=resident, or a fused sweep"
        )
        log.info("GPU utilisation %.0f %%%s", mean, advice if mean < self.ENOUGH else "")
