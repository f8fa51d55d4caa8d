"""How a command starts and ends: what is paid for each time, whatever it trains."""

import atexit
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Garbage collection rests: modules leave none, and looking for it takes a fifth of the time
    of importing Lightning."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def run(main: Callable[[], None]) -> None:
    """Runs a command's main function and ends the process.

    Exit functions run and streams are flushed as ever, but the interpreter is not taken apart,
    which takes a second when Lightning is loaded. An exception or a thread that still runs gets
    the ordinary end.
    """
    try:
        main()
        status = 0
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    if any(not t.daemon for t in threading.enumerate() if t is not threading.main_thread()):
        sys.exit(status)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
