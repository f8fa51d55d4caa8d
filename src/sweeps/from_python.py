"""A sweep from Python."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from src.config.overrides import parsed
from src.runs.folder import timestamped
from src.runs.sweep_folder import Sweep, row_of
from src.sweeps.command_line import Command, check_command_line
from src.sweeps.output_folder import with_folder
from src.sweeps.run_command import train_sweep
from src.system.errors import InputError

# Otherwise Hydra would replace the handlers of the program's log, and close them.
QUIET = ("hydra/job_logging=none", "hydra/hydra_logging=none")


def sweep(*overrides: str, folder: "str | os.PathLike[Any] | None" = None) -> list[dict[str, Any]]:
    """Trains every combination of the values, as `python -m src.train -m hydra/launcher=fused`
    does. Returns a dictionary for each trial, the best first: the trial's folder, and what
    results.csv has, with settings as numbers, texts and lists. `folder` is that of the sweep, by
    default sweeps/DATE/TIME. A sweep that was stopped goes on with its folder, the same overrides,
    and `resume=auto`.

    Raises InputError with all faults before anything trains.

    >>> from src.sweeps.from_python import sweep
    >>> trials = sweep("data=digits", "optimizer.lr=0.1,0.3", "seed=0,1")
    >>> trials[0]["optimizer.lr"], trials[0]["val/acc"]
    """
    where = timestamped("sweeps") if folder is None else Path(folder)
    return train(checked(overrides, where), where)


def checked(overrides: Sequence[str], where: Path) -> Command:
    """The sweep as a checked command; nothing is written yet. Raises InputError as `sweep`."""
    launched = any(text.startswith("hydra/launcher=") for text in overrides)
    texts = [*overrides, *([] if launched else ["hydra/launcher=fused"]), *QUIET]
    command = check_command_line(["-m", *with_folder(texts, "hydra.sweep.dir", where)])
    if command.sweep_dir is None:
        raise InputError(f"{' '.join(overrides)}: trains nothing; type KEY=VALUE,VALUE")
    return command


def train(command: Command, where: Path) -> list[dict[str, Any]]:
    """Trains a sweep that was checked for the folder `where`, and returns its trials as `sweep`."""
    train_sweep(command)
    ranked = Sweep(where).ranked()
    return [
        {
            "folder": where / each.run.folder.name,
            **row_of(each),
            **{key: parsed(f"{key}={text}").value() for key, text in each.overrides.items()},
        }
        for each in ranked
    ]
