"""The flags of `python -m src.train`: Hydra's, without those that would skip the checks."""

import argparse
from argparse import Namespace
from pathlib import Path

from hydra._internal.utils import get_args_parser

from src.system.errors import InputError
from src.system.resources import versions


def argument_parser() -> argparse.ArgumentParser:
    """Hydra's parser, with this project's --version."""
    parser = argparse.ArgumentParser(
        parents=[get_args_parser()],
        add_help=False,
        conflict_handler="resolve",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    told = "\n".join(f"{name} {text}" for name, text in versions().items())
    parser.add_argument("--version", action="version", version=told)
    return parser


def checked_flags(arguments: Namespace) -> list[str]:
    """The given flags, written out.

    Raises InputError for flags that this project does not support, and for flags that exclude each
    other.
    """
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
    return [
        f"--{name.replace('_', '-')}" + ("" if given is True else f"={given}")
        for name, given in vars(arguments).items()
        if name != "overrides" and given not in (None, False)
    ]
