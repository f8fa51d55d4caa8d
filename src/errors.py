"""Faults that the user can mend, interruptions, and how a command ends with one."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class InputError(Exception):
    """A wrong key, file or machine. The message names it, what is allowed, and what to type."""


def all_at_once(faults: Sequence[str], consequence: str) -> InputError:
    """The error of one fault or of several, a line each."""
    if len(faults) == 1:
        return InputError(faults[0])
    return InputError("\n  ".join([f"{len(faults)} faults, {consequence}", *faults]))


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
def only_interruptions() -> Iterator[None]:
    """Ends the command with 128 + the signal's number when the body is Interrupted."""
    try:
        yield
    except Interrupted as interrupted:
        print(f"{interrupted.name}: {str(interrupted) or 'stopped'}", file=sys.stderr)
        raise SystemExit(128 + interrupted.number) from None


@contextmanager
def door(*, silent: bool = False) -> Iterator[None]:
    """Ends the command with the message alone, and with status 2 when the body meets an
    InputError; Ctrl-C where nothing waits for it ends it without a traceback. `silent`: another
    rank says the same."""
    try:
        with only_interruptions():
            yield
    except InputError as error:
        if not silent:
            print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("SIGINT: ended before it was done", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
