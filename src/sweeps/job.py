"""What Hydra calls for one job: a single run, or a trial of a sweep."""

import logging
import math
import sys
import tempfile
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from src.config import compose as composition
from src.config import schema
from src.config.schema import Config
from src.runs.folder import Run
from src.runs.sweep_folder import Sweep
from src.sweeps.command_line import Command
from src.system.errors import InputError, exit_on_error, exit_on_interruption
from src.training import ranks
from src.training.fit import fit

log = logging.getLogger(__name__)


def run_training(composed: DictConfig) -> float:
    """Trains one job and returns its monitored value.

    A trial that fails is logged and marked in its result; the sweep goes on and its sweeper gets
    NaN. A single run ends the process: with status 2 for an InputError, 1 where it diverged, 128
    + the signal's number where it was interrupted, as does a sweep.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    with exit_on_error():  # Hydra adds lines of its own to an Exception
        if hydra.mode == RunMode.RUN:
            config = schema.check(composition.values_of(composed))
            return _ended(fit(config, folder, resume=config.resume == "auto"))
        try:
            config = schema.check(composition.values_of(composed))
            return fit(config, folder, resume=config.resume == "auto").monitored
        except InputError as error:
            log.error("error: %s", error)
        except Exception:
            log.exception("trial %s failed", folder.name)
        finally:
            Sweep(Path(hydra.sweep.dir)).write_results()
    return math.nan


def resume_run(folder: Path, config: Config) -> None:
    """Goes on with a run in its folder, or says that it has ended."""
    level = logging.ERROR if ranks.rank() else logging.INFO
    logging.basicConfig(format="%(message)s", stream=sys.stdout, level=level)
    run = Run(folder)
    if run.ended and run.config.trainer.max_epochs == config.trainer.max_epochs:
        result = run.result
        log.info("%s", f"{folder}: {result['status']} after {result['epochs']} epochs")
        more = 2 * config.trainer.max_epochs
        log.info("to train on: python -m src.train resume=%s trainer.max_epochs=%d", folder, more)
    else:
        run = fit(config, folder, resume=True)
    _ended(run)


def follow(command: Command) -> None:
    """Takes part, as a rank other than 0, in every run of a command that torchrun or srun started.

    What rank 0 goes on from is read from its folder; nothing is written but into a temporary one.
    """
    logging.basicConfig(format=f"rank {ranks.rank()}: %(message)s", level=logging.ERROR)
    with tempfile.TemporaryDirectory() as nowhere:
        for number, config in enumerate(command.points):
            base = Path(nowhere)
            if config.resume == "auto" and command.sweep_dir is not None:
                base = command.sweep_dir
            with exit_on_interruption():
                try:
                    fit(config, base / str(number), resume=True)
                except InputError as error:
                    log.error("error: %s", error)
                    if command.sweep_dir is None:
                        raise SystemExit(2) from None


def _ended(run: Run) -> float:
    if run.result.get("status") == "diverged":
        raise SystemExit(1)
    return run.monitored


def finish_sweep(folder: Path) -> None:
    """Prints the sweep's table and writes its report; exits with status 1 when a trial failed."""
    sweep = Sweep(folder)
    print(f"\n{sweep.table()}")
    from src.reports.page import write_report

    try:
        print(f"report: {write_report([folder])}")
    except (InputError, OSError) as error:  # the trials are what counts
        print(f"no report: {error}", file=sys.stderr)
    failures = sweep.failures()
    if failures:
        print(f"error: {failures} of {len(sweep.trials)} trials failed", file=sys.stderr)
        raise SystemExit(1)
