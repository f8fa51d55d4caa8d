"""Colour on terminals: errors red, warnings yellow, the best row of a table bold. And nothing else
that a text of a file could do to a terminal.

A few escape codes suffice. A library such as rich would double the time until a misspelt key is
reported, and would draw the tables anew.
"""

import io
import os
import re
import sys
from functools import cache
from typing import TextIO

RED, YELLOW, BOLD = "\x1b[31m", "\x1b[33m", "\x1b[1m"
RESET = "\x1b[0m"


# Codes that move the cursor, set the title or the clipboard, make a terminal answer, or turn the
# order of letters round. Group 1: a colour.
UNSAFE = re.compile(r"(\x1b\[[0-9;]*m)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
UNSAFE_IN_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
MOST_NAMES = 10_000
_names: dict[str, None] = {}  # of files and folders, with a line end or another code


def note_name(path: object) -> None:
    """Tells `cleaned` the path of a file or folder, which may stand in a text to be printed."""
    text = str(path)
    if UNSAFE_IN_NAME.search(text) and len(_names) < MOST_NAMES:
        parts = [part for part in text.split("/") if UNSAFE_IN_NAME.search(part)]
        if not _names.keys() >= {*parts}:
            _names.update(dict.fromkeys(parts))
            _pattern.cache_clear()


@cache
def _pattern() -> re.Pattern[str]:
    """Finds the names, longer ones first. One without a letter is a name only within a path."""
    longest = sorted(_names, key=len, reverse=True)
    return re.compile(
        "|".join((r"(?<!\w)" if re.search(r"\w", n) else "(?<=/)") + re.escape(n) for n in longest)
    )


def cleaned(text: str, stream: TextIO | None = None) -> str:
    """The text without codes for a terminal: each becomes U+FFFD. Line ends and tabs stay, except
    in names (`note_name`); so do colours if `stream`, which will get the text, has colours. On a
    terminal, a line may also begin anew, as a progress bar does."""
    if _names:
        text = _pattern().sub(lambda found: UNSAFE_IN_NAME.sub("\ufffd", found[0]), text)
    if UNSAFE.search(text) is None:
        return text
    begins = text.startswith("\r") and stream is not None and is_terminal(stream)
    colours = stream is not None and coloured(stream)
    safe = UNSAFE.sub(lambda found: found[0] if found[1] and colours else "\ufffd", text[begins:])
    return "\r" + safe if begins else safe


def write_codes(stream: TextIO, text: str) -> None:
    """Writes a text with codes for a terminal, which must not come from a file, as it is."""
    if isinstance(stream, io.TextIOWrapper):
        io.TextIOWrapper.write(stream, text)
    else:
        stream.write(text)
    stream.flush()


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
