"""train.log of every trial, beside whatever the caller logs to."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from src.runs.folder import Run
from src.system.errors import InputError
from src.system.files import append_line
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
                append_line(run.log_file, f"{line}\n")


@contextmanager
def logging_to(runs: Sequence[Run]) -> Iterator[None]:
    """Writes the project's log into train.log too, on rank 0, beside the caller's logging."""
    if ranks.rank():
        yield
        return
    ours = logging.getLogger("src")
    level, files = ours.level, _LogFiles(runs)
    ours.setLevel(logging.INFO)
    ours.addHandler(files)
    try:
        yield
    finally:
        ours.setLevel(level)
        ours.removeHandler(files)
