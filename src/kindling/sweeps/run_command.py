"""The loop of `python -m src.train`: the run folder of each checked point, training, table, report;
and `kindling.sweep`, a sweep from Python.

The points of a single run and of a sweep, whose trials train one after the other or as stacks,
take this way. Where a command chooses a launcher or a sweeper of others, or callbacks, Hydra runs
the jobs; see jobs.py.
"""

import logging
import logging.config
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.utils import env_override

from kindling.config.closed_form import needed_by_ranks
from kindling.config.overrides import key_of, parsed, task_of, with_folder
from kindling.config.schema import Config
from kindling.config.written import counted
from kindling.records.config_files import job_files
from kindling.records.folder import Run
from kindling.records.lookup import timestamped, with_name
from kindling.records.outcome import row_of
from kindling.records.sweep_folder import Sweep
from kindling.sweeps.command_line import Command, check_command_line
from kindling.sweeps.jobs import (
    exit_if_diverged,
    fit_job,
    run_by_hydra,
    stack_settings,
    train_stacks,
    train_trial,
    write_record,
)
from kindling.sweeps.requirements import from_python
from kindling.system.arguments import as_path
from kindling.system.colour import YELLOW, paint, tell_error
from kindling.system.errors import (
    InputError,
    Interrupted,
    InterruptedByKeys,
    exit_on_interruption,
)
from kindling.system.files import make_folder, removed_meanwhile, write_first, write_together
from kindling.system.installation import as_command
from kindling.system.launch import launch_info
from kindling.system.process import (
    end_if_importing,
    import_for_ranks,
    import_for_stacks,
    importing,
    log_to,
    only_errors,
    printing_log,
)

log = logging.getLogger(__name__)

# Otherwise Hydra would replace the handlers of the program's log, and close them.
LOGS_NOTHING = ("hydra/job_logging=none", "hydra/hydra_logging=none")


def run_command(command: Command) -> None:
    """Trains everything that the command asks for. A sweep ends with its table and report."""
    if command.launches_ranks:
        import_for_ranks(*needed_by_ranks(command.configs[0].read))
    _warn_of_same_name(command)
    if command.resumes is not None:
        _resume(*command.resumes)
    elif launch_info().rank:  # rank 0 writes the folders
        _train_as_other_rank(command)
    else:
        train_points(command)
        if command.sweep_dir is not None:
            finish_sweep(command.sweep_dir)


def train_points(command: Command, proceed: Callable[[int], bool] | None = None) -> None:
    """Trains the points of a command, perhaps within another program. Raises what goes wrong with a
    single run, and what goes wrong before the trials of a sweep begin. Of a sweep in stacks,
    `proceed` is asked before each batch of hydra.sweeper.max_batch_size trials, with the number of
    trials that were trained."""
    section, folder = command.section, command.sweep_dir
    if folder is not None and any(point.read("data.group") is not None for point in command.points):
        with importing():
            from kindling.data.sources.catalogue import require_divisible

        require_divisible(command.points)  # otherwise each trial would report the same fault
    if not command.points or _is_of_others(section):
        run_by_hydra(command)
    elif folder is None:
        assert command.run_dir is not None
        with _job_begun(command):
            exit_if_diverged(fit_job(command.points[0], command.run_dir.absolute()))
    elif "max_trials" in section["launcher"]:
        _train_in_stacks(command, folder, proceed)
    else:
        _begin_sweep(command, folder)
        for number, config in enumerate(command.points):
            with _job_begun(command, number) as texts:
                checked = partial(Config.model_copy, config)
                train_trial(folder / str(number), texts, len(command.points), checked)


def _configured(folder: Path, number: int) -> bool:
    return Run(folder / str(number)).config_file.exists()


def _begin_sweep(command: Command, folder: Path) -> None:
    make_folder(folder, command.within)
    write_record(command)
    _configure_log(command, command.section, "hydra_logging")


def _is_of_others(section: Mapping[str, Any]) -> bool:
    """Whether Hydra's section of a configuration has a launcher or sweeper of others, callbacks, or
    values for the sweeper, which the command line does not know."""
    launcher, sweeper = (section[name]["_target_"] for name in ("launcher", "sweeper"))
    return bool(
        not launcher.endswith((".BasicLauncher", ".FusedLauncher"))
        or not sweeper.endswith((".BasicSweeper", ".ZipSweeper"))
        or section["sweeper"].get("params")
        or section["callbacks"]
    )


def _train_in_stacks(command: Command, folder: Path, proceed: Callable[[int], bool] | None) -> None:
    settings = stack_settings(command.section["launcher"], command.points)
    if settings.executor == "local":  # its processes import meanwhile
        import_for_stacks()
    _begin_sweep(command, folder)
    count = len(command.points)
    size = command.section["sweeper"]["max_batch_size"] or count
    for first in range(0, count, size):
        if proceed is not None and not proceed(first):
            return
        batch = range(count)[first : first + size]
        held = {each.name for each in folder.iterdir()}  # each look at a folder would cost more
        new = {n for n in batch if str(n) not in held or not _configured(folder, n)}
        make = partial(_make_folders, command, new, first)
        make([0])  # the log may be there
        _configure_log(command, _files_and_section(command, first)[1], "job_logging")
        configs = command.points[first : first + size]
        folders = [folder / str(number) for number in batch]
        train_stacks(settings, configs, folders, folder, make)


def _make_folders(command: Command, new: set[int], first: int, trials: Sequence[int]) -> None:
    """Makes the folders of those of the trials that are new. `trials` are counted from `first`."""
    numbers = (first + trial for trial in trials)
    files = (_files_and_section(command, number)[0] for number in numbers if number in new)
    write_together(write_first, files)
    new.difference_update(first + trial for trial in trials)


@contextmanager
def _job_begun(command: Command, number: int = 0) -> Iterator[list[str]]:
    """Makes the folder of a job with its files, and sets up its log and its environment. Yields
    its overrides."""
    files, section = _files_and_section(command, number)
    write_first(files)
    _configure_log(command, section, "job_logging")
    with env_override(section["job"]["env_set"]):
        yield section["overrides"]["task"]


def _files_and_section(command: Command, number: int) -> tuple[dict[Path, str], dict[str, Any]]:
    """The files of the folder of a job (a run or a trial), and Hydra's section of its settings."""
    if command.sweep_dir is None:
        folder, texts, section = command.run_dir, command.overrides, command.section
    else:
        folder, texts = command.sweep_dir / str(number), command.combinations[number]
        hydras = command.section["overrides"]["hydra"]
        cwd = command.section["runtime"]["cwd"]
        section = command.composer.section([*hydras, *task_of(texts)], number, cwd)
    assert folder is not None
    runtime = section["runtime"]
    runtime = runtime | {"output_dir": str(Path(runtime["cwd"], folder))}
    section = section | {"runtime": runtime}
    values = command.composer.values(texts)
    return job_files(folder, values, section, command.points[number]), section


def _configure_log(command: Command, section: dict[str, Any], name: str) -> None:
    """Sets up the log as a part of Hydra's section says."""
    settings = command.composer.resolved(command.overrides, section, name)
    if settings["root"] is not None:
        logging.config.dictConfig(settings)
    verbose = section["verbose"]
    loggers = [verbose] if isinstance(verbose, str) else verbose or []
    for logger in [None] if verbose is True else loggers:
        logging.getLogger(logger).setLevel(logging.DEBUG)


def _resume(folder: Path, config: Config) -> None:
    """Continues a run in its folder, or says that the run has ended."""
    with importing():
        from kindling.training.fit import fit_on

    level = logging.ERROR if launch_info().rank else logging.INFO
    log_to(sys.stdout, level)
    run = Run(folder)
    # The configuration is read first: another command may have removed the run meanwhile.
    if run.config.trainer.max_epochs == config.trainer.max_epochs and run.ended:
        if not (result := run.result):
            raise removed_meanwhile(folder)
        epochs = counted(result["epochs"], "epoch")
        log.info("%s: %s after %s", folder, result["status"], epochs)
        if config.checkpoint.keep == "best" and not launch_info().rank:  # killed before that
            run.remove_checkpoints(but_best=True)
        if run.last_checkpoint.exists():
            more = f"resume={folder} trainer.max_epochs={2 * config.trainer.max_epochs}"
            log.info(f"to train on: {as_command('train')} %s", more)
    else:
        run = fit_on(config, folder)
    exit_if_diverged(run)


def _train_as_other_rank(command: Command) -> None:
    """Takes part in every run of a command that torchrun or srun started, as a rank other than 0.
    In a sweep with resume=auto it reads rank 0's folders, else it uses a temporary folder."""
    with importing():
        from kindling.training.fit import fit

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


def _warn_of_same_name(command: Command) -> None:
    """Says which others have the name of this one: the name alone means the newest."""
    name = next((config.name for config in command.points if config.name), None)
    if name is None or launch_info().rank:
        return
    own = command.sweep_dir and command.sweep_dir.absolute()
    others = [folder for folder in with_name(name) if folder.absolute() != own]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        told = (
            f"name={name}: {others[0]}{more} has this name too; the name alone now means this one. "
            f"To rename the other, type {as_command('runs')} label {others[0]} --name OTHER"
        )
        print(paint(told, YELLOW, sys.stderr), file=sys.stderr)


def finish_sweep(folder: Path, note: str = "") -> None:
    """Prints the table of a sweep and a note, and writes its report. Exits with 1 when a trial
    failed."""
    sweep = Sweep(folder)
    if not sweep.outcomes():  # each group has told why
        raise SystemExit(1)
    sweep.write_results()
    sweep.remove_surplus()
    print("\n".join(["", sweep.table(), *([note] if note else [])]))
    from kindling.reports.page import write_report

    try:
        with only_errors():  # training has told already what it found in the data
            told = list[str]()
            page = write_report([folder], tell=told.append)
        print("\n".join(["", *told, f"report: {page}"]))
    except (InputError, OSError) as error:  # the trials are complete without a report
        print(paint(f"no report: {error}", YELLOW, sys.stderr), file=sys.stderr)
    failures = sweep.failures()
    if failures:
        tell_error(f"{failures} of {len(sweep.outcomes())} trials failed")
        raise SystemExit(1)


# --- from Python --------------------------------------------------------------------------------


def sweep(
    *overrides: str,
    model: Any = None,
    data: Any = None,
    validation: Any = None,
    test: Any = None,
    folder: "str | os.PathLike[Any] | None" = None,
) -> list[dict[str, Any]]:
    """Trains every combination of the values, as `python -m src.train -m hydra/launcher=fused`
    does. Returns a dictionary for each trial, the best first: the trial's folder, and what
    results.csv has, with settings as numbers, texts and lists. `folder` is that of the sweep, by
    default sweeps/DATE/TIME. A sweep that was stopped goes on with its folder, the same overrides,
    and `resume=auto`. Prints the lines of the command, unless `trainer.progress_bar=false`.
    `model`, `data`, `validation` and `test` are those of `fit`; a function makes a new model for
    each trial, from its seed, and of a module each trial trains a copy.

    Raises InputError with all faults before anything trains.

    >>> from kindling import sweep
    >>> trials = sweep("data=digits", "optimizer.lr=0.1,0.3", "seed=0,1")
    >>> trials[0]["optimizer.lr"], trials[0]["val/acc"]
    """
    end_if_importing()
    if not all(isinstance(override, str) for override in overrides):
        raise InputError('sweep takes texts, such as sweep("optimizer.lr=0.1,0.3", "seed=0,1")')
    where = timestamped("sweeps") if folder is None else as_path(folder, "sweep(…, folder=…)")
    command = checked_sweep(overrides, where, (model, data, validation, test))
    try:
        with printing_log(wanted=command.points[0].trainer.progress_bar is not False):
            return train_sweep(command, where)
    except Interrupted as interrupted:
        kind = InterruptedByKeys if interrupted.number == signal.SIGINT else Interrupted
        told = str(interrupted).partition("; to go on, type\n")[0]
        given = {"model": model, "data": data}
        own = "".join(f"{name}=…, " for name, value in given.items() if value is not None)
        call = f"sweep(…, 'resume=auto', {own}folder={str(where)!r}) with the same settings"
        raise kind(interrupted.number, f"{told}; to go on, call {call}") from None


def checked_sweep(
    overrides: Sequence[str], where: Path, given: Sequence[Any] = (None,) * 4
) -> Command:
    """The sweep as a checked command; nothing is written yet. `given` are the model and the pairs
    of arrays of `sweep`. Raises InputError as `sweep`."""
    launched = any(text.startswith("hydra/launcher=") for text in overrides)
    more = [*([] if launched else ["hydra/launcher=fused"]), *LOGS_NOTHING]
    if all(each is None for each in given):
        return _checked(overrides, more, where)
    with importing():
        from kindling.training.own import Given

    own, token = Given.of(*given), from_python.set(True)
    try:
        overrides = [text for text in overrides if text not in own.overrides()]
        if twice := {key_of(text) for text in own.overrides()} & {*map(key_of, overrides)}:
            raise InputError(f"{', '.join(twice)}: sweep(…) was given others; leave the texts out")
        command = _checked(overrides, [*more, *own.overrides()], timestamped("sweeps"))
        if _is_of_others(command.section):  # Hydra would compose each trial again
            raise InputError("sweep(…, model=…, data=…): type hydra/launcher=fused, or basic")
        own.tried(command.points[0])  # tells the class of the model, which is a setting too
        command = _checked(overrides, [*more, *own.overrides()], where)
    finally:
        from_python.reset(token)
    return replace(command, points=[own.hold(config) for config in command.points])


def _checked(typed: Sequence[str], more: Sequence[str], where: Path) -> Command:
    texts = with_folder([*typed, *more], "hydra.sweep.dir", where)
    command = check_command_line(["-m", *texts])
    if command.sweep_dir is None:
        raise InputError(f"{' '.join(typed)}: trains nothing; type KEY=VALUE,VALUE")
    return command


def train_sweep(command: Command, where: Path) -> list[dict[str, Any]]:
    """Trains a sweep that was checked for the folder `where`, and returns its trials as `sweep`."""
    train_points(command)
    ranked = Sweep(where).ranked()
    return [
        {
            "folder": where / each.run.folder.name,
            **row_of(each),
            **{key: parsed(f"{key}={text}").value() for key, text in each.overrides.items()},
        }
        for each in ranked
    ]
