"""Lines on a terminal that are drawn again in place, and progress with the time left."""

import logging
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

from tqdm import tqdm

from kindling.system.colour import cleaned, is_terminal, write_codes
from kindling.system.launch import launch_info

T = TypeVar("T")
UP, ERASE_LINE, ERASE_BELOW = "\x1b[{}A", "\x1b[K", "\x1b[J"


def progress(items: Collection[T], what: str) -> Iterable[T]:
    """The items. After a second, a terminal shows how many are done and how long the others will
    take; at the end the line is removed. Only rank 0 shows it."""
    hidden = len(items) < 2 or not is_terminal(sys.stderr) or launch_info().rank > 0
    if hidden:
        return items
    size = shutil.get_terminal_size()  # where the size is unknown, tqdm alone would draw nothing
    return tqdm(
        items, what, leave=False, delay=1, ncols=size.columns - 1, nrows=size.lines, file=sys.stderr
    )


class Area:
    """Lines at the end of the standard output, which must be a terminal. While the area is open,
    log lines go above the lines, and a progress bar of tqdm stays below them.

    `quiet` names loggers: their lines below the level WARNING, and those of the loggers below them,
    are not printed meanwhile. Loggers that are used within
    tqdm.external_write_mode() must be quiet: tqdm and a handler have a lock each, and two threads
    that log could otherwise wait for each other.
    """

    def __init__(self, quiet: Sequence[str] = ()) -> None:
        self.quiet = quiet
        self.lines: Sequence[str] = ()

    def draw(self, lines: Sequence[str]) -> None:
        """Replaces the lines. What does not fit into the width is cut off."""
        with tqdm.external_write_mode():  # clears the bar, and locks
            self._replace(lines)

    def write_above(self, text: str, stream: TextIO) -> None:
        """Writes whole lines above the lines of the area, to a stream of the same terminal."""
        with tqdm.external_write_mode():
            lines = self.lines
            self._replace(())
            stream.write(text)
            stream.flush()
            self._replace(lines)

    def _replace(self, lines: Sequence[str]) -> None:
        width = shutil.get_terminal_size().columns - 1
        up = UP.format(len(self.lines)) if self.lines else ""
        self.lines = [cleaned(line, sys.stdout)[:width] for line in lines]
        text = "".join(f"{line}{ERASE_LINE}\n" for line in self.lines)
        write_codes(sys.stdout, f"\r{up}{text}{ERASE_BELOW}")

    @contextmanager
    def open(self) -> Iterator[None]:
        """Removes the lines at the end."""
        handlers = [
            handler
            for handler in logging.getLogger().handlers
            if isinstance(handler, logging.StreamHandler)
            and handler.stream in (sys.stdout, sys.stderr)
            and handler.stream.isatty()
        ]
        streams = [handler.stream for handler in handlers]
        for handler in handlers:
            handler.setStream(_Above(self, handler.stream))
            handler.addFilter(self._is_printed)
        try:
            yield
        finally:
            for handler, stream in zip(handlers, streams, strict=True):
                handler.setStream(stream)
                handler.removeFilter(self._is_printed)
            self.draw(())

    def _is_printed(self, record: logging.LogRecord) -> bool:
        quiet = any(f"{record.name}.".startswith(f"{name}.") for name in self.quiet)
        return record.levelno >= logging.WARNING or not quiet


class _Above:
    """A stream of a terminal, whose text goes above the lines of an area."""

    def __init__(self, area: Area, stream: Any) -> None:
        self.area, self.stream = area, stream

    def write(self, text: str) -> int:
        self.area.write_above(text, self.stream)
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return True
