"""Starts the ranks of a run and exchanges data between them. A rank is one process of a run on
several devices.

Lightning's own launcher runs sys.argv again, `-m` and all; torch's elastic launcher calls a
function with its arguments, in a sweep too.
"""

import json
import logging
import multiprocessing
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
    get_error_handler,
    record,
)
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.utils._pytree import tree_map_only

from src.system.errors import InputError, Interrupted
from src.system.launch import launch_info
from src.system.process import import_for_ranks, log_to, note_output_fault, open_outputs
from src.system.resources import cpu_count
from src.system.signals import HANDLED

INPUT_ERROR = "InputError: "  # prefix of the message in torch's error file


class RankError(RuntimeError):
    """A rank ended with an error or a signal."""


def is_rank() -> bool:
    """Whether a launcher started this process as a rank."""
    return launch_info().launched_by is not None


def is_rank_zero() -> bool:
    """Whether this process is rank 0 or the only process."""
    return launch_info().rank == 0


class InheritedLock:
    """A locked file that each rank inherits. The lock lasts until the last of them ends."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.descriptor),)


def _received(sent: Any) -> InheritedLock:
    return InheritedLock(sent.detach())


def cluster() -> ClusterEnvironment:
    """Lightning's description of the ranks. Lightning's own choice would mistake a single process
    in a Slurm or LSF job for a rank, and would fail if the job has several tasks."""
    match launch_info().launched_by:
        case "torchrun":
            return TorchElasticEnvironment()
        case "srun":
            # Lightning refuses tasks that were not counted by the node.
            os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(launch_info().local_world_size))
            return SLURMEnvironment(auto_requeue=False)  # src/system/signals.py ends a run
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

    Raises the InputError or Interrupted of a rank, Interrupted when this process was signalled, and
    RankError with the traceback of any other error.
    """
    for chatter in ("torch.distributed", "torch.distributed.elastic.agent.server.api"):
        logging.getLogger(chatter).setLevel(logging.ERROR)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        signals_to_handle=",".join(number.name for number in HANDLED),
        start_method="forkserver",
    )
    import_for_ranks()
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    # Without this, restarted ranks would try to connect to the ranks that died.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    try:
        answers = elastic_launch(config, _rank)(
            function, arguments, None if lock is None else InheritedLock(lock)
        )
    except SignalException as received:
        raise Interrupted(int(received.sigval)) from None
    except ChildFailedError as failed:
        status = failed.get_first_failure()[1].exitcode
        if status - 128 in HANDLED:
            raise Interrupted(status - 128) from None
        raise _first_fault(failed) from None
    finally:
        for number, handler in handlers.items():  # the launcher does not restore the handlers
            signal.signal(number, handler)
    for message, output_fault in answers.values():
        note_output_fault(output_fault)
        if message is not None:
            raise InputError(message)


def _first_fault(failed: ChildFailedError) -> InputError | RankError:
    """The error of the rank that failed for its own reason. The launcher reports the first failure
    that it sees. This may be a rank that only lost its connection to the rank that failed."""
    failure = failed.get_first_failure()[1]
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        return RankError(f"rank {failure.local_rank} was ended by {name}")
    files = Path(failure.error_file).parent.parent.glob("*/error.json")
    reports = {path.parent.name: json.loads(path.read_text())["message"] for path in files}
    if not reports:
        return RankError(f"rank {failure.local_rank} ended with status {failure.exitcode}")
    rank, report = min(reports.items(), key=lambda item: _precedence(item[1]["message"]))
    if report["message"].startswith(INPUT_ERROR):
        return InputError(report["message"].removeprefix(INPUT_ERROR))
    return RankError(f"rank {rank}: {report['message']}\n{report['extraInfo']['py_callstack']}")


def _precedence(message: str) -> int:
    """Errors that the user can mend come first, broken connections last."""
    if message.startswith(INPUT_ERROR):
        return 0
    return 2 if any(text in message for text in ("closed by peer", "reset by peer", "NCCL")) else 1


@record  # writes the traceback of an error to torch's error file, for `launch`
def _rank(
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    lock: InheritedLock | None,  # noqa: ARG001  # the process holds the lock
) -> tuple[str | None, OSError | None]:
    """The body of a rank. Returns the text of an InputError, and the fault that kept the rank from
    printing. An InputError is returned as text, because the launcher does not keep the type of an
    exception. A signal becomes the exit status: a launcher that was signalled too reads no answers.
    """
    threading.Thread(target=_end_with_launcher, daemon=True).start()
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

    def configure_ddp(self) -> None:
        assert self.model is not None
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            dist.broadcast(tensor.data, src=0)


def gather(value: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of all ranks, whose tensors come to the CPU: each rank has another GPU. A single
    process gets a list of its own value."""
    value = tree_map_only(Tensor, Tensor.cpu, value)
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def all_max(numbers: list[int], device: torch.device) -> list[int]:
    """Elementwise maximum over all ranks."""
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
