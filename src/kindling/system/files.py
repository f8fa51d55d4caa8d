"""Durable writing, safe reading of untrusted files, and locks.

The project opens files with these functions, because a folder may come from a stranger: its links
may lead to any file, and a program that reads a named pipe may wait for ever.
"""

import errno
import fcntl
import hashlib
import io
import os
import re
import shutil
import socket
import stat
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from kindling.system.colour import note_name
from kindling.system.errors import InputError, all_at_once, parsing, reading
from kindling.system.units import MIB

# A composed configuration has about 2 KB, Hydra's own record of a sweep about 10 KB.
YAML_LIMIT = MIB // 4
# Seconds to wait until the ranks (the processes of a run) end after their main process was killed.
# On a busy machine they took 5 s.
RANKS_PATIENCE = 60
LOOK = 0.2  # seconds to try again: a command that looks at a lock holds it for a moment
LINKS_ALLOWED_IN = "wandb"  # W&B's folder has links to its logs; W&B writes only into new folders
SETTLED = 100_000_000  # nanoseconds after which a file's time tells whether the file has changed
HARD_LINKS_ALLOWED = (".ckpt", ".part")  # never written in place, so hard links are harmless


# --- writing ---------------------------------------------------------------------------------


def write_durably(path: Path, content: bytes | str) -> None:
    """Replaces a file. At every instant, even at a power cut, the file is the old or the new one.

    A link is replaced, never followed. Processes that write the same file wait for each other. A
    temporary file left by a killed process is removed. Text is written as UTF-8; undecodable bytes
    of a file name in the text are written as escapes. On OSError the old file is unchanged.
    """
    _replace(path, content)
    sync(path.parent)


def _replace(path: Path, content: bytes | memoryview | str) -> None:
    """As `write_durably`, but the caller syncs the folder."""
    with _replacing(path) as (_, descriptor):
        _write(descriptor, content)


def _write(descriptor: int, content: bytes | memoryview | str) -> None:
    """Writes and syncs."""
    rest = memoryview(_encoded(content)).cast("B")
    while len(rest):
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def write_into_folder(contents: Mapping[Path, bytes | memoryview | str]) -> None:
    """As `write_durably` for each file of one folder, in this order, with one sync of the folder,
    which is made first.

    Each file is whole at every instant. If the process is killed, the files after one that is still
    the old one are old, too. After a power cut this holds on file systems that keep the order of
    renames: ext4, XFS, Btrfs and APFS do.
    """
    folders = {path.parent for path in contents}
    assert len(folders) <= 1, folders
    for folder in folders:
        make_folder(folder)
    for path, content in contents.items():
        _replace(path, content)
    for folder in folders:
        sync(folder)


def write_first(contents: Mapping[Path, bytes | str]) -> None:
    """As `write_into_folder`, unless the last file exists: then another process was first, and
    nothing is written. New files may be seen in part before the last one exists."""
    if not contents:
        return
    *others, last = contents
    make_folder(last.parent)
    with suppress(FileExistsError):
        with _replacing(last) as (_, descriptor):
            if last.exists():  # a link to nothing is replaced
                raise FileExistsError(last)
            for path in others:
                _begin(path, contents[path])
            if others:
                sync(last.parent)
            _write(descriptor, contents[last])
        sync(last.parent)


def _begin(path: Path, content: bytes | str) -> None:
    """Writes a file that may be there, of a process that was killed."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        _replace(path, content)
        return
    try:
        _write(descriptor, content)
    finally:
        os.close(descriptor)


def _encoded(content: bytes | memoryview | str) -> bytes | memoryview:
    return content.encode(errors="backslashreplace") if isinstance(content, str) else content


def make_folder(folder: Path, within: Path | None = None) -> None:
    """Makes a folder and its parents, unless they exist. The new ones survive a power cut. Neither
    `within` nor a parent of it is made: raises InputError if another command has removed it."""
    if folder == within:
        if not folder.is_dir():
            raise removed_meanwhile(folder)
        return
    try:
        folder.mkdir()
    except FileNotFoundError:
        if folder == folder.parent:  # the current folder was removed
            raise
        make_folder(folder.parent, within)
        folder.mkdir(exist_ok=True)
    except OSError:  # with a read-only parent, too, if the folder exists
        if not folder.is_dir():
            raise
        return
    sync(folder.parent)


def removed_meanwhile(folder: Path) -> InputError:
    return InputError(f"{folder}: another command has removed it meanwhile")


@contextmanager
def made_whole(folder: Path, within: Path | None = None) -> Iterator[Path]:
    """Yields a new folder, which becomes `folder` after the body, durably: at every instant,
    `folder` is whole or absent. Removes it after an exception; if the process is killed,
    `python -m src.runs clean` finds the rest. Raises InputError if `folder` exists by then, and if
    another command has removed the folder around it; `within` as for `make_folder`."""
    make_folder(folder.parent, within)
    new = folder.with_name(f"{DISCARDED}0-{uuid.uuid4().hex[:8]}")
    try:
        new.mkdir()
        new = new.rename(discarded_name(new))
        sync(folder.parent)  # so that no file in `new` outlives its name
        with lock_or_fail(new / ".lock", within=new):
            yield new
        if os.path.lexists(folder):
            raise InputError(f"{folder}: exists already; another process has made it meanwhile")
        new.rename(folder)
        sync(folder.parent)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        if isinstance(error, (OSError, InputError)) and not folder.parent.exists():
            raise removed_meanwhile(folder.parent) from None
        raise


def replace_quickly(path: Path, content: str) -> None:
    """As `write_durably`, but without a sync: readers see the old or the new file; after a power
    cut, the file may be lost."""
    with _replacing(path) as (temporary, _):
        temporary.write_text(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields an empty temporary file, which replaces `path` after the body, as durably as in
    `write_durably`. No other process replaces `path` during the body, which may therefore read it
    first. Raises InputError when the old file is not a regular file."""
    with _replacing(path) as (temporary, _):
        yield temporary
        sync(temporary)
    sync(path.parent)


@contextmanager
def _replacing(path: Path) -> Iterator[tuple[Path, int]]:
    """As `replacing`, with the descriptor of the temporary file; the caller syncs that file and the
    folder."""
    if path.exists():  # False for a link to itself
        require_regular(path, path.stat())
    temporary = temporary_path(path)
    descriptor: int | None = None
    try:
        descriptor = _new_and_locked(temporary)
        yield temporary, descriptor
        temporary.replace(path)
    except BaseException as error:
        if descriptor is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)
        raise
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _new_and_locked(path: Path) -> int:
    """The descriptor of a new, empty file, whose lock this process holds. Waits while another
    process holds the lock of such a file. Removes what else has the name, and follows no link."""
    while True:
        new = os.O_EXCL | os.O_CREAT
        try:
            descriptor = os.open(path, os.O_RDWR | new | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            new = 0
            waiting = _opened_to_wait(path)
            if waiting is None:
                continue
            descriptor = waiting
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            same = _is_at(path, descriptor)
            if same and new:
                return descriptor
            if same:  # of a killed process
                path.unlink(missing_ok=True)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _opened_to_wait(path: Path) -> int | None:
    """The descriptor of a file that another process may be writing. Anything else is removed."""
    with suppress(FileNotFoundError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            with suppress(PermissionError):
                return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        path.unlink()
    return None


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file still has this name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False


WRITERS = 16  # threads; a disk syncs 16 files in little more than the time of one
Item = TypeVar("Item")


def write_together(write: Callable[[Item], object], items: Iterable[Item]) -> None:
    """Calls `write` for each item, several at once in threads, because to write a file durably is
    mostly to wait for the disk. At most twice as many items as threads are in memory. Raises the
    first exception after the writes that had begun have ended.

    `items` should make the bytes that `write` only writes: threads that compute keep the
    interpreter from each other, so that 16 of them took 1.6 times as long as this thread alone.
    """
    pending: deque[Future[object]] = deque()
    with ThreadPoolExecutor(WRITERS) as threads:
        try:
            for item in items:
                pending.append(threads.submit(write, item))
                if len(pending) == 2 * WRITERS:
                    pending.popleft().result()
            for future in pending:
                future.result()
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def temporary_path(path: Path) -> Path:
    """The file that takes the new content before the rename."""
    return path.with_name(f".{path.name}.part")


DISCARDED = ".discarded-"


def discarded_name(folder: Path) -> Path:
    """A name beside a folder, for the time in which it is removed or is not yet whole. The name
    holds the folder's own inode, so that no folder of a user's has such a name by chance."""
    return folder.with_name(f"{DISCARDED}{folder.lstat().st_ino}-{uuid.uuid4().hex[:8]}")


def is_discarded(path: Path) -> bool:
    """Whether a path is a folder, not a link, that `discarded_name` has named, or an empty one that
    `made_whole` was about to rename."""
    named = re.fullmatch(rf"{re.escape(DISCARDED)}([0-9]+)-[0-9a-f]{{8}}", path.name)
    with suppress(OSError):
        status = path.lstat()
        if named is not None and stat.S_ISDIR(status.st_mode):
            return int(named[1]) == status.st_ino or (named[1] == "0" and not any(path.iterdir()))
    return False


def sync(path: Path) -> None:
    """Makes the content of a file, or the renames in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_text(path: Path, text: str) -> None:
    """Adds lines in one write: a kill leaves all or nothing. Raises as `require_single_name`."""
    data = _encoded(text)
    with os.fdopen(open_in_place(path, os.O_WRONLY | os.O_APPEND), "ab", buffering=0) as file:
        if file.write(data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def open_in_place(path: Path, flags: int) -> int:
    """Opens or creates a file to write in place. Raises InputError as `require_single_name`."""
    return _opened(path, flags | os.O_CREAT | os.O_NOFOLLOW, require_single_name)


def _opened(path: Path, flags: int, require: Callable[[Path, os.stat_result], None]) -> int:
    """The descriptor of a file with a status that `require` accepts. The status is looked at before
    the opening, too: a pipe waits for a writer, and opening a device may have effects."""
    with suppress(FileNotFoundError):
        require(path, path.stat(follow_symlinks=not flags & os.O_NOFOLLOW))
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        require(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_single_name(path: Path, status: os.stat_result) -> None:
    """Raises InputError for a link, for a file with a second hard link, and for anything but a
    file: writing through them would change other files or devices."""
    if stat.S_ISLNK(status.st_mode):
        raise InputError(f"{path}: is a link: writing would change the file behind it; remove it")
    require_regular(path, status)
    if status.st_nlink > 1:
        raise InputError(
            f"{path}: has a second name (a hard link), whose content would change too; put a copy "
            "in its place"
        )


def require_contained(folder: Path) -> None:
    """Raises InputError with all entries of a folder that make writing into it unsafe: links to
    targets outside, files with more than one hard link, pipes, sockets and devices.

    The folder may be a link itself, and may be absent. Links to targets inside are allowed.
    """
    faults: list[str] = []
    root = os.path.realpath(folder)
    unvisited = [str(folder)] if folder.is_dir() else []
    while unvisited:
        for entry in _entries(unvisited.pop()):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # another process has removed it in between
                continue
            if stat.S_ISLNK(status.st_mode):
                target = os.path.realpath(entry.path)
                if os.path.commonpath([root, target]) != root:
                    faults.append(f"{entry.path}: is a link to {target}")
            elif stat.S_ISDIR(status.st_mode):
                unvisited += [entry.path] if entry.name != LINKS_ALLOWED_IN else []
            elif not stat.S_ISREG(status.st_mode):
                faults.append(f"{entry.path}: is {kind(status)}")
            elif status.st_nlink > 1 and not entry.name.endswith(HARD_LINKS_ALLOWED):
                faults.append(f"{entry.path}: has a second name (a hard link)")
    if faults:
        advice = "remove these entries, because writing could change files outside the folder"
        if len(faults) == 1:
            raise InputError(f"{faults[0]}; {advice}")
        raise all_at_once(faults, advice)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with reading(folder), suppress(FileNotFoundError), os.scandir(folder) as entries:
        return list(entries)
    return []


def why_not_writable(option: str, path: Path, name: str, *, force: bool) -> list[str]:
    """One message if a command cannot write `path`, else an empty list. `option` is an option such
    as --csv. `name` is the file name to propose if `path` is a folder. With `force`, an existing
    file may be replaced."""
    typed = f"{option} {path}"
    if path.is_dir():
        return [f"{typed}: is a folder; type {option} {path / name}"]
    if not path.parent.is_dir():
        return [f"{typed}: there is no folder {path.parent}; make it first"]
    if path.exists() and not force:
        return [f"{typed}: exists already; name another file, or type --force to replace it"]
    return []


# --- reading ---------------------------------------------------------------------------------


def open_regular(path: Path) -> io.BufferedReader:
    """Opens a file for reading; links are followed. Raises InputError for a folder, pipe, socket or
    device."""
    note_name(path)
    return os.fdopen(_opened(path, os.O_RDONLY, require_regular), "rb")


def require_regular(path: Path, status: os.stat_result) -> None:
    """Raises InputError unless the status is of a regular file."""
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: is {kind(status)}, must be a file")


def kind(status: os.stat_result) -> str:
    """The kind of a special file, with its article."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFLNK: "a link",
    }
    return kinds.get(stat.S_IFMT(status.st_mode), "a device")


class FileIdentity(NamedTuple):
    """Of the content of a file, for what is read once in a process until the file is replaced."""

    device: int
    inode: int
    modified: int  # nanoseconds
    size: int

    @property
    def settled(self) -> bool:
        """Whether another content would have another identity. The clocks of file systems count in
        steps of some milliseconds, so a file can change within the step of its last change."""
        return time.time_ns() - self.modified > SETTLED


def identity_of(path: Path) -> FileIdentity | None:
    """The identity of a file as it is now; None without a file. Links are followed."""
    try:
        status = path.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    return FileIdentity(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a file. Raises InputError when it is unreadable or too large."""
    with reading(path), suppress(FileNotFoundError), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise InputError(
                f"{path}: has more than {limit:,} bytes. Kindling never writes so much there; "
                "restore the file"
            )
        return file.read(size)
    raise InputError(f"{path}: there is no such file or folder")


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits. Raises as `open_regular`."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where it is available
YAML_DEPTH = 20  # a configuration has four levels


def read_yaml(path: Path) -> Any:
    """The plain values of a YAML file. Raises InputError when the file is not YAML or too large.

    Refuses aliases, which can expand to more than the memory, deep nesting, which would exhaust a
    parser's stack, and tags such as `!!bool foo`, which change how a text is read.
    """
    return parse_yaml(read_bounded(path, YAML_LIMIT), path)


def parse_yaml(content: bytes, path: Path) -> Any:
    """As read_yaml, from the content of a file. `path` is for messages."""
    with parsing(f"{path}: cannot be read as YAML"):
        text, depth = content.decode(), 0
        for event in yaml.parse(text, LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f"it has the alias *{str(event.anchor)[:80]}")
            if depth > YAML_DEPTH:
                raise ValueError(f"it is nested more than {YAML_DEPTH} levels deep")
            tag = getattr(event, "tag", None)
            if tag is not None:
                raise ValueError(f"it has the tag {tag[:80]}")
        return yaml.load(text, LOADER)


# --- who may write ---------------------------------------------------------------------------


@contextmanager
def lock_or_fail(path: Path, patience: float = 0, within: Path | None = None) -> Iterator[int]:
    """Locks a file and yields its descriptor; removes the file at the end. The system releases the
    lock when the last process with the descriptor ends, in whatever way. Makes the folder of the
    file; `within` as for `make_folder`.

    Raises InputError when another process still holds the lock after `patience` seconds, and as
    `require_single_name`. When the process that took the lock has ended, its ranks may still hold
    the lock: if `patience` is above 0, this function then waits up to RANKS_PATIENCE seconds.
    """
    began = time.monotonic()
    while True:
        make_folder(path.parent, within)
        try:
            descriptor = open_in_place(path, os.O_RDWR)
        except FileNotFoundError:  # another command has just removed the folder
            if time.monotonic() - began < max(patience, LOOK):
                continue
            raise
        file = os.fdopen(descriptor, "r+", errors="replace")
        try:
            _flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, path)
        except BlockingIOError:
            holder = file.read(100).strip() or "another process"
            file.close()
            allowed = RANKS_PATIENCE if patience and _has_ended(holder) else max(patience, LOOK)
            if time.monotonic() - began < allowed:
                time.sleep(0.05)
                continue
            raise InputError(
                f"{path.parent}: {holder} is writing there; wait until it ends, or stop it"
            ) from None
        except InputError:
            file.close()
            raise
        if _is_at(path, file.fileno()):
            break
        file.close()  # the previous holder has removed the file meanwhile
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} of {socket.gethostname()}")
        file.flush()
        yield file.fileno()
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        file.close()


def _flock(descriptor: int, operation: int, path: Path) -> None:
    """Raises BlockingIOError if another process holds the lock, InputError without locks."""
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        raise
    except OSError as error:
        raise InputError(
            f"{path}: cannot be locked ({error.strerror}); name a folder on a disk with locks"
        ) from None


def _has_ended(holder: str) -> bool:
    """Whether the text in a lock names a process of this machine that has ended."""
    match = re.fullmatch(r"process ([0-9]{1,9}) of (.*)", holder)
    if match is None or match[2] != socket.gethostname():
        return False
    try:
        os.kill(int(match[1]), 0)
    except OSError as error:
        return error.errno == errno.ESRCH  # EPERM: the process runs, but is another user's
    return False


@contextmanager
def wait_for_lock(path: Path) -> Iterator[None]:
    """Locks a file, however long that takes; the file stays. Raises as `require_single_name`."""
    with os.fdopen(open_in_place(path, os.O_RDWR), "r+") as file:
        _flock(file.fileno(), fcntl.LOCK_EX, path)
        yield
