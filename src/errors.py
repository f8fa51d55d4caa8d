"""Faults that the user can mend, and how a command ends with one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class InputError(Exception):
    """A wrong key, file or machine. The message names it, what is allowed, and what to type."""


@contextmanager
def door() -> Iterator[None]:
    """Ends the command with status 2 and the message alone when the body meets an InputError."""
    try:
        yield
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
