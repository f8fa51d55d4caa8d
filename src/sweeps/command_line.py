"""From a command line to a checked command: every fault at once, before torch is imported."""

import argparse
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Override

from src.config.allowed import describe
from src.config.compose import Composer, combine, shared_composer
from src.config.faults import config_error
from src.config.overrides import key_of
from src.config.schema import Config
from src.runs.config_files import require_same_config
from src.runs.folder import Run, is_confirmation, is_search, is_sweep, timestamped
from src.sweeps.completion import complete
from src.sweeps.output_folder import last_value, named_folder, with_folder
from src.sweeps.requirements import find_all_faults, require_machine
from src.sweeps.resume_folder import folder_to_resume, run_to_resume, sweep_to_resume
from src.sweeps.zipped import sweeper_faults, with_zip_sweeper
from src.system.arguments import Parser, command_parser, completed_by
from src.system.errors import InputError
from src.system.launch import launch_info
from src.system.resources import versions


@dataclass(frozen=True)
class Command:
    """A checked command line."""

    flags: Sequence[str] = ()
    overrides: Sequence[str] = ()
    sweep_dir: Path | None = None  # None for a single run
    resumes: tuple[Path, Config] | None = None  # the folder and configuration of a run to continue
    # The configurations to train, in Hydra's order. Empty if a sweeper such as Optuna chooses the
    # values during the sweep.
    points: Sequence[Config] = ()
    # The composer that composed the points and gives them to Hydra. None if `resumes` is set,
    # because Hydra is not needed then, and if Hydra only answers a question such as --help.
    composer: Composer | None = None
    summary: bool = False  # whether to describe the model, and to train nothing
    help: str | None = None  # the answer to --help

    @property
    def argv(self) -> list[str]:
        return [*self.flags, *self.overrides]

    @property
    def trains(self) -> bool:
        return self.composer is not None or self.resumes is not None

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
    if arguments.help:
        return Command(help=_help(parser, arguments))
    return replace(_checked_command(arguments), summary=arguments.summary)


def _checked_command(arguments: Namespace) -> Command:
    flags, texts = _checked_flags(arguments), list(arguments.overrides)
    if arguments.multirun:
        arguments.overrides = texts = with_zip_sweeper(texts)
    composer = shared_composer(_absolute(arguments.config_dir))
    if arguments.cfg:
        _checked_points(composer, arguments)
    if arguments.cfg or arguments.hydra_help or arguments.info:
        return Command(flags, texts)
    resumed = folder_to_resume(texts)
    if resumed is not None:
        others = [text for text in texts if key_of(text) != "resume"]
        if is_sweep(resumed) and not (is_search(resumed) or is_confirmation(resumed)):
            return check_command_line(sweep_to_resume(resumed, others, arguments.config_dir))
        return Command(resumes=(resumed, run_to_resume(resumed, others, arguments)))
    overrides, configs = _checked_points(composer, arguments)
    for config in configs:
        require_machine(config, last_value(overrides, "hydra.launcher.executor"))
    folder = named_folder(composer, overrides, arguments)
    if arguments.multirun:
        folder = _sweep_folder(folder, overrides, configs)
        texts = with_folder(texts, "hydra.sweep.dir", folder)
        return Command(flags, texts, folder, points=configs, composer=composer)
    if folder is not None:
        resume = last_value(overrides, "resume") == "auto"
        if resume and require_same_config(Run(folder), configs[0]) is not None:
            return Command(resumes=(folder, configs[0]))
        texts = with_folder(texts, "hydra.run.dir", folder)
    return Command(flags, texts, points=configs, composer=composer)


def _checked_points(
    composer: Composer, arguments: Namespace
) -> tuple[list[Override], list[Config]]:
    """The overrides of a command line, and the configurations, which the composer remembers too.
    Raises InputError with every fault at once, and the numbers of the trials with each fault."""
    combinations, overrides, faults = combine(
        arguments.overrides, arguments.multirun, arguments.config_dir
    )
    points, composing_faults = composer.points(combinations)
    faults += [*sweeper_faults(overrides), *composing_faults]
    configs: list[Config] = []
    faulty: dict[str, list[str]] = {}
    for number, point in enumerate(points):
        config, point_faults = find_all_faults(point)
        for fault in point_faults:
            faulty.setdefault(fault, []).append(str(number))
        configs += [config] if config is not None else []
    for fault, numbers in faulty.items():
        trials = f"{'trials' if len(numbers) > 1 else 'trial'} {', '.join(numbers)}: "
        faults.append(trials + fault if len(points) > 1 else fault)
    if faults:
        raise config_error(faults)
    composer.remember(combinations, configs)
    return overrides, configs


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


# What --help says of the flags. Hydra's others are refused, or of no use here.
FLAGS = {
    "overrides": "or GROUP=CHOICE; with -m also KEY=VALUE1,VALUE2",
    "help": "show this help, the groups, and the keys with their values; train nothing",
    "multirun": "train all combinations of several values, a sweep",
    "cfg": "print the configuration (job), Hydra's own (hydra) or both (all); train nothing",
    "resolve": "with --cfg: replace interpolations by their values",
    "package": "with --cfg: print this section alone",
    "config_dir": "a folder with more choices of groups, such as FOLDER/experiment/NAME.yaml",
    "info": "print how Hydra found the configuration: all, defaults-tree, plugins or others",
    "hydra_help": "show Hydra's help",
}


def _argument_parser(docstring: str | None) -> Parser:
    """Hydra's parser, with this project's --version, --summary and help."""
    parser = command_parser(
        "train",
        docstring,
        parents=[get_args_parser()],
        add_help=False,
        conflict_handler="resolve",
    )
    parser.advice = "; settings have no dashes, for example optimizer.lr=0.1"
    version = "\n".join(f"{name} {number}" for name, number in versions().items())
    parser.add_argument("--version", action="version", version=version, help="print versions")
    parser.add_argument(
        "--summary", action="store_true", help="show layers, shapes and parameters; train nothing"
    )
    metavars = {"overrides": "KEY=VALUE", "package": "KEY", "config_dir": "FOLDER", "info": "PART"}
    for action in parser._actions:
        action.metavar = metavars.get(action.dest)
        if action.dest == "overrides":
            completed_by(action, complete)
        if action.dest not in ("version", "summary"):
            action.help = FLAGS.get(action.dest, argparse.SUPPRESS)
    return parser


def _help(parser: Parser, arguments: Namespace) -> str:
    """Raises InputError for overrides that cannot be composed."""
    combinations, _, faults = combine(arguments.overrides, arguments.multirun, arguments.config_dir)
    points, composing_faults = shared_composer(_absolute(arguments.config_dir)).points(
        combinations[:1] or [[]]  # none if a sweeper such as Optuna chooses the values
    )
    if faults or composing_faults:
        raise config_error([*faults, *composing_faults])
    return f"{parser.format_help()}\n{describe(points[0])}"


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
