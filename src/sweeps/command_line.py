"""From a command line to a checked command: every fault at once, before torch is imported."""

import argparse
import functools
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from src.config import schema
from src.config.compose import (
    MOST_POINTS,
    compose,
    compose_all,
    compose_groups,
    is_hydras,
    is_value,
    key_of,
    name_job,
    override_fault,
    parse,
    parse_all,
    quoted,
    searchpath,
    set_values,
)
from src.config.schema import CONF, Config
from src.data.paths import path_faults
from src.runs.folder import Run, is_search, is_sweep, resume_command, timestamped
from src.system.errors import InputError
from src.system.extras import missing_loggers
from src.system.files import read_yaml, require_contained
from src.system.launch import launch_info
from src.system.resources import versions

MOST_JOBS = 256  # processes of the joblib launcher; -1: one for each core
LAUNCHERS = ("basic", "fused", "joblib")
LAUNCHER_KEYS = (
    "hydra/launcher",
    "hydra.launcher.max_trials",
    "hydra.launcher.halving",
    "hydra.launcher.n_jobs",
)


@dataclass(frozen=True)
class Command:
    """A checked command line; sweep_dir is None for a single run and for `--help` and its kin.

    `resumes` is a folder to go on in and its configuration: Hydra, which would compose another
    one and write it there, is left out. `points` are all that the command trains, in Hydra's
    order, without those that a sweeper chooses as it goes.
    """

    argv: list[str]
    sweep_dir: Path | None = None
    resumes: tuple[Path, Config] | None = None
    points: Sequence[Config] = ()

    @property
    def launches_ranks(self) -> bool:
        """Whether a run of it starts more processes; `auto` devices of a GPU may yet be one."""
        configs = [*self.points, *([self.resumes[1]] if self.resumes else [])]
        return launch_info().launched_by is None and any(
            config.trainer.devices not in (1, "auto") for config in configs
        )


def check_command_line(argv: Sequence[str]) -> Command:
    """Checks what `python -m src.train` was given, every point of a sweep included.

    A folder that the command line names is fixed here, and so is that of every sweep: Hydra is
    told it again, so that it writes where this has looked. Raises InputError with every fault at
    once.
    """
    arguments = _arguments().parse_intermixed_args(list(argv))
    flags, texts = _flags(arguments), list(arguments.overrides)
    if arguments.cfg:
        _checked_points(arguments)
    asks = arguments.help or arguments.hydra_help or arguments.info or arguments.shell_completion
    if arguments.cfg or asks:
        return Command([*flags, *texts])
    resumed = _resumed_folder(texts)
    if resumed is not None:
        others = [text for text in texts if key_of(text) != "resume"]
        return _resume(resumed, others, arguments.multirun, arguments.config_dir)
    overrides, configs = _checked_points(arguments)
    for config in configs:
        check_machine(config)
    folder = _named_folder(overrides, arguments)
    if arguments.multirun:
        folder = _sweep_folder(folder, overrides, configs)
        argv = [*flags, *_with(texts, "hydra.sweep.dir", folder)]
        return Command(argv, folder, points=configs)
    if folder is not None:
        if _last(overrides, "resume") == "auto" and Run(folder).config_file.exists():
            _refuse_another(folder, configs[0])
            return Command([], resumes=(folder, configs[0]))
        texts = _with(texts, "hydra.run.dir", folder)
    return Command([*flags, *texts], points=configs)


def _checked_points(arguments: Namespace) -> tuple[list[Override], list[Config]]:
    """The overrides of a command line and the configuration of each point.

    Raises InputError with every fault at once, those that points share once.
    """
    points, overrides, faults = compose_all(
        arguments.overrides, arguments.multirun, arguments.config_dir
    )
    configs: list[Config] = []
    faulty: dict[str, list[str]] = {}
    for number, point in enumerate(points):
        config, point_faults = find_faults(point)
        for fault in point_faults:
            faulty.setdefault(fault, []).append(str(number))
        configs += [config] if config is not None else []
    for fault, numbers in faulty.items():
        which = f"point{'s'[: len(numbers) > 1]} {', '.join(numbers)}: " if len(points) > 1 else ""
        faults.append(which + fault)
    if faults:
        raise InputError(schema.report(faults))
    return overrides, configs


def _sweep_folder(
    named: Path | None, overrides: Sequence[Override], configs: Sequence[Config]
) -> Path:
    """The folder of a sweep, made of the time where none is named.

    Raises InputError when trials of other configurations lie in it.
    """
    launched_by = launch_info().launched_by
    if launched_by is not None and _last(overrides, "hydra/launcher") is not None:
        raise InputError(
            f"hydra/launcher: with {launched_by} the trials run one after the other; leave the "
            "launcher out, or start the command alone with trainer.devices=N"
        )
    for number, config in enumerate(configs if named is not None else ()):
        assert named is not None
        _refuse_another(named / str(number), config)
    return named or timestamped("sweeps")


def _flags(arguments: Namespace) -> list[str]:
    """The flags of a command line, written out, for Hydra to read before the overrides.

    Raises InputError for those that this project does not have, and for two that exclude each
    other.
    """
    if arguments.experimental_rerun is not None:
        raise InputError(
            "--experimental-rerun: the file is a pickle, which runs any code that is in it, and "
            "nothing of it is checked; type resume=FOLDER to go on with a run"
        )
    if arguments.config_name is not None or arguments.config_path is not None:
        name = "--config-name" if arguments.config_name is not None else "--config-path"
        raise InputError(
            f"{name}: conf/train.yaml is the one configuration; put what differs into "
            "DIR/experiment/NAME.yaml and type --config-dir=DIR experiment=NAME"
        )
    if arguments.config_dir is not None and not Path(arguments.config_dir).is_dir():
        raise InputError(f"--config-dir={arguments.config_dir}: there is no such folder")
    exclusive = {
        "--run": arguments.run,
        "--multirun": arguments.multirun,
        "--cfg": arguments.cfg,
        "--info": arguments.info,
        "--shell-completion": arguments.shell_completion,
    }
    chosen = [name for name, given in exclusive.items() if given]
    if len(chosen) > 1:
        raise InputError(f"{', '.join(chosen)}: exclude each other; type one of them")
    for name in ("resolve", "package"):
        if getattr(arguments, name) and not (arguments.cfg or arguments.help):
            raise InputError(f"--{name}: goes with --cfg; type --cfg job --{name} too")
    flags = []
    for name, given in vars(arguments).items():
        if name != "overrides" and given not in (None, False):
            flags.append(f"--{name.replace('_', '-')}" + ("" if given is True else f"={given}"))
    return flags


def _arguments() -> argparse.ArgumentParser:
    """Hydra's, but --version tells the project's own."""
    parser = argparse.ArgumentParser(
        parents=[get_args_parser()],
        add_help=False,
        conflict_handler="resolve",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    told = "\n".join(f"{name} {text}" for name, text in versions().items())
    parser.add_argument("--version", action="version", version=told)
    return parser


def find_faults(point: dict[str, Any]) -> tuple[Config | None, list[str]]:
    """Those of the schema, and what this machine has not: packages, the user's own data."""
    config, faults = schema.find_faults(point)
    if config is not None:
        faults += missing_loggers(config.logger.chosen)
    section = point.get("data")
    if isinstance(section, dict):
        faults += path_faults(section)
    return config, faults


def _last(overrides: Sequence[Override], key: str) -> Any:
    """The value that a key was given on the command line, the last one; None if there is none."""
    given = [each.value() for each in overrides if each.key_or_group == key]
    return given[-1] if given else None


def _resumed_folder(texts: Sequence[str]) -> Path | None:
    """The folder that `resume=FOLDER` names, if any.

    Hydra never sees this override, so a name that its grammar cannot read is taken as it is, and
    so is the name of a folder that is there.
    """
    given = [text.partition("=")[2] for text in texts if text.lstrip("+").startswith("resume=")]
    if not given or given[-1] in ("null", "auto"):
        return None
    override = parse(f"resume={given[-1]}", [])
    value = override.value() if override is not None else None
    return Path(value if isinstance(value, str) and not Path(given[-1]).is_dir() else given[-1])


def _with(texts: Sequence[str], key: str, folder: Path) -> list[str]:
    """Overrides that end with the one by which Hydra gives a key the path of a folder, whatever
    the path holds."""
    if "${" in str(folder):
        raise InputError(f"{folder}: Hydra would replace what begins with ${{; rename the folder")
    plain = parse(f"{key}={folder}", [])
    readable = plain is not None and plain.value() == str(folder)
    fixed = f"{key}={folder if readable else quoted(str(folder))}"
    return [*(text for text in texts if text != fixed), fixed]


# What a run, a sweep or a search leaves in its folder.
RECORDS = (
    "history.csv", "result.json", "results.csv", "multirun.yaml", "search.yaml",
    ".hydra/config.yaml",
)  # fmt: skip


def _named_folder(overrides: Sequence[Override], arguments: Namespace) -> Path | None:
    """The folder that the command line names, if any, as Hydra composes it.

    Raises InputError when it is in use and not to be gone on with, when there is none to go on
    with, and for what would have Hydra write elsewhere.
    """
    sweep, resume = arguments.multirun, _last(overrides, "resume") == "auto"
    key, folder = "hydra.sweep.dir" if sweep else "hydra.run.dir", None
    if arguments.config_dir or any(is_hydras(each.key_or_group) for each in overrides):
        folder = _composed_folder(overrides, arguments, resume)
    if folder is None and resume:
        raise InputError(
            f"resume=auto needs a folder that is the same each time; type {key}=FOLDER too"
        )
    if folder is None or launch_info().rank:  # rank 0 looks, before it writes there itself
        return folder
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{key}={folder}: is no folder; name another one")
    foreign = ".hydra/config.yaml" if sweep else "multirun.yaml"  # one run is no sweep
    for name in (foreign,) if resume else RECORDS:
        if (folder / name).exists():
            raise InputError(
                f"{key}={folder}: holds a {'sweep' if sweep else 'run'} already ({name}), which "
                f"would be overwritten; name another folder, or type resume={folder} to go on "
                "with it"
            )
    require_contained(folder)
    return folder


def _composed_folder(
    overrides: Sequence[Override], arguments: Namespace, resume: bool
) -> Path | None:
    """hydra.run.dir or hydra.sweep.dir as Hydra composes it, however it was spelt; None where it
    is the default, or where it is another one each time and cannot be resumed.

    Raises InputError for other keys of Hydra that would have files written elsewhere.
    """
    single = [each for each in overrides if not each.is_sweep_override()]
    texts = [each.input_line or "" for each in single]
    section = "sweep" if arguments.multirun else "run"
    try:
        chosen = [text for text in texts if not is_value(key_of(text))]
        composed = compose_groups((*searchpath(arguments.config_dir), *chosen)).copy()
        set_values(composed, [text for text in texts if text not in chosen])
        name_job(composed, [each for each in single if not is_hydras(each.key_or_group)])
        HydraConfig.instance().set_config(composed)
        _require_usual(composed.hydra, arguments.multirun)
        typed = OmegaConf.to_container(composed.hydra[section])["dir"]  # type: ignore[call-overload,index]
        shipped = yaml.safe_load((CONF / "train.yaml").read_text())["hydra"][section]["dir"]
        if typed == shipped or (resume and "${now:" in str(typed)):
            return None
        # A/B/.. is A once Hydra has made B, and is looked at as such.
        return Path(os.path.normpath(str(composed.hydra[section].dir)))
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(" ".join(str(error).split())) from None


def _require_usual(node: DictConfig, sweep: bool) -> None:
    """Raises InputError where Hydra's node has trials and configurations written to places where
    nothing looks for them, another number of runs than was checked, or a launcher's number out of
    its range."""
    values: Any = OmegaConf.to_container(node, enum_to_str=True)
    mode = "MULTIRUN" if sweep else "RUN"
    for path, allowed, remedy in (
        ("mode", (None, mode), "type -m for a sweep" if not sweep else "leave out -m for one run"),
        ("sweep.subdir", ("${hydra.job.num}",), "trials have the folders 0, 1, 2, …; leave it out"),
        ("output_subdir", (".hydra",), "a run has its configuration there; leave it out"),
        ("job.chdir", (None, False), "paths are relative to where you are; leave it out"),
    ):
        found = functools.reduce(lambda inner, key: inner[key], path.split("."), values)
        if found not in allowed:
            raise InputError(f"hydra.{path}={schema.written(found)}: {remedy}")
    for name, least, most in (
        ("max_trials", 1, MOST_POINTS), ("halving", 2, MOST_POINTS), ("n_jobs", -1, MOST_JOBS)
    ):  # fmt: skip
        found = node.launcher.get(name)
        if found is not None and not (isinstance(found, int) and found and least <= found <= most):
            raise InputError(
                f"hydra.launcher.{name}={found}: must be at least {least} and at most {most:,}; "
                f"for example hydra.launcher.{name}={max(least, 2)}"
            )


def _refuse_another(folder: Path, config: Config) -> None:
    """Raises InputError when the folder holds a run of another configuration."""
    if not Run(folder).config_file.exists():
        return
    before = Run(folder).config
    found = schema.differences(before.to_primitives(), config.to_primitives())
    if found:
        raise InputError("\n  ".join([f"{folder}: holds another run", *found]))


def _resume(folder: Path, others: Sequence[str], multirun: bool, config_dir: str | None) -> Command:
    """`resume=FOLDER`, of a run or a sweep, which goes on with its own configuration.

    Raises InputError when the folder is neither, and for every other key that differs from it.
    """
    if is_search(folder):
        raise InputError(f"resume={folder}: is a search; type {resume_command(folder)}")
    if is_sweep(folder):
        if others:
            raise InputError(
                f"resume={folder}: a sweep goes on as it was; leave out {' '.join(others)}"
            )
        return check_command_line(_sweep_command(folder, config_dir))
    run = Run(folder)
    if multirun and run.config_file.exists():
        raise InputError(f"resume={folder}: is one run, not a sweep; leave out -m")
    if not run.config_file.exists():
        raise InputError(
            f"resume={folder}: is no folder of a run or sweep; it has neither .hydra/config.yaml "
            "nor multirun.yaml"
        )
    if is_sweep(folder.parent) and not run.ended:
        raise InputError(
            f"resume={folder}: is a trial of a sweep that has not ended; type "
            f"{resume_command(folder.parent)}"
        )
    if config_dir is not None:
        raise InputError(
            f"--config-dir={config_dir}: resume={folder} goes on with its own configuration; leave "
            "--config-dir out"
        )
    require_contained(folder)
    config = run.config
    hydras = [text for text in others if is_hydras(key_of(text))]
    if hydras:
        raise InputError(f"resume={folder}: goes on in its folder; leave out {' '.join(hydras)}")
    if others:
        config = _grown(folder, config, others)
    absent = missing_loggers(config.logger.chosen) + path_faults(config.data.model_dump())
    if absent:
        raise InputError("\n  ".join([f"resume={folder}: cannot go on here", *absent]))
    check_machine(config)
    return Command([], resumes=(folder, config))


def _grown(folder: Path, config: Config, overrides: Sequence[str]) -> Config:
    """The configuration of a run with what the command line says of it, which may only be more
    epochs. What it does not say stays as it is, whatever the defaults are now."""
    said = compose(*overrides).to_primitives()
    unsaid = compose().to_primitives()
    values = config.to_primitives()
    for text in overrides:
        key, choice = key_of(text), text.partition("=")[2]
        if key in schema.GROUPS and values.get(key, {}).get("name") != said.get(key, {}).get(
            "name"
        ):
            raise InputError(f"resume={folder}: its {key} is not {choice}; leave out {text}")
    typed = {key_of(text) for text in overrides}
    for section, before in values.items():
        if not isinstance(before, dict):
            if section in typed or said[section] != unsaid[section]:
                values[section] = said[section]
            continue
        for key in before.keys() & said[section].keys():
            changed = said[section][key] != unsaid[section].get(key)
            if changed or f"{section}.{key}" in typed:
                before[key] = said[section][key]
    found = schema.differences(config.to_primitives(), values)
    if found:
        raise InputError(
            "\n  ".join([f"resume={folder}: trainer.max_epochs alone may grow", *found])
        )
    return schema.check(values)


def _sweep_command(folder: Path, config_dir: str | None) -> list[str]:
    """The command that made a sweep, from Hydra's record of it, to go on in its folder.

    A record may come from a stranger, and Hydra imports what its configuration names. So what
    passes is what Hydra's parser reads as an override of a key of this project, and of Hydra's own
    keys the launchers that are known.
    """
    file = folder / "multirun.yaml"
    record = read_yaml(file)
    try:
        given = record["hydra"]["overrides"]
        task, own = given["task"], given["hydra"]
        for texts in (task, own):
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise TypeError
    except (KeyError, TypeError):
        raise InputError(f"{file}: is not Hydra's record of a sweep") from None
    faults: list[str] = []
    overrides = parse_all(task, faults)
    faults += [
        f"{each.input_line}: a sweep of this project has no such key"
        for each in overrides
        if is_hydras(each.key_or_group)
    ]
    faults += [fault for each in overrides if (fault := override_fault(each, config_dir))]
    launcher = [
        each
        for each in parse_all(own, [])
        if each.key_or_group in LAUNCHER_KEYS and not override_fault(each)
    ]
    named = _last(launcher, "hydra/launcher")
    if named not in (None, *LAUNCHERS):
        faults.append(f"hydra/launcher={named}: must be one of {', '.join(LAUNCHERS)}")
    if faults:
        raise InputError("\n  ".join([f"{file}: is no record of a sweep of this project", *faults]))
    kept = [each.input_line or "" for each in overrides if each.key_or_group != "resume"]
    chosen = [each.input_line or "" for each in launcher]
    return [
        "-m",
        *([] if config_dir is None else [f"--config-dir={config_dir}"]),
        *_with([*kept, "resume=auto", *chosen], "hydra.sweep.dir", folder),
    ]


def check_machine(config: Config) -> None:
    """Whether the processes that there are suit the configuration; and torch is asked, but only
    where it names an accelerator that may be absent."""
    trainer, started = config.trainer, launch_info()
    if started.launched_by is None and trainer.num_nodes > 1:
        raise InputError(
            f"trainer.num_nodes={trainer.num_nodes}: every node starts processes of its own; type "
            f"torchrun --nnodes={trainer.num_nodes} --nproc-per-node={trainer.devices} ... "
            "-m src.train ... on each of them, or srun"
        )
    if started.launched_by is not None:
        local = started.local_world_size
        nodes = started.world_size // local
        devices = trainer.devices if trainer.devices != "auto" else local
        if (devices, trainer.num_nodes, trainer.max_restarts) != (local, nodes, 0):
            raise InputError(
                f"trainer.devices={trainer.devices} trainer.num_nodes={trainer.num_nodes} "
                f"trainer.max_restarts={trainer.max_restarts}: {started.launched_by} has started "
                f"{local} process(es) on each of {nodes} node(s), and restarts "
                f"them itself; type trainer.devices={local} "
                f"trainer.num_nodes={nodes} trainer.strategy=ddp"
            )
    if config.trainer.accelerator in ("cuda", "mps"):
        from src.system.machine import resolve

        resolve(config.trainer)


def main_argv() -> Command:
    """Checks sys.argv and puts the checked one in its place, for Hydra to read."""
    command = check_command_line(sys.argv[1:])
    sys.argv[1:] = command.argv
    return command
