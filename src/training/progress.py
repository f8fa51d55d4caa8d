"""Output during training: a progress bar, a line per step, how busy the GPU is, and a file that
tells other processes how far the training is."""

import logging
import math
import os
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from pydantic import ValidationError
from tqdm import tqdm

from src.config.schema import sort_key
from src.data.loader import Block, Rows
from src.runs.group_progress import GroupProgress, trial_numbers, write_progress
from src.runs.outcome import format_metric
from src.system.errors import InputError
from src.training.checkpoint_callback import Checkpoints
from src.training.classifier import Classifier
from src.training.history import History

log = logging.getLogger(__name__)


BAR = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"  # fits 80 columns


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
            bar_format=BAR,
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
        mean = "mean " if losses[0].numel() > 1 else ""  # of the trials of a stack
        shown = f"{mean}loss {format_metric('loss', loss)} acc {format_metric('acc', accuracy)}"
        self.bar.set_postfix_str(shown, refresh=False)
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


class ProgressFile(Callback):
    """Writes progress.json into the folder of the checkpoints: before training, and after each
    epoch, but at most once a second. `runs` are the folders of the trials.

    A file that cannot be written is left out, because training does not need it.
    """

    INTERVAL = 1.0

    def __init__(
        self,
        folder: Path,
        runs: Sequence[Path],
        history: History,
        checkpoints: Checkpoints,
    ) -> None:
        self.folder, self.trials = folder, trial_numbers(runs)
        self.history, self.checkpoints = history, checkpoints

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.epoch, self.seconds = trainer.current_epoch, self.history.seconds
        self._write(trainer, pl_module, None)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if time.monotonic() - self.written >= self.INTERVAL:
            earlier_epoch, earlier_seconds = self.epoch, self.seconds
            self.epoch, self.seconds = trainer.current_epoch + 1, self.history.seconds
            passed = (self.seconds - earlier_seconds) / (self.epoch - earlier_epoch)
            self._write(trainer, pl_module, passed)

    def _write(
        self, trainer: Trainer, pl_module: LightningModule, epoch_seconds: float | None
    ) -> None:
        assert isinstance(pl_module, Classifier)
        self.written = time.monotonic()
        if not trainer.is_global_zero:
            return
        monitor = pl_module.configs[0].checkpoint.monitor
        best = min(
            self.checkpoints.best_values, key=lambda value: sort_key(monitor, value), default=None
        )
        with suppress(OSError, InputError, ValidationError):
            progress = GroupProgress(
                host=socket.gethostname(),
                process=os.getpid(),
                device=_device_name(pl_module.device),
                trials=self.trials,
                training=len(pl_module.status.active_trials),
                epoch=self.epoch,
                epochs=trainer.max_epochs or 0,
                monitor=monitor,
                best=best if sort_key(monitor, best) < math.inf else None,
                seconds=self.seconds,
                epoch_seconds=epoch_seconds,
                written=time.time(),
            )
            write_progress(self.folder, progress)


def _device_name(device: torch.device) -> str:
    """The device as the whole machine numbers it, whichever GPUs this process may see."""
    if device.type != "cuda":
        return device.type
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    index = device.index or 0
    return f"cuda:{visible[index] if index < len(visible) else index}"


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
        log.info("GPU utilisation %.0f%%%s", mean, advice if mean < self.ENOUGH else "")
