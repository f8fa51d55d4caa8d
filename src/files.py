"""Files that survive a crash, files that strangers sent, and who may write."""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from src.errors import InputError

MIB = 2**20
# A composed configuration has some 2 KB, Hydra's own record of a sweep some 10 KB.
YAML_LIMIT = MIB // 4


def write_durably(path: Path, content: bytes | str) -> None:
    """The file is the old one or the new one at every instant, and after a power cut too.

    Written beside the target, synced, renamed over it, and the folder synced. One writer at a
    time: what a killed one left is overwritten by the next. Text is UTF-8; the bytes of a file's
    name that no character stands for are written as escapes. Raises OSError with the old file as
    it was.
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    with replacing(path) as part:
        part.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """As write_durably, for a body that writes the file it is given, and may test it.

    When the body raises, whatever it is, the old file stays and the new one is removed.
    """
    part = beside(path)
    try:
        yield part
        with part.open("r+b") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)
        raise
    sync_folder(path.parent)


def beside(path: Path) -> Path:
    """Where the next content of a file is gathered."""
    return path.with_name(f".{path.name}.part")


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, line: str) -> None:
    """Adds a line in one write: a killed process leaves all of it or nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        data = line.encode()
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a file of at most `limit` bytes. Raises InputError for any other."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file or folder") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) > limit:
        raise InputError(f"{path}: has more than {limit:,} bytes, which none of this project has")
    return content


LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where it was built
YAML_DEPTH = 20  # a configuration has four levels


def read_yaml(path: Path) -> Any:
    """Plain values. Raises InputError for what is no YAML, has tags, or is too large.

    Aliases are refused, a few lines of them stand for more than memory holds; and so is nesting
    that would exhaust the stack of a parser.
    """
    content = read_bounded(path, YAML_LIMIT)
    try:
        text, depth = content.decode(), 0
        for event in yaml.parse(text, LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > YAML_DEPTH:
                raise ValueError("it has aliases or is nested too deeply")
        return yaml.load(text, LOADER)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: cannot be read as YAML ({reason})") from None


@contextmanager
def lock(path: Path, patience: float = 0) -> Iterator[int]:
    """Holds a file's lock and gives the file's descriptor. The system releases the lock when the
    last process that has the descriptor ends, however it ends.

    Raises InputError when another process holds it for `patience` more seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + patience
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(100).strip() or "another process"
            file.close()
            if time.monotonic() < until:
                time.sleep(0.05)
                continue
            raise InputError(
                f"{path.parent}: {holder} is writing there; wait until it ends, or stop it"
            ) from None
        if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
            break
        file.close()  # the one before removed it in between
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} of {socket.gethostname()}")
        file.flush()
        yield file.fileno()
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        file.close()
