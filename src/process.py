"""How a command starts and ends: what is paid for each time, whatever it trains."""

import atexit
import gc
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver


@contextmanager
def importing() -> Iterator[None]:
    """Garbage collection rests: modules leave none, and looking for it takes a fifth of the time
    of importing Lightning. And torch's threads will sleep where they wait for one another: they
    would spin, on a busy machine for one that does not run."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def import_for_ranks() -> None:
    """Starts the process that ranks are forked from. It imports once for all of them, beside this
    one, and for later launches too."""
    multiprocessing.set_forkserver_preload(["src.training.fit", "src.training.ranks"])
    forkserver.ensure_running()


def run(main: Callable[[], None]) -> None:
    """Runs a command's main function and ends the process.

    Exit functions run and streams are flushed as ever, but the interpreter is not taken apart,
    which takes a second when Lightning is loaded. An exception or a thread that still runs gets
    the ordinary end.
    """
    try:
        main()
        status = 0
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    if any(not t.daemon for t in threading.enumerate() if t is not threading.main_thread()):
        sys.exit(status)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@dataclass(frozen=True)
class Place:
    """Which of the ranks this process is, where something started them: torchrun, srun, or a run
    of ours. `by` names it; None where this process is alone."""

    rank: int = 0
    ranks: int = 1
    ranks_per_node: int = 1
    by: str | None = None


def place() -> Place:
    """Reads what torch's elastic launcher and Slurm put into the environment."""
    found = os.environ
    if "TORCHELASTIC_RUN_ID" in found:
        return Place(
            int(found["RANK"]), int(found["WORLD_SIZE"]), int(found["LOCAL_WORLD_SIZE"]), "torchrun"
        )
    # A shell within an allocation has Slurm's variables too; a step of srun has a number.
    interactive = found.get("SLURM_JOB_NAME") in ("bash", "interactive")
    ranks = int(found.get("SLURM_NTASKS", 1))
    if ranks > 1 and "SLURM_STEP_ID" in found and not interactive:
        nodes = int(found.get("SLURM_NNODES", 1))
        return Place(int(found["SLURM_PROCID"]), ranks, ranks // nodes, "srun")
    return Place()
