"""Starts the ranks of a run and exchanges data between them. A rank is one process of a run on
several devices.

Lightning's own launcher runs sys.argv again, `-m` and all. torchrun's agent would listen on all
networks of the machine, for messages that may run code. So the processes of torch's elastic package
are started here without its agent.
"""

import ctypes
import io
import json
import logging
import mmap
import multiprocessing
import os
import select
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from ctypes import c_char, c_int32
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Imported later, it would hold the process group for ever, as a default of its functions: the other
# ranks would wait for a rank that has left.
import torch.distributed.nn.functional
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch._C._distributed_c10d import FileStore
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    SignalException,
    start_processes,
)
from torch.distributed.elastic.multiprocessing.errors import (
    ProcessFailure,
    get_error_handler,
    record,
)
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map_only

from kindling.system.errors import InputError, Interrupted
from kindling.system.launch import launch_info
from kindling.system.process import (
    UNGUARDED,
    ForkServerError,
    from_fork_server,
    import_for_ranks,
    log_to,
    note_output_fault,
    open_outputs,
    unguarded_fault,
)
from kindling.system.resources import cpu_count
from kindling.system.signals import HANDLED, heeded

INPUT_ERROR = "InputError: "  # prefix of the message in torch's error file
LOST = 2  # see `_precedence`
MEMORY = "A system kills processes when its memory is full"
PASSED_ON = ("OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING")
POLL_SECONDS = 0.1  # between two looks at the processes


class RankError(RuntimeError):
    """A rank ended with an error."""


class RankKilledError(InputError):
    """A rank was killed, or ended without an error that it could tell."""

    status = 1


def is_rank() -> bool:
    """Whether a launcher started this process as a rank."""
    return launch_info().launched_by is not None


def is_rank_zero() -> bool:
    """Whether this process is rank 0 or the only process."""
    return launch_info().rank == 0


def cluster() -> ClusterEnvironment:
    """Lightning's description of the ranks. Lightning's own choice would mistake a single process
    in a Slurm or LSF job for a rank, and would fail if the job has several tasks."""
    match launch_info().launched_by:
        case "torchrun":
            return TorchElasticEnvironment()
        case "srun":
            # Lightning refuses tasks that were not counted by the node.
            os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(launch_info().local_world_size))
            return SLURMEnvironment(auto_requeue=False)  # system/signals.py ends a run
        case _:
            return LightningEnvironment()


def launch(
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    ranks: int,
    max_restarts: int = 0,
    lock: int | None = None,
) -> None:
    """Calls a module-level function in each of `ranks` processes of this machine and waits.

    When one dies, all are started again, at most `max_restarts` times. `lock` is the descriptor of
    a locked file that the ranks inherit.

    Raises the InputError or Interrupted of a rank, Interrupted when this process was signalled,
    RankKilledError, and RankError with the traceback of any other error.
    """
    for chatter in ("torch.distributed", "torch.multiprocessing.spawn"):
        logging.getLogger(chatter).setLevel(logging.ERROR)
    # It prints its own traceback for each rank that was killed; `_first_fault` tells the last one.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ",".join(each.name for each in heeded())
    import_for_ranks()
    # multiprocessing hands on the descriptor of a connection; this one is of the locked file.
    held = None if lock is None else Connection(os.dup(lock))
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    try:
        with tempfile.TemporaryDirectory(prefix="kindling-") as folder:
            for attempt in range(max_restarts + 1):
                given = function, arguments, folder, held
                processes = _started(given, ranks, attempt)
                try:
                    ended = processes.wait(period=POLL_SECONDS)
                except SignalException as received:
                    processes.close(received.sigval)
                    raise
                assert ended is not None
                if not ended.is_failed():
                    break
                (failure,) = ended.failures.values()
            else:
                if failure.exitcode - 128 in HANDLED:
                    raise Interrupted(failure.exitcode - 128)
                raise _first_fault(failure, max_restarts)
    except SignalException as received:  # before the ranks or after them, too
        raise Interrupted(int(received.sigval)) from None
    finally:
        for number, handler in handlers.items():  # torch does not restore the handlers
            signal.signal(number, handler)
        if held is not None:
            held.close()
    for message, output_fault in ended.return_values.values():
        note_output_fault(output_fault)
        if message is not None:
            raise InputError(message)


def _started(given: tuple[Any, ...], ranks: int, attempt: int) -> PContext:
    """The ranks, which call `_rank` with what is given. Raises RankKilledError."""
    try:
        with from_fork_server():
            processes = start_processes(
                "rank", _rank, dict.fromkeys(range(ranks), given),
                {rank: _environment(rank, ranks, attempt) for rank in range(ranks)},
                DefaultLogsSpecs(given[2]), start_method="forkserver",
            )  # fmt: skip
    except ForkServerError:
        fault = f"the process that starts the ranks was ended. {MEMORY}"
        raise RankKilledError(fault) from None
    # It would wait for ever for a rank that was killed after its work.
    finished: Any = processes._worker_finished_event  # type: ignore[attr-defined]
    finished.set = threading.Thread(target=finished.set, daemon=True).start
    return processes


def _environment(rank: int, ranks: int, attempt: int) -> dict[str, str]:
    """The variables of a rank, as torchrun sets them, and what the fork server may not have yet."""
    environment = {
        "RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0,
        "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0,  # `RanksStrategy.meeting` is used instead
        "TORCHELASTIC_RUN_ID": "kindling", "TORCHELASTIC_RESTART_COUNT": attempt,
    }  # fmt: skip
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {name: str(value) for name, value in environment.items()} | passed_on


def _first_fault(failure: ProcessFailure, max_restarts: int) -> InputError | RankError:
    """The error of the rank that failed for its own reason. torch reports the first failure that it
    sees. This may be a rank that only lost its connection to the rank that failed."""
    if failure.exitcode == UNGUARDED:
        return unguarded_fault()
    own = Path(failure.error_file)  # a process that was killed has none
    files = own.parent.parent.glob("*/error.json") if own.exists() else ()
    reports = {path.parent.name: json.loads(path.read_text())["message"] for path in files}
    ranked = sorted(reports.items(), key=lambda item: _precedence(item[1]["message"]))
    if not ranked or _precedence(ranked[0][1]["message"]) == LOST:
        cause = f"rank {failure.local_rank} ended with status {failure.exitcode}"
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            cause = f"rank {failure.local_rank} was ended by {name}"
        elif ranked:
            cause = f"rank {failure.local_rank} lost its connection to a rank that was ended"
        return RankKilledError(
            f"{cause}, and trainer.max_restarts={max_restarts} allows no more starts. {MEMORY}"
        )
    rank, report = ranked[0]
    if report["message"].startswith(INPUT_ERROR):
        return InputError(report["message"].removeprefix(INPUT_ERROR))
    return RankError(f"rank {rank}: {report['message']}\n{report['extraInfo']['py_callstack']}")


def _precedence(message: str) -> int:
    """Errors that the user can mend come first, broken connections last."""
    if message.startswith(INPUT_ERROR):
        return 0
    broken = ("closed by peer", "reset by peer", "NCCL")
    return LOST if any(text in message for text in broken) else 1


@record  # writes the traceback of an error to torch's error file, for `launch`
def _rank(
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    folder: str,
    lock: Connection | None,  # noqa: ARG001  # the process holds the lock
) -> tuple[str | None, OSError | None]:
    """The body of a rank. Returns the text of an InputError, and the fault that kept the rank from
    printing. An InputError is returned as text, because the launcher does not keep the type of an
    exception. A signal becomes the exit status: a launcher that was signalled too reads no answers.
    """
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    RanksStrategy.meeting = Path(folder, os.environ["TORCHELASTIC_RESTART_COUNT"])
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    for library in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", loopback)
    output = open_outputs()
    level = logging.INFO if is_rank_zero() else logging.ERROR
    log_to(sys.stdout, level)
    torch.set_num_threads(max(1, cpu_count() // int(os.environ["LOCAL_WORLD_SIZE"])))
    try:
        function(*arguments)
    except InputError as error:
        # Otherwise the launcher would only hear that other ranks lost the connection to this one.
        get_error_handler().record_exception(error)
        return str(error), output.fault
    except Interrupted as interrupted:
        raise SystemExit(128 + interrupted.number) from None
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    sys.stdout.flush()
    return None, output.fault


def _end_with_launcher() -> None:
    """Ends this rank when its launcher has ended: then join() returns. The fork server cannot be
    used for this, because the fork server lives as long as any rank."""
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    launcher.join()
    os._exit(1)


class RanksStrategy(DDPStrategy):
    """Lightning's DDP without the module wrapper, which expects one backward per training_step. The
    steps of a block sum their gradients themselves."""

    # A file by which ranks that this project has started find each other: nobody else can read it.
    # Lightning's own way, for the ranks of torchrun and srun, listens on all networks.
    meeting: Path | None = None

    def setup_distributed(self) -> None:
        if self.meeting is not None and not dist.is_initialized():  # Lightning calls it twice
            self.meet(self._get_process_group_backend(), self._timeout, self.root_device)
        super().setup_distributed()

    @classmethod
    def meet(
        cls,
        backend: str | None,
        timeout: timedelta | None = None,
        device: torch.device | None = None,
    ) -> None:
        """Makes a process group of the ranks that `launch` has started. Not by the address in the
        environment, as torch would: nobody listens there."""
        own = launch_info()
        dist.init_process_group(
            backend,
            store=FileStore(str(cls.meeting), own.world_size),
            rank=own.rank,
            world_size=own.world_size,
            timeout=timeout,
            device_id=None if device is None or device.type == "cpu" else device,
        )

    def configure_ddp(self) -> None:
        assert self.model is not None
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            dist.broadcast(tensor.data, src=0)


class WrappedRanks(RanksStrategy):
    """Lightning's DDP with its wrapper, for a LightningModule of the user's own."""

    def configure_ddp(self) -> None:
        # Each of several optimizers gets the gradients of its own part of the module.
        module = self.lightning_module
        assert module is not None
        if any(map(is_lazy, module.parameters())):
            raise InputError(
                f"trainer.devices={self.world_size}: the module has lazy layers, which DDP "
                "refuses; name their sizes in the module, or type trainer.devices=1"
            )
        self._ddp_kwargs["find_unused_parameters"] = not module.automatic_optimization
        DDPStrategy.configure_ddp(self)


def gather(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of all ranks, whose tensors come to the CPU: each rank has another GPU. A single
    process gets a list of its own value. Only what a checkpoint may hold: torch's own function for
    this would run code that a message names."""
    value = tree_map_only(Tensor, Tensor.cpu, value)
    if not dist.is_initialized():
        return [value]
    world_size = dist.get_world_size()
    packed = io.BytesIO()
    torch.save(value, packed)
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    own = torch.frombuffer(packed.getbuffer(), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world_size)]
    dist.all_gather(lengths, torch.tensor([len(own)], device=device))
    longest = max(int(length) for length in lengths)
    parts = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in lengths]
    dist.all_gather(parts, F.pad(own, (0, longest - len(own))).to(device))
    return [
        torch.load(io.BytesIO(part[:length].cpu().numpy().tobytes()), weights_only=True)
        for part, length in zip(parts, lengths, strict=True)
    ]


class SharedMemory:
    """Memory of all ranks of a run on this machine, all 0 at first. It has no name by which others
    could open it. All ranks make it together."""

    # An int32: whether another rank has ended.
    _ended: c_int32 | None = None

    def __init__(self, size: int) -> None:
        self.rank, ranks = dist.get_rank(), dist.get_world_size()
        descriptor = -1
        if self.rank == 0:
            descriptor = os.memfd_create("kindling-gradients")
            os.ftruncate(descriptor, size)
        told = [torch.zeros(2, dtype=torch.int64) for _ in range(ranks)]
        dist.all_gather(told, torch.tensor([os.getpid(), descriptor]))
        processes = [int(process) for process, _ in told]
        if self.rank > 0:
            file = f"/proc/{processes[0]}/fd/{int(told[0][1])}"
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        self.memory = mmap.mmap(descriptor, size)
        dist.barrier()  # rank 0 keeps the descriptor until all have opened it
        os.close(descriptor)
        self.address = ctypes.addressof(c_char.from_buffer(self.memory))
        if SharedMemory._ended is None:
            SharedMemory._ended = c_int32(0)
            others = [os.pidfd_open(each) for each in processes if each != os.getpid()]
            threading.Thread(target=self._watch, args=(others,), daemon=True).start()
        self.ended = ctypes.addressof(SharedMemory._ended)

    @staticmethod
    def _watch(others: list[int]) -> None:
        """Notes the end of the first of these processes."""
        poll = select.poll()
        for each in others:
            poll.register(each, select.POLLIN)
        poll.poll()
        assert SharedMemory._ended is not None
        SharedMemory._ended.value = 1


def share_memory() -> bool:
    """Whether the ranks of this run can share memory: those that `launch` or one torchrun starts.
    Those of srun may be in several containers."""
    found = launch_info()
    together = found.local_world_size == found.world_size and found.launched_by != "srun"
    return sys.platform == "linux" and together


def all_max(numbers: list[int], device: torch.device) -> list[int]:
    tensor = torch.tensor(numbers, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    maxima: list[int] = tensor.tolist()
    return maxima


def all_min(numbers: Tensor) -> None:
    """Elementwise minimum over all ranks, in place."""
    dist.all_reduce(numbers, dist.ReduceOp.MIN)


def all_reduce(gradient: Tensor) -> Callable[[], object]:
    """Begins to sum a gradient over all ranks, in place; the returned function waits for it."""
    work = dist.all_reduce(gradient, async_op=True)
    assert work is not None
    return work.wait
