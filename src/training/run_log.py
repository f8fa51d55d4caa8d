"""Writes the log of the project to the train.log of every trial."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from src.runs.folder import Run
from src.system.errors import InputError
from src.system.files import append_text
from src.training import ranks


class _LogFiles(logging.Handler):
    """Appends to the train.log of every trial. Each file is opened only to write, because a stack
    may have more trials than a process may have open files."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__(logging.INFO)
        self.runs = runs
        self.setFormatter(logging.Formatter("[%(asctime)s][%(levelname)s] %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        for run in self.runs:
            with suppress(OSError, InputError):
                append_text(run.log_file, f"{line}\n")


@contextmanager
def logging_to(runs: Sequence[Run]) -> Iterator[None]:
    """On rank 0, also writes the log of the project to train.log. The caller's handlers remain."""
    if not ranks.is_rank_zero():
        yield
        return
    logger = logging.getLogger("src")
    level, files = logger.level, _LogFiles(runs)
    logger.setLevel(logging.INFO)
    logger.addHandler(files)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(files)
