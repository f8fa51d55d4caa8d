"""Removes runs and sweeps, but never what a process trains. Nothing here imports torch."""

import fcntl
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tabulate import tabulate

from kindling.config.written import counted, printable
from kindling.records.folder import has_checkpoint, runs_of
from kindling.records.groups import NAME, read_progress
from kindling.records.lookup import BASES, TRAINED, began, kind_of, units, walk
from kindling.system.errors import InputError, first_line
from kindling.system.files import DISCARDED, discarded_name, is_discarded, read_bounded, sync
from kindling.system.units import size

LEFT = "left by a killed command"
STARTING = 3600.0  # seconds; a younger folder may be that of a command that starts


def why_in_use(folder: Path) -> str | None:
    """Which process trains in a folder or below it, or None. A process holds a lock file; one on
    another machine, whose locks may not be seen here, writes progress.json from time to time."""
    for path in _files(folder):
        if path.name.startswith(".") and path.name.endswith("lock"):
            if holder := _holder(path):
                return holder
        elif path.name == NAME:
            with suppress(InputError):
                progress = read_progress(path.parent)
                if progress and progress.host != os.uname().nodename and not progress.silent:
                    return f"process {progress.process} of {progress.host}"
    return None


def _holder(lock: Path) -> str | None:
    """The text in a lock file that a process holds, or None."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # it has just been removed, or is a link
        return None
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(InputError):
            return read_bounded(lock, 1000).decode(errors="replace")[:100].strip() or "a process"
    except OSError:  # a disk without locks: nobody trains there
        pass
    finally:
        os.close(descriptor)
    return None


def bytes_of(folder: Path) -> int:
    """How much the disk would get back."""
    total = 0
    for path in _files(folder):
        with suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


def _files(folder: Path) -> Iterator[Path]:
    for inside, _, names in os.walk(folder):
        for name in names:
            yield Path(inside, name)


def _fault(folder: Path) -> str | None:
    """Why a folder must not be removed."""
    if not os.path.lexists(folder):
        return f"{folder}: there is no such folder"
    if folder.is_symlink():
        return f"{folder}: is a link; name the folder behind it"
    if kind_of(folder) is None:
        return f"{folder}: is neither a run nor a sweep"
    holder = why_in_use(folder)
    return f"{folder}: {holder} trains there; stop it first" if holder else None


def remove(folder: Path) -> None:
    """Removes a run or a sweep, and the folder of its date if that becomes empty. If this process
    is killed, or the power is cut, `leftovers` finds the rest. Raises InputError if a process has
    begun to train there: whoever locks a file from now on sees that the file has another path."""
    discarded = folder.rename(discarded_name(folder))
    if holder := why_in_use(discarded):
        with suppress(OSError):
            discarded = discarded.rename(folder)
        raise InputError(
            f"{folder}: {holder} trains there; stop it first; nothing of {discarded} was removed"
        )
    sync(folder.parent)  # no half of the folder may come back under its name
    shutil.rmtree(discarded)
    if re.fullmatch(r"\d{4}-\d\d-\d\d", folder.parent.name):
        with suppress(OSError):
            folder.parent.rmdir()


def remove_all(reasons: Mapping[Path, str], *, ask: bool) -> str:
    """Removes folders, with a reason each, and returns a line that tells how much that freed.
    Adds what killed commands have left. Lists the folders first, and with `ask` asks on the
    terminal. Raises InputError, with a line for each fault, unless each is a run or a sweep that no
    process trains, and if there is no terminal to ask on."""
    if faults := [fault for folder in reasons if (fault := _fault(folder))]:
        raise InputError("\n  ".join(["nothing was removed", *faults]))
    listed = {**reasons, **dict.fromkeys(leftovers(), LEFT)}
    if not listed:
        return "nothing to remove"
    sizes = {folder: bytes_of(folder) for folder in listed}
    told = f"{counted(len(listed), 'folder')}, {size(sum(sizes.values()))}"
    rows = [[printable(str(each)), size(sizes[each]), why] for each, why in listed.items()]
    print(tabulate(rows, tablefmt="plain"))
    if ask:
        if not sys.stdin.isatty():
            raise InputError(f"{told}: type --yes to remove them without a question")
        if input(f"remove {told}? [y/N] ").strip().lower() not in ("y", "yes"):
            return "nothing was removed"
    for folder in reasons:
        remove(folder)
    for folder in listed.keys() - reasons.keys():
        if is_discarded(folder):  # it may have been in a sweep that is now removed
            shutil.rmtree(folder)
    return f"removed: {told}"


def leftovers() -> list[Path]:
    """What killed commands have left here and beside runs and sweeps in BASES, and no process
    uses."""
    folders = [folder for base in BASES for folder, kind in walk(Path(base)) if kind not in TRAINED]
    found = (path for folder in [Path(), *folders] for path in folder.glob(f"{DISCARDED}*"))
    return sorted(path for path in found if is_discarded(path) and why_in_use(path) is None)


def useless() -> dict[Path, str]:
    """The runs and sweeps in BASES without any weights to use or to go on from, and why: all
    failed, or nothing was trained. Not those that a process trains. Prints why a folder without
    weights cannot be judged."""
    found = ((folder, _why_useless(folder)) for folder in units())
    return {folder: why for folder, why in found if why and why_in_use(folder) is None}


def _why_useless(folder: Path) -> str | None:
    try:
        statuses = {run.result.get("status", "none") for run in runs_of(folder)}
    except InputError as error:  # damaged, and perhaps worth a repair
        if not has_checkpoint(folder):
            print(f"not removed: {first_line(error)}")
        return None
    if has_checkpoint(folder):
        return None
    if statuses == {"failed"}:
        return "failed"
    waits = (folder / ".stacks").exists()  # planned groups may wait on a cluster
    old = time.time() - began(folder) >= STARTING
    return "empty" if old and not waits and statuses <= {"none", "failed"} else None
