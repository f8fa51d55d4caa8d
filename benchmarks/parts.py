"""The parts of a long check, each in a process of its own that ends in time."""

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple


class Part(NamedTuple):
    """`run` is a function that can be pickled. It may take `limit` seconds, imports included."""

    run: Callable[[], Any]
    limit: float


def run_part(name: str, part: Part, log: Path) -> dict[str, Any]:
    """What `part.run()` returned as `found`, or a text as `error`, and the seconds it took. What it
    prints is appended to `log`. Ends all processes that it left."""
    context = get_context("spawn")  # an error of CUDA spoils its process
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(name, part.run, log, sender))
    began = time.perf_counter()
    process.start()
    sender.close()
    try:
        if receiver.poll(part.limit):
            result: dict[str, Any] = receiver.recv()
            process.join(10)
        else:
            result = {"error": f"took more than {part.limit:g} s"}
    except EOFError:
        process.join()
        result = {"error": f"its process ended with status {process.exitcode}"}
    finally:
        assert process.pid is not None
        for end in (os.killpg, os.kill):  # of a process that just began, there is no group yet
            with contextlib.suppress(ProcessLookupError):
                end(process.pid, signal.SIGKILL)
        process.join()
    return {"seconds": time.perf_counter() - began, **result}


def _run(name: str, function: Callable[[], Any], log: Path, sender: "Connection[Any, Any]") -> None:
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.__stdout__, sys.__stderr__):
        assert stream is not None
        os.dup2(descriptor, stream.fileno())
    print(f"--- {name}", flush=True)
    try:
        sender.send({"found": function()})
    except Exception as error:
        traceback.print_exc()
        sender.send({"error": f"{type(error).__name__}: {error}"})
