"""Removes runs and sweeps, but never what a process trains. Nothing here imports torch."""

import fcntl
import os
import re
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tabulate import tabulate

from src.config.written import counted
from src.runs.folder import Run
from src.runs.group_progress import NAME, read_progress
from src.runs.lookup import BASES, TRAINED, began, kind_of, units
from src.runs.sweep_folder import Sweep
from src.system.errors import InputError
from src.system.files import read_bounded
from src.system.units import size

REMOVED = ".removed-"  # a folder that is being removed
STARTING = 3600.0  # seconds; a younger folder may be that of a command that starts


def why_in_use(folder: Path) -> str | None:
    """Which process trains in a folder or below it, or None. A process holds a lock file; one on
    another machine, whose locks may not be seen here, writes progress.json from time to time."""
    for path in _files(folder):
        if path.name.startswith(".") and path.name.endswith("lock"):
            holder = _holder(path)
            if holder is not None:
                return holder
        elif path.name == NAME:
            with suppress(InputError):
                progress = read_progress(path.parent)
                here = progress is None or progress.host == os.uname().nodename
                if progress is not None and not here and not progress.silent:
                    return f"process {progress.process} of {progress.host}"
    return None


def _holder(lock: Path) -> str | None:
    """The text in a lock file that a process holds, or None."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # it has just been removed, or is a link
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(InputError):
            return read_bounded(lock, 1000).decode(errors="replace")[:100].strip() or "a process"
        return None
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


def require_removable(folders: Sequence[Path]) -> None:
    """Raises InputError, with a line for each fault, unless each is a run or a sweep that no
    process trains."""
    faults = [fault for folder in folders if (fault := _fault(folder))]
    if faults:
        raise InputError("\n  ".join(["nothing was removed", *faults]))


def _fault(folder: Path) -> str | None:
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
    is killed, `leftovers` finds the rest."""
    doomed = folder.with_name(f"{REMOVED}{uuid.uuid4().hex[:8]}")
    folder.rename(doomed)
    shutil.rmtree(doomed)
    if re.fullmatch(r"\d{4}-\d\d-\d\d", folder.parent.name):
        with suppress(OSError):
            folder.parent.rmdir()


def remove_all(reasons: Mapping[Path, str], *, ask: bool) -> str:
    """Removes folders, with a reason each, and returns a line that tells how much that freed.
    Lists the folders first, and with `ask` asks on the terminal. Raises InputError as
    `require_removable`, and if there is no terminal to ask on."""
    require_removable([*reasons])
    rest = leftovers()
    if not reasons and not rest:
        return "nothing to remove"
    sizes = {folder: bytes_of(folder) for folder in [*reasons, *rest]}
    told = f"{counted(len(reasons), 'folder')}, {size(sum(sizes.values()))}"
    if reasons:
        rows = [[folder, size(sizes[folder]), reason] for folder, reason in reasons.items()]
        print(tabulate(rows, tablefmt="plain"))
    if ask and reasons:
        if not sys.stdin.isatty():
            raise InputError(f"{told}: type --yes to remove them without a question")
        if input(f"remove {told}? [y/N] ").strip().lower() not in ("y", "yes"):
            return "nothing was removed"
    for folder in reasons:
        remove(folder)
    for folder in rest:
        shutil.rmtree(folder)
    return f"removed: {told}"


def leftovers() -> list[Path]:
    """What a killed `remove` has left in BASES."""
    return sorted(path for name in BASES for path in Path(name).glob(f"**/{REMOVED}*"))


def useless() -> dict[Path, str]:
    """The runs and sweeps in BASES without any weights to use or to go on from, and why: all
    failed, or nothing was trained. Not those that a process trains."""
    found = {}
    for folder in units():
        reason = _why_useless(folder)
        if reason is not None and why_in_use(folder) is None:
            found[folder] = reason
    return found


def _why_useless(folder: Path) -> str | None:
    runs = [Run(folder)] if kind_of(folder) in TRAINED else Sweep(folder).runs
    try:
        statuses = {run.result.get("status", "none") for run in runs}
    except InputError:
        return None  # damaged, and perhaps worth a repair
    stacks = folder / ".stacks"
    places = [*(run.checkpoints for run in runs), *stacks.glob("**")]
    if any(True for place in places for _ in place.glob("*.ckpt")):
        return None
    if statuses == {"failed"}:
        return "failed"
    waits = stacks.exists()  # planned groups may wait on a cluster
    old = time.time() - began(folder) >= STARTING
    return "empty" if old and not waits and statuses <= {"none", "failed"} else None
