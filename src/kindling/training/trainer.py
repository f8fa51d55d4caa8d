"""Lightning's Trainer for a run: how it is built, and how it trains."""

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.profilers import Profiler, PyTorchProfiler, SimpleProfiler
from lightning.pytorch.strategies import Strategy

from kindling.config import schema
from kindling.ranks import processes as ranks
from kindling.records.folder import Run
from kindling.system import machine
from kindling.system.errors import InputError
from kindling.system.process import bar_in_notebook
from kindling.system.signals import Signals
from kindling.training.lightning_module import LightningRun
from kindling.training.module import StackModule
from kindling.training.progress import Progress, StepLines, Utilisation
from kindling.training.resume import Resumed

log = logging.getLogger(__name__)

PRECISION = {"32": "32-true", "64": "64-true"}  # the others have Lightning's names
# Warnings of Lightning that do not apply here.
NOISE = (
    ".*It is recommended to use `self.log.*sync_dist=True.*",  # the values are all ranks' already
    ".*is smaller than the logging interval.*",  # the history has a row for each epoch
    ".*does not have many workers which may be a bottleneck.*",
    ".*MPS available but not used.*",
    ".*GPU available but not used.*",
    ".*Checkpoint directory .* exists and is not empty.*",
    ".*in eval mode at the start of training.*",
    ".*Profiler default schedule will be overridden.*",
    ".*resuming from a checkpoint that ended before the epoch ended.*",  # the loader knows where
    ".*`srun` command is available on your system but is not used.*",  # `cluster` looks for it
    r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
)


def build_trainer(
    config: schema.Trainer,
    devices: machine.Devices,
    run: Run,
    callbacks: Sequence[Callback],
    checkpoint_io: CheckpointIO,
    *,
    resumed: bool,
    options: Mapping[str, Any],
) -> Trainer:
    """`callbacks` are called in their order, after the callbacks of the configuration, but those of
    the class `RunsLast` after all others. `options`, which a LightningModule has, are arguments of
    Lightning's Trainer."""
    visible = sys.stderr.isatty() or bar_in_notebook.get()
    bar = (
        visible if config.progress_bar == "auto" else config.progress_bar
    ) and ranks.is_rank_zero()
    shown: list[Callback] = []
    if bar and not any(isinstance(each, ProgressBar) for each in callbacks):
        shown = [TQDMProgressBar() if options else Progress()]
    every = 1 if config.log_every_step else config.log_every_n_steps
    shown += [StepLines(every)] if every and not options else []
    shown += [Utilisation()] if devices.accelerator == "cuda" else []
    strategy: Strategy | str = "auto"
    if config.strategy == "fsdp" and devices.world_size > 1:
        from kindling.ranks import fsdp  # slow to import

        strategy = fsdp.Shards()
    elif devices.world_size > 1:
        strategy = ranks.WrappedRanks() if options else ranks.RanksStrategy()
    return Trainer(
        accelerator=devices.accelerator,
        devices=devices.count,
        num_nodes=devices.nodes,
        strategy=strategy,
        precision=PRECISION.get(config.precision, config.precision),  # type: ignore[arg-type]
        max_epochs=config.max_epochs,
        min_epochs=config.min_epochs,
        detect_anomaly=config.detect_anomaly,
        max_time=config.max_time,
        # False would import torch's compiler, to tell it; None leaves torch as it is.
        deterministic=config.deterministic
        or (False if torch.are_deterministic_algorithms_enabled() else None),
        callbacks=[*shown, *callbacks],
        profiler=_profiler(config.profiler, run),
        plugins=[checkpoint_io, ranks.cluster()],
        # The whole validation before training gives row 0 of the history.
        num_sanity_val_steps=0 if resumed else -1,
        enable_progress_bar=bar,
        enable_model_summary=False,
        enable_checkpointing=True,  # the class RunsLast is a Checkpoint of Lightning's
        default_root_dir=run.folder,
        # Lightning sends each epoch to its loggers at once. After a kill, the epochs since the last
        # checkpoint would be sent twice. training/loggers sends each epoch once.
        # data/loader.py shares the samples out.
        **{"logger": False, "use_distributed_sampler": False, **options},
    )


def _profiler(kind: str | None, run: Run) -> Profiler | None:
    """A profiler that writes into the run folder. `simple` measures the seconds of each hook,
    `pytorch` the seconds of each operator, with a trace."""
    if kind == "simple":
        return SimpleProfiler(run.folder, "profile", extended=True)
    return PyTorchProfiler(run.folder, "profile", export_to_chrome=True) if kind else None


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Keeps Lightning's advice and noise out of the log."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        for message in NOISE:
            warnings.filterwarnings("ignore", message)
        yield


def train(
    trainer: Trainer, module: StackModule | LightningRun, resumed: Resumed | None, signals: Signals
) -> None:
    """Trains to the last epoch. Raises Interrupted for a signal that came meanwhile, and InputError
    for a checkpoint that passed every check, but holds tensors that torch refuses."""
    try:
        trainer.fit(module.lightning, module.loaders, ckpt_path=resumed.path if resumed else None)
    except SystemExit:  # Lightning's own signal handler was called; it ends with status 0
        signals.interrupt_if_received()
        raise
    except Exception as error:
        explained = isinstance(error, InputError | OSError | MemoryError)
        if explained or resumed is None or module.training_began:
            raise
        log.info("the state cannot be restored", exc_info=True)
        text = " ".join(str(error).split())[:300]  # torch names the layers in further lines
        raise InputError(
            f"{resumed.path}: cannot be resumed ({type(error).__name__}: {text})"
        ) from error
    signals.waits_for_block = False  # `Checkpoints` has set it: now a signal interrupts at once
    signals.interrupt_if_received()
