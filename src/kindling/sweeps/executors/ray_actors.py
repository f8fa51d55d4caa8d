"""The actor that trains a group on a Ray cluster, and what is asked of a cluster.

The functions here run in a process that sweeps/executors/ray_driver.py starts. They use Ray's
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
from typing import Any

import ray
from ray._private.state import actors as list_actors  # the public list needs Ray's dashboard
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from kindling.records.groups import State
from kindling.system.errors import InputError, Interrupted
from kindling.system.files import append_text, open_in_place, read_bounded
from kindling.system.installation import PATHS
from kindling.system.process import importing
from kindling.system.signals import handled
from kindling.system.units import MIB

NAMESPACE = "kindling"
CANCEL = SIGUSR1  # the group ends with a checkpoint; after any other signal, Ray starts it again
RESTARTS = 100  # of a group, by Ray; GROUP_KILLS without progress end it before
# An argument of an actor that is larger than 100 KB would lie in the memory of the process that
# submitted it, and a restart would fail when that process has ended.
CHUNK = 64 * 1024
CANCEL_SECONDS = 60  # for a block and a checkpoint; then the process is killed
TASK_SECONDS = 20


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
class ActorStatus:
    """An actor of a cluster, that is the last one with its name."""

    name: str
    state: State  # after anything but ray.kill, an actor that has ended was killed
    cause: str  # of its end
    node: str
    process: int
    waits_for_arguments: bool


class GroupActor:
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
            from kindling.sweeps.executors.base import GROUP_KILLS, killed_too_often
            from kindling.training.result import mark_failed

            parcel = pickle.loads(zlib.decompress(b"".join(self.packed)))
        try:
            epoch = parcel.epoch
        except InputError:  # a damaged file, which training mends or tells; no restart does
            parcel.train()
            return
        starts, start = self.log.with_suffix(".starts"), f"{own_id()} {epoch}"
        append_text(starts, f"{start}\n")
        lines = read_bounded(starts, MIB).decode(errors="replace").splitlines()
        own = [line for line in lines if line.startswith(own_id())]  # not of earlier submissions
        if own[-GROUP_KILLS - 1 :] == [start] * (GROUP_KILLS + 1):
            fault = killed_too_often(epoch, f"read {self.log}")
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


def own_id() -> str:
    """Of the actor of this process. A restarted actor keeps its id."""
    return str(ray.get_runtime_context().get_actor_id())


# --- in the process that is connected to a cluster -----------------------------------------------


@contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Joins a cluster. None: starts a Ray with so many cores on this machine; at the end its groups
    write a checkpoint, and Ray ends. Raises InputError with Ray's own words."""
    given: dict[str, Any] = {"job_config": JobConfig(_py_driver_sys_path=PATHS)}
    if address is not None and address.startswith("ray://"):  # a client has no such configuration
        given = {"runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(PATHS)}}}
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


def nodes() -> list[Mapping[str, float]]:
    """What each node has in all: cores (CPU), GPUs (GPU), bytes (memory)."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def submit(orders: Sequence[Order]) -> None:
    """Returns when the cluster needs this process no more. A group that is queued or runs already
    is not submitted again."""
    # With retries, because the call of a restarted constructor fails when the process hears only
    # afterwards that its actor was restarting. The actor would then be idle for ever.
    actor: Any = ray.remote(max_restarts=RESTARTS, max_task_retries=-1)(GroupActor)
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
    while any(each.name in names and each.waits_for_arguments for each in known()):
        time.sleep(0.1)


def chunks(data: bytes) -> list[bytes]:
    """Parts that are small enough for an actor that outlives this process."""
    return [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]


def cancel(prefix: str) -> int:
    """Ends the groups whose names begin so, those that run with a checkpoint; returns how many."""
    groups = [each for each in _unfinished() if each.name.startswith(prefix)]
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
        names &= {each.name for each in _unfinished()}
    for name in names:
        _kill(name)
    return len(groups)


def _send(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, CANCEL)


def _kill(name: str) -> None:
    with suppress(ValueError):  # the actor has ended meanwhile
        ray.kill(ray.get_actor(name, NAMESPACE), no_restart=True)


def _unfinished() -> list[ActorStatus]:
    return [each for each in known() if each.state in ("queued", "running")]


def known() -> list[ActorStatus]:
    """The groups on the cluster. A client (ray://) has no table of actors, and asks a task."""
    if ray.util.client.ray.is_connected():
        known_there: Any = ray.remote(num_cpus=0)(_known)
        return list(ray.get(known_there.remote(), timeout=TASK_SECONDS))
    return _known()


def _known() -> list[ActorStatus]:
    actors = sorted(list_actors().values(), key=lambda a: (a["State"] != "DEAD", a["EndTime"]))
    return list({actor["Name"]: _status(actor) for actor in actors}.values())


def _status(actor: Mapping[str, Any]) -> ActorStatus:
    kind = actor["DeathCause"].WhichOneof("context")
    context = getattr(actor["DeathCause"], kind) if kind else None
    said = getattr(context, "formatted_exception_string", "")  # of an exception in a worker
    cause = said.strip().rpartition("\n")[2] or getattr(context, "error_message", "")
    state: State = "running" if actor["State"] == "ALIVE" else "queued"
    if actor["State"] == "DEAD":
        state = "cancelled" if "ray.kill" in cause else "ended"
    unready = actor["State"] == "DEPENDENCIES_UNREADY"
    node, process = actor["Address"]["NodeID"], actor["Pid"]
    return ActorStatus(actor["Name"], state, cause, node, process, unready)
