"""Lightning's Trainer for a run."""

import sys
from collections.abc import Sequence

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.profilers import Profiler, PyTorchProfiler, SimpleProfiler
from lightning.pytorch.strategies import Strategy

from src.config import schema
from src.runs.folder import Run
from src.system import machine
from src.training import fsdp, ranks
from src.training.progress import Progress, StepLines, Utilisation

PRECISION = {"32": "32-true", "64": "64-true"}  # the others have Lightning's names


def build_trainer(
    config: schema.Trainer,
    devices: machine.Devices,
    run: Run,
    callbacks: Sequence[Callback],
    checkpoint_io: CheckpointIO,
    *,
    resumed: bool,
) -> Trainer:
    """`callbacks` are called in their order, after the callbacks of the configuration."""
    wanted = sys.stderr.isatty() if config.progress_bar == "auto" else config.progress_bar
    bar = wanted and ranks.is_rank_zero()
    shown: list[Callback] = [Progress()] if bar else []
    shown += [StepLines()] if config.log_every_step else []
    shown += [Utilisation()] if devices.accelerator == "cuda" else []
    return Trainer(
        accelerator=devices.accelerator,
        devices=devices.count,
        num_nodes=devices.nodes,
        strategy=_strategy(config, devices),
        precision=PRECISION.get(config.precision, config.precision),  # type: ignore[arg-type]
        max_epochs=config.max_epochs,
        max_time=config.max_time,
        deterministic=config.deterministic,
        # Lightning sends each epoch to its loggers at once. After a kill, the epochs since the last
        # checkpoint would be sent twice. src/training/loggers sends each epoch once.
        logger=False,
        callbacks=[*shown, *callbacks],
        profiler=_profiler(config.profiler, run),
        plugins=[checkpoint_io, ranks.cluster()],
        # The whole validation before training gives row 0 of the history.
        num_sanity_val_steps=0 if resumed else -1,
        use_distributed_sampler=False,  # src/data/loader.py shares the samples out
        enable_progress_bar=bar,
        enable_model_summary=False,
        enable_checkpointing=False,  # src/training/checkpoint_callback.py writes checkpoints
        default_root_dir=run.folder,
    )


def _strategy(config: schema.Trainer, devices: machine.Devices) -> Strategy | str:
    if devices.world_size == 1:
        return "auto"
    return fsdp.Shards() if config.strategy == "fsdp" else ranks.RanksStrategy()


def _profiler(kind: str | None, run: Run) -> Profiler | None:
    """A profiler that writes into the run folder. `simple` measures the seconds of each hook,
    `pytorch` the seconds of each operator, with a trace."""
    if kind == "simple":
        return SimpleProfiler(run.folder, "profile", extended=True)
    return PyTorchProfiler(run.folder, "profile", export_to_chrome=True) if kind else None
