"""How a command starts and ends: what is paid for each time, whatever it trains."""

import atexit
import errno
import gc
import io
import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Any, TextIO

from src.system.errors import exit_on_error

STDIN, STDOUT, STDERR = range(3)


@contextmanager
def importing() -> Iterator[None]:
    """Garbage collection rests: modules leave none, and looking for it takes a fifth of the time
    of importing Lightning. And torch's threads will sleep where they wait for one another: they
    would spin, on a busy machine for one that does not run."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def import_for_ranks() -> None:
    """Starts the process that ranks are forked from. It imports once for all of them, beside this
    one, and for later launches too."""
    multiprocessing.set_forkserver_preload(["src.training.fit", "src.training.ranks"])
    forkserver.ensure_running()


class Output(io.FileIO):
    """The standard output or error, which never fails: what cannot be written is dropped.

    The work of a command lies in files, and goes on when nobody reads its lines any more. A reader
    that has left (`| head`) is no fault. Any other is told once on the standard error, and `fault`
    keeps it.
    """

    fault: OSError | None = None
    left = False

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            if not self.left:
                return super().write(data)
        except OSError as error:
            self.left = True
            if error.errno != errno.EPIPE:
                self.fault = error
                self._tell(error)
        return len(data)

    def _tell(self, error: OSError) -> None:
        if self.fileno() == STDOUT:
            reason = f"the standard output cannot be written ({error.strerror})"
            print(f"error: {reason}; its lines are dropped", file=sys.stderr)


class Lines(logging.StreamHandler[TextIO]):
    """Prints a log, also in a process that joblib started, whose outputs are ordinary ones."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def open_outputs() -> Output:
    """Makes the standard output and error never fail; returns the standard output.

    A stream that is closed stays so: no file that is opened later gets its number, and what the
    program writes to it. Characters that the stream's encoding lacks, and bytes of a file's name
    that no character stands for, are printed as escapes. Matplotlib, which torchmetrics imports,
    is kept from telling in each command that the home folder cannot be written.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    for descriptor in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:  # the lowest number that is free is the one that is opened
            os.open(os.devnull, os.O_RDONLY if descriptor else os.O_WRONLY)
            os.set_inheritable(descriptor, True)
    outputs = []
    for name, descriptor in (("stdout", STDOUT), ("stderr", STDERR)):
        before = getattr(sys, name)  # None where it was closed
        output = Output(descriptor, "w", closefd=False)
        unbuffered = getattr(before, "write_through", False)  # by python -u
        stream = io.TextIOWrapper(
            output if unbuffered else io.BufferedWriter(output),
            getattr(before, "encoding", "utf-8"),
            "backslashreplace",
            line_buffering=name == "stderr" or output.isatty(),
            write_through=unbuffered,
        )
        if before is not None:
            before.flush()
        setattr(sys, name, stream)
        outputs.append(output)
    return outputs[0]


def note_output_fault(fault: OSError | None) -> None:
    """Lets the command end as if the fault of a rank's output were its own."""
    output = getattr(sys.stdout, "buffer", None)
    output = getattr(output, "raw", output)
    if isinstance(output, Output):
        output.fault = output.fault or fault


def run(main: Callable[[], None]) -> None:
    """Runs a command's main function and ends the process: with the status that the function ends
    with, and where it is 0 and the standard output could not be written, with 1.

    Exit functions run and streams are flushed as ever, but the interpreter is not taken apart,
    which takes a second when Lightning is loaded. An exception or a thread that still runs gets
    the ordinary end.
    """
    output = open_outputs()
    try:
        with exit_on_error():
            main()
        status = 0
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    sys.stdout.flush()
    if output.fault is not None:
        status = status or 1
    if any(not t.daemon for t in threading.enumerate() if t is not threading.main_thread()):
        sys.exit(status)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
