"""One run, from a checked configuration to a run folder."""

import logging
import resource
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import Timer
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
from src.training.checkpoints import Checkpoints
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
    return fit_stack([config], [folder])[0]


def fit_stack(
    configs: Sequence[Config], folders: Sequence[Path], shared: Path | None = None
) -> list[Run]:
    """Trains several configurations as one stack, each into its folder, as `fit` would each alone.

    They may differ in the fusible keys only (src/training/fusion.py). `shared` is the file that
    keeps their common state until they end; where it exists, the stack goes on from it.
    """
    runs = [Run(folder) for folder in folders]
    for config, run in zip(configs, runs, strict=True):
        run.folder.mkdir(parents=True, exist_ok=True)
        run.write_config(config)
    try:
        devices = machine.resolve(configs[0].trainer)
        if devices.count == 1 or ranks.inside():
            fit_rank(configs, folders, shared)
        else:
            ranks.launch(fit_rank, (configs, folders, shared), devices.count)
    except Exception as error:
        if not ranks.inside():
            failed = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            for run in runs:
                if not run.ended:
                    run.write_result(failed)
        raise
    return runs


def fit_rank(configs: Sequence[Config], folders: Sequence[Path], shared: Path | None) -> None:
    """The runs as this process sees them: all of them, or one rank's part."""
    began = time.perf_counter()
    runs, config = [Run(folder) for folder in folders], configs[0]
    machine.keep_freed_memory()
    with _logging_to(runs), warnings.catch_warnings():
        for message in NOISE:
            warnings.filterwarnings("ignore", message)
        devices = machine.resolve(config.trainer)
        source = open_source(config.data)
        if source.instead_of:
            log.warning("%s", _banner(source))
        models = []
        for trial in configs:
            seed_everything(trial.seed, verbose=False)
            models.append(build_model(trial.model, source.shape, source.classes))
        seeds = list(dict.fromkeys(trial.seed for trial in configs))
        orders: list[Order] = [SeededOrder(seed) for seed in seeds]
        if config.data.order == "stream":
            orders = [StreamOrder(torch.get_rng_state())]
        data = DataModule(
            config.data,
            source,
            orders,
            trials=len(configs),
            steps_per_call=config.trainer.steps_per_call,
            ranks=devices.count,
        )
        classifier = Classifier(configs, models, data, [seeds.index(c.seed) for c in configs])
        checkpoints = Checkpoints(runs, shared)
        resume = shared if shared is not None and shared.exists() else None
        trainer = _trainer(config, devices, runs, checkpoints, resumed=resume is not None)
        if trainer.global_rank:
            torch.manual_seed(config.seed + trainer.global_rank)  # dropout differs between ranks
        seconds = {"setup": time.perf_counter() - began}

        began = time.perf_counter()
        trainer.fit(classifier, datamodule=data, ckpt_path=resume)
        steps = trainer.global_step
        if trainer.is_global_zero:
            checkpoints.finish(classifier)
        seconds["fit"] = time.perf_counter() - began

        began = time.perf_counter()
        checkpoints.restore_best(classifier)
        trainer.test(classifier, datamodule=data, verbose=False)
        seconds["test"] = time.perf_counter() - began
        if trainer.is_global_zero:
            facts = _facts(classifier, data, trainer, seconds)
            for number, run in enumerate(runs):
                if not run.ended:  # else before an interruption, and from the same weights
                    run.write_result(_result(number, run, classifier, facts, steps))
            if len(runs) == 1:
                log.info("\n%s", summary(runs[0].result, runs[0]))


def _trainer(
    config: Config,
    devices: machine.Devices,
    runs: Sequence[Run],
    checkpoints: Checkpoints,
    *,
    resumed: bool,
) -> Trainer:
    trainer = config.trainer
    for chatter in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(chatter).setLevel(logging.WARNING)
    callbacks: list[Callback] = [History(runs), checkpoints]
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
        logger=_loggers(config, runs[0]),
        callbacks=callbacks,
        # The whole validation before training: row 0 of the history.
        num_sanity_val_steps=0 if resumed else -1,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,  # src/training/checkpoints.py does it
        log_every_n_steps=1,
        default_root_dir=runs[0].folder,
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


class _LogFiles(logging.Handler):
    """Appends to the train.log of every trial, opening each only to write: they may be many."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__(logging.INFO)
        self.runs = runs
        self.setFormatter(logging.Formatter("[%(asctime)s][%(levelname)s] %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        for run in self.runs:
            with run.log_file.open("a") as file:
                file.write(f"{line}\n")


@contextmanager
def _logging_to(runs: Sequence[Run]) -> Iterator[None]:
    """Adds train.log to the project's log on rank 0; nothing of the caller's logging is changed."""
    if ranks.rank():
        yield
        return
    ours = logging.getLogger("src")
    level, files = ours.level, _LogFiles(runs)
    ours.setLevel(logging.INFO)
    ours.addHandler(files)
    try:
        yield
    finally:
        ours.setLevel(level)
        ours.removeHandler(files)


def _banner(source: Source) -> str:
    text = f"Training on {source.name} instead of {source.instead_of}."
    return f"{'!' * 80}\n{text}\nType data=mnist to make this an error.\n{'!' * 80}"


def _facts(
    classifier: Classifier, data: DataModule, trainer: Trainer, seconds: dict[str, float]
) -> dict[str, Any]:
    """What all trials of a stack have in common; seconds are wall time, of the whole stack."""
    return {
        "seconds": seconds,
        "stacked": len(classifier.configs),
        "step": "autograd" if classifier.stack is None else "closed_form",
        "data": {
            "name": data.source.name,
            "instead_of": data.source.instead_of,
            "train": len(data.train),
            "val": len(data.validation),
            "test": len(data.source.test),
        },
        "ranks": trainer.world_size,
        "hardware": machine.hardware(trainer.strategy.root_device),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "versions": machine.versions(),
        "commit": machine.commit(),
    }


def _result(
    trial: int, run: Run, classifier: Classifier, facts: dict[str, Any], steps: int
) -> dict[str, Any]:
    """What result.json holds; samples_per_second counts validation in."""
    config = classifier.configs[trial]
    rows = [row for row in run.history if row["epoch"]]
    monitor, diverged = config.checkpoint.monitor, classifier.diverged.get(trial)
    pick = max if config.checkpoint.mode == "max" else min
    good = rows[:-1] if diverged else rows
    saved = [row for row in good if int(row["epoch"] or 0) % config.checkpoint.every_n_epochs == 0]
    best = pick(saved or good, key=lambda row: row[monitor] or 0.0) if good else None
    samples = facts["data"]["train"] * len(rows)
    model = classifier.models[trial]
    return {
        "status": "finished" if diverged is None else "diverged",
        "diverged_step": diverged,
        "monitor": monitor,
        "best": _values(best),
        "last": _values(rows[-1]),
        **(classifier.metrics[trial] if best else {"test/loss": None, "test/acc": None}),
        "epochs": len(rows),
        "steps": steps if diverged is None else diverged,
        "samples_per_second": samples / float(rows[-1]["seconds"] or 1),
        "parameters": sum(p.numel() for p in model.parameters()),
        "config_hash": config.hash(),
        **facts,
    }


def _values(row: Row | None) -> Row:
    names = ("epoch", "train/loss", "train/acc", "val/loss", "val/acc")
    return {name: None if row is None else row[name] for name in names}


def _shown(folder: Path) -> str:
    """As one would type it: relative where it lies below the current folder."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def summary(result: dict[str, Any], run: Run) -> str:
    """A finished run as a table for people."""
    best, data = result["best"], result["data"]
    used = f"{data['name']}: {data['train']} train, {data['val']} validation, {data['test']} test"
    rows = [("data", used)]
    if data["instead_of"]:
        rows.append(("!", f"instead of {data['instead_of']}"))
    if result["status"] == "diverged":
        rows.append(("!", f"diverged at step {result['diverged_step']}"))
    if best["epoch"] is not None:
        rows += [
            ("best validation", f"accuracy {best['val/acc']:.2%}, epoch {best['epoch']}"),
            ("test", f"accuracy {result['test/acc']:.2%}, loss {result['test/loss']:.4f}"),
        ]
    step = result["step"].replace("_", " ")
    rows += [
        ("trained", f"{result['epochs']} epochs, {result['steps']} steps, {step}"),
        ("time", ", ".join(f"{name} {s:.1f} s" for name, s in result["seconds"].items())),
        ("speed", f"{result['samples_per_second']:,.0f} samples/s"),
        ("folder", _shown(run.folder)),
    ]
    return tabulate(rows, tablefmt="plain")
