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

from kindling.config.measures import score_of, sort_key
from kindling.data.loader import Block, Rows
from kindling.records.groups import GroupProgress, trial_numbers, write_progress
from kindling.records.outcome import format_metric
from kindling.system.errors import InputError
from kindling.training.callbacks import RunsLast
from kindling.training.checkpoints import Checkpoints
from kindling.training.history import History
from kindling.training.module import StackModule

log = logging.getLogger(__name__)

BAR = "{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"  # fits 80 columns


class Progress(ProgressBar):
    """A bar over the batches of the whole run, because an epoch may last only 0.1 s."""

    INTERVAL = 0.1  # seconds between drawings; only a drawing reads values from the device

    def on_train_start(self, trainer: Trainer, module: StackModule) -> None:
        self.pending, self.drawn = 0, 0.0
        batches = module.step_plan.batches_per_epoch
        self.bar = tqdm(
            total=batches * (trainer.max_epochs or 0),
            initial=trainer.current_epoch * batches + module.batches_done % batches,
            leave=False, dynamic_ncols=True, bar_format=BAR, mininterval=0, file=sys.stderr,
        )  # fmt: skip

    def on_train_batch_end(
        self, trainer: Trainer, module: StackModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        losses, scores = outputs["losses"], outputs["scores"]
        assert isinstance(batch, Block | Rows)
        self.pending += len(losses)
        now = time.monotonic()
        if now - self.drawn < self.INTERVAL:
            return
        samples, task = scores.numel() * batch.size, module.task
        spread = task.labels if task.real_scores else 0.0  # of standardised labels
        loss = losses.mean().item()
        score = task.score(scores.sum().item(), samples, spread)
        epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        self.bar.set_description_str(epoch, refresh=False)
        mean = "mean " if losses[0].numel() > 1 else ""  # of the trials of a stack
        name = score_of(task.section.name)
        shown = f"{mean}loss {format_metric('loss', loss)} {name} {format_metric(name, score)}"
        self.bar.set_postfix_str(shown, refresh=False)
        self.bar.update(self.pending)
        self.pending, self.drawn = 0, now

    def on_train_end(self, trainer: Trainer, module: StackModule) -> None:
        self.bar.close()

    def on_exception(self, trainer: Trainer, module: StackModule, *_: Any) -> None:
        if hasattr(self, "bar"):
            self.bar.close()


class StepLines(Callback):
    """A line per `every` optimizer steps: epoch, step within the epoch, loss of the step's last
    batch."""

    def __init__(self, every: int = 1) -> None:
        self.every = every

    def on_train_batch_end(
        self, trainer: Trainer, module: StackModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        plan = module.step_plan
        losses = outputs["losses"][:, 0].tolist()
        epoch = f"epoch {trainer.current_epoch + 1:03d}/{trainer.max_epochs:03d}"
        with tqdm.external_write_mode():
            for batch_number, loss in enumerate(losses, module.batches_done - len(losses)):
                number = plan.step_of(trainer.current_epoch, batch_number) + 1
                if plan.completes(batch_number) and number % self.every == 0:
                    step = f"{plan.step_of(0, batch_number) + 1:03d}/{plan.steps_per_epoch:03d}"
                    log.info("%s | step %s | train loss %.2f", epoch, step, loss)


class ProgressFile(RunsLast):
    """Writes progress.json into the folder of the checkpoints: before training, and after batches
    and epochs, but at most once a second. `runs` are the folders of the trials.

    A file that cannot be written is left out, because training does not need it.
    """

    INTERVAL = 1.0

    def __init__(
        self, folder: Path, runs: Sequence[Path], history: History, checkpoints: Checkpoints
    ) -> None:
        self.folder, self.trials = folder, trial_numbers(runs)
        self.history, self.checkpoints = history, checkpoints

    def on_train_start(self, trainer: Trainer, module: StackModule) -> None:
        self.epoch, self.seconds = trainer.current_epoch, self.history.seconds
        self.epoch_seconds: float | None = None
        batches = module.step_plan.batches_per_epoch
        # After a whole epoch, Lightning begins the next one with its count.
        self.first, self.began = module.batches_done % batches if batches else 0, time.monotonic()
        self._write(trainer, module, self.epoch, 0, self.seconds, None)

    def on_train_batch_end(self, trainer: Trainer, module: StackModule, *_: Any) -> None:
        now, done = time.monotonic(), module.batches_done
        if now - self.written < self.INTERVAL:
            return
        passed, batches = self.epoch_seconds, _batches(trainer, module)
        if passed is None and batches and done > self.first:
            passed = (now - self.began) * batches / (done - self.first)
        seconds = self.history.seconds
        self._write(trainer, module, trainer.current_epoch, done, seconds, passed)

    def on_train_epoch_end(self, trainer: Trainer, module: StackModule) -> None:
        epoch, seconds = trainer.current_epoch + 1, self.history.seconds
        self.epoch_seconds = (seconds - self.seconds) / (epoch - self.epoch)
        if seconds - self.seconds >= self.INTERVAL:
            self.epoch, self.seconds = epoch, seconds
        if time.monotonic() - self.written >= self.INTERVAL:
            self._write(trainer, module, epoch, 0, seconds, self.epoch_seconds)

    def _write(
        self, trainer: Trainer, module: StackModule, epoch: int, batch: int, seconds: float,
        epoch_seconds: float | None,
    ) -> None:  # fmt: skip
        self.written = time.monotonic()
        if not trainer.is_global_zero:
            return
        monitor = module.configs[0].checkpoint.monitor
        known = (best["value"] for best in self.checkpoints.best if best is not None)
        best = min(known, key=lambda value: sort_key(monitor, value), default=None)
        with suppress(OSError, InputError, ValidationError):
            progress = GroupProgress(
                host=socket.gethostname(),
                process=os.getpid(),
                device=_device_name(module.device),
                trials=self.trials,
                training=len(module.status.active_trials),
                epoch=epoch,
                epochs=trainer.max_epochs or 0,
                batch=batch,
                batches=_batches(trainer, module),
                monitor=monitor,
                best=best if sort_key(monitor, best) < math.inf else None,
                seconds=seconds,
                epoch_seconds=epoch_seconds,
                written=time.time(),
            )
            write_progress(self.folder, progress)


def _batches(trainer: Trainer, module: StackModule) -> int:
    """Of an epoch; 0 of a stream, which is as long as it lasts."""
    endless = math.isinf(trainer.num_training_batches)
    return 0 if endless else module.step_plan.batches_per_epoch


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

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        now = time.monotonic()
        if not self.readable or now - self.taken < self.INTERVAL:
            return
        self.taken = now
        try:
            self.samples.append(torch.cuda.utilization(module.device))
        except Exception as error:  # NVML has many ways to be absent; none of them ends a run
            self.readable = False
            log.info("GPU utilisation cannot be read (%s)", error)

    @property
    def mean(self) -> float | None:
        return statistics.mean(self.samples) if self.samples else None

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        advice = (
            "; it waited for work: try larger blocks (trainer.steps_per_call), a larger "
            "data.batch_size, data.loader=resident, or a fused sweep"
        )
        if (mean := self.mean) is not None:
            log.info("GPU utilisation %.0f%%%s", mean, advice if mean < self.ENOUGH else "")
