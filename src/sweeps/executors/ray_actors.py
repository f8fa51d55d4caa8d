"""The actor that trains a group on a Ray cluster, and what is asked of a cluster.

The functions here run in a process that src/sweeps/executors/ray_driver.py starts. They use Ray's
own name for a group: an actor with a name, which a cluster keeps until the actor ends.
"""

import logging
import os
import pickle
import tempfile
import time
import traceback
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGUSR1
from typing import Any, Literal

import ray
from ray._private.state import actors as list_actors  # the public list needs Ray's dashboard
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from src.system.errors import InputError, Interrupted
from src.system.files import MIB, append_text, open_in_place, read_bounded, write_durably
from src.system.process import importing
from src.system.signals import handled

NAMESPACE = "kindling"
ROOT = str(Path(__file__).absolute().parent.parent.parent.parent)
CANCEL = SIGUSR1  # the group ends with a checkpoint; after any other signal, Ray starts it again
RESTARTS = 100  # of a group, by Ray; GROUP_KILLS without progress end it before
# An argument of an actor that is larger than 100 KB would lie in the memory of the process that
# submitted it, and a restart would fail when that process has ended.
CHUNK = 64 * 1024
CANCEL_SECONDS = 60  # for a block and a checkpoint; then the process is killed
TASK_SECONDS = 20

State = Literal["queued", "running", "ended"]


@dataclass(frozen=True)
class Order:
    """A group to submit. `log` gets what its process prints; `parcel` is a pickled Parcel."""

    name: str
    log: Path
    parcel: bytes
    cpus: int
    gpus: int
    memory: int | None  # GB


@dataclass(frozen=True)
class Node:
    """What a node has in all; `memory` in bytes."""

    cpus: float
    gpus: float
    memory: float


@dataclass(frozen=True)
class Known:
    """An actor of a cluster. `cause` says why an actor has ended; `cancelled`: on purpose."""

    name: str
    state: State
    cause: str = ""
    cancelled: bool = False
    node: str = ""
    process: int = 0


class Group:
    """Trains a group in the main thread of its process, where signals arrive.

    Ray starts the actor again, on any node, when its process or its node dies. The actor ends
    itself, for good, when the group has ended or was cancelled.
    """

    def __init__(self, log: Path, cpus: int, *packed: bytes) -> None:
        """Raises InputError on a machine that does not see the folder of the sweep."""
        if not log.parent.is_dir():
            raise InputError(f"{os.uname().nodename} does not see the folder {log.parent}")
        self.log, self.cpus, self.packed = log, cpus, packed
        # Nobody else may be left to call the method: the command may have ended meanwhile.
        ray.get_runtime_context().current_actor.train.remote()

    def train(self) -> None:
        # Ray sets this number to the cores of the task only where the node's variable is not set.
        os.environ["OMP_NUM_THREADS"] = str(self.cpus)
        log = os.fdopen(open_in_place(self.log, os.O_WRONLY | os.O_APPEND), "a", buffering=1)
        with log, redirect_stdout(log), redirect_stderr(log):
            try:
                with handled(rank=False):
                    self._train()
            except Interrupted as interrupted:
                print(f"{interrupted.name}: {interrupted}")
                if interrupted.number != CANCEL:
                    os._exit(128 + interrupted.number)  # for Ray, this is a failure
            except BaseException:
                traceback.print_exc()
                log.flush()
                os._exit(1)
        leave()

    def _train(self) -> None:
        with importing():
            from src.sweeps.executors.base import GROUP_KILLS, killed_too_often
            from src.training.fit import mark_failed

            parcel = pickle.loads(zlib.decompress(b"".join(self.packed)))
        starts, epoch = self.log.with_suffix(".starts"), parcel.epoch
        if not restarts():
            write_durably(starts, "")
        earlier = read_bounded(starts, MIB).decode(errors="replace").splitlines()
        append_text(starts, f"{epoch}\n")
        if earlier[-GROUP_KILLS:] == [str(epoch)] * GROUP_KILLS:
            fault = killed_too_often(GROUP_KILLS, epoch, f"read {self.log}")
            print(f"error: {fault}")
            mark_failed(parcel.runs, fault)
            return
        parcel.train()


def leave() -> None:
    """Ends the actor of this process for good. exit_actor would wait for the call that trains,
    which is tried again for ever."""
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
    time.sleep(TASK_SECONDS)
    os._exit(1)  # the cluster has not answered


def restarts() -> int:
    """How often Ray has started the actor of this process again."""
    return int(list_actors(ray.get_runtime_context().get_actor_id())["NumRestarts"])


# --- in the process that is connected to a cluster -----------------------------------------------


@contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Joins a cluster. None: starts a Ray with so many cores on this machine; at the end its groups
    write a checkpoint, and Ray ends. Raises InputError with Ray's own words."""
    given: dict[str, Any] = {"job_config": JobConfig(_py_driver_sys_path=[ROOT])}
    if address is not None and address.startswith("ray://"):  # a client has no such configuration
        given = {"runtime_env": {"env_vars": {"PYTHONPATH": ROOT}}}
    with ExitStack() as stack:
        if address is None:
            # The names of Ray's sockets have at most 107 characters.
            base = os.environ.get("RAY_TMPDIR", "/tmp")
            given |= {
                "num_cpus": cpus,
                "include_dashboard": False,
                "object_store_memory": 80 * MIB,  # about the least; no group uses it
                "_temp_dir": stack.enter_context(
                    tempfile.TemporaryDirectory(
                        prefix="kindling-ray-", dir=base, ignore_cleanup_errors=True
                    )
                ),
            }
        try:
            ray.init(
                address or "local",
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **given,
            )
        except Exception as error:
            said = " ".join(str(error).split())[:500]
            raise InputError(f"Ray at {address or 'this machine'} cannot be used: {said}") from None
        try:
            yield
        finally:
            if address is None:
                cancel("")
            ray.shutdown()


def nodes() -> list[Node]:
    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Node(n.get("CPU", 0), n.get("GPU", 0), n.get("memory", 0)) for n in found]


def submit(orders: Sequence[Order]) -> None:
    """Returns when the cluster needs this process no more. A group that is queued or runs already
    is not submitted again."""
    # With retries, because the call of a restarted constructor fails when the process hears only
    # afterwards that its actor was restarting. The actor would then be idle for ever.
    actor: Any = ray.remote(max_restarts=RESTARTS, max_task_retries=-1)(Group)
    for order in orders:
        actor.options(
            name=order.name,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=order.cpus,
            num_gpus=order.gpus,
            memory=order.memory and order.memory * 10**9,
        ).remote(order.log, order.cpus, *chunks(order.parcel))
    names = {order.name for order in orders}
    while any(a["Name"] in names and a["State"] == "DEPENDENCIES_UNREADY" for a in _actors()):
        time.sleep(0.1)


def chunks(data: bytes) -> list[bytes]:
    """Parts that are small enough for an actor that outlives this process."""
    return [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]


def known() -> list[Known]:
    """The groups on the cluster. Of actors with the same name, the last one counts."""
    found: dict[str, Known] = {}
    for actor in sorted(_actors(), key=lambda actor: (actor["State"] != "DEAD", actor["EndTime"])):
        name, state, cause = actor["Name"], actor["State"], actor["Cause"]
        if state == "DEAD":
            # After anything but ray.kill, the group has died.
            found[name] = Known(name, "ended", cause, cancelled="ray.kill" in cause)
        elif state == "ALIVE":
            found[name] = Known(name, "running", node=actor["Node"], process=actor["Pid"])
        else:
            found[name] = Known(name, "queued")
    return list(found.values())


def cancel(prefix: str) -> int:
    """Ends the groups whose names begin so, those that run with a checkpoint; returns how many."""
    groups = [each for each in known() if each.name.startswith(prefix) and each.state != "ended"]
    signals = []
    for group in sorted(groups, key=lambda group: group.state):  # none may start meanwhile
        if group.state == "running":
            there = NodeAffinitySchedulingStrategy(group.node, soft=False)
            send: Any = ray.remote(num_cpus=0, scheduling_strategy=there)(_send)
            signals.append(send.remote(group.process))
        else:
            _kill(group.name)
    if signals:
        ray.wait(signals, num_returns=len(signals), timeout=TASK_SECONDS)
    end = time.monotonic() + CANCEL_SECONDS
    names = {group.name for group in groups}
    while names and time.monotonic() < end:
        time.sleep(0.2)
        names &= {each.name for each in known() if each.state != "ended"}
    for name in names:
        _kill(name)
    return len(groups)


def _send(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, CANCEL)


def _kill(name: str) -> None:
    with suppress(ValueError):  # the actor has ended meanwhile
        ray.kill(ray.get_actor(name, NAMESPACE), no_restart=True)


def _actors() -> list[Mapping[str, Any]]:
    """Ray's table of actors. A client (ray://) has no such table, and asks a task for its own."""
    if ray.util.client.ray.is_connected():
        table: Any = ray.remote(num_cpus=0)(_table)
        return list(ray.get(table.remote(), timeout=TASK_SECONDS))
    return _table()


def _table() -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for actor in list_actors().values():
        cause = actor["DeathCause"]
        kind = cause.WhichOneof("context")
        context = getattr(cause, kind) if kind else None
        said = getattr(context, "formatted_exception_string", "")  # of an exception in a worker
        rows.append(
            {
                "Name": actor["Name"],
                "State": actor["State"],
                "EndTime": actor["EndTime"],
                "Node": actor["Address"]["NodeID"],
                "Pid": actor["Pid"],
                "Cause": said.strip().rpartition("\n")[2] or getattr(context, "error_message", ""),
            }
        )
    return rows
