"""All jobs of a sweep, as Hydra's launcher hands them over: training runs as stacks.

What needs torch is imported only when the jobs are known to be training runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.utils import (
    JobReturn,
    JobStatus,
    configure_log,
    run_job,
    setup_globals,
)
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict

from src.config import compose as composition
from src.config import schema
from src.config.schema import Config
from src.system.errors import InputError
from src.system.process import importing

# libyaml's dumper, many times as fast, where PyYAML was built with it.
Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def launch_fused(
    context: HydraContext,
    task: TaskFunction,
    config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    first: int,
    *,
    max_trials: int | None,
    halving: int | None,
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
    with importing():
        from src.runs.sweep_folder import Sweep
        from src.sweeps.trials import train_trials

    checked = _check_jobs(jobs, first)
    folders = [folder / str(job.hydra.sweep.subdir) for job in jobs]
    returns = [_job_return(job, each, context) for job, each in zip(jobs, folders, strict=True)]
    configure_log(jobs[0].hydra.job_logging, config.hydra.verbose)
    values = train_trials(checked, folders, Sweep(folder), max_trials, halving)
    for job, returned, value in zip(jobs, returns, values, strict=True):
        returned.return_value = value
        context.callbacks.on_job_end(config=job, job_return=returned)
    return returns


def _job_return(job: DictConfig, folder: Path, context: HydraContext) -> JobReturn:
    """What hydra.core.utils.run_job does around a task, at a third of its time: the job's folder
    with Hydra's files in it, if they are not there yet, and the record of the job."""
    from src.runs.folder import Run
    from src.sweeps.job import run_training
    from src.system.files import write_durably

    task = OmegaConf.masked_copy(job, [str(key) for key in job if key != "hydra"])
    with flag_override(job, ["readonly", "struct"], False):
        job.hydra.runtime.output_dir = str(folder.absolute())
    context.callbacks.on_job_start(config=job, task_function=run_training)
    overrides = [str(text) for text in job.hydra.overrides.task]
    files = folder / str(job.hydra.output_subdir)
    if not Run(folder).config_file.exists():
        files.mkdir(parents=True, exist_ok=True)
        node = {"hydra": OmegaConf.to_container(job.hydra, enum_to_str=True)}
        for name, content in (("hydra", node), ("overrides", overrides)):
            (files / f"{name}.yaml").write_text(yaml.dump(content, Dumper=Dumper, sort_keys=False))
        write_durably(Run(folder).config_file, OmegaConf.to_yaml(task))
    return JobReturn(
        overrides=overrides,
        cfg=task,
        hydra_cfg=job,
        working_dir=str(Path.cwd()),
        task_name=job.hydra.job.name,
        status=JobStatus.COMPLETED,
    )


def _check_jobs(jobs: Sequence[DictConfig], first: int) -> list[Config]:
    checked, faults = [], []
    for number, job in enumerate(jobs, first):
        config, found = schema.find_faults(composition.values_of(job))
        faults += [f"point {number}: {fault}" for fault in found]
        checked.append(config)
    if faults:
        raise InputError(schema.report(faults))
    return [config for config in checked if config is not None]
