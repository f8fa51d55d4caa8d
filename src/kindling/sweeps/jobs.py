"""Trains jobs whose folders have been made: a run, a trial of a sweep, trials as stacks."""

import logging
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kindling.config.faults import config_error, find_launcher_faults
from kindling.config.schema import Config, FusedLauncher
from kindling.records.config_files import hydra_yaml
from kindling.records.folder import Run, resume_command
from kindling.records.sweep_folder import Sweep
from kindling.sweeps.command_line import Command
from kindling.system.errors import InputError, Interrupted, exit_on_interruption, told_of
from kindling.system.files import write_durably
from kindling.system.process import importing

log = logging.getLogger(__name__)


def fit_job(config: Config, folder: Path) -> Run:
    """Trains a job whose folder has been made."""
    with exit_on_interruption(), stopped_by_ctrl_c(Run(folder)), importing():
        from kindling.training.fit import fit

    return fit(config, folder, resume=config.resume == "auto")


def train_trial(
    folder: Path, overrides: Sequence[str], trials: int, checked: Callable[[], Config]
) -> float:
    """Trains a trial in a sweep's folder NUMBER and returns its monitored value. If the trial
    fails, logs why, and returns NaN; a signal ends the sweep. `trials`: how many there are, 0 if
    nobody knows."""
    sweep, value, config = Sweep(folder.parent), math.nan, None
    number = int(folder.name) + 1
    count = f"{number:,} of {trials:,}" if trials else f"{number:,}"
    log.info("trial %s, in %s: %s", count, folder, " ".join(overrides))
    try:
        config = checked()
        value = fit_job(config, folder.absolute()).monitored
    except InputError as error:
        log.error("error: %s", error)
    except Exception as error:
        log.error("trial %s failed", folder.name, exc_info=told_of(error))
    except BaseException:
        sweep.write_results()
        raise
    sweep.update("all" if config is None else config.checkpoint.keep)
    return value


def stack_settings(values: dict[str, Any], configs: Sequence[Config]) -> FusedLauncher:
    """The settings of hydra/launcher=fused. Raises InputError with all their faults, and if halving
    would compare trials that are validated on different folds."""
    settings, faults = find_launcher_faults({k: v for k, v in values.items() if k != "_target_"})
    folds = sorted({config.data.fold for config in configs if config.data.fold is not None})
    if settings is not None and settings.halving is not None and len(folds) > 1:
        faults.append(
            f"hydra.launcher.halving={settings.halving}: compares trials, and those of "
            f"data.fold={','.join(map(str, folds[:5]))}{',…' if folds[5:] else ''} are "
            "validated on different samples; leave halving out, or type one fold"
        )
    if settings is None or faults:
        raise config_error(faults)
    return settings


def train_stacks(
    settings: FusedLauncher, configs: Sequence[Config], folders: Sequence[Path], sweep: Path
) -> list[float]:
    """Trains trials whose folders have been made; returns the monitored values."""
    with importing():
        from kindling.sweeps.trials import build_executor, train_trials

    executor = build_executor(settings, configs)
    return train_trials(
        configs, folders, Sweep(sweep), settings.max_trials, settings.halving, executor
    )


@contextmanager
def stopped_by_ctrl_c(run: Run) -> Iterator[None]:
    """Says how to go on when Ctrl-C comes before training can handle it."""
    try:
        yield
    except KeyboardInterrupt:
        command = resume_command(run.resume_folder)
        told = f"stopped before training; to go on, type\n  {command}"
        raise Interrupted(signal.SIGINT, told) from None


def exit_if_diverged(run: Run) -> None:
    """Ends the process with status 1 when the run diverged."""
    if run.result.get("status") == "diverged":
        raise SystemExit(1)


def write_record(command: Command) -> None:
    """Writes multirun.yaml, from which a sweep is resumed, as Hydra's basic sweeper does."""
    assert command.sweep_dir is not None
    values = command.composer.values(command.overrides, resolve=False)
    text = hydra_yaml({"hydra": command.section, **values})
    write_durably(command.sweep_dir / "multirun.yaml", text)
