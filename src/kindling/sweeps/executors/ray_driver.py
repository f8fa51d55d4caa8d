"""The process of a command that is connected to a Ray cluster, and the command that cancels groups.

Ray ends a process that has lost its cluster, prints what it likes, and sets signal handlers.
Therefore only a process of its own uses Ray. Nothing here imports torch.
"""

import atexit
import hashlib
import multiprocessing
import os
import secrets
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from kindling.system.errors import InputError, first_line
from kindling.system.process import STDERR, STDOUT

T = TypeVar("T")

ANSWER_SECONDS = 30.0
START_SECONDS = 120.0  # of a Ray of its own
CANCEL_SECONDS = 120.0


class Driver:
    """Calls functions of sweeps/executors/ray_actors.py in a process that is connected to the
    cluster at `address`. None: to a Ray with `cpus` cores, which starts and ends with the process.

    If the process has died, the next call starts another. The process ends with this one, in
    whatever way this one ends.
    """

    def __init__(self, address: str | None, cpus: int = 1) -> None:
        self.address, self.cpus = address, cpus
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None
        atexit.register(self.close)

    def call(
        self, function: Callable[..., T], *given: object, seconds: float = ANSWER_SECONDS
    ) -> T:
        """The result of `function`. Raises InputError when there is none after so many seconds, and
        for any exception."""
        if self.pipe is None:
            self._start()
        assert self.pipe is not None
        with suppress(OSError):  # without a reader there is no answer either
            self.pipe.send((function, given))
        result: T = self._answer(seconds)
        return result

    def close(self) -> None:
        """Disconnects. A Ray of its own ends, after its groups have written a checkpoint."""
        if self.pipe is not None:
            self.pipe.close()
            self._end(CANCEL_SECONDS)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        given = (other, self.address, self.cpus)
        self.process = context.Process(target=_serve, args=given, daemon=True)
        self.process.start()
        other.close()
        if self.address:
            self._answer(ANSWER_SECONDS, "; check the address")
        else:
            self._answer(START_SECONDS)

    def _answer(self, seconds: float, advice: str = "") -> Any:
        assert self.pipe is not None
        try:
            if self.pipe.poll(seconds):
                fault, result = self.pipe.recv()
                if fault is None:
                    return result
                raise InputError(fault)
        except (EOFError, OSError):  # Ray has ended the process
            pass
        self._end(0)
        raise InputError(f"Ray at {self.address or 'this machine'} does not answer{advice}")

    def _end(self, seconds: float) -> None:
        assert self.process is not None
        self.process.join(seconds)
        self.process.kill()
        self.process = self.pipe = None


def _serve(pipe: Connection, address: str | None, cpus: int) -> None:
    os.setsid()  # Ctrl-C is for the command
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, STDOUT)
    os.dup2(null, STDERR)
    # Ray reads these when it is imported.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address is None and os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
        # Ray listens on all interfaces, so that a token must protect it. Without a token in the
        # environment, Ray would write one into the home folder.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    from kindling.sweeps.executors import ray_actors

    with suppress(EOFError, OSError):  # the command has ended
        try:
            with ray_actors.connected(address, cpus):
                pipe.send((None, None))
                while True:
                    function, given = pipe.recv()
                    try:
                        fault, result = None, function(*given)
                    except Exception as error:
                        fault = f"Ray at {address or 'this machine'}: {first_line(error)}"
                        result = None
                    pipe.send((fault, result))
        except InputError as error:
            pipe.send((str(error), None))


def prefix_of(sweep: Path) -> str:
    """The names of all groups of a sweep begin so."""
    return hashlib.sha256(os.path.realpath(sweep).encode()).hexdigest()[:12]


def cancel(sweep: Path, address: str | None) -> int:
    """Cancels the groups of a sweep; returns their number. Raises InputError if there are none."""
    if address is None:
        raise InputError(
            "name the cluster of Ray: type --address HOST:PORT, or set RAY_ADDRESS; jobs of Slurm "
            "are cancelled by scancel"
        )
    from kindling.sweeps.executors import ray_actors

    driver = Driver(address)
    try:
        count = driver.call(ray_actors.cancel, prefix_of(sweep), seconds=CANCEL_SECONDS)
    finally:
        driver.close()
    if not count:
        raise InputError(f"{sweep}: Ray at {address} has no group of this sweep")
    return count
