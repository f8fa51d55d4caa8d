"""From a command line to a checked command: every fault at once, before torch is imported."""

import argparse
import functools
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import Override
from omegaconf.errors import OmegaConfBaseException

from kindling.config.allowed import describe_keys
from kindling.config.compose import NUMBERED, Composer, shared_composer
from kindling.config.faults import config_error, find_launcher_faults
from kindling.config.overrides import (
    combine,
    is_hydras,
    is_zipped,
    key_of,
    last_value,
    parse_all,
    with_folder,
    with_quotes,
)
from kindling.config.schema import Config
from kindling.config.written import written
from kindling.records.config_files import require_same_config
from kindling.records.folder import Run, is_confirmation, is_search, is_sweep, resume_command
from kindling.records.foreign import WRITTEN, require_own_paths
from kindling.records.lookup import timestamped
from kindling.sweeps.completion import complete
from kindling.sweeps.requirements import find_all_faults, require_machine
from kindling.sweeps.resume_folder import folder_to_resume, run_to_resume, sweep_to_resume
from kindling.system.arguments import Parser, command_parser
from kindling.system.errors import InputError
from kindling.system.files import require_contained
from kindling.system.installation import CONF
from kindling.system.launch import launch_info
from kindling.system.resources import versions

SWEEPER = "hydra/sweeper"
ZIP = "zip"  # hydra_plugins/zip_sweeper.py
MOST_JOBS = 256  # processes of the joblib launcher; -1: one for each core
# Files that show that a folder is in use by a run, a sweep or a search.
RECORDS = (
    "history.csv", "result.json", "results.csv", "multirun.yaml", "search.yaml", "confirm.yaml",
    ".hydra/config.yaml",
)  # fmt: skip


@dataclass(frozen=True)
class Command:
    flags: Sequence[str] = ()
    overrides: Sequence[str] = ()
    sweep_dir: Path | None = None  # None for a single run
    within: Path | None = field(default=None, compare=False)  # a sweep that must still be there
    run_dir: Path | None = None  # of a new single run, or of one with resume=auto
    resumes: tuple[Path, Config] | None = None  # the folder and configuration of a run to continue
    # The configurations to train, in Hydra's order, and the overrides of each. Empty if a sweeper
    # such as Optuna chooses the values during the sweep.
    points: Sequence[Config] = ()
    combinations: Sequence[Sequence[str]] = ()
    composer: Composer = field(default_factory=functools.partial(shared_composer, None))
    summary: bool = False  # whether to describe the model, and to train nothing
    help: str | None = None  # the answer to --help

    @property
    def argv(self) -> list[str]:
        return [*self.flags, *self.overrides]

    @property
    def recorded(self) -> list[str]:
        """The overrides as Hydra records them."""
        if "hydra.mode" in map(key_of, self.overrides):
            return [*self.overrides]
        return [*self.overrides, f"hydra.mode={'RUN' if self.sweep_dir is None else 'MULTIRUN'}"]

    @functools.cached_property
    def section(self) -> dict[str, Any]:
        """Hydra's own section of the configuration of the run or sweep."""
        return self.composer.section(self.recorded)

    @property
    def trains(self) -> bool:
        return (self.resumes or self.run_dir or self.sweep_dir) is not None

    @property
    def launches_ranks(self) -> bool:
        """Whether a run of the command starts more processes. False for `auto`, because its value
        is known only after torch is imported; the ranks are then started a little later."""
        return launch_info().launched_by is None and any(
            config.trainer.devices not in (1, "auto") for config in self.configs
        )

    @property
    def configs(self) -> list[Config]:
        """Those to train, of a run that continues too."""
        return [*self.points, *([self.resumes[1]] if self.resumes else [])]


def check_command_line(argv: Sequence[str], docstring: str | None = None) -> Command:
    """Checks the arguments of `python -m src.train`, and every point of a sweep. The docstring of
    the command is part of its help.

    The folder is added to the overrides, so that Hydra writes into the folder that was checked.
    Raises InputError with every fault at once.
    """
    parser = _argument_parser(docstring)
    arguments = parser.parse_intermixed_args(list(argv))
    arguments.overrides = with_quotes(arguments.overrides, sweep=arguments.multirun)
    if arguments.help:
        return Command(help=f"{parser.format_help()}\n{describe_keys(_first_point(arguments))}")
    return replace(_checked_command(arguments), summary=arguments.summary)


def _checked_command(arguments: Namespace) -> Command:
    flags, texts = _checked_flags(arguments), list(arguments.overrides)
    zipped = any(map(is_zipped, parse_all([text for text in texts if ZIP in text], [])))
    if arguments.multirun and zipped and SWEEPER not in map(key_of, texts):
        arguments.overrides = texts = [*texts, f"{SWEEPER}={ZIP}"]
    composer = shared_composer(_absolute(arguments.config_dir))
    if arguments.cfg:
        _checked_points(composer, arguments)
    if arguments.info:
        _first_point(arguments)
    if arguments.cfg or arguments.hydra_help or arguments.info:
        return Command(flags, texts)
    resumed = folder_to_resume(texts)
    if resumed is not None:
        others = [text for text in texts if key_of(text) != "resume"]
        if is_sweep(resumed) and not (is_search(resumed) or is_confirmation(resumed)):
            paths = [text for text in others if key_of(text) in WRITTEN]
            kept = [text for text in others if text not in paths]
            command = check_command_line(sweep_to_resume(resumed, kept, arguments.config_dir))
            require_own_paths(command.points, [resumed], resume_command(resumed), paths)
            return replace(command, within=command.sweep_dir)
        return Command(resumes=(resumed, run_to_resume(resumed, others, arguments)))
    overrides, combinations, configs = _checked_points(composer, arguments)
    for config in configs:
        require_machine(config, last_value(overrides, "hydra.launcher.executor"))
    folder = _named_folder(composer, overrides, arguments)
    command = Command(flags, points=configs, combinations=combinations, composer=composer)
    if arguments.multirun:
        folder = _sweep_folder(folder, overrides, configs)
        texts = with_folder(texts, "hydra.sweep.dir", folder)
        return replace(command, overrides=texts, sweep_dir=folder)
    resume = last_value(overrides, "resume") == "auto"
    if folder and resume and require_same_config(Run(folder), configs[0]) is not None:
        return Command(resumes=(folder, configs[0]))
    folder = folder or timestamped("runs")
    texts = with_folder(texts, "hydra.run.dir", folder)
    return replace(command, overrides=texts, run_dir=folder)


def _checked_points(
    composer: Composer, arguments: Namespace
) -> tuple[list[Override], list[Sequence[str]], list[Config]]:
    """The overrides of a command line, and those and the configuration of each point. Raises
    InputError with every fault at once, and the numbers of the trials with each fault."""
    combinations, overrides, faults = combine(
        arguments.overrides, arguments.multirun, arguments.config_dir
    )
    points, composing_faults = composer.points(combinations)
    if any(map(is_zipped, overrides)):
        faults += [
            f"{each.input_line}: does not know zip(…); leave {SWEEPER} out"
            for each in overrides
            if each.key_or_group == SWEEPER and each.value() != ZIP
        ]
    faults += composing_faults
    configs: list[Config] = []
    faulty: dict[str, list[str]] = {}
    for number, point in enumerate(points):
        config, point_faults = find_all_faults(point)
        for fault in point_faults:
            faulty.setdefault(fault, []).append(str(number))
        configs += [config] if config is not None else []
    for fault, numbers in faulty.items():
        trials = f"{'trials' if len(numbers) > 1 else 'trial'} {', '.join(numbers)}: "
        faults.append(trials + fault if len(numbers) < len(points) else fault)
    if faults:
        raise config_error(faults)
    return overrides, combinations, configs


def _named_folder(
    composer: Composer, overrides: Sequence[Override], arguments: Namespace
) -> Path | None:
    """The folder that the command line names, or None. Raises InputError when the folder is in use
    and not to be resumed, and when `resume=auto` has no folder."""
    sweep, resume = arguments.multirun, last_value(overrides, "resume") == "auto"
    key, folder = "hydra.sweep.dir" if sweep else "hydra.run.dir", None
    if arguments.config_dir or any(is_hydras(each.key_or_group) for each in overrides):
        folder = _composed_folder(composer, overrides, sweep, resume)
    if folder is None and resume:
        raise InputError(
            f"resume=auto needs a folder that is always the same; type {key}=FOLDER too"
        )
    if folder is None or launch_info().rank:  # rank 0 checks the folder before it writes there
        return folder
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{key}={folder}: is not a folder; name another one")
    foreign = ".hydra/config.yaml" if sweep else "multirun.yaml"  # a run is not a sweep
    for name in (foreign,) if resume else RECORDS:
        if (folder / name).exists():
            raise InputError(
                f"{key}={folder}: holds a {'sweep' if sweep else 'run'} already ({name}), which "
                f"would be overwritten; name another folder, or type resume={folder} to resume it"
            )
    require_contained(folder)
    return folder


def _composed_folder(
    composer: Composer, overrides: Sequence[Override], sweep: bool, resume: bool
) -> Path | None:
    """hydra.run.dir or hydra.sweep.dir as Hydra composes it; None for the default, and for a path
    with the time in it, which cannot be resumed. Raises InputError as `_require_usual`."""
    texts = [each.input_line or "" for each in overrides]
    name = "sweep" if sweep else "run"
    section = composer.section(texts)
    _require_usual(section, sweep)
    typed = section[name]["dir"]
    shipped = yaml.safe_load((CONF / "train.yaml").read_text())["hydra"][name]["dir"]
    if typed == shipped or (resume and "${now:" in typed):
        return None
    try:
        folder = composer.resolved(texts, section, f"{name}.dir")
    except OmegaConfBaseException as error:
        raise InputError(" ".join(str(error).split())) from None
    # Once Hydra has made A/B, the path A/B/.. is A.
    return Path(os.path.normpath(folder))


def _require_usual(section: Mapping[str, Any], sweep: bool) -> None:
    """Raises InputError for keys of Hydra that would write trials or configurations into unexpected
    folders or start other runs than were checked, and for numbers out of range."""
    mode = "MULTIRUN" if sweep else "RUN"
    for path, allowed, remedy in (
        ("mode", (None, mode), "type -m for a sweep" if not sweep else "leave out -m for one run"),
        ("sweep.subdir", (NUMBERED,), "trials have the folders 0, 1, 2, …; leave it out"),
        ("output_subdir", (".hydra",), "a run has its configuration there; leave it out"),
        ("job.chdir", (None, False), "paths are relative to where you are; leave it out"),
    ):
        value: Any = functools.reduce(lambda inner, key: inner[key], path.split("."), section)
        if value not in allowed:
            raise InputError(f"hydra.{path}={written(value)}: {remedy}")
    launcher = section["launcher"]
    if "max_trials" in launcher:
        _, faults = find_launcher_faults({k: v for k, v in launcher.items() if k != "_target_"})
        if faults:
            raise InputError("\n".join(faults))
    jobs = launcher.get("n_jobs")
    if jobs is not None and not (isinstance(jobs, int) and jobs and -1 <= jobs <= MOST_JOBS):
        raise InputError(
            f"hydra.launcher.n_jobs={jobs}: must be at least 1 and at most {MOST_JOBS}, or -1: "
            "a job on each core"
        )


def _sweep_folder(
    folder: Path | None, overrides: Sequence[Override], configs: Sequence[Config]
) -> Path:
    """The folder of a sweep: if the user named no folder, a new folder with the current time.
    Raises InputError when the named folder has trials with other configurations."""
    launched_by = launch_info().launched_by
    if launched_by is not None and last_value(overrides, "hydra/launcher") is not None:
        raise InputError(
            f"hydra/launcher: with {launched_by} the trials run one after the other; leave the "
            "launcher out, or start the command alone with trainer.devices=N"
        )
    if folder is None:
        return timestamped("sweeps")
    for number, config in enumerate(configs):
        require_same_config(Run(folder / str(number)), config)
    return folder


# --- the flags: Hydra's, without those that would skip the checks ------------------------------

# What --help says of the flags; Hydra's others are refused, or of no use here.
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
FLAGS: dict[str, dict[str, Any]] = {
    "--help -h": {"action": "store_true", "help":
        "show this help, the groups, and the keys with their values; train nothing"},
    "--hydra-help": {"action": "store_true", "help": "show Hydra's help"},
    "--cfg -c": {"choices": ("job", "hydra", "all"), "help":
        "print the configuration (job), Hydra's own (hydra) or both (all); train nothing"},
    "--resolve": {"action": "store_true",
                  "help": "with --cfg: replace interpolations by their values"},
    "--package -p": {"metavar": "KEY", "help": "with --cfg: print this section alone"},
    "--run -r": {"action": "store_true", "help": argparse.SUPPRESS},
    "--multirun -m": {"action": "store_true",
                      "help": "train all combinations of several values, a sweep"},
    "--shell-completion -sc": {"action": "store_true", "help": argparse.SUPPRESS},
    "--config-path -cp": {"help": argparse.SUPPRESS},
    "--config-name -cn": {"help": argparse.SUPPRESS},
    "--config-dir -cd": {"metavar": "FOLDER", "help":
        "a folder with more choices of groups, such as FOLDER/experiment/NAME.yaml"},
    "--experimental-rerun": {"help": argparse.SUPPRESS},
    "--info -i": {"const": "all", "nargs": "?", "choices": INFO, "metavar": "PART", "help":
        "print how Hydra found the configuration: all, defaults-tree, plugins or others"},
}  # fmt: skip


def _argument_parser(docstring: str | None) -> Parser:
    """The flags of Hydra, and this project's --version, --summary and help."""
    parser = command_parser("train", docstring, add_help=False)
    parser.advice = "; settings have no dashes, for example optimizer.lr=0.1"
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", completer=complete,
        help="or GROUP=CHOICE; with -m also KEY=VALUE1,VALUE2",
    )  # fmt: skip
    for names, named in FLAGS.items():
        parser.add_argument(*names.split(), **named)
    version = "\n".join(f"{name} {number}" for name, number in versions().items())
    parser.add_argument("--version", action="version", version=version, help="print versions")
    parser.flag("--summary", "show layers, shapes and parameters; train nothing")
    return parser


def _first_point(arguments: Namespace) -> dict[str, Any]:
    """The values of the first point, not checked. Raises InputError for overrides and files that
    cannot be composed."""
    combinations, _, faults = combine(arguments.overrides, arguments.multirun, arguments.config_dir)
    points, composing_faults = shared_composer(_absolute(arguments.config_dir)).points(
        combinations[:1] or [[]]  # none if a sweeper such as Optuna chooses the values
    )
    if faults or composing_faults:
        raise config_error([*faults, *composing_faults])
    return points[0]


def _absolute(folder: str | None) -> str | None:
    return folder and str(Path(folder).absolute())


def _checked_flags(arguments: Namespace) -> list[str]:
    """The given flags, in their long form. Raises InputError for unsupported or exclusive flags."""
    if arguments.experimental_rerun is not None:
        raise InputError(
            "--experimental-rerun: the file is a pickle, which runs any code that is in it, and "
            "nothing of it is checked; type resume=FOLDER to resume a run"
        )
    if arguments.config_name is not None or arguments.config_path is not None:
        name = "--config-name" if arguments.config_name is not None else "--config-path"
        raise InputError(
            f"{name}: conf/train.yaml is the one configuration; put what differs into "
            "DIR/experiment/NAME.yaml and type --config-dir=DIR experiment=NAME"
        )
    if arguments.config_dir is not None and not Path(arguments.config_dir).is_dir():
        raise InputError(f"--config-dir={arguments.config_dir}: there is no such folder")
    if arguments.shell_completion:
        raise InputError(
            "--shell-completion: Hydra would complete a script alone; for all commands, type "
            'eval "$(activate-global-python-argcomplete --dest=-)"'
        )
    exclusive = ("run", "multirun", "cfg", "info", "summary")
    chosen = [f"--{name.replace('_', '-')}" for name in exclusive if getattr(arguments, name)]
    if len(chosen) > 1:
        raise InputError(f"{', '.join(chosen)}: exclude each other; type one of them")
    for name in ("resolve", "package"):
        if getattr(arguments, name) and not arguments.cfg:
            raise InputError(f"--{name}: goes with --cfg; type --cfg job --{name} too")
    return [
        f"--{name.replace('_', '-')}" + ("" if given is True else f"={given}")
        for name, given in vars(arguments).items()
        if name != "overrides" and given not in (None, False)
    ]
