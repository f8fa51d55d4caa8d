"""Output during training: a progress bar, a line per step, and how busy the GPU is."""

import logging
import statistics
import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from src.data.loader import Block, Rows
from src.training.classifier import Classifier

log = logging.getLogger(__name__)


class Progress(ProgressBar):
    """A bar over the batches of the whole run, because an epoch may last only 0.1 s."""

    INTERVAL = 0.1  # seconds between drawings; only a drawing reads values from the device

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Classifier)
        self.pending, self.drawn = 0, 0.0
        batches = pl_module.step_plan.batches_per_epoch
        self.bar = tqdm(
            total=batches * (trainer.max_epochs or 0),
            initial=trainer.current_epoch * batches + pl_module.batches_done % batches,
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
        assert isinstance(batch, Block | Rows)
        self.pending += len(losses)
        now = time.monotonic()
        if now - self.drawn < self.INTERVAL:
            return
        samples = correct.numel() * batch.size
        loss, accuracy = losses.mean().item(), correct.sum().item() / samples
        epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        self.bar.set_description_str(epoch, refresh=False)
        self.bar.set_postfix_str(f"loss {loss:.4f} acc {accuracy:.2%}", refresh=False)
        self.bar.update(self.pending)
        self.pending, self.drawn = 0, now

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if hasattr(self, "bar"):
            self.bar.close()


class StepLines(Callback):
    """A line per optimizer step: epoch, step within the epoch, loss of the step's last batch."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Classifier)
        plan = pl_module.step_plan
        losses = outputs["losses"][:, 0].tolist()
        epoch = f"epoch {trainer.current_epoch + 1:03d}/{trainer.max_epochs:03d}"
        with tqdm.external_write_mode():
            for batch_number, loss in enumerate(losses, pl_module.batches_done - len(losses)):
                if plan.completes(batch_number):
                    step = f"{plan.step_of(0, batch_number) + 1:03d}/{plan.steps_per_epoch:03d}"
                    log.info("%s | step %s | train loss %.2f", epoch, step, loss)


class Utilisation(Callback):
    """Logs at the end how busy the GPU was, and advice if the GPU often waited for work."""

    INTERVAL = 0.2  # seconds between samples; NVML averages each over the last moments
    ENOUGH = 80  # per cent; below, the advice is logged

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.taken = 0.0
        self.readable = True

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
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
        """Mean utilisation during training, in per cent."""
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
