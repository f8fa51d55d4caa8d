"""Trains groups side by side in processes of this machine."""

import logging
import math
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import reduction
from typing import Any

import torch

from src.config.schema import Config
from src.runs.folder import resume_command
from src.sweeps.executors.base import Attempts
from src.sweeps.tasks import Task, train_group
from src.sweeps.watching import Watch
from src.system import machine
from src.system.errors import Interrupted
from src.system.process import STDERR, STDOUT, import_for_stacks
from src.system.signals import handled
from src.training.grouping import Place, here
from src.training.result import shown

log = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds
_orphaned = threading.Event()


@dataclass(frozen=True)
class Slot:
    """A part of this machine, for one process: cores, and one GPU or none."""

    cores: frozenset[int]
    gpu: str | None = None


class Local:
    """Trains groups side by side in processes of this machine, each in a slot of its own.

    If a process is killed, another goes on with its group, from the last checkpoint. A signal to
    this process reaches all of them once: they write their checkpoints.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.places = slots
        self.slots = len(slots)
        gpus = {slot.gpu for slot in slots} - {None}
        self.sharing = -(-self.slots // max(1, len(gpus)))  # slots of one device

    def place(self, config: Config) -> Place:
        whole = here(config)
        return replace(whole, free_bytes=whole.free_bytes // self.sharing)

    def run(self, tasks: Sequence[Task]) -> None:
        remaining = [task for task in tasks if not task.ended]
        if not remaining:
            return
        log.info("%d groups in %d processes", len(remaining), min(self.slots, len(remaining)))
        import_for_stacks()
        watch, left = Watch(tasks), {task.state_folder for task in remaining}
        for task in tasks:
            watch.note(task, "queued" if task.state_folder in left else "ended")
        lines = _Lines()
        workers = [_Worker(slot, lines) for slot in self.places[: len(remaining)]]
        free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in workers:
            free.put(worker)

        def train(task: Task) -> None:
            worker = free.get()
            watch.note(task, "running")
            try:
                worker.train(task)
            finally:
                free.put(worker)

        with ThreadPoolExecutor(len(workers)) as threads, handled(rank=False):
            futures = {threads.submit(train, task): task for task in remaining}
            try:
                with watch:
                    _wait(futures, watch)
            except BaseException as error:
                for future in futures:
                    future.cancel()
                number = error.number if isinstance(error, Interrupted) else signal.SIGTERM
                for worker in workers:
                    worker.interrupt(number)
                if isinstance(error, Interrupted):
                    command = resume_command(shown(remaining[0].sweep))
                    told = f"stopped; to go on, type\n  {command}"
                    raise Interrupted(error.number, told) from None
                raise
            finally:
                wait(futures)
                for worker in workers:
                    worker.close()
                lines.close()


def _wait(futures: dict[Future[None], Task], watch: Watch) -> None:
    """Waits until all groups have ended, and shows how far they are."""
    left = set(futures)
    while left:
        # A short timeout, because signals are handled between two waits.
        ended, left = wait(left, timeout=0.2, return_when="FIRST_COMPLETED")
        for future in ended:
            future.result()
            watch.note(futures[future], "ended")
        watch.show()


class _Worker:
    """A process in a slot."""

    def __init__(self, slot: Slot, lines: "_Lines") -> None:
        self.slot = slot
        self.lines: Any = lines  # in the process, the number of the pipe's descriptor
        self.pool: ProcessPoolExecutor | None = None
        self.process: int | None = None  # while it trains
        self.stopped = False

    def train(self, task: Task) -> None:
        """If the process is killed too often, the trials get the status `failed`."""
        attempts = Attempts(task)
        while not self.stopped:
            try:
                if self.pool is None:
                    context = multiprocessing.get_context("forkserver")
                    self.pool = ProcessPoolExecutor(1, context, _enter, (self.slot, self.lines))
                self.process = self.pool.submit(os.getpid).result()
                self.pool.submit(_train, task).result()
                return
            except BrokenProcessPool:
                self.close()
                if self.stopped:
                    return
                if not attempts.killed("type a smaller hydra.launcher.slots"):
                    return
            finally:
                self.process = None

    def interrupt(self, number: int) -> None:
        """Sends a signal to the process, if it trains."""
        self.stopped, process = True, self.process
        if process is not None:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


class _Lines:
    """A pipe for what the processes print. This process logs the lines, above its table."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self.thread = threading.Thread(target=self._log, daemon=True)
        self.thread.start()

    def _log(self) -> None:
        with os.fdopen(self.reading, errors="backslashreplace", newline="\n") as lines:
            for line in lines:
                text = line.rstrip().rpartition("\r")[2]  # of a bar, the last drawing
                if text:
                    log.warning("%s", text)

    def close(self) -> None:
        """After the processes have ended: then the pipe has an end, unless what they have started
        lives on."""
        os.close(self.writing)
        self.thread.join(PATIENCE)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.writing),)


def _received(sent: Any) -> int:
    return int(sent.detach())


def _enter(slot: Slot, lines: int) -> None:
    """Moves this process into its slot. Ctrl-C reaches only the process of the sweep, which sends
    the signal on. `lines`: the descriptor that takes what the process prints."""
    os.setsid()
    os.dup2(lines, STDOUT)
    os.dup2(lines, STDERR)
    os.close(lines)
    # The process of the sweep logs the errors of trials, but has no traceback.
    logging.getLogger("src.sweeps.tasks").addFilter(lambda record: record.exc_info is not None)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, slot.cores)
    torch.set_num_threads(len(slot.cores))
    if slot.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = slot.gpu
    threading.Thread(target=_end_with_sweep, daemon=True).start()


def _end_with_sweep() -> None:
    """Stops this process when the process of the sweep has been killed."""
    sweep = multiprocessing.parent_process()
    assert sweep is not None
    sweep.join()
    _orphaned.set()
    os.kill(os.getpid(), signal.SIGTERM)  # training writes a checkpoint first


def _train(task: Task) -> None:
    with suppress(Interrupted):  # who has sent the signal knows
        train_group(task, patience=math.inf)
    if _orphaned.is_set():
        os._exit(128 + signal.SIGTERM)


def local(configs: Sequence[Config], slots: int | None) -> Local:
    """An executor with so many slots for these configurations; None: one for each GPU, without GPUs
    one for each core."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    accelerators = {machine.resolve(config.trainer).accelerator for config in configs}
    gpus: list[str | None] = [None]
    if "cuda" in accelerators:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = [*(visible.split(",") if visible else map(str, range(torch.cuda.device_count())))]
    count = slots or (len(gpus) if gpus[0] is not None else len(cores))
    return Local(
        [
            Slot(frozenset(cores[n::count] or [cores[n % len(cores)]]), gpus[n % len(gpus)])
            for n in range(count)
        ]
    )
