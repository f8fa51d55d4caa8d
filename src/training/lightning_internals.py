"""Changes to Lightning beyond its public interface, with reasons."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch import Trainer

# Warnings of Lightning that do not apply here.
NOISE = (
    ".*It is recommended to use `self.log.*sync_dist=True.*",  # the values are all ranks' already
    ".*does not have many workers which may be a bottleneck.*",
    ".*MPS available but not used.*",
    ".*GPU available but not used.*",
    ".*Checkpoint directory .* exists and is not empty.*",
    ".*in eval mode at the start of training.*",
    ".*Profiler default schedule will be overridden.*",
    ".*resuming from a checkpoint that ended before the epoch ended.*",  # the loader knows where
    ".*`srun` command is available on your system but is not used.*",  # `place` looks for it
    r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Keeps Lightning's advice and noise out of the log."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        for message in NOISE:
            warnings.filterwarnings("ignore", message)
        yield


def count_steps(trainer: Trainer, steps: int) -> None:
    """Adds to trainer.global_step, because Lightning counts only calls of its own optimizers."""
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    for tracker in (progress.total, progress.current):
        tracker.ready += steps
        tracker.completed += steps
