"""Errors that the user can correct, interruptions, and how a command ends on them."""

import errno
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from kindling.system.colour import note_name, tell_error

FAULTS_SHOWN = 20
OURS = (str(Path(__file__).parents[1]), "/lightning/")  # in the paths of files


class InputError(Exception):
    """A wrong key, file or machine. The message names it, what is allowed, and what to type."""

    status = 2  # of a command that ends with it


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type if there is no message; of a
    pydantic error, the first wrong field and its fault."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, fault["loc"]))[:80]
        return f"{field}: {fault['msg'][:200]}" if field else fault["msg"][:200]
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]


def without_own_frames(error: BaseException) -> BaseException:
    """The error, in whose traceback only code of the user is left, and what that code called. An
    error that does not come from a function of the user that we call keeps its traceback."""
    frames, trace = list[TracebackType](), error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    names = [each.tb_frame.f_code.co_filename for each in frames]
    ours = [any(part in name for part in OURS) for name in names]
    called = names[max((number for number, own in enumerate(ours) if own), default=len(names)) :]
    if any(not name.startswith((*OURS, sys.prefix, sys.base_prefix)) for name in called):
        for each in [each for each, own in zip(frames, ours, strict=True) if not own][::-1]:
            trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
        error.__traceback__ = trace
    return error


def shortened(faults: Sequence[str]) -> list[str]:
    """The first FAULTS_SHOWN faults, and a line that counts the others."""
    more = len(faults) - FAULTS_SHOWN
    return [*faults[:FAULTS_SHOWN], *([f"and {more:,} more"] if more > 0 else [])]


def all_at_once(faults: Sequence[str], consequence: str) -> InputError:
    """One error for one or several faults, with a line for each of the first FAULTS_SHOWN."""
    if len(faults) == 1:
        return InputError(faults[0])
    return InputError("\n  ".join([f"{len(faults):,} faults, {consequence}", *shortened(faults)]))


# Nothing can be written: a full or read-only disk, or a limit. And nothing can be read or written:
# a failing disk, missing rights, an impossible name, or a folder that is not there.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
INACCESSIBLE = (
    errno.EIO, errno.EACCES, errno.EPERM, errno.ENOENT,
    errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
NO_TEMPORARY = "No usable temporary directory"  # tempfile's message for a full or read-only disk


@contextmanager
def storage_faults(file: object = "a file", advice: str = "") -> Iterator[None]:
    """Raises InputError instead of the OSError of a full, read-only, failing or forbidden disk, and
    of a missing folder; any other OSError passes. `file` is named when the error names none;
    `advice` follows the reason."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        note_name(error.filename or file)
        if error.errno in UNWRITABLE or reason.startswith(NO_TEMPORARY):
            fault = "cannot be written"
        elif error.errno in INACCESSIBLE:
            fault = "cannot be read or written"
        else:
            raise
        raise InputError(f"{error.filename or file}: {fault} ({reason}){advice}") from error


@contextmanager
def reading(name: object) -> Iterator[None]:
    """Raises InputError, which names the file, instead of any OSError."""
    note_name(name)
    try:
        yield
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror})") from None


@contextmanager
def parsing(fault: str, remedy: str = "") -> Iterator[None]:
    """Raises InputError, `FAULT (REASON)REMEDY`, for any Exception: hostile bytes may raise any."""
    outer = sys.exception()  # the context of all that is raised below
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        hidden = error.__context__  # zipfile takes a disk that fails for another kind of file
        failed = hidden is not outer and isinstance(hidden, OSError) and hidden.strerror
        raise InputError(f"{fault} ({failed or first_line(error)}){remedy}") from None


class Interrupted(BaseException):
    """A signal stopped a run; once training has begun there is a checkpoint. Not an Exception:
    code that catches the failure of a trial lets a signal pass. The message says how to go on."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message)
        self.number = number

    @property
    def name(self) -> str:
        return signal.Signals(self.number).name


class InterruptedByKeys(Interrupted, KeyboardInterrupt):
    """Ctrl-C in a program of the user, where `except KeyboardInterrupt` catches it."""


@contextmanager
def exit_on_interruption() -> Iterator[None]:
    """Exits with status 128 + the signal's number when the body raises Interrupted."""
    try:
        yield
    except Interrupted as interrupted:
        print(f"{interrupted.name}: {str(interrupted) or 'stopped'}", file=sys.stderr)
        raise SystemExit(128 + interrupted.number) from None


def told_of(error: Exception) -> tuple[type[Exception], Exception, TracebackType | None]:
    """An error with its traceback to print. That of an error in a user's LightningModule begins
    there: training/lightning_module.py sets `own_traceback`."""
    return type(error), error, getattr(error, "own_traceback", error.__traceback__)


@contextmanager
def exit_on_error(*, silent: bool = False) -> Iterator[None]:
    """Exits with a message instead of a traceback: with its status on an InputError, with 2 on an
    unusable disk, and with 128 + the signal's number on a signal. `silent`: rank 0 prints the
    InputError."""
    try:
        with exit_on_interruption(), storage_faults():
            yield
    except InputError as error:
        if not silent:
            tell_error(error)
        raise SystemExit(error.status) from None
    except Exception as error:
        if not hasattr(error, "own_traceback"):
            raise
        print("".join(traceback.format_exception(*told_of(error))), end="", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("SIGINT: ended before it was done", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
