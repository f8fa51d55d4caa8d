"""One run, from a checked configuration to a run folder."""

import logging
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.profilers import Profiler, PyTorchProfiler, SimpleProfiler
from lightning.pytorch.strategies import Strategy

from src.config import schema
from src.config.schema import Config
from src.data.loader import Order, SeededOrder, StreamOrder
from src.data.module import DataModule
from src.data.sources.catalogue import open_source
from src.data.sources.source import Source
from src.models import build_model
from src.runs.checkpoint import Slot
from src.runs.folder import Run, resume_command
from src.system import machine
from src.system.errors import InputError, Interrupted, storage_faults
from src.system.files import append_line, lock, require_contained
from src.system.resources import out_of_memory
from src.system.signals import Signals, handled
from src.training import batch_size, ranks
from src.training import fsdp as sharding
from src.training.checkpointing import Checkpoints, SlotIO
from src.training.classifier import Classifier
from src.training.history import History, Progress, StepLines, Utilisation
from src.training.lanes import available
from src.training.loggers import Loggers
from src.training.result import facts, result, shown, summary
from src.training.resume import check
from src.training.stopping import Stopping

log = logging.getLogger(__name__)

# Seconds. The ranks of a killed process hold the lock until they have ended, some milliseconds.
LOCK_PATIENCE = 5
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
    ".*Profiler default schedule will be overridden.*",
    ".*resuming from a checkpoint that ended before the epoch ended.*",  # the loader knows where
    ".*`srun` command is available on your system but is not used.*",  # `place` asks it
)


def fit(config: Config, folder: Path, *, resume: bool = False) -> Run:
    """Trains, validates and tests as configured; everything that is left lies in `folder`.

    Blocks until the run is over, on every device that it uses. The global random streams of
    Python, NumPy and torch are seeded. With `resume` it goes on with what the folder holds, and
    gives what an undisturbed run would have given, bit for bit; `trainer.max_epochs` may have
    grown. Raises InputError for data or devices that do not fit the configuration (a result.json
    of status `failed` tells of it), for a folder that holds a run already or another one, or that
    another process writes; Interrupted after a signal, with the state saved.
    """
    run = Run(folder)
    if run.started and not resume:
        raise InputError(f"{folder}: holds a run already; type resume={folder} to go on with it")
    return fit_stack([config], [folder])[0]


def fit_stack(
    configs: Sequence[Config],
    folders: Sequence[Path],
    shared: Path | None = None,
    halving: int | None = None,
) -> list[Run]:
    """Trains several configurations as one stack, each into its folder, as `fit` would each alone.

    They may differ in the fusible keys only (src/training/grouping.py). `shared` is the folder that
    keeps their common state until they end. Goes on from the state that there is. With `halving`
    the best 1/halving of them go on after each of its rungs (src/training/stopping.py).
    """
    runs = [Run(folder) for folder in folders]
    slot = Slot(shared or runs[0].checkpoints)
    if ranks.rank() == 0:
        for folder in [*folders, *([shared] if shared else [])]:
            require_contained(folder)
    locked = lock(slot.folder / ".lock", patience=LOCK_PATIENCE)
    with storage_faults(slot.folder), locked if ranks.rank() == 0 else nullcontext() as held:
        if ranks.rank() == 0:
            configs = [_claim(run, config) for config, run in zip(configs, runs, strict=True)]
        if not all(run.ended for run in runs):
            _fit_locked(configs, runs, slot, halving, held)
        if shared is not None:
            slot.remove()
    if shared is not None:
        with suppress(OSError):
            shared.rmdir()
    return runs


def _claim(run: Run, config: Config) -> Config:
    """Puts the configuration into the folder; returns it with a batch size that is decided.

    Raises InputError when the folder holds another one.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    before = run.config if run.config_file.exists() else None
    if before is not None:
        found = schema.differences(before.to_primitives(), config.to_primitives())
        if found:
            raise InputError("\n  ".join([f"{run.folder}: holds another run", *found]))
    if config.data.batch_size == "auto":
        decided = before is not None and before.data.batch_size != "auto"
        with _logging_to([run]):
            size = before.data.batch if decided and before else _batch_size(config)
        config = schema.with_batch_size(config, size)
    if before is None or before.to_primitives() != config.to_primitives() | {
        "resume": before.resume
    }:
        run.replace_config(config)
    return config


def _batch_size(config: Config) -> int:
    if ranks.inside():
        raise InputError("data.batch_size=auto cannot be decided by ranks alone; type a number")
    return batch_size.choose(config, open_source(config.data))


def _fit_locked(
    configs: Sequence[Config],
    runs: Sequence[Run],
    slot: Slot,
    halving: int | None,
    held: int | None,
) -> None:
    folders = [run.folder for run in runs]
    shared = None if slot.folder == runs[0].checkpoints else slot.folder
    try:
        devices = machine.resolve(configs[0].trainer)
        if devices.ranks == 1 or ranks.inside():
            fit_rank(configs, folders, shared, halving)
        else:
            restarts = configs[0].trainer.max_restarts
            arguments = (configs, folders, shared, halving)
            ranks.launch(fit_rank, arguments, devices.count, restarts, held)
    except Interrupted as interrupted:
        if ranks.rank() == 0:
            _mark_interrupted(runs, interrupted.number)
        result = runs[0].result
        told = ""
        if ranks.rank() == 0:
            told = (
                f"stopped after {result.get('epochs', 0)} epochs, {result.get('steps', 0)} steps; "
                f"to go on, type\n  {_resume_command(runs[0])}"
            )
        raise Interrupted(interrupted.number, told) from None
    except Exception as error:
        if ranks.rank() == 0:
            failed = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            for run in runs:
                if not run.ended:
                    _replace_result(run, failed)
        raise


def fit_rank(
    configs: Sequence[Config], folders: Sequence[Path], shared: Path | None, halving: int | None
) -> None:
    """The runs as this process sees them: all of them, or one rank's part."""
    runs = [Run(folder) for folder in folders]
    machine.keep_freed_memory()
    with (
        handled(rank=ranks.inside()) as signals,
        _logging_to(runs),
        warnings.catch_warnings(),
        _told_what_to_do(configs[0], runs),
    ):
        for message in NOISE:
            warnings.filterwarnings("ignore", message)
        _Fit(configs, runs, Slot(shared or runs[0].checkpoints), signals, halving).run()


class _Fit:
    """The parts of a fit, put together in the order in which they need each other."""

    def __init__(
        self,
        configs: Sequence[Config],
        runs: Sequence[Run],
        slot: Slot,
        signals: Signals,
        halving: int | None,
    ) -> None:
        began = time.perf_counter()
        self.configs, self.runs, self.slot, self.signals = configs, runs, slot, signals
        config = configs[0]
        devices = machine.resolve(config.trainer)
        if devices.ranks > 1 and getattr(config.model, "norm", None) == "batch":
            raise InputError(
                f"model.norm=batch: each of {devices.ranks} devices would normalise by the "
                "statistics of its own part of a batch; type model.norm=layer or trainer.devices=1"
            )
        source = open_source(config.data)
        if source.instead_of:
            log.warning("%s", _banner(source))
        slow = machine.slow_precision(config.trainer.precision, devices.accelerator)
        if slow and not ranks.rank():
            log.warning(slow)
        models = []
        for trial in configs:
            seed_everything(trial.seed, verbose=False)
            models.append(build_model(trial.model, source.shape, source.classes))
        seeds = list(dict.fromkeys(trial.seed for trial in configs))
        orders: list[Order] = [SeededOrder(seed) for seed in seeds]
        if config.data.order == "stream":
            orders = [StreamOrder(torch.get_rng_state())]
        self.data = DataModule(
            config.data,
            source,
            orders,
            trials=len(configs),
            steps_per_call=config.trainer.steps_per_call,
            ranks=devices.ranks,
        )
        if self.data.smallest_batch == 1 and getattr(config.model, "norm", None) == "batch":
            raise InputError(
                f"model.norm=batch: of {len(self.data.train)} training samples the last batch of "
                f"data.batch_size={config.data.batch} has one, and one has no variance; type "
                f"data.drop_last=true, or data.batch_size={config.data.batch + 1}"
            )
        for text in self.data.incomplete() if not ranks.rank() else ():
            log.warning("%s", text)
        self.classifier = Classifier(
            configs,
            models,
            self.data,
            [seeds.index(c.seed) for c in configs],
            available() if devices.accelerator == "cpu" else 1,
        )
        self.history = History(runs)
        self.checkpoints = Checkpoints(runs, slot, signals)
        self.resumed_from = self._restore(devices.ranks)
        self.loggers = Loggers(config, runs[0], self.history, source)
        stopping = Stopping(self.history, halving)
        callbacks = [self.history, self.loggers, stopping, self.checkpoints]
        self.trainer = _trainer(
            config, devices, runs, callbacks, resumed=self.resumed_from is not None
        )
        if self.trainer.global_rank:
            torch.manual_seed(config.seed + self.trainer.global_rank)  # dropout differs
        batch, accumulated = config.data.batch, config.trainer.accumulate_grad_batches
        if devices.ranks * accumulated > 1 and not ranks.rank():
            log.info(
                "effective batch size %d: %d on each of %d device(s), %d accumulated",
                batch * devices.ranks * accumulated, batch, devices.ranks, accumulated,
            )  # fmt: skip
        self.seconds = {"setup": time.perf_counter() - began}

    def run(self) -> None:
        try:
            with self.loggers, self.classifier.lanes.opened():
                with self._timed("fit"):
                    self._fit()
                with self._timed("test"):
                    self.checkpoints.restore_best(self.classifier)
                    self.trainer.test(self.classifier, datamodule=self.data, verbose=False)
                if self.trainer.is_global_zero:
                    self._write_results()
        except Interrupted as interrupted:
            if self.trainer.is_global_zero:
                progress = {"epochs": self.trainer.current_epoch, "steps": self.trainer.global_step}
                _mark_interrupted(self.runs, interrupted.number, progress)
            raise

    def _restore(self, ranks_now: int) -> Path | None:
        """The checkpoint to go on from, its histories put back as they were; None to begin."""
        found = self.slot.read()
        if found is None:
            if not ranks.rank():
                for run in self.runs:
                    _begin_anew(run)
            return None
        content, path = found
        batches = self.classifier.when.batches_per_epoch
        state = check(content, path, self.classifier.saved_with, ranks_now, batches)
        self.classifier.share_out(state.threads)  # else sums come in another order
        if self.classifier.stacked != state.stacked:
            self.classifier.restrict(state.stacked)
        if not ranks.rank():
            self.history.load_state_dict(state.callbacks.History.model_dump())
            self.history.rewrite()
            at = state.position
            log.info("going on from epoch %d, batch %d", at.epoch, at.batch)
            self._tell_of_new_shape(content["kindling"])
        return path

    def _tell_of_new_shape(self, saved: Any) -> None:
        """A warning where the learning rate would have been another so far with the epochs that
        there are now."""
        config, before = self.configs[0], saved[0] if isinstance(saved, list) else saved
        was, now = before["config"]["trainer"]["max_epochs"], config.trainer.max_epochs
        if was != now and config.scheduler.spread:
            log.warning(
                "scheduler=%s: its learning rates are spread over trainer.max_epochs. They follow "
                "the curve of %d epochs from here on, and followed that of %d so far: a run of %d "
                "epochs from its start would end otherwise",
                config.scheduler.name, now, was, now,
            )  # fmt: skip

    def _fit(self) -> None:
        try:
            self.trainer.fit(self.classifier, datamodule=self.data, ckpt_path=self.resumed_from)
        except Exception as error:  # of a state from a stranger nothing that it raises surprises
            known = isinstance(error, InputError | OSError | MemoryError)
            if known or self.resumed_from is None or self.checkpoints.begun:
                raise
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise InputError(
                f"{self.resumed_from}: cannot be gone on from ({type(error).__name__}: {reason})"
            ) from None
        except SystemExit:  # Lightning's handler was faster, which would end with status 0
            self.signals.interrupt_if_received()
            raise
        self.signals.patient = False
        self.signals.interrupt_if_received()
        self.steps = self.trainer.global_step
        if self.trainer.is_global_zero:
            self.checkpoints.finish(self.classifier)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[phase] = time.perf_counter() - began

    def _write_results(self) -> None:
        opening = self.loggers.seconds
        seconds = {
            "setup": self.seconds["setup"] + opening,
            "fit": max(self.history.seconds, self.seconds["fit"] - opening),
            "test": self.seconds["test"],
        }
        shared = facts(self.classifier, self.data, self.trainer, seconds)
        for number, run in enumerate(self.runs):
            if not run.ended:  # else before an interruption, and from the same weights
                best = self.checkpoints.best_epoch(number)
                content = result(
                    number, run, self.classifier, shared, best_epoch=best, steps=self.steps
                )
                self.loggers.finish(content)
                run.write_result(content)
        if len(self.runs) == 1:
            log.info("\n%s", summary(self.runs[0]))


def _begin_anew(run: Run) -> None:
    """Clears what a run left that was killed before its first checkpoint.

    Raises InputError when there must have been one: then it was lost, and more than that run with
    it.
    """
    if run.ended:
        return
    epochs = run.history[-1]["epoch"] if run.history_file.exists() and run.history else 0
    if (epochs or 0) > run.config.checkpoint.every_n_epochs:
        raise InputError(
            f"{run.checkpoints}: the checkpoints of a run that came to epoch {epochs} are gone; "
            f"delete {run.history_file} to train it anew"
        )
    run.forget()


def _replace_result(run: Run, content: dict[str, Any]) -> None:
    """Writes a result that is no success, and keeps what an earlier training had come to."""
    with suppress(OSError):  # the disk may be full: what went wrong is told all the same
        before = run.result
        if before.get("status") == "finished":
            content = content | {"before": before}
        run.write_result(content)


def _mark_interrupted(
    runs: Sequence[Run], number: int, progress: dict[str, int] | None = None
) -> None:
    """Writes the result of runs that were interrupted, unless rank 0 did."""
    for run in runs:
        if run.ended or (progress is None and run.result.get("status") == "interrupted"):
            continue
        content = {
            "status": "interrupted",
            "signal": Interrupted(number).name,
            "resume": _resume_command(run),
            **(progress or {"epochs": 0, "steps": 0}),
        }
        _replace_result(run, content)


def _resume_command(run: Run) -> str:
    return resume_command(shown(run.resume_folder))


@contextmanager
def _told_what_to_do(config: Config, runs: Sequence[Run]) -> Iterator[None]:
    """Turns a full disk and exhausted memory into errors that say what to type."""
    advice = (
        f"the last checkpoint is whole. When that is mended, type\n  {_resume_command(runs[0])}"
    )
    try:
        with storage_faults(runs[0].folder, f"; {advice}"):
            yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise InputError(_less_memory(config, str(error))) from error


def _less_memory(config: Config, reason: str) -> str:
    batch, accumulate = config.data.batch, config.trainer.accumulate_grad_batches
    advice = []
    if batch > 1:
        advice.append(
            f"data.batch_size={batch // 2} trainer.accumulate_grad_batches={2 * accumulate} "
            "(the same steps)"
        )
    if config.model.name == "mlp" and not config.model.gradient_checkpointing:
        advice.append("model.gradient_checkpointing=true (activations are computed twice)")
    if config.model.name == "mlp":
        advice.append(f"a smaller model.hidden_sizes than {config.model.hidden_sizes}")
    first = next(iter(reason.splitlines()), "")
    lines = "\n".join(f"  {text}" for text in advice)
    return f"out of memory ({first}); type one of\n{lines}"


def _trainer(
    config: Config,
    devices: machine.Devices,
    runs: Sequence[Run],
    callbacks: list[Callback],
    *,
    resumed: bool,
) -> Trainer:
    trainer = config.trainer
    for chatter in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(chatter).setLevel(logging.WARNING)
    bar = sys.stderr.isatty() if trainer.progress_bar == "auto" else trainer.progress_bar
    if bar and not ranks.rank():
        callbacks.insert(0, Progress())
    if trainer.log_every_step:
        callbacks.insert(0, StepLines())
    if devices.accelerator == "cuda":
        callbacks.append(Utilisation())
    return Trainer(
        accelerator=devices.accelerator,
        devices=devices.count,
        num_nodes=devices.nodes,
        strategy=_strategy(trainer, devices),
        precision=PRECISION.get(trainer.precision, trainer.precision),  # type: ignore[arg-type]
        max_epochs=trainer.max_epochs,
        deterministic=trainer.deterministic,
        logger=False,  # src/training/loggers.py has them
        callbacks=callbacks,
        profiler=_profiler(trainer.profiler, runs[0]),
        plugins=[SlotIO(), ranks.cluster()],
        # The whole validation before training: row 0 of the history.
        num_sanity_val_steps=0 if resumed else -1,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,  # src/training/checkpointing.py does it
        log_every_n_steps=1,
        default_root_dir=runs[0].folder,
    )


def _strategy(trainer: schema.Trainer, devices: machine.Devices) -> Strategy | str:
    if devices.ranks == 1:
        return "auto"
    return sharding.Shards() if trainer.strategy == "fsdp" else ranks.Ranks()


def _profiler(kind: str | None, run: Run) -> Profiler | None:
    """Writes into the run folder: `simple` seconds by hook, `pytorch` by operator, and a trace."""
    match kind:
        case "simple":
            return SimpleProfiler(run.folder, "profile", extended=True)
        case "pytorch":
            return PyTorchProfiler(run.folder, "profile", export_to_chrome=True)
        case _:
            return None


class _LogFiles(logging.Handler):
    """Appends to the train.log of every trial, opening each only to write: they may be many."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__(logging.INFO)
        self.runs = runs
        self.setFormatter(logging.Formatter("[%(asctime)s][%(levelname)s] %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        for run in self.runs:
            with suppress(OSError, InputError):
                append_line(run.log_file, f"{line}\n")


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
