"""Hands a command over to the warm process, if there is one (warm_server.py).

The warm process has imported the libraries. It forks, and its child becomes the command: with the
arguments, environment, folder, descriptors and limits of the process that the user has started.
That process only waits. It sends each signal on, and ends as the child ends.
"""

import fcntl
import json
import os
import resource
import signal
import socket
import stat
import struct
import sys
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NoReturn

from kindling.system.installation import PACKAGE, as_command

SWITCH = "KINDLING_WARM"  # `off` in the environment: commands start for themselves
PATIENCE = 2.0  # seconds until a warm process that does not answer is left alone
MOST_DESCRIPTORS = 253  # the kernel's limit for one message
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
# Lines of /proc/self/status: rights that a process gets when it is started.
RIGHTS = ("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "CapPrm", "CapEff", "CapBnd", "CapAmb")
# What a scheduler or a terminal may send. The other signals tell a process of its own faults.
SENT_ON = {
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGTERM, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH, signal.SIGXCPU,
}  # fmt: skip
BY_KERNEL = 0x80  # si_code of a signal that a terminal has sent to all its processes
NUMBER = struct.Struct("<q")  # an answer: the number of the process, and later its exit status

# Whether this process is a child of the warm process already.
taken = False


def available() -> bool:
    return sys.platform == "linux"


def folder() -> Path:
    """The folder of the socket, which only this user can enter."""
    base = os.environ.get("XDG_RUNTIME_DIR") or os.environ.get("TMPDIR") or "/tmp"
    return Path(base) / f"kindling-warm-{os.getuid()}"


def socket_file() -> Path:
    """A name for each interpreter and copy of the package."""
    of = json.dumps([sys.executable, sys.prefix, str(PACKAGE)])
    return folder() / f"{zlib.crc32(of.encode()):08x}"  # of hashlib alone the import takes 10 ms


def is_private(place: Path) -> bool:
    """Whether this user alone can put a socket into the folder."""
    found = place.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o77


def connected() -> socket.socket | None:
    """A connection to the warm process of this user; None without one."""
    with suppress(OSError):
        file = socket_file()
        if not file.exists() or not is_private(file.parent):
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(PATIENCE)
            connection.connect(str(file))
        except OSError:
            connection.close()
            return None
        return connection
    return None


def identity() -> dict[str, Any]:
    """What a child cannot change: it must be the same in the warm process and in the command."""
    from kindling.system.resources import is_limited  # needed only where there is a warm process

    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    root = Path("/").stat()
    return {
        "interpreter": [sys.executable, sys.prefix, sys.version],
        "options of Python": [list(sys.flags), sys.warnoptions, list(sys._xoptions.items())],
        "rights": [status.get(name, "").split() for name in RIGHTS],
        "namespaces": [str(Path("/proc/self/ns", name).readlink()) for name in NAMESPACES],
        "root folder": [root.st_dev, root.st_ino],
        "control group": Path("/proc/self/cgroup").read_text() if is_limited() else "",
        "cores": sorted(os.sched_getaffinity(0)),
        "scheduling": [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)],
        "stack": resource.getrlimit(resource.RLIMIT_STACK),
    }


def limits() -> dict[str, tuple[int, int]]:
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {name: resource.getrlimit(getattr(resource, name)) for name in names}


def _module_of(main: Callable[[], None]) -> str:
    """The module from which the function can be imported; "" for that of a file without a name."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return getattr(spec, "name", "") if main.__module__ == "__main__" else main.__module__


def _order(main: Callable[[], None], descriptors: list[int], blocked: set[int]) -> dict[str, Any]:
    module = sys.modules["__main__"]
    umask = os.umask(0o77)
    os.umask(umask)
    return {
        "identity": json.loads(json.dumps(identity())),
        "module": _module_of(main),
        "argv": sys.argv,
        "path": sys.path,
        "typed": as_command(""),
        "main": [getattr(module.__spec__, "name", None), getattr(module, "__file__", None)],
        "environment": dict(os.environ),
        "descriptors": descriptors,
        "umask": umask,
        "limits": limits(),
        "ignored": [
            int(each) for each in SENT_ON | {signal.SIGPIPE}
            if signal.getsignal(each) == signal.SIG_IGN
        ],
        "blocked": [int(each) for each in blocked],
    }  # fmt: skip


def _inherited() -> list[int]:
    """The descriptors that the parent of this process has given it. Python's own are not handed on
    to other programs."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if os.get_inheritable(int(entry.name)):
                found.append(int(entry.name))
    return sorted(found)


def _in_background() -> bool:
    """Whether this process would be stopped when it reads from its terminal."""
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        return False


def hand_over(main: Callable[[], None]) -> None:
    """Lets the warm process run the main function of a command, and ends as the command ends.

    Returns where no warm process takes the command: there is none, its code is older, or it has
    other rights, limits or variables of the environment that libraries read when they are imported.
    """
    if taken or not available() or os.environ.get(SWITCH) == "off":
        return
    if sys.gettrace() or sys.getprofile() or _in_background() or not _module_of(main):
        return
    connection = connected()
    if connection is None:
        return
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SENT_ON)
    with closing(connection):
        if (child := _asked(connection, main, blocked)) is not None:
            _wait(connection, child)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _asked(connection: socket.socket, main: Callable[[], None], blocked: set[int]) -> int | None:
    """The process of the command; None if the warm process does not take the command."""
    descriptors = _inherited()
    if len(descriptors) + 2 > MOST_DESCRIPTORS:
        return None
    with suppress(OSError, ValueError):
        here = os.open(".", os.O_PATH | os.O_DIRECTORY)
        content = os.memfd_create("order")
        try:
            os.pwrite(content, json.dumps(_order(main, descriptors, blocked)).encode(), 0)
            socket.send_fds(connection, [b"r"], [content, here, *descriptors])
        finally:
            os.close(here)
            os.close(content)
        if connection.recv(1) != b"y":
            return None
        connection.settimeout(None)
        connection.sendall(b"g")
        if connection.recv(1) == b"f":  # from here on the command is run there, or not at all
            answer = connection.recv(NUMBER.size, socket.MSG_WAITALL)
            return NUMBER.unpack(answer)[0] if answer else 0
    return None


def _wait(connection: socket.socket, child: int) -> NoReturn:
    """Sends signals on to the child until it has ended; ends in the same way."""
    process = None
    with suppress(OSError):  # it has ended already
        process = os.pidfd_open(child)
    # The kernel tells of an answer by a signal too, so that one call waits for both.
    watched = {*SENT_ON, signal.SIGIO}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    status = _status(connection)
    while status is None:
        told = signal.sigwaitinfo(watched)
        if told.si_signo != signal.SIGIO and process is not None:
            _send_on(told, child, process)
        status = _status(connection)
    if status >= 0:
        os._exit(status)
    # A signal has ended the command, perhaps with a core file of its own.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # SIGKILL has no handler
        signal.signal(-status, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
    os.kill(os.getpid(), -status)
    os._exit(128 - status)


def _status(connection: socket.socket) -> int | None:
    """The exit status of the command, or minus the signal that ended it; None while it runs."""
    try:
        answer = connection.recv(NUMBER.size)
    except BlockingIOError:
        return None
    except OSError:
        answer = b""
    if not answer:
        print(
            f"the warm process was ended from outside, and the command with it; "
            f"{as_command('warm')} starts another",
            file=sys.stderr,
        )
        return 1
    return int(NUMBER.unpack(answer)[0])


def _send_on(told: "signal.struct_siginfo", child: int, process: int) -> None:
    """A terminal sends a signal to all processes of a command, other senders to the first one."""
    number = signal.Signals(told.si_signo)
    stops = number == signal.SIGTSTP
    sent = signal.SIGSTOP if stops else number  # without a terminal, SIGTSTP would do nothing
    with suppress(ProcessLookupError):
        if told.si_code == BY_KERNEL or stops or number == signal.SIGCONT:
            os.killpg(child, sent)
        else:
            signal.pidfd_send_signal(process, sent)
    if stops:  # as without the warm process; the shell sees which signal it was
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTSTP])
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP])


def asked(message: bytes) -> dict[str, Any] | None:
    """The answer of the warm process to a question about itself; None without one."""
    connection = connected()
    if connection is None:
        return None
    with closing(connection), suppress(OSError, ValueError):
        connection.sendall(message)
        with connection.makefile() as answers:
            found = json.loads(answers.readline())
        return found if isinstance(found, dict) else None
    return None
