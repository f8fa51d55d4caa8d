"""Run folders by short names, for every command that takes a folder: `latest`, the name of a run,
or the beginning of a path or name. And the file with the weights of a run. Nothing here imports
torch."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from random import randrange
from typing import Literal

from kindling.config import registry
from kindling.config.faults import did_you_mean
from kindling.config.schema import LATEST, Config
from kindling.records.folder import (
    CONFIRMATION,
    MULTIRUN,
    RANGE_TEST,
    SEARCH,
    Run,
    has_checkpoint,
    is_sweep,
    resume_command,
    runs_of,
)
from kindling.records.labels import read_labels
from kindling.records.sweep_folder import Sweep
from kindling.system.arguments import Parser
from kindling.system.colour import YELLOW, note_name, paint
from kindling.system.errors import InputError, reading
from kindling.system.installation import as_command

BASES = ("runs", "sweeps", "searches")  # where commands write by default
CONFIRM, COMMITTEE = "confirm", "committee"  # folders in a sweep or a search
SHOWN = 5  # folders in a message
Kind = Literal["run", "committee", "sweep", "search", "confirmation", "lr_find"]
# The first file of each kind of sweep, the more special ones first.
SWEEP_RECORDS: Mapping[Kind, str] = {
    "confirmation": CONFIRMATION, "lr_find": RANGE_TEST, "search": SEARCH, "sweep": MULTIRUN,
}  # fmt: skip
TRAINED: Sequence[Kind] = ("run", "committee")  # with one model
SWEPT: Sequence[Kind] = ("sweep", "search")  # with settings to choose from
DATED = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}/[0-9]{2}-[0-9]{2}-[0-9]{2})(\.[0-9]+)?(/.+)?")
# The files that are as old as the folder: later ones may be younger.
RECORDS = (".hydra/config.yaml", SEARCH, CONFIRMATION, MULTIRUN, "history.csv")


def kind_of(folder: Path) -> Kind | None:
    """None for a folder that is neither a run nor a sweep."""
    if is_sweep(folder):
        return next(kind for kind, record in SWEEP_RECORDS.items() if (folder / record).exists())
    run = Run(folder)
    if not (run.config_file.exists() or run.started):
        return None
    with suppress(InputError):
        # A committee was not trained, so only of few runs the result must be read.
        if not run.history_file.exists() and "committee" in run.result:
            return "committee"
    return "run"


def units(paths: Sequence[Path] | None = None) -> Iterator[Path]:
    """The runs and whole sweeps in these folders, at any depth, by default in BASES. Trials are
    part of their sweep; its confirmation and its committee are units of their own. Links are not
    followed."""
    for path in [Path(name) for name in BASES] if paths is None else paths:
        yield from (folder for folder, kind in walk(path) if kind is not None)


def walk(folder: Path) -> Iterator[tuple[Path, Kind | None]]:
    """The folder and all below it, without trials and what is in runs, with their kinds."""
    kind = kind_of(folder)
    yield folder, kind
    if kind in TRAINED:
        return
    with suppress(OSError), os.scandir(folder) as entries:
        names = sorted(
            entry.name
            for entry in entries
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            and not (kind is not None and entry.name.isdecimal())
        )  # fmt: skip
        for name in names:
            yield from walk(folder / name)


def began(folder: Path) -> float:
    """When a run or sweep began, in seconds since 1970: from the name DATE/TIME of its folder, or
    else from its oldest file."""
    name = "/".join(folder.absolute().parts[-2:])
    for pattern in ("%Y-%m-%d/%H-%M-%S.%f", "%Y-%m-%d/%H-%M-%S"):
        with suppress(ValueError):
            return datetime.strptime(name, pattern).timestamp()
    times = []
    for record in RECORDS:
        with suppress(OSError):
            times.append((folder / record).stat().st_mtime)
    return min(times, default=0.0)


def timestamped(base: str) -> Path:
    """A folder of its own for a run or sweep that begins now: base/<date>/<time to the µs>. The
    order of the names is the order of the starts, because `latest` follows the names."""
    return Path(base, f"{_after_all():%Y-%m-%d/%H-%M-%S.%f}")


def date_last(record: Path) -> None:
    """Dates the record of a folder without a date in its name, which begins or goes on now."""
    moment = _after_all()
    with suppress(ValueError, OverflowError, OSError):  # of a clock before 1970; no rights
        os.utime(record, (moment.timestamp(), moment.timestamp()))


def _after_all() -> datetime:
    """Now. When the clock has gone back behind the newest folder in BASES, as at the end of summer
    time, a moment within a second after that folder."""
    folders = [each for name in BASES for each in Path(name).glob("[0-9]*-*-*/[0-9]*-*-*")]
    folders += Path("searches").glob("*")
    for pattern in ("sweeps/*/*", "searches/*"):
        folders += [*Path().glob(f"{pattern}/{CONFIRM}"), *Path().glob(f"{pattern}/{COMMITTEE}")]
    newest = max(map(began, folders), default=0.0)
    moment = datetime.now()
    with suppress(ValueError, OverflowError, OSError):  # of a folder beyond the calendar
        if newest >= moment.timestamp():  # two that start together get different moments
            moment = datetime.fromtimestamp(newest) + timedelta(microseconds=randrange(1, 10**6))
    return moment


def require_runs(folders: Sequence[Path]) -> None:
    """Raises InputError unless there are two or more, each of them with one model."""
    for folder in folders:
        kind = kind_of(folder)
        if kind is None:
            raise InputError(f"{folder}: is no run folder; name runs, runs/DATE/TIME")
        if kind not in TRAINED:
            raise InputError(f"{folder}: is a {kind}; name a trial, such as {folder / '0'}")
    if len(folders) < 2:
        raise InputError(f"{folders[0]}: name another run to compare with")


# --- what a command can use --------------------------------------------------------------------


def _status(run: Run) -> str | None:
    with suppress(InputError):
        return run.result.get("status")
    return None


def _has_weights(folder: Path) -> bool:
    return Run(folder).best_checkpoint.exists()


def _has_values(folder: Path) -> bool:
    """Whether a report has a curve or a model to show."""
    runs = runs_of(folder)
    return any(run.history_file.exists() or run.best_checkpoint.exists() for run in runs)


def _may_go_on(folder: Path) -> bool:
    """Not if all has failed before the first checkpoint: the same fault would come again."""
    runs = runs_of(folder)
    failed = bool(runs) and all(_status(run) == "failed" for run in runs)
    return not failed or has_checkpoint(folder)


def _has_finished(least: int, folder: Path) -> bool:
    """Whether so many trials have finished."""
    finished = (run for run in runs_of(folder) if _status(run) == "finished")
    return len([*islice(finished, least)]) == least


@dataclass(frozen=True)
class Use:
    """What a command does with a folder. `latest` is the newest folder of these kinds (empty: of
    any) that the command `can_use`; `wanted` names such a folder in messages. A command that `asks`
    changes what is there, so a name must be that of one folder."""

    kinds: Sequence[Kind] = ()
    can_use: Callable[[Path], bool] = lambda _: True
    wanted: str = "run or sweep"
    asks: bool = False

    def accepts(self, folder: Path) -> bool:
        with suppress(OSError):  # another folder may be readable
            return (not self.kinds or kind_of(folder) in self.kinds) and self.can_use(folder)
        return False


ANY = Use(asks=True)
MODEL = Use(TRAINED, _has_weights, "run with weights")
FINISHED = Use(("run",), lambda f: _has_weights(f) and _status(Run(f)) == "finished",
               "finished run with weights")  # fmt: skip
RESUMED = Use(("run", "sweep"), _may_go_on, "run or sweep that can go on")
RESUMED_SEARCH = Use(("search",), _may_go_on, "search")
CONFIRMED = Use(SWEPT, partial(_has_finished, 1), "sweep or search with a finished trial")
COMBINED = Use(SWEPT, partial(_has_finished, 2), "sweep or search with two finished trials")
NEWEST_SWEEP = Use(SWEPT, wanted="sweep or search", asks=True)
REPORTED = Use((*TRAINED, *SWEPT, "confirmation"), _has_values, "run or sweep with an epoch")
WATCHED = Use(REPORTED.kinds, _may_go_on, "run or sweep that can go on")


# --- short names -------------------------------------------------------------------------------


def finder(use: Use = ANY, *, whole: bool = False) -> Callable[[str], Path]:
    """`find` as the type of a command's argument."""
    return partial(find, use=use, whole=whole)


def add_run(parser: Parser) -> None:
    """The argument RUN of a command that uses one model."""
    purpose = "a run folder, or a checkpoint file"
    parser.add_argument(
        "run", type=finder(MODEL), metavar="RUN", help=purpose, completer=typed_folders
    )


def find(text: str, use: Use = ANY, *, whole: bool = False) -> Path:
    """The path that `text` stands for: itself, if there is such a file or folder; else a run or a
    sweep by its name, or by the beginning of its name, path, DATE/TIME or TIME; `latest` is the
    newest that has this use. `…/3` is the trial 3 of such a sweep, `latest/3` that of the newest
    sweep or search.

    With `whole`, a beginning is not enough. If several match, those with this use go before the
    others, as a finished run before the failed one whose name it took over. Of several with the
    name, the newest is meant, and told, unless the command asks. Returns the path of
    `text` if nothing matches: commands say what they expect. Raises InputError if still several
    match, and if there is no newest.
    """
    path = Path(text)
    note_name(text)
    if os.path.lexists(path) or path.is_absolute() or text.startswith(".") or not text:
        return path
    found = list(units())
    if text == LATEST:
        newest = next(filter(use.accepts, sorted(found, key=began, reverse=True)), None)
        if newest is None:
            where = ", ".join(BASES)
            raise InputError(f"{LATEST}: there is no {use.wanted} in {where}; name a folder")
        return newest
    matches = _matches(text, found, whole=whole)
    if len(matches) > 1:
        matches = [folder for folder in matches if use.accepts(folder)] or matches
    if len(matches) > 1 and not use.asks and set(_names(matches).values()) == {text}:
        newest = max(matches, key=began)
        told = f"{text}: the newest of {len(matches)} folders with this name is {newest}"
        print(paint(told, YELLOW, sys.stderr), file=sys.stderr)
        return newest
    if len(matches) > 1:
        some = ", ".join(map(str, matches[:SHOWN])) + (", …" if len(matches) > SHOWN else "")
        raise InputError(
            f"{text}: may be one of {len(matches)} folders; type one of them, or more of the name: "
            f"{some}"
        )
    if matches:
        return matches[0]
    head, _, number = text.rpartition("/")
    if (
        head
        and re.fullmatch("[0-9]{1,9}", number)
        and (trial := find(head, NEWEST_SWEEP, whole=whole) / number).exists()
    ):
        return trial
    return path


def with_name(name: str) -> list[Path]:
    """The runs and sweeps that have this name."""
    return [folder for folder, known in _names([*units()]).items() if known == name]


def typed_folders(prefix: str, **_: object) -> list[str]:
    """What Tab completes for `find`: `latest`, the names, and the paths of runs and sweeps."""
    found = list(units())
    names = [LATEST, *filter(None, _names(found).values()), *map(str, found)]
    return [name for name in names if name.startswith(prefix)]


def to_the_second(folder: Path) -> str | None:
    """DATE/TIME of a run or sweep in BASES, and the path in the folder of a sweep; None for folders
    with other names."""
    text = "/".join(folder.parts[1:])
    found = DATED.fullmatch(text)
    return found[1] + (found[3] or "") if found else None


def _names(folders: Sequence[Path]) -> dict[Path, str]:
    names: dict[Path, str] = {}
    for folder in folders:
        with suppress(InputError):
            names[folder] = read_labels(folder).name or ""
    return names


def _matches(text: str, folders: Sequence[Path], *, whole: bool) -> list[Path]:
    """The folders with this name or DATE/TIME, or else, unless it must be `whole`, those whose name
    or path begins with it."""
    names = _names(folders)
    exact = [folder for folder in folders if text in (names.get(folder), to_the_second(folder))]
    if exact or whole:
        return exact

    def begins(folder: Path) -> bool:
        texts = (names.get(folder, ""), str(folder), "/".join(folder.parts[1:]), folder.name)
        return any(each.startswith(text) for each in texts)

    return [*filter(begins, folders)]


# --- weights -----------------------------------------------------------------------------------


def config_of(path: Path) -> Config | None:
    """The configuration of a run folder; None for a checkpoint file, which only torch opens."""
    return Run(path).config if Run(path).config_file.exists() else None


def refuse_lightning_module(model: object, file: Path) -> None:
    """Raises InputError if the choice of `model` is a LightningModule."""
    if registry.is_lightning("model", model):
        raise InputError(
            f"{file}: has the weights of model={model}, a LightningModule, which only its own code "
            f"can use; in Python, load_from_checkpoint({str(file)!r}, ...) of its class opens them"
        )


def checkpoint_of(path: Path) -> Path:
    """The best checkpoint of a run folder; the path of a file is returned as it is. Raises
    InputError when there is no such file; for a sweep, with the best trial that has weights. Does
    not import torch."""
    with reading(path):
        if path.is_file():
            return path
        file = Run(path).best_checkpoint
        if file.exists():
            return file
        exists = path.exists()
    if not exists:
        names = [*filter(None, _names([*units()]).values())]
        raise InputError(
            f"{path}: there is no such file or folder{did_you_mean(str(path), names)}; name a run, "
            "runs/DATE/TIME"
        )
    if Run(path).config_file.exists() and (reason := Run(path).why_no_weights):
        raise InputError(reason)
    if is_sweep(path):
        runs = (outcome.run for outcome in Sweep(path).ranked())
        best = next((run.folder for run in runs if run.best_checkpoint.exists()), None)
        if best is None:
            raise InputError(
                f"{path}: is a sweep of which no trial has weights; to train on, type "
                f"{resume_command(path)}"
            )
        raise InputError(
            f"{path}: is a sweep; name one of its trials, such as the best one, {best}"
        )
    raise InputError(
        f"{path}: is not a run folder, it has no checkpoints/best.ckpt; name a folder that "
        f"`{as_command('train')}` wrote (runs/<date>/<time>) or a .ckpt file"
    )
