"""Trains one run (`fit`) or a stack of runs (`fit_stack`)."""

import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from kindling.config.schema import Config, joint_hash
from kindling.config.written import counted
from kindling.data.sources.catalogue import open_source
from kindling.ranks import processes as ranks
from kindling.records.checkpoint import CheckpointPair
from kindling.records.config_files import claim
from kindling.records.folder import Run, result_text
from kindling.records.groups import remove_progress
from kindling.records.lookup import timestamped
from kindling.system import machine
from kindling.system.arguments import as_path
from kindling.system.errors import InputError, Interrupted, storage_faults
from kindling.system.files import (
    lock_or_fail,
    removed_meanwhile,
    require_contained,
    write_together,
)
from kindling.system.process import end_if_importing
from kindling.system.signals import Signals, handled
from kindling.training import batch_size
from kindling.training import result as results
from kindling.training.building import build_any, check_devices, log_beginning
from kindling.training.callbacks import CheckpointPairIO, configured, require_usable
from kindling.training.checkpoints import Checkpoints
from kindling.training.history import History
from kindling.training.lightning_module import LightningCheckpoints, LightningRun, of_user
from kindling.training.loggers.base import Loggers
from kindling.training.own import Given
from kindling.training.progress import ProgressFile
from kindling.training.resume import clear, find_state
from kindling.training.stopping import Stopping
from kindling.training.trainer import build_trainer, quiet_lightning, train

log = logging.getLogger(__name__)

LOCK_PATIENCE = 5  # seconds, for a process that is about to end


def fit(
    config: Config,
    folder: str | Path | None = None,
    *,
    model: Any = None,
    data: Any = None,
    validation: Any = None,
    test: Any = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Trains, validates and tests as configured. All files of the run are written to the folder, by
    default a new one, runs/<date>/<time>.

    `model` trains in place of the configured one: a torch module from features (N, *shape) to
    logits (N, classes), which has the best weights when `fit` returns; or a function that makes
    one from the seed, `model()` or `model(shape, outputs)`. `data`, and if given `validation` and
    `test`, are (x, y) or (x, y, w) in place of the configured data, all read by numpy.asarray:
    samples (N, ...), their labels, and weights (N,). Classes (N,) are whole numbers or texts;
    labels of another task are numbers (N,) or (N, outputs).

    Seeds the global random streams of Python, NumPy and torch. `callbacks` are Lightning's, and are
    called after those that the configuration names; on
    several devices they must be picklable, because each rank gets a copy. With `resume` the run
    continues from the checkpoint in the folder, and its result equals that of an uninterrupted run,
    bit for bit, if it has the same callbacks, arrays and class of model. `trainer.max_epochs` may
    then be larger than before.

    Raises Interrupted after a signal; the state is then saved. Raises InputError if
    - data or devices do not fit the configuration (result.json then has the status `failed`);
    - the model or the arrays cannot be trained, or do not fit each other;
    - a callback cannot work here, or its state cannot be kept in a checkpoint;
    - the folder contains a run and `resume` is False, or `resume` has no folder;
    - the folder contains a run with another configuration;
    - another process writes to the folder.
    """
    end_if_importing()
    if not isinstance(config, Config):
        raise InputError('fit takes a configuration: fit(compose("optimizer.lr=0.1"))')
    if folder is None and resume:
        raise InputError("fit(config, resume=True): lacks the folder of the run; name the folder")
    if not isinstance(callbacks, list | tuple):
        raise InputError("callbacks: is not a list; type fit(config, callbacks=[...])")
    given = Given.of(model, data, validation, test)
    config = given.tried(config)
    where = timestamped("runs") if folder is None else as_path(folder, "fit(config, folder)")
    run = Run(where)
    if run.started and not resume:
        raise InputError(
            f"{folder}: holds a run already; continue it by fit(..., resume=True), or name another "
            "folder"
        )
    # `resume` is not passed on: fit_stack always continues a run that it finds.
    (run,) = fit_stack([config], [run.folder], callbacks=callbacks)
    given.take_best(run)
    return run


def fit_on(config: Config, folder: Path) -> Run:
    """As fit(config, folder, resume=True) for a run that was there when the command looked. Raises
    InputError if another command has removed it meanwhile: it would begin anew."""
    config = Given.of(None, None, None, None).tried(config)
    (run,) = fit_stack([config], [folder], begun=True)
    return run


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
        pairs = enumerate(zip(self.runs, self.configs, strict=True))
        left = [trial for trial, (run, config) in pairs if not run.ended_as(config)]
        if (
            self.state_folder is None
            or self.halving is not None
            or len(left) == len(self.runs)
            or not self.checkpoint_pair.empty
        ):
            return self
        configs = [self.configs[trial] for trial in left]
        folders = [self.folders[trial] for trial in left]
        folder = self.state_folder / joint_hash(configs)
        return replace(self, configs=configs, folders=folders, state_folder=folder)


def fit_stack(
    configs: Sequence[Config],
    folders: Sequence[Path],
    state_folder: Path | None = None,
    halving: int | None = None,
    callbacks: Sequence[Callback] = (),
    patience: float = LOCK_PATIENCE,
    *,
    begun: bool = False,
) -> list[Run]:
    """Trains several configurations as one stack. Each folder gets the files of a single run.

    The configurations may differ only in the fusible keys (training/grouping.py). The stack
    keeps its checkpoints in `state_folder` until all trials have ended. A single run has no
    `state_folder`. If there is a checkpoint, training continues from it.

    With `halving` = N, trials are dropped after 1, N, N², … epochs. The best trials continue: one,
    or as many as have at most 1/N of the parameters that still train (training/stopping.py).

    Waits up to `patience` seconds for another process that trains the same stack. Raises InputError
    if another command removes a run meanwhile, with `begun` also for one that is absent already.
    """
    callbacks = [*configured(configs[0]), *callbacks]
    require_usable(callbacks, configs[0])
    job = Job(configs, folders, state_folder, halving, callbacks)
    runs, pair, rank_zero = job.runs, job.checkpoint_pair, ranks.is_rank_zero()
    locked: AbstractContextManager[int | None] = nullcontext()
    if rank_zero:
        known = [run for run in runs if begun or run.config_file.exists()]
        for folder in [*folders, *([state_folder] if state_folder else [])]:
            require_contained(folder)
        locked = _locked(pair.folder, known, patience)
    with storage_faults(pair.folder), locked as lock_descriptor:
        if rank_zero:
            claimed = [
                claim(run, config, partial(_batch_size, run, config))
                for config, run in zip(configs, runs, strict=True)
            ]
            job = replace(job, configs=claimed)
        if not all(map(Run.ended_as, runs, job.configs)):
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


@contextmanager
def _locked(folder: Path, known: Sequence[Run], patience: float) -> Iterator[int]:
    """Locks the folder of the checkpoints. Raises InputError if another command removed one of the
    `known` runs before the lock was taken: the run would begin anew."""
    own = next((run.folder for run in known if run.checkpoints == folder), None)
    with lock_or_fail(folder / ".lock", patience, within=own) as descriptor:
        gone = [run.folder for run in known if not run.config_file.exists()]
        if not gone:
            yield descriptor
    if gone:
        for made in (folder, gone[0]):
            with suppress(OSError):
                made.rmdir()
        raise removed_meanwhile(gone[0])


def _batch_size(run: Run, config: Config) -> int:
    if ranks.is_rank():
        raise InputError("data.batch_size=auto does not work under torchrun or srun; type a number")
    try:
        with results.logging_to([run]):
            return batch_size.choose(config, open_source(config.data, config.task))
    except Exception as error:
        results.mark_failed([run], error)
        raise


def _fit_locked(job: Job, lock_descriptor: int | None) -> None:
    """Trains here, or starts ranks with the locked file. Writes results of unsuccessful runs."""
    runs, config = job.runs, job.configs[0].trainer
    to_go_on = f"to go on, type\n  {results.command_to_go_on(runs[0], job.configs[0])}"
    try:
        devices = machine.resolve(config)
        if devices.world_size == 1 or ranks.is_rank():
            fit_rank(job)
        else:
            ranks.launch(fit_rank, (job,), devices.count, config.max_restarts, lock_descriptor)
    except Interrupted as interrupted:
        if not ranks.is_rank_zero():
            raise Interrupted(interrupted.number) from None
        results.mark_interrupted(runs, interrupted.number)
        # Of the trial that came farthest; others may have stopped before.
        epochs = max(run.result.get("epochs", 0) for run in runs)
        steps = max(run.result.get("steps", 0) for run in runs)
        come_to = f"stopped after {counted(epochs, 'epoch')}, {counted(steps, 'step')}"
        raise Interrupted(interrupted.number, f"{come_to}; {to_go_on}") from None
    except Exception as error:
        if ranks.is_rank_zero():
            results.mark_failed(runs, error)
        if isinstance(error, ranks.RankKilledError):
            raise ranks.RankKilledError(f"{error}; {to_go_on}") from None
        raise
    finally:
        if ranks.is_rank_zero():
            remove_progress(job.checkpoint_pair.folder)


def fit_rank(job: Job) -> None:
    """Trains in this process, as the only process or as one rank."""
    machine.keep_freed_memory()
    machine.use_own_share()
    with (
        handled(rank=ranks.is_rank()) as signals,
        results.logging_to(job.runs),
        quiet_lightning(),
        results.advice_on_failure(job.runs[0], job.configs[0]),
    ):
        _train_and_test(job, signals)


def _train_and_test(job: Job, signals: Signals) -> None:
    config, runs, pair, began = job.configs[0], job.runs, job.checkpoint_pair, time.perf_counter()
    devices = machine.resolve(config.trainer)
    check_devices(config, devices)
    with of_user(config):
        module = build_any(job.configs, devices, fresh=pair.empty)
    resumed = find_state(pair, module, devices.world_size)
    if resumed is None and ranks.is_rank_zero():
        stacked, compared = job.state_folder is not None, job.halving is not None
        clear(runs, job.configs, stacked=stacked, compared=compared)
    lightning = isinstance(module, LightningRun)
    history = History(runs, module.columns)
    loggers = Loggers(config, runs[0], history, module.source)
    kind = LightningCheckpoints if lightning else Checkpoints
    checkpoints = kind(runs, pair, signals, job.callbacks)
    stopping = Stopping(history, job.halving, job.callbacks)
    progress = ProgressFile(pair.folder, job.folders, history, checkpoints)
    trainer = build_trainer(
        config.trainer, devices, runs[0],
        module.arranged(job.callbacks, [history, loggers, stopping, checkpoints, progress]),
        CheckpointPairIO(
            pair, resumed.content if resumed else None, job.callbacks, lightning=lightning
        ),
        resumed=resumed is not None, options=module.trainer_options(),
    )  # fmt: skip
    if trainer.global_rank:  # each rank draws its own dropout masks and noise
        torch.manual_seed(config.seed + trainer.global_rank)
    else:
        log_beginning(module, devices, resumed is not None)
    ready = time.perf_counter()
    try:
        with loggers.closing(), module.running(), of_user(config):
            train(trainer, module, resumed, signals)
            trained, steps = time.perf_counter(), trainer.global_step
            history.begin(job.configs)  # perhaps there was no step left to take
            if trainer.is_global_zero:
                checkpoints.finish(module)
            tests_from = time.perf_counter()
            checkpoints.restore_best(module)
            module.test(trainer)
            seconds = {
                "setup": ready - began + loggers.seconds,
                "fit": history.earlier_seconds + trained - ready - loggers.seconds,
                "test": time.perf_counter() - tests_from,
            }
            common = results.facts(module, trainer, seconds)
            # An interrupted process may have written some results before.
            left = [n for n, run in enumerate(runs) if trainer.is_global_zero and not run.ended]

            def contents() -> Iterator[tuple[Run, str]]:
                for trial in left:
                    run = runs[trial]
                    best, rows = checkpoints.best_epoch(trial), history.rows[trial]
                    content = results.result(
                        trial, rows, module, common, best_epoch=best, steps=steps
                    )
                    loggers.finish(content)
                    yield run, result_text(content)

            write_together(lambda pair: pair[0].write_result_text(pair[1]), contents())
    except Interrupted as interrupted:
        if trainer.is_global_zero:
            come_to = [
                results.reached(rows, module, trial, trainer.global_step)
                for trial, rows in enumerate(history.rows)
            ]
            results.mark_interrupted(runs, interrupted.number, come_to)
        raise
    if trainer.is_global_zero and len(runs) == 1:
        log.info("\n%s", results.summary(runs[0]))
