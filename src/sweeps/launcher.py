"""Trains the jobs of a sweep with hydra/launcher=fused together, as stacks."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.utils import JobReturn, JobStatus, configure_log, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict

from src.config.compose import Composer, job_config, plain_parts
from src.config.faults import config_error, find_launcher_faults
from src.config.schema import Config, FusedLauncher
from src.sweeps.hydra_files import begin_job, job_files
from src.system.files import write_into_folder, write_together
from src.system.process import import_for_stacks, importing


def launch_fused(
    job_overrides: Sequence[Sequence[str]],
    first: int,
    config: DictConfig,
    context: HydraContext,
    task: TaskFunction,
) -> list[JobReturn]:
    """Runs the jobs of a sweep, numbered from `first`: those of this project as stacks, those of
    another Hydra application one by one, without torch. Raises InputError with all faults before
    anything trains."""
    setup_globals()
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    folder = Path(config.hydra.sweep.dir)
    folder.mkdir(parents=True, exist_ok=True)
    loader, jobs = context.config_loader, []
    checked = _known(loader, job_overrides) if not context.callbacks.callbacks else None
    # OmegaConf's configurations of all jobs would take most of the time and of the memory. Only
    # callbacks need them, and jobs that were not checked.
    for number, overrides in enumerate(job_overrides if checked is None else [], first):
        jobs.append(_composed(loader, config, overrides, number))
    if any(set(Config.model_fields) - set(job) for job in jobs):  # of another application
        returns = []
        for job in jobs:
            keys = ("hydra.sweep.dir", "hydra.sweep.subdir")  # of the folder of the job
            returns.append(run_job(task, job, *keys, context))
            # run_job has set up the log of the job; go back to the log of the sweep.
            configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        return returns
    settings = _settings(config)
    configs = _checked(jobs, first) if checked is None else checked
    _require_no_halved_folds(settings, configs)
    if settings.executor == "local":  # its processes import meanwhile
        import_for_stacks()
    with importing():
        from src.runs.sweep_folder import Sweep
        from src.sweeps.executors.build import build_executor
        from src.sweeps.trials import train_trials

    if checked is not None:
        assert isinstance(loader, Composer)
        folders, returns = _begin_checked_jobs(loader, config, job_overrides, first, checked)
        job = _composed(loader, config, job_overrides[0], first)
        _set_folder(job, folders[0])
        job_logging = job.hydra.job_logging
    else:
        folders, returns = [folder / str(job.hydra.sweep.subdir) for job in jobs], []
        for job, job_folder in zip(jobs, folders, strict=True):
            returns.append(_begin_job(job, job_folder))
            context.callbacks.on_job_start(config=job, task_function=task)
        job_logging = jobs[0].hydra.job_logging
    configure_log(job_logging, config.hydra.verbose)
    values = train_trials(
        configs, folders, Sweep(folder), settings.max_trials, settings.halving,
        build_executor(settings, configs, settings.wait),
    )  # fmt: skip
    for returned, value in zip(returns, values, strict=True):
        returned.return_value, returned.status = value, JobStatus.COMPLETED
    for job, returned in zip(jobs, returns, strict=False):  # no jobs: no callbacks
        context.callbacks.on_job_end(config=job, job_return=returned)
    return returns


def _settings(config: DictConfig) -> FusedLauncher:
    """Raises InputError with all faults of the launcher's keys."""
    values: Any = OmegaConf.to_container(config.hydra.launcher)
    values.pop("_target_")
    settings, faults = find_launcher_faults(values)
    if settings is None or faults:
        raise config_error(faults)
    return settings


def _require_no_halved_folds(settings: FusedLauncher, configs: Sequence[Config]) -> None:
    """Raises InputError if halving would compare trials that are validated on different folds."""
    folds = sorted({config.data.fold for config in configs if config.data.fold is not None})
    if settings.halving is not None and len(folds) > 1:
        raise config_error(
            [
                f"hydra.launcher.halving={settings.halving}: compares trials, and those of "
                f"data.fold={','.join(map(str, folds[:5]))}{',…' if folds[5:] else ''} are "
                "validated on different samples; leave halving out, or type one fold"
            ]
        )


def _composed(
    loader: ConfigLoader, config: DictConfig, overrides: Sequence[str], number: int
) -> DictConfig:
    job = loader.load_sweep_config(config, list(overrides))
    with open_dict(job):
        job.hydra.job.id = job.hydra.job.num = number
    return job


def _known(loader: ConfigLoader, job_overrides: Sequence[Sequence[str]]) -> list[Config] | None:
    """The configurations of jobs that the command line has checked; None if it has not."""
    if not isinstance(loader, Composer):
        return None
    known = [loader.checked(overrides) for overrides in job_overrides]
    checked = [config for config in known if config is not None]
    return checked if len(checked) == len(known) else None


def _begin_checked_jobs(
    composer: Composer,
    config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    first: int,
    checked: Sequence[Config],
) -> tuple[list[Path], list[JobReturn]]:
    """Makes the folders of jobs, without OmegaConf's configuration of each job."""
    here = str(Path.cwd())
    folders: list[Path] = []
    returns: list[JobReturn] = []

    def files() -> Iterator[dict[Path, str]]:
        for number, (overrides, known) in enumerate(
            zip(job_overrides, checked, strict=True), first
        ):
            job = composer.plain_job(config, overrides, number)
            folders.append(job.folder)
            returns.append(
                JobReturn(
                    overrides=job.hydra["overrides"]["task"],
                    working_dir=here,
                    task_name=job.hydra["job"]["name"],
                )
            )
            yield job_files(job.folder, job.values, job.hydra, known)

    write_together(write_into_folder, files())
    return folders, returns


def _checked(jobs: Sequence[DictConfig], first: int) -> list[Config]:
    checked = [job_config(job, job.hydra.overrides.task) for job in jobs]
    faults = [f"trial {n}: {fault}" for n, (_, each) in enumerate(checked, first) for fault in each]
    if faults:
        raise config_error(faults)
    return [config for config, _ in checked if config is not None]


def _begin_job(job: DictConfig, folder: Path) -> JobReturn:
    """Makes a job's folder, and Hydra's record of it in a third of the time of Hydra's run_job."""
    _set_folder(job, folder)
    begin_job(folder, *plain_parts(job))
    return JobReturn(
        overrides=[str(text) for text in job.hydra.overrides.task],
        cfg=OmegaConf.masked_copy(job, [str(key) for key in job if key != "hydra"]),
        hydra_cfg=job,
        working_dir=str(Path.cwd()),
        task_name=job.hydra.job.name,
    )


def _set_folder(job: DictConfig, folder: Path) -> None:
    with flag_override(job, ["readonly", "struct"], False):
        job.hydra.runtime.output_dir = str(folder.absolute())
