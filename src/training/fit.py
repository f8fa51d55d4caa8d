"""One run, from a checked configuration to a run folder."""

import logging
import resource
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.loggers import Logger
from tabulate import tabulate

from src.config import Config
from src.data.loader import Order, SeededOrder, StreamOrder
from src.data.module import DataModule
from src.data.sources import Source, open_source
from src.errors import InputError
from src.models import build_model
from src.run import Row, Run
from src.training import machine, ranks
from src.training.callbacks import History, Progress, StepLines
from src.training.classifier import Classifier

log = logging.getLogger(__name__)

PRECISION = {"32": "32-true", "64": "64-true"}  # the others go by Lightning's names

# Lightning's advice that does not hold here, each by its own words.
NOISE = (
    r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
    ".*It is recommended to use `self.log.*sync_dist=True.*",  # the values are all ranks' already
    ".*does not have many workers which may be a bottleneck.*",
    ".*The number of training batches .* is smaller than the logging interval.*",
    ".*You requested to overfit.*",
    ".*MPS available but not used.*",
    ".*GPU available but not used.*",
    ".*Checkpoint directory .* exists and is not empty.*",
    ".*in eval mode at the start of training.*",
)


def fit(config: Config, folder: Path) -> Run:
    """Trains, validates and tests as configured; everything that is left lies in `folder`.

    Blocks until the run is over, on every device that it uses. The global random streams of
    Python, NumPy and torch are seeded. Raises InputError for data or devices that do not fit the
    configuration (a result.json of status `failed` tells of it), and for a folder that holds a
    run already.
    """
    run = Run(folder)
    if run.history_file.exists() or run.result_file.exists():
        raise InputError(f"{folder}: holds a run already, which is not overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    run.write_config(config)
    try:
        devices = machine.resolve(config.trainer)
        if devices.count == 1 or ranks.inside():
            fit_rank(config, folder)
        else:
            ranks.launch(fit_rank, (config, folder), devices.count)
    except Exception as error:
        if not ranks.inside():
            run.write_result({"status": "failed", "error": f"{type(error).__name__}: {error}"})
        raise
    return run


def fit_rank(config: Config, folder: Path) -> None:
    """The run as this process sees it: all of it, or one rank's part."""
    began = time.perf_counter()
    run = Run(folder)
    machine.keep_freed_memory()
    with _logging_to(run), warnings.catch_warnings():
        for message in NOISE:
            warnings.filterwarnings("ignore", message)
        devices = machine.resolve(config.trainer)
        source = open_source(config.data)
        if source.instead_of:
            log.warning("%s", _banner(source))
        seed_everything(config.seed, verbose=False)
        model = build_model(config.model, source.shape, source.classes)
        order: Order = SeededOrder(config.seed)
        if config.data.order == "stream":
            order = StreamOrder(torch.get_rng_state())
        data = DataModule(
            config.data,
            source,
            order,
            steps_per_call=config.trainer.steps_per_call,
            ranks=devices.count,
        )
        classifier = Classifier(config, model, data)
        trainer = _trainer(config, devices, run)
        if trainer.global_rank:
            torch.manual_seed(config.seed + trainer.global_rank)  # dropout differs between ranks
        setup = time.perf_counter() - began

        began = time.perf_counter()
        trainer.fit(classifier, datamodule=data)
        fitted = time.perf_counter() - began

        began = time.perf_counter()
        trainer.test(classifier, datamodule=data, ckpt_path=run.best_checkpoint, verbose=False)
        tested = time.perf_counter() - began
        if trainer.is_global_zero:
            seconds = {"setup": setup, "fit": fitted, "test": tested}
            result = _result(run, classifier, data, trainer, seconds)
            run.write_result(result)
            log.info("\n%s", summary(result, run))


def _trainer(config: Config, devices: machine.Devices, run: Run) -> Trainer:
    trainer = config.trainer
    for chatter in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(chatter).setLevel(logging.WARNING)
    callbacks: list[Callback] = [
        History(run),
        _checkpoint(config, run.best_checkpoint, config.checkpoint.monitor),
        _checkpoint(config, run.last_checkpoint, None),
    ]
    bar = sys.stderr.isatty() if trainer.progress_bar == "auto" else trainer.progress_bar
    if bar and not ranks.rank():
        callbacks.insert(0, Progress())
    if trainer.log_every_step:
        callbacks.insert(0, StepLines())
    if trainer.max_time is not None:
        callbacks.append(Timer(_duration(trainer.max_time), verbose=False))
    return Trainer(
        accelerator=devices.accelerator,
        devices=devices.count,
        strategy=ranks.Ranks() if devices.count > 1 else "auto",
        precision=PRECISION.get(trainer.precision, trainer.precision),  # type: ignore[arg-type]
        max_epochs=trainer.max_epochs,
        deterministic=trainer.deterministic,
        logger=_loggers(config, run),
        callbacks=callbacks,
        num_sanity_val_steps=-1,  # the whole validation before training: row 0 of the history
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        default_root_dir=run.folder,
    )


def _checkpoint(config: Config, path: Path, monitor: str | None) -> ModelCheckpoint:
    """Keeps the best by `monitor`, or the newest. One callback cannot do both: with save_last,
    Lightning writes the newest only when it is among the best."""
    return ModelCheckpoint(
        path.parent,
        path.stem,
        monitor=monitor,
        mode=config.checkpoint.mode,
        every_n_epochs=config.checkpoint.every_n_epochs,
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )


def _duration(text: str) -> timedelta:
    days, hours, minutes, seconds = (int(part) for part in text.split(":"))
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


def _loggers(config: Config, run: Run) -> list[Logger]:
    if config.logger.name == "none":
        return []
    from lightning.pytorch.loggers import TensorBoardLogger

    try:
        return [TensorBoardLogger(run.folder, name="tensorboard", version="")]
    except ModuleNotFoundError:
        raise InputError(
            'logger=tensorboard: the package is not installed; type pip install -e ".[tensorboard]"'
        ) from None


@contextmanager
def _logging_to(run: Run) -> Iterator[None]:
    """Adds train.log to the project's log on rank 0; nothing of the caller's logging is changed."""
    ours = logging.getLogger("src")
    level = ours.level
    handlers: list[logging.Handler] = []
    if not ranks.rank():
        handlers.append(logging.FileHandler(run.log_file))
        handlers[0].setFormatter(logging.Formatter("[%(asctime)s][%(levelname)s] %(message)s"))
        ours.setLevel(logging.INFO)
    for handler in handlers:
        ours.addHandler(handler)
    try:
        yield
    finally:
        ours.setLevel(level)
        for handler in handlers:
            ours.removeHandler(handler)
            handler.close()


def _banner(source: Source) -> str:
    text = f"Training on {source.name} instead of {source.instead_of}."
    return f"{'!' * 80}\n{text}\nType data=mnist to make this an error.\n{'!' * 80}"


def _result(
    run: Run, classifier: Classifier, data: DataModule, trainer: Trainer, seconds: dict[str, float]
) -> dict[str, Any]:
    """What result.json holds; seconds are wall time, samples_per_second counts validation in."""
    config = classifier.config
    rows = [row for row in run.history if row["epoch"]]
    monitor = config.checkpoint.monitor
    pick = max if config.checkpoint.mode == "max" else min
    saved = [row for row in rows if int(row["epoch"] or 0) % config.checkpoint.every_n_epochs == 0]
    best = pick(saved or rows, key=lambda row: row[monitor] or 0.0)
    device = trainer.strategy.root_device
    samples = len(data.train) * len(rows)
    return {
        "status": "finished",
        "monitor": monitor,
        "best": _values(best),
        "last": _values(rows[-1]),
        **classifier.metrics,
        "epochs": len(rows),
        "steps": rows[-1]["step"],
        "seconds": seconds,
        "samples_per_second": samples / float(rows[-1]["seconds"] or 1),
        "parameters": sum(p.numel() for p in classifier.model.parameters()),
        "data": {
            "name": data.source.name,
            "instead_of": data.source.instead_of,
            "train": len(data.train),
            "val": len(data.validation),
            "test": len(data.source.test),
        },
        "ranks": trainer.world_size,
        "hardware": machine.hardware(device),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "versions": machine.versions(),
        "commit": machine.commit(),
        "config_hash": config.hash(),
    }


def _values(row: Row) -> Row:
    return {key: row[key] for key in ("epoch", "train/loss", "train/acc", "val/loss", "val/acc")}


def _shown(folder: Path) -> str:
    """As one would type it: relative where it lies below the current folder."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def summary(result: dict[str, Any], run: Run) -> str:
    """A finished run as a table for people."""
    best, data = result["best"], result["data"]
    used = f"{data['name']}: {data['train']} train, {data['val']} validation, {data['test']} test"
    rows = [
        ("data", used),
        ("best validation", f"accuracy {best['val/acc']:.2%}, epoch {best['epoch']}"),
        ("test", f"accuracy {result['test/acc']:.2%}, loss {result['test/loss']:.4f}"),
        ("trained", f"{result['epochs']} epochs, {result['steps']} steps"),
        ("time", ", ".join(f"{name} {s:.1f} s" for name, s in result["seconds"].items())),
        ("speed", f"{result['samples_per_second']:,.0f} samples/s"),
        ("folder", _shown(run.folder)),
    ]
    if data["instead_of"]:
        rows.insert(1, ("!", f"instead of {data['instead_of']}"))
    return tabulate(rows, tablefmt="plain")
