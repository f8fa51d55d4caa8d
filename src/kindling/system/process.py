"""How a command starts and ends: its imports, outputs that cannot fail, its log, exit status."""

import atexit
import errno
import gc
import io
import logging
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

from kindling.system import warm
from kindling.system.colour import RED, YELLOW, cleaned, is_terminal, paint, tell_error, write_codes
from kindling.system.errors import InputError, exit_on_error
from kindling.system.installation import PATHS
from kindling.system.launch import launch_info

STDIN, STDOUT, STDERR = range(3)
FOR_RANKS, FOR_STACKS = "kindling.training.preload", "kindling.sweeps.preload"
PRELOADED = {FOR_RANKS, FOR_STACKS}  # only fork servers import these modules
UNGUARDED = 87  # the exit status of a process that would start the whole program again
TASKS = Path("/proc/self/task")  # has an entry for each thread of this process


@contextmanager
def importing() -> Iterator[None]:
    """Use as `with importing():` around imports of torch and Lightning. A command shows a line on
    a terminal meanwhile.

    Turns garbage collection off, which takes a fifth of their time and finds nothing. What was
    imported stays exempt from it: the first collections afterwards would take 0.4 s.

    Makes torch's threads sleep instead of spin while they wait for each other: on a busy machine
    they would spin for a thread that is not running.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    known = len(sys.modules)
    gc.disable()
    try:
        with status_line("loading libraries ..."):
            yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
            atexit.register(gc.unfreeze)  # otherwise triton reports at the end that objects leaked
        gc.enable()


@contextmanager
def status_line(text: str) -> Iterator[None]:
    """Shows a line on the terminal of a command, once for all ranks, and removes it afterwards."""
    terminal = sys.stderr
    shown = _output_of(terminal) is not None and is_terminal(terminal) and launch_info().rank == 0
    if not shown:
        yield
        return
    print(text, end="", file=terminal, flush=True)
    try:
        yield
    finally:
        write_codes(terminal, f"\r{' ' * len(text)}\r")


class ForkServerError(Exception):
    """The fork server ended before it had started a process. The next process gets a new server."""


@contextmanager
def from_fork_server() -> Iterator[None]:
    """A process is started within. Raises ForkServerError when the fork server has ended.

    A killed server closes its connections a while before its end. Until then, multiprocessing
    starts no other server.
    """
    from multiprocessing import forkserver

    try:
        yield
    except (EOFError, ConnectionError):
        process = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        if process is not None:
            with suppress(ChildProcessError, ProcessLookupError):
                os.kill(process, signal.SIGKILL)  # a server that lives would never end
                os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        raise ForkServerError from None


def import_for_ranks(*more: str, module: str = FOR_RANKS) -> None:
    """Starts the process that ranks are forked from: it imports once for all of them, as in
    `importing`, in four fifths of the time. `more`: other modules that they will need.

    In a command of the warm process, that process is a fork of this one, which has the libraries.
    """
    # A command that only asks the warm process needs nothing of it.
    from multiprocessing import forkserver, set_forkserver_preload, util

    set_forkserver_preload([module, *more])
    path = os.environ.get("PYTHONPATH", "")  # an empty one is as none
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*PATHS, path]))
    start = util.spawnv_passfds
    if warm.taken and len([*TASKS.iterdir()]) == 1:  # a fork has one thread
        util.spawnv_passfds = _fork_and_run
    try:
        forkserver.ensure_running()
    finally:
        os.environ["PYTHONPATH"] = path
        util.spawnv_passfds = start


def _fork_and_run(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """As multiprocessing's spawnv_passfds: starts a process with these descriptors and the standard
    ones, which runs the code at the end of the arguments. The process is a fork of this one."""
    from multiprocessing import forkserver

    del path
    sys.stdout.flush()
    sys.stderr.flush()
    if process := os.fork():
        return process
    try:
        gc.collect()  # later, objects would close the files that have taken their numbers
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, usual)
        close_all_but(STDIN, STDOUT, STDERR, *passfds)
        forkserver._forkserver.__init__()  # type: ignore[misc]  # its lock is held, and it is new
        exec(args[-1], {})
        os._exit(0)
    finally:
        os._exit(1)


def close_all_but(*descriptors: int) -> None:
    for entry in [*Path("/proc/self/fd").iterdir()]:
        if int(entry.name) not in descriptors:
            with suppress(OSError):  # that of the listing
                os.close(int(entry.name))


def end_if_importing() -> None:
    """Ends a process that a fork server of this project has started, if the process imports the
    program that has started the server, and the import begins to train."""
    from multiprocessing import current_process

    if getattr(current_process(), "_inheriting", False) and PRELOADED & sys.modules.keys():
        os._exit(UNGUARDED)


def unguarded_fault() -> InputError:
    """What the program is told of a process that has ended with UNGUARDED."""
    file = getattr(sys.modules["__main__"], "__file__", "the program")
    return InputError(
        f"{file}: starts processes, and each of them imports this file; put all that runs below "
        'the line if __name__ == "__main__":'
    )


def import_for_stacks() -> None:
    """As `import_for_ranks`, for the processes of executor=local."""
    import_for_ranks(module=FOR_STACKS)


class Output(io.FileIO):
    """The standard output or error; lines that cannot be written are dropped, because the results
    of a command are files.

    A reader that has closed its end (`| head`) is not a fault. Any other fault is printed once on
    the standard error and kept in `fault`.
    """

    fault: OSError | None = None
    failed = False

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            if not self.failed:
                return super().write(data)
        except OSError as error:
            self.failed = True
            if error.errno != errno.EPIPE:
                self.fault = error
                if self.fileno() == STDOUT:
                    reason = f"the standard output cannot be written ({error.strerror})"
                    tell_error(f"{reason}; its lines are dropped")
        return len(data)


class CleanText(io.TextIOWrapper):
    """A standard stream of a command. What it prints may come from a stranger's file."""

    def write(self, text: str, /) -> int:
        super().write(cleaned(text, self))
        return len(text)


class LogLines(logging.StreamHandler[TextIO]):
    """Prints log lines, on a terminal with colours: warnings, lines that begin with `!`, and the
    word `error:`. In a process of joblib, whose outputs may fail, drops lines silently."""

    def format(self, record: logging.LogRecord) -> str:
        text = cleaned(super().format(record))
        if record.levelno >= logging.ERROR:
            return text.replace("error:", paint("error:", RED, self.stream), 1)
        warns = record.levelno >= logging.WARNING
        lines = text.split("\n")
        return "\n".join(
            paint(line, YELLOW, self.stream) if warns or line.startswith("! ") else line
            for line in lines
        )

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def log_to(stream: TextIO, level: int = logging.INFO, form: str = "%(message)s") -> None:
    """Prints the log on a stream, unless this process logs already."""
    logging.basicConfig(format=form, handlers=[LogLines(stream)], level=level)


# Whether a progress bar is wanted although the standard error is no terminal.
bar_in_notebook: ContextVar[bool] = ContextVar("bar_in_notebook", default=False)


@contextmanager
def printing_log(*, wanted: bool) -> Iterator[None]:
    """Within a user's program, prints the log of the project as a command does, and in a notebook
    wants a progress bar, unless the program has handlers of its own for the log."""
    logger = logging.getLogger("kindling")
    if not wanted or logger.hasHandlers():
        yield
        return
    level, handler = logger.level, LogLines(sys.stdout)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    ipython = sys.modules.get("IPython")
    token = bar_in_notebook.set(ipython is not None and hasattr(ipython.get_ipython(), "kernel"))
    try:
        yield
    finally:
        bar_in_notebook.reset(token)
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def only_errors() -> Iterator[None]:
    """Drops the lines of the log that are not errors."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def open_outputs() -> Output:
    """Replaces the standard output and error by streams that never fail; returns the output.

    A closed stream is opened on the null device. Otherwise the next opened file would get
    descriptor 1, and printed lines would be written into it. Characters outside the encoding are
    printed as escapes. Silences Matplotlib's warning about the home folder.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    for descriptor in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(descriptor)
        except OSError:  # os.open takes the lowest free number
            os.open(os.devnull, os.O_RDONLY if descriptor else os.O_WRONLY)
            os.set_inheritable(descriptor, True)
    outputs = []
    for name, descriptor in (("stdout", STDOUT), ("stderr", STDERR)):
        before = getattr(sys, name)  # None for a closed stream
        output = Output(descriptor, "w", closefd=False)
        unbuffered = getattr(before, "write_through", False)  # by python -u
        stream = CleanText(
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


def _output_of(stream: TextIO) -> Output | None:
    """The Output below a stream of `open_outputs`; None for another stream."""
    output = getattr(stream, "buffer", None)
    output = getattr(output, "raw", output)
    return output if isinstance(output, Output) else None


def note_output_fault(fault: OSError | None) -> None:
    """Makes this command exit as if its own output had the fault of a rank's output."""
    output = _output_of(sys.stdout)
    if output is not None:
        output.fault = output.fault or fault


def run(main: Callable[[], None], *, plain: bool = False) -> None:
    """Runs a command's main function and exits with its status, or with 1 when the status is 0 and
    the standard output could not be written. `plain`: this process has done nothing else, so the
    warm process may run the command.

    Skips the interpreter's clean-up, which takes a second after Lightning was imported, except
    after an exception and with threads still running.
    """
    if plain:
        warm.hand_over(main)
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
    logging.disable()  # torch's exit functions log
    _keep_operators()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _keep_operators() -> None:
    """Spares torch the removal of its operators one by one at the exit, 0.05 s in a fork."""
    removal = getattr(sys.modules.get("torch.library"), "_del_library", None)
    for each in list(getattr(weakref.finalize, "_registry", ())):
        called = each.peek()
        if called and called[1] is removal:
            each.atexit = False
