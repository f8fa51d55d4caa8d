"""Colour on terminals: errors red, warnings yellow, the best row of a table bold.

A few escape codes suffice. A library such as rich would double the time until a misspelt key is
reported, and would draw the tables anew.
"""

import os
import sys
from typing import TextIO

RED, YELLOW, BOLD = "\x1b[31m", "\x1b[33m", "\x1b[1m"
RESET = "\x1b[0m"


def is_terminal(stream: TextIO) -> bool:
    """Whether lines of this stream can be drawn again."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def coloured(stream: TextIO) -> bool:
    """Whether a stream gets escape codes: a terminal, unless NO_COLOR is set (no-color.org), and
    any stream if FORCE_COLOR is set. An empty variable counts as not set."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


def paint(text: str, code: str, stream: TextIO) -> str:
    """The text in a colour, if the stream has colours. The code of each line ends in the line."""
    if not coloured(stream):
        return text
    return "\n".join(f"{code}{line}{RESET}" if line else line for line in text.split("\n"))


def with_best(table: str, *rows: int) -> str:
    """A table of tabulate, to be printed, with these rows bold. Row 0 is below the header."""
    lines = table.split("\n")
    for row in rows:
        lines[2 + row] = paint(lines[2 + row], BOLD, sys.stdout)
    return "\n".join(lines)


def tell_error(error: object) -> None:
    """Prints an error on the standard error; the word `error:` is red."""
    print(f"{paint('error:', RED, sys.stderr)} {error}", file=sys.stderr)
