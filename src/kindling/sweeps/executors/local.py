"""Trains groups side by side in processes of this machine."""

import logging
import math
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from kindling.config.schema import Config, Execution
from kindling.sweeps.executors.base import Attempts, Executor
from kindling.sweeps.tasks import GroupTask, told_how_to_go_on, train_group
from kindling.sweeps.watching import Watch
from kindling.system import machine
from kindling.system.errors import Interrupted
from kindling.system.process import (
    STDERR,
    STDOUT,
    UNGUARDED,
    ForkServerError,
    from_fork_server,
    import_for_stacks,
    unguarded_fault,
)
from kindling.system.resources import cpu_count
from kindling.system.signals import handled
from kindling.training.grouping import TrainingDevice, here
from kindling.training.result import shown

log = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds
PREPARED = 100  # so many trials at least get their folders together, in threads


@dataclass(frozen=True)
class Slot:
    """A part of this machine, for one process: cores, and one GPU or none."""

    cores: frozenset[int]
    gpu: str | None = None


class Local(Executor):
    """Trains groups side by side in processes of this machine, each in a slot of its own.

    If a process is killed, another goes on with its group, from the last checkpoint. A signal to
    this process reaches all of them once: they write their checkpoints.
    """

    makes_folders = True  # those of a group while others train

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.places = slots
        self.slots = len(slots)
        gpus = {slot.gpu for slot in slots} - {None}
        self.sharing = -(-self.slots // max(1, len(gpus)))  # slots of one device

    def place(self, config: Config) -> TrainingDevice:
        whole = here(config)
        return replace(whole, free_bytes=whole.free_bytes // self.sharing)

    def run(self, tasks: Sequence[GroupTask]) -> None:
        remaining = [task for task in tasks if not task.ended]
        if not remaining:
            return
        log.info("%d groups in %d processes", len(remaining), min(self.slots, len(remaining)))
        import_for_stacks()
        watch = Watch(tasks)
        for task in tasks:
            watch.note(task, "ended")
        for task in remaining:
            watch.note(task, "queued")
        folder = shown(remaining[0].sweep)
        with told_how_to_go_on(folder), handled(rank=False), _logged_lines() as lines:
            workers = [_Worker(slot, lines) for slot in self.places[: len(remaining)]]
            try:
                with watch:
                    self._train_all(remaining, workers, watch)
            except BaseException as error:
                for worker in workers:
                    worker.interrupt(getattr(error, "number", signal.SIGTERM))
                raise
            finally:
                for worker in workers:
                    worker.close()

    def _train_all(
        self, tasks: Sequence[GroupTask], workers: Sequence["_Worker"], watch: Watch
    ) -> None:
        new, waiting, free = deque(tasks), deque[Attempts](), [*workers]
        training: dict[Any, tuple[_Worker, Attempts]] = {}  # by the pipes of the processes
        while new or waiting or training:
            if new and (not waiting or not connection.wait(training, 0)):
                some = [new.popleft()]
                while new and sum(len(task.trials) for task in some) < PREPARED:
                    some.append(new.popleft())
                if self.make is not None:
                    self.make([trial for task in some for trial in task.trials])
                waiting += map(Attempts, some)
            while waiting and free:
                worker, attempts = free.pop(0), waiting.popleft()
                watch.note(attempts.task, "running")
                worker.begin(attempts.task)
                training[worker.pipe] = worker, attempts
            for pipe in connection.wait(training, 0 if new else None):
                worker, attempts = training.pop(pipe)
                free.append(worker)
                if worker.ended() or not attempts.killed("type a smaller hydra.launcher.slots"):
                    watch.note(attempts.task, "ended")
                else:
                    waiting.appendleft(attempts)


class _Worker:
    """A process in a slot. It is started with its first task, and anew after it was killed."""

    def __init__(self, slot: Slot, lines: Connection) -> None:
        self.slot, self.lines = slot, lines
        self.process: BaseProcess | None = None
        self.trains = False

    def begin(self, task: GroupTask) -> None:
        if self.process is None:
            context = multiprocessing.get_context("forkserver")
            self.pipe, other = context.Pipe()
            self.process = context.Process(target=_serve, args=(other, self.slot, self.lines))
            with suppress(ForkServerError), from_fork_server():  # `ended` finds out
                self.process.start()
            other.close()
        self.trains = True
        with suppress(OSError):  # if the process was killed meanwhile, `ended` finds out
            self.pipe.send((train_group, task.with_memory()))

    def ended(self) -> bool:
        """Whether the task has ended; False if the process was killed. Raises its exception."""
        self.trains, process = False, self.process
        try:
            fault = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.close()
            if process is not None and process.exitcode == UNGUARDED:
                raise unguarded_fault() from None
            return False
        if fault is not None:
            raise fault
        return True

    def interrupt(self, number: int) -> None:
        """Sends a signal to the process, if it trains."""
        if self.trains and self.process is not None and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def close(self) -> None:
        if self.process is not None:
            self.pipe.close()
            if self.process.pid is not None:  # a signal may have come before it was started
                self.process.join()
            self.process = None


@contextmanager
def _logged_lines() -> Iterator[Connection]:
    """Yields a pipe for what the processes print. This process logs the lines, above its table."""
    reading, writing = multiprocessing.Pipe(duplex=False)

    def log_lines() -> None:
        with open(
            reading.fileno(), errors="backslashreplace", newline="\n", closefd=False
        ) as lines:
            for line in lines:
                text = line.rstrip().rpartition("\r")[2]  # of a bar, the last drawing
                if text:
                    log.warning("%s", text)

    thread = threading.Thread(target=log_lines, daemon=True)
    thread.start()
    try:
        yield writing
    finally:  # the pipe has an end, unless what the processes have started lives on
        writing.close()
        thread.join(PATIENCE)


def _serve(pipe: Connection, slot: Slot, lines: Connection) -> None:
    """Moves this process into its slot, and trains there until the pipe is closed. Ctrl-C reaches
    only the process of the sweep, which sends the signal on. `lines` takes what is printed."""
    os.setsid()
    os.dup2(lines.fileno(), STDOUT)
    os.dup2(lines.fileno(), STDERR)
    lines.close()
    # The process of the sweep logs the errors of trials, but has no traceback.
    logging.getLogger("kindling.sweeps.tasks").addFilter(lambda record: record.exc_info is not None)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, slot.cores)
    torch.set_num_threads(min(len(slot.cores), cpu_count()))
    if slot.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = slot.gpu
    threading.Thread(target=_end_with_sweep, daemon=True).start()
    with suppress(EOFError, ConnectionError, Interrupted), handled(rank=False):
        while True:
            train, task = pipe.recv()
            fault = None
            try:
                train(task, patience=math.inf)
            except Exception as error:
                fault = error
            pipe.send(fault)


def _end_with_sweep() -> None:
    """Stops this process when the process of the sweep has been killed."""
    sweep = multiprocessing.parent_process()
    assert sweep is not None
    sweep.join()
    os.kill(os.getpid(), signal.SIGTERM)  # training writes a checkpoint first


def local(execution: Execution, configs: Sequence[Config]) -> Local:
    """An executor with `execution.slots` slots for these configurations; None: one for each GPU,
    without GPUs one for each core."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    accelerators = {machine.resolve(config.trainer).accelerator for config in configs}
    gpus: list[str | None] = [None]
    if "cuda" in accelerators:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = [*(visible.split(",") if visible else map(str, range(torch.cuda.device_count())))]
    count = execution.slots or (len(gpus) if gpus[0] is not None else cpu_count())
    return Local(
        [
            Slot(frozenset(cores[n::count] or [cores[n % len(cores)]]), gpus[n % len(gpus)])
            for n in range(count)
        ]
    )
