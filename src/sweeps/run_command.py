"""Runs a checked command: by Hydra, except for a resumed single run and for ranks other than 0."""

import logging
import math
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hydra._internal.utils import run_and_report
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from src.config.compose import MAIN, Composer, job_config
from src.config.faults import config_error
from src.config.overrides import key_of
from src.config.schema import Config
from src.config.written import counted
from src.runs.folder import Run, resume_command
from src.runs.lookup import with_name
from src.runs.sweep_folder import Sweep
from src.sweeps.command_line import Command
from src.sweeps.hydra_files import adapt_hydra
from src.system.colour import YELLOW, paint, tell_error
from src.system.errors import InputError, Interrupted, exit_on_error, exit_on_interruption
from src.system.launch import launch_info
from src.system.process import import_for_ranks, importing, log_to, only_errors

log = logging.getLogger(__name__)


def run_command(command: Command) -> None:
    """Trains everything that the command asks for. A sweep ends with its table and report."""
    if command.launches_ranks:
        import_for_ranks()
    _warn_of_same_name(command)
    if command.resumes is not None:
        _resume(*command.resumes)
    elif launch_info().rank:  # rank 0 runs Hydra, and writes its folders
        _train_as_other_rank(command)
    else:
        assert command.composer is not None
        if command.sweep_dir is not None:
            _require_divisible(command.points)
        _run_hydra(command, command.composer)
        if command.sweep_dir is not None:
            finish_sweep(command.sweep_dir)


def _warn_of_same_name(command: Command) -> None:
    """Says which other runs and sweeps have the name of this one: the name alone will not do."""
    name = next((config.name for config in command.points if config.name), None)
    if name is None or launch_info().rank:
        return
    own = command.sweep_dir and command.sweep_dir.absolute()
    others = [folder for folder in with_name(name) if folder.absolute() != own]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        told = (
            f"name={name}: {others[0]}{more} has this name too; to rename it, type python -m "
            f"src.runs label {others[0]} --name OTHER"
        )
        print(paint(told, YELLOW, sys.stderr), file=sys.stderr)


def _require_divisible(configs: Sequence[Config]) -> None:
    """Raises InputError if groups of samples do not fit into the folds of a sweep: otherwise each
    trial would report the same fault."""
    if any(getattr(config.data, "group", None) is not None for config in configs):
        with importing():
            from src.data.sources.catalogue import require_divisible

        require_divisible(config.data for config in configs)


def train_job(composed: DictConfig, trials: int = 0) -> float:
    """Trains a Hydra job, perhaps in a launcher's process; returns its monitored value. `trials` is
    the number of all trials of a sweep, 0 if a sweeper such as Optuna decides it as it goes.

    A trial that fails is logged, its result has the status `failed`, the sweeper gets NaN, and the
    sweep continues. A single run ends the process: with status 2 after an InputError, with 1 when
    it diverged, with 128 + the number of a signal. A signal ends a sweep in the same way.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    with exit_on_interruption(), stopped_by_ctrl_c(Run(folder)), importing():
        from src.training.fit import fit

    def train() -> Run:
        config, faults = job_config(composed, hydra.overrides.task)
        if config is None:
            raise config_error(faults)
        return fit(config, folder, resume=config.resume == "auto")

    with exit_on_error():  # Hydra would add a traceback
        if hydra.mode == RunMode.RUN:
            run = train()
            _exit_if_diverged(run)
            return run.monitored
        number = f"{hydra.job.num + 1:,} of {trials:,}" if trials else f"{hydra.job.num + 1:,}"
        sweep, value = Sweep(Path(hydra.sweep.dir)), math.nan
        short = sweep.folder / folder.name
        log.info("trial %s, in %s: %s", number, short, " ".join(hydra.overrides.task))
        try:
            value = train().monitored
        except InputError as error:
            log.error("error: %s", error)
        except Exception:
            log.exception("trial %s failed", folder.name)
        except BaseException:  # a signal ends the sweep
            sweep.write_results()
            raise
        sweep.update(composed.checkpoint.keep)
    return value


@contextmanager
def stopped_by_ctrl_c(run: Run) -> Iterator[None]:
    """Says how to go on when Ctrl-C comes before training can handle it."""
    try:
        yield
    except KeyboardInterrupt:
        command = resume_command(run.resume_folder)
        told = f"stopped before training; to go on, type\n  {command}"
        raise Interrupted(signal.SIGINT, told) from None


def _exit_if_diverged(run: Run) -> None:
    """Ends the process with status 1 when the run diverged."""
    if run.result.get("status") == "diverged":
        raise SystemExit(1)


def train_sweep(command: Command) -> None:
    """Trains the trials of a sweep within another program. Raises what goes wrong."""
    assert command.composer is not None
    _require_divisible(command.points)
    with _started_hydra(command, command.composer) as start:
        start()


def _run_hydra(command: Command, composer: Composer) -> None:
    """As hydra.main, with the composer that the command line was checked with."""

    def run() -> None:
        with exit_on_error():  # Hydra would print a traceback of every Exception
            start()

    with _started_hydra(command, composer) as start:
        run_and_report(run)


@contextmanager
def _started_hydra(command: Command, composer: Composer) -> Iterator[Callable[[], object]]:
    """Yields a function that runs the jobs of a command."""
    sweep = command.sweep_dir is not None
    overrides = list(command.overrides)
    if "hydra.mode" not in map(key_of, overrides):
        overrides.append(f"hydra.mode={'MULTIRUN' if sweep else 'RUN'}")
    hydra = composer.hydra
    adapt_hydra()
    GlobalHydra.instance().clear()
    GlobalHydra.instance().initialize(hydra)
    try:
        train = partial(train_job, trials=len(command.points))
        yield partial(hydra.multirun if sweep else hydra.run, MAIN, train, overrides)
    finally:
        GlobalHydra.instance().clear()


def _resume(folder: Path, config: Config) -> None:
    """Continues a run in its folder, or says that the run has ended."""
    with importing():
        from src.training.fit import fit

    level = logging.ERROR if launch_info().rank else logging.INFO
    log_to(sys.stdout, level)
    run = Run(folder)
    if run.ended and run.config.trainer.max_epochs == config.trainer.max_epochs:
        result = run.result
        epochs = counted(result["epochs"], "epoch")
        log.info("%s: %s after %s", folder, result["status"], epochs)
        if config.checkpoint.keep == "best" and not launch_info().rank:  # killed before that
            run.remove_checkpoints(but_best=True)
        if run.last_checkpoint.exists():
            more = f"resume={folder} trainer.max_epochs={2 * config.trainer.max_epochs}"
            log.info("to train on: python -m src.train %s", more)
    else:
        run = fit(config, folder, resume=True)
    _exit_if_diverged(run)


def _train_as_other_rank(command: Command) -> None:
    """Takes part in every run of a command that torchrun or srun started, as a rank other than 0.
    In a sweep with resume=auto it reads rank 0's folders, else it uses a temporary folder."""
    with importing():
        from src.training.fit import fit

    log_to(sys.stderr, logging.ERROR, f"rank {launch_info().rank}: %(message)s")
    with tempfile.TemporaryDirectory() as temporary_folder:
        for number, config in enumerate(command.points):
            base = Path(temporary_folder)
            if config.resume == "auto" and command.sweep_dir is not None:
                base = command.sweep_dir
            with exit_on_interruption():
                try:
                    fit(config, base / str(number), resume=True)
                except InputError as error:
                    log.error("error: %s", error)
                    if command.sweep_dir is None:
                        raise SystemExit(2) from None


def finish_sweep(folder: Path, note: str = "") -> None:
    """Prints the table of a sweep and a note, and writes its report. Exits with 1 when a trial
    failed."""
    sweep = Sweep(folder)
    sweep.write_results()
    sweep.remove_surplus()
    print("\n".join(["", sweep.table(), *([note] if note else [])]))
    from src.reports.page import write_report

    try:
        with only_errors():  # training has told already what it found in the data
            page = write_report([folder])
        print(f"report: {page}")
    except (InputError, OSError) as error:  # the trials are complete without a report
        print(paint(f"no report: {error}", YELLOW, sys.stderr), file=sys.stderr)
    failures = sweep.failures()
    if failures:
        tell_error(f"{failures} of {len(sweep.trials)} trials failed")
        raise SystemExit(1)
