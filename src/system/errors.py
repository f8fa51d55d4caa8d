"""Faults that the user can mend, interruptions, and how a command ends with one."""

import errno
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

FAULTS_SHOWN = 20


class InputError(Exception):
    """A wrong key, file or machine. The message names it, what is allowed, and what to type."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type where the message is empty."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def shortened(faults: Sequence[str]) -> list[str]:
    """The first FAULTS_SHOWN faults, and a line that counts the others."""
    more = len(faults) - FAULTS_SHOWN
    return [*faults[:FAULTS_SHOWN], *([f"and {more:,} more"] if more > 0 else [])]


def all_at_once(faults: Sequence[str], consequence: str) -> InputError:
    """One error for one or several faults, with a line for each of the first FAULTS_SHOWN."""
    if len(faults) == 1:
        return InputError(faults[0])
    return InputError("\n  ".join([f"{len(faults):,} faults, {consequence}", *shortened(faults)]))


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or the name of its type."""
    return next(iter(str(error).splitlines()), type(error).__name__)


# A disk or a limit that lets nothing be written; and what may keep a file from being read, too:
# a disk that fails, rights, and a name that cannot be one of a file or folder.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
INACCESSIBLE = (
    errno.EIO, errno.EACCES, errno.EPERM,
    errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
NO_TEMPORARY = "No usable temporary directory"  # what tempfile says of a full or read-only disk


@contextmanager
def storage_faults(file: object = "a file", advice: str = "") -> Iterator[None]:
    """Turns the error of a full, read-only, failing or forbidden disk into an InputError; any other
    OSError is the program's own fault and passes.

    `file` is named where the error names none; `advice` says what to do, after the reason.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in UNWRITABLE or reason.startswith(NO_TEMPORARY):
            fault = "cannot be written"
        elif error.errno in INACCESSIBLE:
            fault = "cannot be read or written"
        else:
            raise
        raise InputError(f"{error.filename or file}: {fault} ({reason}){advice}") from error


class Interrupted(BaseException):
    """A signal ended a run in good order. No Exception: a trial's failure is caught, this is not.

    The message says how far the run came and what to type to go on.
    """

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message)
        self.number = number

    @property
    def name(self) -> str:
        return signal.Signals(self.number).name


@contextmanager
def exit_on_interruption() -> Iterator[None]:
    """Ends the command with 128 + the signal's number when the body is Interrupted."""
    try:
        yield
    except Interrupted as interrupted:
        print(f"{interrupted.name}: {str(interrupted) or 'stopped'}", file=sys.stderr)
        raise SystemExit(128 + interrupted.number) from None


@contextmanager
def exit_on_error(*, silent: bool = False) -> Iterator[None]:
    """Ends the command with the message alone, and with status 2 when the body meets an
    InputError or a disk that lets nothing be written; Ctrl-C where nothing waits for it ends it
    without a traceback. `silent`: another rank says the same."""
    try:
        with exit_on_interruption(), storage_faults():
            yield
    except InputError as error:
        if not silent:
            print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("SIGINT: ended before it was done", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
