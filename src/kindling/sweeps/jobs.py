"""Trains jobs: a run, a trial of a sweep, trials as stacks.

`fit_job`, `train_trial` and `train_stacks` take jobs that were checked and whose folders were made,
by run_command.py, a search or a confirmation.
With launchers and sweepers of others, and with Hydra's callbacks, Hydra composes each job again and
makes its folder; `train_job` checks and trains it. The plugins in hydra_plugins/ call the rest.
"""

import logging
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override

from kindling.config.compose import MAIN, initialized
from kindling.config.faults import check, config_error, find_faults, find_launcher_faults
from kindling.config.overrides import (
    axes_of,
    is_zipped,
    parse_all,
    parsed,
    product_of,
    task_of,
    zip_faults,
)
from kindling.config.schema import Config, FusedLauncher
from kindling.records.config_files import hydra_yaml, job_files
from kindling.records.folder import Run, resume_command
from kindling.records.sweep_folder import Sweep
from kindling.sweeps.command_line import Command
from kindling.system.errors import (
    InputError,
    Interrupted,
    exit_on_error,
    exit_on_interruption,
    first_line,
    told_of,
)
from kindling.system.files import YAML_LIMIT, make_folder, read_bounded, write_durably, write_first
from kindling.system.process import importing

log = logging.getLogger(__name__)

_zipped: list[str] = []  # the overrides of a sweep with zip(…), which Hydra's parser cannot read


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
    settings: FusedLauncher,
    configs: Sequence[Config],
    folders: Sequence[Path],
    sweep: Path,
    make: Callable[[Sequence[int]], None] | None = None,
) -> list[float]:
    """Trains trials, and returns the monitored values. `make` makes the folders of trials, by their
    numbers; None: they have been made."""
    with importing():
        from kindling.sweeps.trials import build_executor, train_trials

    executor = build_executor(settings, configs)
    if executor.makes_folders:
        executor.make = make
    elif make is not None:
        make(range(len(configs)))
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
    """Writes multirun.yaml, from which a sweep is resumed, as Hydra's basic sweeper does. Raises
    InputError if another command has begun a sweep there since the folder was checked."""
    assert command.sweep_dir is not None
    file = command.sweep_dir / "multirun.yaml"
    values = command.composer.values(command.overrides, resolve=False)
    text = hydra_yaml({"hydra": command.section, **values})
    if not command.points or command.points[0].resume is not None:
        write_durably(file, text)
        return
    write_first({file: text})
    if read_bounded(file, YAML_LIMIT) != text.encode(errors="backslashreplace"):
        raise InputError(
            f"{command.sweep_dir}: another command has just begun a sweep there; name another "
            "folder"
        )


# --- by Hydra -----------------------------------------------------------------------------------


def run_by_hydra(command: Command) -> None:
    folder = command.sweep_dir or command.run_dir or Path()
    make_folder(folder)  # Hydra would not sync it
    texts = [text for text in command.recorded if not is_zipped(parsed(text))]
    if len(texts) < len(command.recorded):
        _zipped[:] = task_of(command.overrides)
        write_record(command)
    try:
        with initialized(command.composer.config_dir) as hydra:
            start = hydra.run if command.sweep_dir is None else hydra.multirun
            start(MAIN, partial(train_job, trials=len(command.points)), texts)
    except HydraException as error:
        raise InputError(first_line(error)) from error


def train_job(composed: DictConfig, trials: int = 0) -> float:
    """Checks and trains a job, perhaps in a launcher's process; returns its monitored value.
    `trials` is the number of all trials of a sweep, 0 if a sweeper such as Optuna decides it."""
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)

    def checked() -> Config:
        values: Any = OmegaConf.to_container(composed, resolve=True, enum_to_str=True)
        # Hydra does not sync the file, and does not resolve interpolations in it.
        write_durably(Run(folder).config_file, hydra_yaml(values))
        return check(values)

    with exit_on_error():  # Hydra would add a traceback
        if hydra.mode == RunMode.RUN:
            run = fit_job(checked(), folder)
            exit_if_diverged(run)
            return run.monitored
        trial = Path(hydra.sweep.dir, folder.name)
        return train_trial(trial, hydra.overrides.task, trials, checked)


def zip_jobs(params: dict[str, str]) -> list[list[str]]:
    """The overrides of each job of a sweep with zip(…), and with values of hydra.sweeper.params.
    Raises InputError with all faults."""
    faults: list[str] = []
    overrides = parse_all([*(f"{k}={v}" for k, v in params.items()), *_zipped], faults)
    faults += zip_faults(overrides)
    if faults:
        raise config_error(faults)
    return [list(texts) for texts in product_of(axes_of(overrides))]


def launch_fused(
    job_overrides: Sequence[Sequence[str]],
    first: int,
    config: DictConfig,
    context: HydraContext,
    task: TaskFunction,
) -> list[JobReturn]:
    """Runs the jobs of a sweep, numbered from `first`: those of this project as stacks, those of
    another Hydra application as Hydra's basic launcher does, without torch. Raises InputError with
    all faults before anything trains."""
    if set(Config.model_fields) - set(config):  # of another application
        launchers = {each.__name__: each for each in Plugins.instance().discover(Launcher)}
        basic: Any = launchers["BasicLauncher"]()
        basic.setup(hydra_context=context, task_function=task, config=config)
        return list(basic.launch(job_overrides, first))
    setup_globals()
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    folder = Path(config.hydra.sweep.dir)
    make_folder(folder)
    jobs: list[DictConfig] = []
    folders: list[Path] = []
    for number, overrides in enumerate(job_overrides, first):
        job = context.config_loader.load_sweep_config(config, list(overrides))
        with flag_override(job, ["readonly", "struct"], False):
            job.hydra.job.id = job.hydra.job.num = number
            folders.append(folder / str(job.hydra.sweep.subdir))
            job.hydra.runtime.output_dir = str(folders[-1].absolute())
        jobs.append(job)
    own = [OmegaConf.masked_copy(job, [str(key) for key in job if key != "hydra"]) for job in jobs]
    points: list[Any] = [OmegaConf.to_container(each, resolve=True) for each in own]
    found = [find_faults(point) for point in points]
    faults = [f"trial {n}: {fault}" for n, (_, told) in enumerate(found, first) for fault in told]
    if faults:
        raise config_error(faults)
    configs = [config for config, _ in found if config is not None]
    launcher: Any = OmegaConf.to_container(config.hydra.launcher)
    settings = stack_settings(launcher, configs)
    returns = []
    for number, (job, checked) in enumerate(zip(jobs, configs, strict=True)):
        # Interpolations in Hydra's section are not resolved.
        section: Any = OmegaConf.to_container(job.hydra, enum_to_str=True)
        write_first(job_files(folders[number], points[number], section, checked))
        texts, name = section["overrides"]["task"], job.hydra.job.name
        returns.append(JobReturn(texts, own[number], job, str(Path.cwd()), name))
        context.callbacks.on_job_start(config=job, task_function=task)
    configure_log(jobs[0].hydra.job_logging, config.hydra.verbose)
    trained = train_stacks(settings, configs, folders, folder)
    for job, returned, value in zip(jobs, returns, trained, strict=True):
        returned.return_value, returned.status = value, JobStatus.COMPLETED
        context.callbacks.on_job_end(config=job, job_return=returned)
    return returns
