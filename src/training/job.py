"""What Hydra calls: for one job, a single run or a trial of a sweep; for all jobs of a sweep."""

import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import (
    JobReturn,
    JobStatus,
    configure_log,
    run_job,
    setup_globals,
)
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict

from src import config as schema
from src.config import Config
from src.errors import InputError, door
from src.run import Run, write_atomically
from src.training.fit import fit
from src.training.sweep import Sweep, train_trials

log = logging.getLogger(__name__)


def run_training(composed: DictConfig) -> float:
    """Trains one job and returns its monitored value.

    A trial that fails is logged and marked in its result; the sweep goes on and its sweeper gets
    NaN. A single run ends the process: with status 2 for an InputError, 1 where it diverged.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    if hydra.mode == RunMode.RUN:
        with door():
            run = fit(schema.check(_values(composed)), folder)
        if run.result["status"] == "diverged":
            raise SystemExit(1)
        return run.monitored
    try:
        return fit(schema.check(_values(composed)), folder).monitored
    except InputError as error:
        log.error("error: %s", error)
    except Exception:
        log.exception("trial %s failed", folder.name)
    finally:
        Sweep(Path(hydra.sweep.dir)).write_results()
    return math.nan


def finish_sweep(folder: Path) -> None:
    """Prints the sweep's table; exits with status 1 when a trial failed."""
    sweep = Sweep(folder)
    print(f"\n{sweep.table()}")
    failures = sweep.failures()
    if failures:
        print(f"error: {failures} of {len(sweep.trials)} trials failed", file=sys.stderr)
        raise SystemExit(1)


def launch_fused(
    context: HydraContext,
    task: TaskFunction,
    config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    first: int,
    max_trials: int | None,
) -> list[JobReturn]:
    """Runs the jobs of a sweep for Hydra's launcher: training runs as stacks, others one by one.

    All points are composed and checked before the first one trains; a fault ends the process
    with status 2.
    """
    setup_globals()
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    folder = Path(config.hydra.sweep.dir)
    folder.mkdir(parents=True, exist_ok=True)
    jobs = []
    for number, overrides in enumerate(job_overrides, first):
        job = context.config_loader.load_sweep_config(config, list(overrides))
        with open_dict(job):
            job.hydra.job.id = job.hydra.job.num = number
        jobs.append(job)

    def run_hydra_job(job: DictConfig, function: TaskFunction) -> JobReturn:
        return run_job(
            hydra_context=context,
            task_function=function,
            config=job,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )

    if not all(set(Config.model_fields) <= set(job) for job in jobs):  # no training runs of ours
        foreign = []
        for job in jobs:
            foreign.append(run_hydra_job(job, task))
            configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        return foreign
    with door():
        checked = _check_jobs(jobs, first)
        folders = [folder / str(job.hydra.sweep.subdir) for job in jobs]
        for each, config_of_job in zip(folders, checked, strict=True):
            _refuse_another(Run(each), config_of_job)
    returns = [_job_return(job, each, context) for job, each in zip(jobs, folders, strict=True)]
    configure_log(jobs[0].hydra.job_logging, config.hydra.verbose)
    values = train_trials(checked, folders, Sweep(folder), max_trials)
    for job, returned, value in zip(jobs, returns, values, strict=True):
        returned.return_value = value
        context.callbacks.on_job_end(config=job, job_return=returned)
    return returns


def _job_return(job: DictConfig, folder: Path, context: HydraContext) -> JobReturn:
    """What hydra.core.utils.run_job does around a task, at a third of its time: the job's folder
    with Hydra's files in it, if they are not there yet, and the record of the job."""
    task = OmegaConf.masked_copy(job, [str(key) for key in job if key != "hydra"])
    with flag_override(job, ["readonly", "struct"], False):
        job.hydra.runtime.output_dir = str(folder.absolute())
    context.callbacks.on_job_start(config=job, task_function=run_training)
    overrides = [str(text) for text in job.hydra.overrides.task]
    files = folder / str(job.hydra.output_subdir)
    if not Run(folder).config_file.exists():
        files.mkdir(parents=True, exist_ok=True)
        hydra = OmegaConf.masked_copy(job, ["hydra"])
        for name, content in (("hydra", hydra), ("overrides", job.hydra.overrides.task)):
            (files / f"{name}.yaml").write_text(OmegaConf.to_yaml(content))
        write_atomically(Run(folder).config_file, OmegaConf.to_yaml(task))
    return JobReturn(
        overrides=overrides,
        cfg=task,
        hydra_cfg=job,
        working_dir=str(Path.cwd()),
        task_name=job.hydra.job.name,
        status=JobStatus.COMPLETED,
    )


def _values(composed: DictConfig) -> dict[str, Any]:
    values = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key != "hydra"}


def _check_jobs(jobs: Sequence[DictConfig], first: int) -> list[Config]:
    checked, faults = [], []
    for number, job in enumerate(jobs, first):
        plain = job.copy()
        with open_dict(plain):
            del plain["hydra"]
        config, found = schema.find_faults(_values(plain))
        faults += [f"point {number}: {fault}" for fault in found]
        checked.append(config)
    if faults:
        raise InputError(schema.report(faults))
    return [config for config in checked if config is not None]


def _refuse_another(run: Run, config: Config) -> None:
    """A sweep that is started again must be the same: nothing of another one is overwritten."""
    if run.config_file.exists() and run.config.hash() != config.hash():
        raise InputError(
            f"{run.folder}: holds a trial of another configuration; name another folder with "
            "hydra.sweep.dir=FOLDER, or repeat the command that made this one"
        )
