"""Trains one run (`fit`) or a stack of runs (`fit_stack`)."""

import logging
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, seed_everything
from torch import nn

from src.config.schema import Config, joint_hash
from src.config.written import counted
from src.data.loader import StreamOrder
from src.data.module import DataModule
from src.data.sources.catalogue import open_source
from src.models import build_model
from src.models.step_choice import VMAP, choose_step
from src.models.summary import in_a_line
from src.models.vmapped import why_no_vmap
from src.runs.checkpoint import CheckpointPair
from src.runs.config_files import claim
from src.runs.folder import Run, columns, result_text, resume_command, timestamped
from src.runs.group_progress import remove_progress
from src.system import machine
from src.system.errors import InputError, Interrupted, first_line, storage_faults
from src.system.files import lock_or_fail, require_contained, write_together
from src.system.resources import out_of_memory
from src.system.signals import Signals, handled
from src.training import batch_size, ranks
from src.training.checkpoint_callback import CheckpointPairIO, Checkpoints
from src.training.classifier import Classifier
from src.training.history import History
from src.training.lanes import available
from src.training.lightning_internals import quiet_lightning
from src.training.loggers.callback import Loggers
from src.training.progress import ProgressFile
from src.training.result import facts, result, shown, summary
from src.training.resume import clear, find_state, restoring, same_step
from src.training.run_log import logging_to
from src.training.start_from import freeze, load_weights
from src.training.stopping import Stopping
from src.training.trainer import build_trainer

log = logging.getLogger(__name__)

LOCK_PATIENCE = 5  # seconds, for a process that is about to end


def fit(
    config: Config,
    folder: str | Path | None = None,
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Trains, validates and tests as configured. All files of the run are written to the folder, by
    default a new one, runs/<date>/<time>.

    Seeds the global random streams of Python, NumPy and torch. `callbacks` are Lightning's; on
    several devices they must be picklable, because each rank gets a copy. With `resume` the run
    continues from the checkpoint in the folder, and its result equals that of an uninterrupted run,
    bit for bit. `trainer.max_epochs` may then be larger than before.

    Raises Interrupted after a signal; the state is then saved. Raises InputError if
    - data or devices do not fit the configuration (result.json then has the status `failed`);
    - the folder contains a run and `resume` is False, or `resume` has no folder;
    - the folder contains a run with another configuration;
    - another process writes to the folder.
    """
    if not isinstance(config, Config):
        raise InputError('fit takes a configuration: fit(compose("optimizer.lr=0.1"))')
    if folder is None and resume:
        raise InputError("fit(config, resume=True): lacks the folder of the run; name the folder")
    run = Run(timestamped("runs") if folder is None else Path(folder))
    if run.started and not resume:
        raise InputError(
            f"{folder}: holds a run already; continue it by fit(..., resume=True), or name another "
            "folder"
        )
    # `resume` is not passed on: fit_stack always continues a run that it finds.
    return fit_stack([config], [run.folder], callbacks=callbacks)[0]


@dataclass(frozen=True)
class Job:
    """All runs of one stack: the arguments of `fit_stack`, which also go to each rank."""

    configs: Sequence[Config]
    folders: Sequence[Path]
    state_folder: Path | None = None
    halving: int | None = None
    callbacks: Sequence[Callback] = ()

    @cached_property
    def runs(self) -> list[Run]:
        return [Run(folder) for folder in self.folders]

    @property
    def checkpoint_pair(self) -> CheckpointPair:
        return CheckpointPair(self.state_folder or self.runs[0].checkpoints)

    def left(self) -> "Job":
        """The job without trials that have ended, if the stack has no state from which all of them
        go on: a folder was removed, or a process was killed among the results of a stack that had
        no checkpoint. What is left has a state of its own. Halving compares all trials."""
        left = [place for place, run in enumerate(self.runs) if not run.ended]
        if (
            self.state_folder is None
            or self.halving is not None
            or len(left) == len(self.runs)
            or not self.checkpoint_pair.empty
        ):
            return self
        configs = [self.configs[place] for place in left]
        folders = [self.folders[place] for place in left]
        folder = self.state_folder / joint_hash(configs)
        return replace(self, configs=configs, folders=folders, state_folder=folder)


def fit_stack(
    configs: Sequence[Config],
    folders: Sequence[Path],
    state_folder: Path | None = None,
    halving: int | None = None,
    callbacks: Sequence[Callback] = (),
    patience: float = LOCK_PATIENCE,
) -> list[Run]:
    """Trains several configurations as one stack. Each folder gets the files of a single run.

    The configurations may differ only in the fusible keys (src/training/grouping.py). The stack
    keeps its checkpoints in `state_folder` until all trials have ended. A single run has no
    `state_folder`. If there is a checkpoint, training continues from it.

    With `halving` = N, trials are dropped after 1, N, N², … epochs. The best trials continue: one,
    or as many as have at most 1/N of the parameters that still train (src/training/stopping.py).

    Waits up to `patience` seconds for another process that trains the same stack.
    """
    job = Job(configs, folders, state_folder, halving, callbacks)
    runs, pair, rank_zero = job.runs, job.checkpoint_pair, ranks.is_rank_zero()
    locked: AbstractContextManager[int | None] = nullcontext()
    if rank_zero:
        for folder in [*folders, *([state_folder] if state_folder else [])]:
            require_contained(folder)
        locked = lock_or_fail(pair.folder / ".lock", patience=patience)
    with storage_faults(pair.folder), locked as lock_descriptor:
        if rank_zero:
            claimed = [
                claim(run, config, partial(_batch_size, run, config))
                for config, run in zip(configs, runs, strict=True)
            ]
            job = replace(job, configs=claimed)
        if not all(run.ended for run in runs):
            job = job.left()
            _fit_locked(job, lock_descriptor)
            if rank_zero and job.checkpoint_pair.folder != pair.folder:
                shutil.rmtree(job.checkpoint_pair.folder, ignore_errors=True)
        if rank_zero:
            for config, run in zip(configs, runs, strict=True):
                if config.checkpoint.keep == "best" and run.ended:
                    run.remove_checkpoints(but_best=True)
        if state_folder is not None:
            pair.remove()
    with suppress(OSError):  # the lock has made the folder anew where nothing was kept
        pair.folder.rmdir()
    return runs


def _batch_size(run: Run, config: Config) -> int:
    if ranks.is_rank():
        raise InputError("data.batch_size=auto does not work under torchrun or srun; type a number")
    with logging_to([run]):
        return batch_size.choose(config, open_source(config.data))


def _fit_locked(job: Job, lock_descriptor: int | None) -> None:
    """Trains here, or starts ranks with the locked file. Writes results of unsuccessful runs."""
    runs = job.runs
    try:
        trainer = job.configs[0].trainer
        devices = machine.resolve(trainer)
        if devices.world_size == 1 or ranks.is_rank():
            fit_rank(job)
        else:
            ranks.launch(fit_rank, (job,), devices.count, trainer.max_restarts, lock_descriptor)
    except Interrupted as interrupted:
        if not ranks.is_rank_zero():
            raise Interrupted(interrupted.number) from None
        _mark_interrupted(runs, interrupted.number)
        progress = runs[0].result
        raise Interrupted(
            interrupted.number,
            f"stopped after {counted(progress.get('epochs', 0), 'epoch')}, "
            f"{counted(progress.get('steps', 0), 'step')}; "
            f"to go on, type\n  {_resume_command(runs[0])}",
        ) from None
    except Exception as error:
        if ranks.is_rank_zero():
            mark_failed(runs, error)
        raise
    finally:
        if ranks.is_rank_zero():
            remove_progress(job.checkpoint_pair.folder)


def fit_rank(job: Job) -> None:
    """Trains in this process, as the only process or as one rank."""
    machine.keep_freed_memory()
    with (
        handled(rank=ranks.is_rank()) as signals,
        logging_to(job.runs),
        quiet_lightning(),
        _advice_on_failure(job),
    ):
        _train_and_test(job, signals)


def _train_and_test(job: Job, signals: Signals) -> None:
    config, runs, clock = job.configs[0], job.runs, Clock()
    with clock.measuring("setup"):
        devices = machine.resolve(config.trainer)
        _check_devices(config, devices)
        data = _open_data(job.configs, devices)
        classifier = build_classifier(job.configs, data, devices, fresh=job.checkpoint_pair.empty)
        resumed = find_state(job.checkpoint_pair, classifier, devices.world_size)
        if resumed is not None:
            classifier.step = same_step(classifier.step, resumed)
            classifier.set_stacked_trials(resumed.state.stacked, resumed.state.threads)
        elif ranks.is_rank_zero():
            for run in runs:
                clear(run, stacked=job.state_folder is not None, compared=job.halving is not None)
        history = History(runs, columns(config.checkpoint.monitor))
        checkpoints = Checkpoints(runs, job.checkpoint_pair, signals)
        loggers = Loggers(config, runs[0], history, data.source)
        stopping = Stopping(history, job.halving)
        folder = job.checkpoint_pair.folder
        progress_file = ProgressFile(folder, job.folders, history, checkpoints)
        trainer = build_trainer(
            config.trainer,
            devices,
            runs[0],
            [history, loggers, stopping, checkpoints, progress_file, *job.callbacks],
            CheckpointPairIO(job.checkpoint_pair, resumed.content if resumed else None),
            resumed=resumed is not None,
        )
        if trainer.global_rank:  # each rank draws its own dropout masks and noise
            torch.manual_seed(config.seed + trainer.global_rank)
        else:
            _log_beginning(classifier, devices, resumed is not None)
    try:
        with loggers.closing(), classifier.lanes.running():
            with clock.measuring("fit"), restoring(resumed, classifier), _interruptible(signals):
                trainer.fit(classifier, data, ckpt_path=resumed.path if resumed else None)
            steps = trainer.global_step
            if trainer.is_global_zero:
                checkpoints.finish(classifier)
            with clock.measuring("test"):
                checkpoints.restore_best(classifier)
                trainer.test(classifier, data, verbose=False)
            common = facts(classifier, trainer, clock.seconds(history, loggers))

            def results() -> Iterator[tuple[Run, str]]:
                for trial, run in enumerate(runs if trainer.is_global_zero else ()):
                    if run.ended:  # an interrupted process has written the result before
                        continue
                    best = checkpoints.best_epoch(trial)
                    rows = history.rows[trial]
                    content = result(trial, rows, classifier, common, best_epoch=best, steps=steps)
                    loggers.finish(content)
                    yield run, result_text(content)

            write_together(lambda pair: pair[0].write_result_text(pair[1]), results())
    except Interrupted as interrupted:
        if trainer.is_global_zero:
            progress = {"epochs": history.epochs, "steps": trainer.global_step}
            _mark_interrupted(runs, interrupted.number, progress)
        raise
    if trainer.is_global_zero and len(runs) == 1:
        log.info("\n%s", summary(runs[0]))


# --- the steps, in their order -------------------------------------------------------------------


def _check_devices(config: Config, devices: machine.Devices) -> None:
    """Raises InputError for batch norm on several devices. Warns of a slow precision."""
    if devices.world_size > 1 and getattr(config.model, "norm", None) == "batch":
        raise InputError(
            f"model.norm=batch: each of {devices.world_size} devices would normalise by the "
            "statistics of its own part of a batch; type model.norm=layer or trainer.devices=1"
        )
    slow = machine.slow_precision(config.trainer.precision, devices.accelerator)
    if slow and ranks.is_rank_zero():
        log.warning("%s", slow)


def _open_data(configs: Sequence[Config], devices: machine.Devices) -> DataModule:
    """Loads the data set. Raises InputError for a batch norm whose last batch has one sample."""
    config = configs[0]
    data = DataModule(
        config.data,
        steps_per_call=config.trainer.steps_per_call,
        world_size=devices.world_size,
        folds=[*dict.fromkeys(each.data.fold for each in configs if each.data.fold is not None)],
    )
    data.setup()  # before Lightning does it: the models need the shape of the samples
    if data.smallest_batch == 1 and getattr(config.model, "norm", None) == "batch":
        raise InputError(
            f"model.norm=batch: of {data.training_samples} training samples the last batch of "
            f"data.batch_size={config.data.batch} has only one sample, so it has no variance; type "
            f"data.drop_last=true, or data.batch_size={config.data.batch + 1}"
        )
    source = data.source
    if source.instead_of:
        text = f"Training on {source.name} instead of {source.instead_of}."
        line, advice = "!" * 80, "If training should stop instead, type data=mnist."
        log.warning("%s\n%s\n%s\n%s", line, text, advice, line)
    for text in data.missing_class_warnings() if ranks.is_rank_zero() else ():
        log.warning("%s", text)
    return data


def build_classifier(
    configs: Sequence[Config], data: DataModule, devices: machine.Devices, *, fresh: bool = True
) -> Classifier:
    """Initialises each model from its own seed, and if `fresh`, with weights of `start_from`. Gives
    each different seed an order of samples."""
    models = []
    for number, config in enumerate(configs, 1):
        if number == len(configs):
            seed_everything(config.seed, verbose=False)
        else:
            _seed_cpu(config.seed)
        models.append(_build_model(config, data, fresh=fresh))
    keys = list(dict.fromkeys((config.seed, config.data.fold) for config in configs))
    orders = [data.order(seed, fold) for seed, fold in keys]
    if data.config.order == "stream":  # such a run trains alone, so there is one seed
        orders = [StreamOrder(torch.get_rng_state())]
    data.set_orders(orders, len(configs))
    threads = available() if devices.accelerator == "cpu" else 1
    step = choose_step(configs, models, devices.accelerator, devices.world_size)
    if step.kind == VMAP:
        reason = why_no_vmap(configs[0].model, data.source.shape, data.source.classes)
        if reason is not None:
            raise InputError(
                f"trainer.step=vmap: model={configs[0].model.name} {reason}; type trainer.step=auto"
            )
    place_of = {key: place for place, key in enumerate(keys)}
    orders_of = [place_of[config.seed, config.data.fold] for config in configs]
    return Classifier(configs, models, data, orders_of, step, threads)


def _build_model(config: Config, data: DataModule, *, fresh: bool) -> nn.Module:
    model = build_model(config.model, data.source.shape, data.source.classes)
    if config.trainer.precision == "64":  # Lightning would convert it after a checkpoint was loaded
        model.double()
    if config.start_from is not None and fresh:
        line = load_weights(model, config)
        if ranks.is_rank_zero():
            log.info("%s", line)
    freeze(model, config.freeze)
    return model


def _seed_cpu(seed: int) -> None:
    """Seeds the streams that models draw from while they are built. Lightning's seed_everything
    seeds the GPUs too, and torch then notes the call stack several times, which takes 1 ms."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # the global stream
    torch.default_generator.manual_seed(seed)


def _log_beginning(classifier: Classifier, devices: machine.Devices, resumes: bool) -> None:
    """Logs the model of a single run, and the effective batch size if it differs from the batch
    size of each device."""
    config, count = classifier.configs[0], devices.world_size
    if len(classifier.configs) == 1 and not resumes:
        way = classifier.step.kind.replace("_", " ")
        line = in_a_line(config.model.name, classifier.models[0])
        log.info("%s; %s steps on %s", line, way, devices.accelerator)
    batch, accumulated = config.data.batch, config.trainer.accumulate_grad_batches
    if count * accumulated > 1:
        log.info(
            f"effective batch size {batch * count * accumulated}: {batch} on each of {count} "
            f"device(s), {accumulated} accumulated"
        )


@contextmanager
def _interruptible(signals: Signals) -> Iterator[None]:
    """Raises Interrupted for a signal that came while the body ran."""
    try:
        yield
    except SystemExit:  # Lightning's own signal handler was called; it ends with status 0
        signals.interrupt_if_received()
        raise
    signals.waits_for_block = False  # `Checkpoints` has set it: now a signal interrupts at once
    signals.interrupt_if_received()


class Clock:
    """Seconds of wall time by phase."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}

    @contextmanager
    def measuring(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.phases[phase] = time.perf_counter() - began

    def seconds(self, history: History, loggers: Loggers) -> dict[str, float]:
        """Seconds by phase: `fit` has those before a resume, setup those of opening loggers."""
        return {
            "setup": self.phases["setup"] + loggers.seconds,
            "fit": history.earlier_seconds + self.phases["fit"] - loggers.seconds,
            "test": self.phases["test"],
        }


# --- what went wrong -----------------------------------------------------------------------------


def mark_failed(runs: Sequence[Run], error: Exception) -> None:
    """Writes the results of runs that have not ended."""
    failed = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
    for run in runs:
        if not run.ended:
            _replace_result(run, failed)


def _replace_result(run: Run, content: dict[str, Any]) -> None:
    """Writes the result of an unsuccessful run; `before` keeps an earlier finished result."""
    with suppress(OSError):  # a full disk must not hide the error itself
        earlier = run.result
        kept = {"before": earlier} if earlier.get("status") == "finished" else {}
        run.write_result(content | kept)


def _mark_interrupted(
    runs: Sequence[Run], signal_number: int, progress: dict[str, int] | None = None
) -> None:
    """Writes the results of interrupted runs. Without `progress`, which only a process that trains
    knows, the results that rank 0 has already written are kept."""
    for run in runs:
        if run.ended or (progress is None and run.result.get("status") == "interrupted"):
            continue
        content = {
            "status": "interrupted",
            "signal": Interrupted(signal_number).name,
            "resume": _resume_command(run),
            **(progress or {"epochs": 0, "steps": 0}),
        }
        _replace_result(run, content)


def _resume_command(run: Run) -> str:
    return resume_command(shown(run.resume_folder))


@contextmanager
def _advice_on_failure(job: Job) -> Iterator[None]:
    """Turns a full disk and exhausted memory into errors that say what to type."""
    run = job.runs[0]
    advice = (
        "the last checkpoint is intact. When files can be written again, type\n  "
        f"{_resume_command(run)}"
    )
    try:
        with storage_faults(run.folder, f"; {advice}"):
            yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise InputError(_less_memory(job.configs[0], error)) from error


def _less_memory(config: Config, error: Exception) -> str:
    batch, accumulate = config.data.batch, config.trainer.accumulate_grad_batches
    advice = []
    if batch > 1:
        advice.append(
            f"data.batch_size={batch // 2} trainer.accumulate_grad_batches={2 * accumulate} "
            "(the same optimizer steps)"
        )
    if getattr(config.model, "gradient_checkpointing", None) is False:
        advice.append("model.gradient_checkpointing=true (activations are computed twice)")
    advice += [
        f"a smaller model.{key} than {getattr(config.model, key)}"
        for key in ("hidden_sizes", "channels")
        if hasattr(config.model, key)
    ]
    lines = "\n".join(f"  {text}" for text in advice)
    return f"out of memory ({first_line(error)}); type one of\n{lines}"
