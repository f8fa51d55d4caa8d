"""Trains groups side by side in processes of this machine."""

import logging
import math
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from src.config.schema import Config
from src.runs.folder import resume_command
from src.runs.outcome import format_metric
from src.sweeps.executors.base import Attempts
from src.sweeps.tasks import Task, train_group
from src.system import machine
from src.system.errors import Interrupted
from src.system.process import import_for_ranks
from src.system.signals import handled
from src.training.grouping import Place, here
from src.training.result import shown

log = logging.getLogger(__name__)

REPORT_SECONDS = 60.0
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
        import_for_ranks()
        workers = [_Worker(slot) for slot in self.places[: len(remaining)]]
        free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in workers:
            free.put(worker)

        def train(task: Task) -> None:
            worker = free.get()
            try:
                worker.train(task)
            finally:
                free.put(worker)

        with ThreadPoolExecutor(len(workers)) as threads, handled(rank=False):
            futures = {threads.submit(train, task): task for task in remaining}
            try:
                self._watch(futures)
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

    def _watch(self, futures: dict[Future[None], Task]) -> None:
        """Logs each group that ends, and now and then how far the others are."""
        left, began = set(futures), time.monotonic()
        while left:
            # A short timeout, because signals are handled between two waits.
            ended, left = wait(left, timeout=0.2, return_when="FIRST_COMPLETED")
            for future in ended:
                future.result()
                done = len(futures) - len(left)
                log.info("%d of %d groups ended: %s", done, len(futures), _outcome(futures[future]))
            if left and time.monotonic() - began >= REPORT_SECONDS:
                began = time.monotonic()
                running = [futures[f] for f in futures if f.running()]
                log.info("%s", "; ".join(map(_progress, running)))


def _outcome(task: Task) -> str:
    values = [run.monitored for run in task.runs if run.result.get("status") == "finished"]
    monitor = task.configs[0].checkpoint.monitor
    best = max(values, default=None) if monitor.endswith("acc") else min(values, default=None)
    return f"{task.name}: best {monitor} {format_metric(monitor, best)}" if values else task.name


def _progress(task: Task) -> str:
    return f"{task.name}: epoch {task.epoch}/{task.configs[0].trainer.max_epochs}"


class _Worker:
    """A process in a slot."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
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
                    self.pool = ProcessPoolExecutor(1, context, _enter, (self.slot,))
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


def _enter(slot: Slot) -> None:
    """Moves this process into its slot. Ctrl-C reaches only the process of the sweep, which sends
    the signal on."""
    os.setsid()
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
