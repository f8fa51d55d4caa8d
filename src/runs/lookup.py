"""Run folders by short names, for every command that takes a folder: `latest`, the name of a run,
or the beginning of a path or name. Nothing here imports torch."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

from src.config.schema import LATEST
from src.runs.folder import Run, is_confirmation, is_search, is_sweep
from src.runs.labels import read_labels
from src.system.errors import InputError

BASES = ("runs", "sweeps", "searches")  # where commands write by default
SHOWN = 5  # folders in a message
Kind = Literal["run", "committee", "sweep", "search", "confirmation"]
TRAINED: Sequence[Kind] = ("run", "committee")  # with one model
# The files that are as old as the folder: later ones may be younger.
RECORDS = (".hydra/config.yaml", "search.yaml", "confirm.yaml", "multirun.yaml", "history.csv")


def kind_of(folder: Path) -> Kind | None:
    """None for a folder that is neither a run nor a sweep."""
    if is_confirmation(folder):
        return "confirmation"
    if is_sweep(folder):
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


def finder(*kinds: Kind, whole: bool = False) -> Callable[[str], Path]:
    """`find` as the type of a command's argument."""

    def path(text: str) -> Path:
        return find(text, *kinds, whole=whole)

    return path


def find(text: str, *kinds: Kind, whole: bool = False) -> Path:
    """The path that `text` stands for: itself, if there is such a file or folder; else a run or a
    sweep by its name, or by the beginning of its name, path, DATE/TIME or TIME; `latest` is the
    newest of these kinds (default: any). `…/3` is the trial 3 of such a sweep.

    With `whole`, a beginning is not enough. Returns the path of `text` if nothing matches: commands
    say what they expect. Raises InputError if several match, and if there is no newest.
    """
    path = Path(text)
    if os.path.lexists(path) or path.is_absolute() or text.startswith(".") or not text:
        return path
    found = list(units())
    if text == LATEST:
        asked = [folder for folder in found if not kinds or kind_of(folder) in kinds]
        if not asked:
            what = " or ".join(kinds or ("run", "sweep"))
            raise InputError(f"{LATEST}: there is no {what} in {', '.join(BASES)}; name a folder")
        return max(asked, key=began)
    matches = _matches(text, found, whole=whole)
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
        and (trial := find(head, whole=whole) / number).exists()
    ):
        return trial
    return path


def typed_folders(prefix: str, **_: object) -> list[str]:
    """What Tab completes for `find`: `latest`, the names, and the paths of runs and sweeps."""
    found = list(units())
    names = [LATEST, *filter(None, _names(found).values()), *map(str, found)]
    return [name for name in names if name.startswith(prefix)]


def _names(folders: Sequence[Path]) -> dict[Path, str]:
    names: dict[Path, str] = {}
    for folder in folders:
        with suppress(InputError):
            names[folder] = read_labels(folder).name or ""
    return names


def _matches(text: str, folders: Sequence[Path], *, whole: bool) -> list[Path]:
    """The folders with this name, or else, unless it must be `whole`, those whose name or path
    begins with it."""
    names = _names(folders)
    exact = [folder for folder, name in names.items() if name == text]
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
