"""Run folders by short names, for every command that takes a folder: `latest`, the name of a run,
or the beginning of a path or name. Nothing here imports torch."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from src.config.schema import LATEST
from src.runs.folder import Run, is_confirmation, is_range_test, is_search, is_sweep
from src.runs.labels import read_labels
from src.system.errors import InputError

BASES = ("runs", "sweeps", "searches")  # where commands write by default
SHOWN = 5  # folders in a message
Kind = Literal["run", "committee", "sweep", "search", "confirmation", "lr_find"]
TRAINED: Sequence[Kind] = ("run", "committee")  # with one model
SWEPT: Sequence[Kind] = ("sweep", "search")  # with settings to choose from
DATED = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}/[0-9]{2}-[0-9]{2}-[0-9]{2})(\.[0-9]+)?(/.+)?")
# The files that are as old as the folder: later ones may be younger.
RECORDS = (".hydra/config.yaml", "search.yaml", "confirm.yaml", "multirun.yaml", "history.csv")


def kind_of(folder: Path) -> Kind | None:
    """None for a folder that is neither a run nor a sweep."""
    if is_confirmation(folder):
        return "confirmation"
    if is_sweep(folder):
        if is_range_test(folder):
            return "lr_find"
        return "search" if is_search(folder) else "sweep"
    run = Run(folder)
    if not (run.config_file.exists() or run.started):
        return None
    with suppress(InputError):
        if "committee" in run.result:
            return "committee"
    return "run"


def units(paths: Sequence[Path] | None = None) -> Iterator[Path]:
    """The runs and whole sweeps in these folders, at any depth, by default in BASES. Trials are
    part of their sweep; its confirmation and its committee are units of their own. Links are not
    followed."""
    for path in [Path(name) for name in BASES] if paths is None else paths:
        yield from _below(path)


def _below(folder: Path) -> Iterator[Path]:
    kind = kind_of(folder)
    if kind is not None:
        yield folder
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
            yield from _below(folder / name)


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


def _runs(folder: Path) -> list[Run]:
    """The run, or the trials of a sweep."""
    if not is_sweep(folder):
        return [Run(folder)]
    with suppress(OSError), os.scandir(folder) as entries:
        return [Run(Path(entry.path)) for entry in entries if entry.name.isdecimal()]
    return []


def _status(run: Run) -> str | None:
    with suppress(InputError):
        return run.result.get("status")
    return None


def _has_weights(folder: Path) -> bool:
    return Run(folder).best_checkpoint.exists()


def _has_values(folder: Path) -> bool:
    """Whether a report has a curve or a model to show."""
    return any(run.history_file.exists() or run.best_checkpoint.exists() for run in _runs(folder))


def _may_go_on(folder: Path) -> bool:
    """Not if all has failed before the first checkpoint: the same fault would come again."""
    runs = _runs(folder)
    stacks = (folder / ".stacks").glob("*/*.ckpt")
    return (
        not runs
        or any(_status(run) != "failed" or run.checkpoint_exists for run in runs)
        or any(True for _ in stacks)
    )


def _has_finished(least: int) -> Callable[[Path], bool]:
    """Whether so many trials have finished."""

    def has_finished(folder: Path) -> bool:
        count = 0
        for run in _runs(folder):
            count += _status(run) == "finished"
            if count == least:
                return True
        return False

    return has_finished


@dataclass(frozen=True)
class Use:
    """What a command does with a folder. `latest` is the newest folder of these kinds (empty: of
    any) that the command `can_use`; `wanted` names such a folder in messages."""

    kinds: Sequence[Kind] = ()
    can_use: Callable[[Path], bool] = lambda _: True
    wanted: str = "run or sweep"

    def accepts(self, folder: Path) -> bool:
        return (not self.kinds or kind_of(folder) in self.kinds) and self.can_use(folder)


ANY = Use()
MODEL = Use(TRAINED, _has_weights, "run with weights")
FINISHED = Use(("run",), lambda f: _has_weights(f) and _status(Run(f)) == "finished",
               "finished run with weights")  # fmt: skip
RESUMED = Use(("run", "sweep"), _may_go_on, "run or sweep that can go on")
RESUMED_SEARCH = Use(("search",), _may_go_on, "search")
CONFIRMED = Use(SWEPT, _has_finished(1), "sweep or search with a finished trial")
COMBINED = Use(SWEPT, _has_finished(2), "sweep or search with two finished trials")
NEWEST_SWEEP = Use(SWEPT, wanted="sweep or search")
REPORTED = Use((*TRAINED, *SWEPT, "confirmation"), _has_values, "run or sweep with an epoch")
WATCHED = Use(REPORTED.kinds, _may_go_on, "run or sweep that can go on")


# --- short names -------------------------------------------------------------------------------


def finder(use: Use = ANY, *, whole: bool = False) -> Callable[[str], Path]:
    """`find` as the type of a command's argument."""

    def path(text: str) -> Path:
        return find(text, use, whole=whole)

    return path


def find(text: str, use: Use = ANY, *, whole: bool = False) -> Path:
    """The path that `text` stands for: itself, if there is such a file or folder; else a run or a
    sweep by its name, or by the beginning of its name, path, DATE/TIME or TIME; `latest` is the
    newest that has this use. `…/3` is the trial 3 of such a sweep, `latest/3` that of the newest
    sweep or search.

    With `whole`, a beginning is not enough. If several match, those with this use go before the
    others, as a finished run before the failed one whose name it took over. Returns the path of
    `text` if nothing matches: commands say what they expect. Raises InputError if still several
    match, and if there is no newest.
    """
    path = Path(text)
    if os.path.lexists(path) or path.is_absolute() or text.startswith(".") or not text:
        return path
    found = list(units())
    if text == LATEST:
        return _newest(found, use)
    matches = _matches(text, found, whole=whole)
    if len(matches) > 1:
        matches = [folder for folder in matches if use.accepts(folder)] or matches
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


def _newest(folders: Sequence[Path], use: Use) -> Path:
    for folder in sorted(folders, key=began, reverse=True):
        if use.accepts(folder):
            return folder
    raise InputError(f"{LATEST}: there is no {use.wanted} in {', '.join(BASES)}; name a folder")


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
    return [
        folder
        for folder in folders
        if any(
            candidate.startswith(text)
            for candidate in (
                names.get(folder, ""), str(folder), "/".join(folder.parts[1:]), folder.name,
            )
        )
    ]  # fmt: skip
