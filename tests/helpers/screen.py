"""What stands on a terminal after some output."""

import io
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from unittest.mock import patch

TOKEN = re.compile(r"\x1b\[(\d*)([A-Za-z])|(.)", re.DOTALL)


def screen(output: str) -> list[str]:
    """The lines of a terminal, without blank ones at the end. Knows the few control sequences that
    the project and tqdm print, and fails for any other."""
    lines, row, column = [""], 0, 0
    for match in TOKEN.finditer(output.replace("\r\n", "\n")):
        number, command, character = match.groups()
        if command == "A":
            row -= int(number or 1)
            assert row >= 0, "above the first line"
        elif command == "K":
            lines[row] = lines[row][:column]
        elif command == "J":
            lines[row:] = [lines[row][:column]]
        elif command == "m":  # a colour
            pass
        elif command is not None:
            raise AssertionError(f"unknown: {match[0]!r}")
        elif character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in "\n".join(lines).rstrip().split("\n")]


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> list[str]:
        return screen(self.getvalue())


@contextmanager
def terminal(columns: int = 100, lines: int = 30) -> Iterator[Terminal]:
    """A terminal as the standard output and error, with the log of the project."""
    found = Terminal()
    size = {"TERM": "xterm", "COLUMNS": str(columns), "LINES": str(lines)}
    handler, logger = logging.StreamHandler(found), logging.getLogger("kindling")
    level = logger.level
    with redirect_stdout(found), redirect_stderr(found), patch.dict(os.environ, size):
        logging.getLogger().addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield found
        finally:
            logger.setLevel(level)
            logging.getLogger().removeHandler(handler)
