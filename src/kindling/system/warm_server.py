"""The warm process: it has imported the libraries, and forks for each command (warm.py).

It has one thread, and nothing of CUDA is initialised in it, so that a fork is a whole process. It
serves its user alone. It refuses what its child could not run as a process of its own: then the
command starts for itself.
"""

import ctypes
import fcntl
import functools
import importlib
import json
import os
import random
import resource
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from stat import S_ISDIR
from types import ModuleType
from typing import Any

from kindling.system import process, warm
from kindling.system.errors import InputError
from kindling.system.installation import as_command

PACKAGES = (".dist-info", ".egg-info", ".pth")  # what an installation leaves beside the modules
TICK = 0.2  # seconds between two looks at the processes that wait for commands
LARGEST = 16 * 2**20  # bytes of an order
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl
# These go through all names of the environment and keep those that begin with their own.
LOOK_AT_ALL = ("fsspec", "tqdm")
# What they keep, and what C libraries ask for. The other names that Python code asks for are
# recorded.
READ_WHEN_LOADED = (
    "ACC_", "AS_", "ATEN_", "BLIS_", "CASK_", "CU", "DNNL_", "FREETYPE_", "FSSPEC_", "GFORTRAN_",
    "GLIBC", "GOMP_", "GOTO_", "INTEL_", "I_MPI_", "KINETO_", "KMP_", "LANG", "LC_", "LD_",
    "LIBNVVM_", "LLVM_", "LOCPATH", "MALLOC_", "MKL", "MPI_", "NPY_", "NUMPY_", "NV", "OMP",
    "ONEDNN_", "OPENBLAS_", "OPENSSL_", "PSUTIL_", "PYTHON", "PYTORCH_", "TORCH", "TQDM_",
)  # fmt: skip
# Gets what was typed after the name of a command, [] at the start, for steps that make it begin
# sooner. Each is done while no command runs, and yields the files that the next ones read.
Prepare = Callable[[Sequence[str]], Iterator[Iterable[str]]]


@dataclass
class Running:
    """A command: its process here, and the process that waits for it."""

    child: int
    waiting: int
    connection: socket.socket
    typed: Sequence[str]
    stopped: bool = False


class Server:
    """Accepts commands until it is told to stop, has waited `idle` seconds without a command, or
    finds a file changed that it has imported."""

    def __init__(
        self,
        listener: socket.socket,
        lock: int,
        idle: float,
        environment: dict[str, str],
        read: set[str],
        prepare: Prepare,
    ) -> None:
        """`lock`: a descriptor, closed when no further command is accepted; `environment`: that in
        which the libraries were imported; `read`: the names of its variables that Python code
        asked for."""
        self.listener, self.lock, self.idle, self.read = listener, lock, idle, read
        self.prepare, self.work = prepare, deque([prepare([])])
        self.began = self.last = time.time()
        self.commands, self.refused = 0, ""
        self.running: dict[int, Running] = {}  # by the descriptor of the child
        self.identity = json.loads(json.dumps(warm.identity()))
        self.environment, self.path = environment, sys.path[1:]
        self.stamps = dict(_stamps())
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self.accepts = True

    def serve(self) -> Callable[[], None] | None:
        """Returns None at the end. In the child, returns the main function of a command."""
        while self.accepts or self.running:
            works = bool(self.work) and not self.running
            waits = 0.0 if self.running else self.last + self.idle - time.time()
            ready = self.selector.select(0 if works else max(0.0, waits) + TICK)
            if works and not ready:
                self._work()
            for key, _ in ready:
                if key.fileobj is self.listener:
                    main = self._accept()
                    if main is not None:
                        return main
                elif key.fd in self.running:
                    self._ended(key.fd)
            self._follow()
            if self.accepts and not self.running and time.time() > self.last + self.idle:
                self.stop()
        return None

    def _work(self) -> None:
        try:
            # A file that has changed since its stamp was read still ends this process.
            new = [name for name in next(self.work[0]) if name not in self.stamps]
            self.stamps |= _stamps(new)
        except Exception:  # the end; or a file with a fault, which a command tells
            self.work.popleft()

    def stop(self) -> None:
        """Accepts no further command. Those that run end undisturbed."""
        if self.accepts:
            self.accepts = False
            self.selector.unregister(self.listener)
            warm.socket_file().unlink(missing_ok=True)
            self.listener.close()
            os.close(self.lock)

    def _accept(self) -> Callable[[], None] | None:
        """In the child, returns the main function of a command."""
        try:
            connection, _ = self.listener.accept()
        except OSError:  # too many commands run for another descriptor
            time.sleep(TICK)
            return None
        connection.settimeout(warm.PATIENCE)
        descriptors: list[int] = []
        main, forked = None, False
        try:
            client, message, descriptors = _received(connection)
            if message != b"r":
                self._answer(connection, message)
            elif (order := self._taken(connection, descriptors)) is not None:
                main = self._fork(connection, client, order, descriptors)
                forked = True
        except (OSError, ValueError, LookupError, TypeError):  # broken off, or not an order
            pass
        if not forked:
            connection.close()
        if main is None:  # the child moves them
            for each in descriptors:
                os.close(each)
        return main

    def _taken(
        self, connection: socket.socket, descriptors: Sequence[int]
    ) -> dict[str, Any] | None:
        """The order of a command that this process takes, and that waits for it."""
        order = _read(descriptors[0]) if len(descriptors) > 1 else {}
        self.refused = next(self._refusals(order, descriptors), "")
        if self.refused:
            return None
        connection.sendall(b"y")
        if connection.recv(1) != b"g":  # the command starts for itself meanwhile
            return None
        connection.sendall(b"f")
        return order

    def _answer(self, connection: socket.socket, message: bytes) -> None:
        if message == b"q":
            self.stop()
        elif message.startswith(b"i"):
            self.idle, self.last = float(message[1:]), time.time()
        state = {
            "process": os.getpid(), "began": self.began, "idle": self.idle,
            "commands": self.commands, "running": len(self.running), "refused": self.refused,
            "works": bool(self.work),
        }  # fmt: skip
        connection.sendall(json.dumps(state).encode() + b"\n")

    def _refusals(self, order: Any, descriptors: Sequence[int]) -> Iterator[str]:
        """Why this process does not take a command."""
        if any(self.stamps[name] != stamp for name, stamp in _stamps(self.stamps)):
            self.stop()
            yield "code or packages have changed"
        if not isinstance(order, dict) or len(order["descriptors"]) + 2 != len(descriptors):
            yield "the order is incomplete"
        for name, own in self.identity.items():
            if order["identity"].get(name) != own:
                yield f"another {name}"
        own, given = self.environment, order["environment"]
        for name in sorted({*own, *given}):
            matters = name in self.read or name.startswith(READ_WHEN_LOADED)
            if matters and own.get(name) != given.get(name):
                yield f"another value of {name} in the environment"
        if name := needs_rights(order["limits"]):
            yield f"a higher {name}"
        for name in ("RLIMIT_AS", "RLIMIT_DATA"):  # which count all that was imported here
            if order["limits"][name][0] != resource.RLIM_INFINITY:
                yield f"a limit of its memory ({name})"
        if order["path"][1:] != self.path:
            yield "other folders on Python's path"
        first = order["path"][0] or str(Path(f"/proc/self/fd/{descriptors[1]}").readlink())
        if name := _hidden_by(first):
            yield f"{first} has a module {name}, which hides an installed one"
        if name := _added_by(first):
            yield f"{first} has {name}, which the warm process has not read"

    def _fork(
        self, connection: socket.socket, client: int, order: dict[str, Any], given: list[int]
    ) -> Callable[[], None] | None:
        parent, child = os.getpid(), os.fork()
        if not child:
            self.selector.close()  # collected later, it would close a file that has its number
            return functools.partial(_become, parent, order, [*given])
        self.commands += 1
        descriptor = os.pidfd_open(child)
        self.running[descriptor] = Running(child, client, connection, order["argv"][1:])
        self.selector.register(descriptor, selectors.EVENT_READ)
        with suppress(OSError):  # of a process that was killed meanwhile
            connection.sendall(warm.NUMBER.pack(child))
        connection.setblocking(False)
        return None

    def _follow(self) -> None:
        """A command stops, goes on and is killed with the process that waits for it."""
        for each in self.running.values():
            with suppress(ProcessLookupError):
                if _is_closed(each.connection):
                    os.kill(each.child, signal.SIGKILL)
                elif (_state(each.waiting) == "T") != each.stopped:
                    each.stopped = not each.stopped
                    os.killpg(each.child, signal.SIGSTOP if each.stopped else signal.SIGCONT)

    def _ended(self, descriptor: int) -> None:
        each = self.running.pop(descriptor)
        self.selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(each.child, 0)
        self.last = time.time()
        if not status:
            self.work.append(self.prepare(each.typed))
        with each.connection, suppress(OSError):
            each.connection.sendall(warm.NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _received(connection: socket.socket) -> tuple[int, bytes, list[int]]:
    """The process that connects, its message and descriptors. Raises ValueError for the process of
    another user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    client, user, _ = struct.unpack("3i", credentials)
    if user != os.getuid():
        raise ValueError("another user")
    message, descriptors, *_ = socket.recv_fds(connection, 32, warm.MOST_DESCRIPTORS)
    return client, message, descriptors


def _read(descriptor: int) -> Any:
    if os.fstat(descriptor).st_size > LARGEST:
        raise ValueError("too large")
    return json.loads(os.pread(descriptor, LARGEST, 0))


def needs_rights(limits: dict[str, Sequence[int]]) -> str:
    """The first of these limits that a child of this process could not set; "" without one."""

    def number(limit: int) -> float:
        return float("inf") if limit == resource.RLIM_INFINITY else limit

    for name, (_, hard) in limits.items():
        own = resource.getrlimit(getattr(resource, name))[1]
        if os.geteuid() and number(hard) > number(own):
            return name
    return ""


def _stamps(names: Any = None) -> Iterator[tuple[str, Any]]:
    """Size and time of each file that was imported, and the times of the packages in each folder of
    Python's path. Other files may come and go there."""
    if names is None:
        files = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
        names = {*filter(None, files), *sys.path[1:]}
    for name in names:
        try:
            found = os.stat(name)  # noqa: PTH116  # of thousands, for each command
        except OSError:
            yield name, None
        else:
            stamp = [found.st_size, found.st_mtime_ns]
            yield name, _packages(name) if S_ISDIR(found.st_mode) else stamp


def _packages(folder: str) -> list[Any]:
    with suppress(OSError), os.scandir(folder) as entries:
        return sorted(
            [entry.name, entry.stat().st_mtime_ns]
            for entry in entries
            if entry.name.endswith(PACKAGES)
        )
    return []


def _hidden_by(folder: str) -> str:
    """A module of this process in whose place Python would import a file of the folder."""
    try:
        entries = [*os.scandir(folder)] if folder not in sys.path[1:] else []
    except OSError:
        return ""
    for entry in entries:
        name, _, ending = entry.name.partition(".")
        module = sys.modules.get(name)
        if module is None or not (ending in ("py", "pyc") or ending.endswith("so") or not ending):
            continue
        if not ending and not Path(entry.path, "__init__.py").exists():
            continue
        if not Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            return str(name)
    return ""


def _added_by(folder: str) -> str:
    """What a process that begins in the folder finds there of extensions, or of Hydra's plugins."""
    if folder in sys.path[1:]:
        return ""
    if Path(folder, "hydra_plugins").is_dir():
        return "hydra_plugins"
    return next((name for name, _ in _packages(folder)), "")


def _is_closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _state(number: int) -> str:
    """The letter that the kernel gives to the state of a process; "" without the process."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _become(parent: int, order: dict[str, Any], given: list[int]) -> None:
    """Makes this process the one that the user has started, and runs its command."""
    os.setsid()
    ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    _place_descriptors(given[1], given[2:], order["descriptors"])
    os.umask(order["umask"])
    for name, limit in order["limits"].items():
        resource.setrlimit(getattr(resource, name), tuple(limit))
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    for number in warm.SENT_ON:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in order["ignored"] else usual)
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    sys.argv[:], sys.path[:] = order["argv"], order["path"]
    importlib.invalidate_caches()
    # Processes that are started anew import the module that the user has started.
    name, file = order["main"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__spec__ = None if name is None else find_spec(name)
    if file is not None:
        main.__file__ = file
    if order["typed"].startswith("python"):
        importlib.import_module("src")
    else:
        sys.modules.pop("src", None)
    signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])
    warm.taken = True
    process.run(importlib.import_module(order["module"]).main)


def _place_descriptors(here: int, given: Sequence[int], wanted: Sequence[int]) -> None:
    """Opens the descriptors of the process that the user has started under their numbers, closes
    all others, and enters its folder."""
    os.fchdir(here)
    above = max([*wanted, process.STDERR]) + 1
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in given]
    for number, each in zip(wanted, moved, strict=True):
        os.dup2(each, number)
    process.close_all_but(*wanted)
    own = [each for each in (sys.__stdin__, sys.__stdout__, sys.__stderr__) if each is not None]
    encoding = own[0].encoding if own else None
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        setattr(sys, name, None)
        if number in wanted:
            setattr(sys, name, os.fdopen(number, mode, encoding=encoding, closefd=False))


@contextmanager
def recorded() -> Iterator[set[str]]:
    """Yields the names of the variables of the environment that Python code asks for meanwhile."""
    for name in LOOK_AT_ALL:
        importlib.import_module(name)
    names = set[str]()
    usual = type(os.environ)

    class Recording(usual):  # type: ignore[misc, valid-type]
        def __getitem__(self, name: str) -> str:
            names.add(name)
            return str(super().__getitem__(name))

        def __contains__(self, name: object) -> bool:
            names.add(str(name))
            return bool(super().__contains__(name))

    os.environ.__class__ = Recording
    try:
        yield names
    finally:
        os.environ.__class__ = usual


def start(
    idle: float, libraries: Sequence[str], prepare: Prepare
) -> Callable[[], Callable[[], None] | None] | None:
    """Starts the warm process, which imports the libraries and then serves.
    Returns None, and within the warm process the function that serves: that one returns None at the
    end, and within a child the function that runs a command.

    Raises InputError where no socket can be made, and where a warm process is starting already.
    """
    lock = _locked()
    if lock is None:
        raise InputError(f"the warm process is still loading; {as_command('warm')} --status tells")
    listener = _bound()
    sys.stdout.flush()
    if os.fork():
        return None
    os.setsid()
    os.chdir("/")
    log = os.open(_file(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, each in ((process.STDIN, null), (process.STDOUT, log), (process.STDERR, log)):
        os.dup2(each, number)
    # Somebody may wait for the end of a pipe.
    process.close_all_but(0, 1, 2, lock, listener.fileno())

    def serve() -> Callable[[], None] | None:
        environment = dict(os.environ)  # importing() changes it
        with process.importing(), recorded() as read:
            for name in libraries:
                importlib.import_module(name)
        listener.listen(128)
        return Server(listener, lock, idle, environment, read, prepare).serve()

    return serve


def is_starting() -> bool:
    """Whether a warm process lives that does not answer yet."""
    with suppress(OSError):
        lock = _locked()
        if lock is not None:
            os.close(lock)
        return lock is None
    return False


def _file(ending: str) -> Path:
    """A file beside the socket. Raises InputError where this user has no folder for it."""
    file = warm.socket_file().with_suffix(ending)
    remedy = "set XDG_RUNTIME_DIR to a folder of your own"
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        private = warm.is_private(file.parent)
    except OSError as error:
        raise InputError(f"{file.parent}: cannot be made ({error.strerror}); {remedy}") from None
    if not private:
        raise InputError(
            f"{file.parent}: is no folder of yours alone; {remedy}, or remove this one"
        )
    return file


def _locked() -> int | None:
    """The descriptor of a lock that ends with its last process; None if another one has it. Raises
    InputError on a disk without locks."""
    file = _file(".lock")
    lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            return None
        raise InputError(
            f"{file}: cannot be locked ({error.strerror}); set XDG_RUNTIME_DIR to a folder of your "
            "own on a disk with locks"
        ) from None
    return lock


def _bound() -> socket.socket:
    """A socket under the name that commands look for. Until it listens, they find nobody."""
    file = _file("")
    file.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(file))
    except OSError as error:  # a long path, or a file system without sockets
        raise InputError(
            f"{file}: no socket can be made ({error.strerror or error}); set XDG_RUNTIME_DIR to a "
            "short folder of your own"
        ) from None
    return listener
