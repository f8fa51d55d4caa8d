"""Outputs that cannot be written, and imports."""

import multiprocessing
import os
import pty
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest

from kindling.records.folder import Run
from kindling.system.process import ForkServerError, from_fork_server
from tests.helpers.commands import COMMANDS, ROOT, SMALL, Command


@pytest.mark.parametrize(
    ("stdout", "arguments"),
    [
        ("full", "src.devices"),
        ("closed", "src.devices"),
        ("broken", "src.devices"),
        ("full", "src.train resume=RUN"),  # by a handler of logging, which has errors of its own
    ],
)
def test_an_output_that_cannot_be_written(
    stdout: str, arguments: str, command: Command, finished: Run
) -> None:
    """A reader that has closed its end is not a fault. On a full disk or a closed output the
    command prints one line and fails."""
    done = command(*arguments.replace("RUN", str(finished.folder)).split(), stdout=stdout)
    reason = {"full": "No space left on device", "closed": "Bad file descriptor", "broken": None}
    assert (done.returncode, done.stderr) == _told(reason[stdout])


def _told(reason: str | None) -> tuple[int, str]:
    if reason is None:
        return 0, ""
    return 1, f"error: the standard output cannot be written ({reason}); its lines are dropped\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_fails_when_its_output_is_lost(name: str, command: Command) -> None:
    done = command(f"src.{name}", "--help", stdout="full")
    assert (done.returncode, done.stderr) == _told("No space left on device")


def test_a_run_continues_when_nobody_reads_its_output(command: Command, tmp_path: Path) -> None:
    done = command("src.train", *SMALL, "hydra.run.dir=run", stdout="broken")
    assert (done.returncode, done.stderr) == (0, "")
    assert Run(tmp_path / "run").result["status"] == "finished"


def test_exit_functions_that_log_print_nothing() -> None:
    """torch has such a function. Its level of logging is not set in a command that ends early."""
    code = (
        "import atexit, logging\n"
        "from kindling.system.process import run\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "atexit.register(lambda: logging.info('statistics'))\n"
        "atexit.register(lambda: print('ended'))\n"
        "run(lambda: print('done'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("done\nended\n", "")


def _printed(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout


TORCH = {"torch", "lightning", "torchmetrics"}
# scipy.signal, matplotlib and torchvision are imported by torchmetrics, torch._dynamo by Lightning.
HEAVY = {"matplotlib", "optuna", "pandas", "scipy", "sklearn", "torch._dynamo", "torchvision"}
OPTIONAL = {"mlflow", "onnx", "onnxruntime", "onnxscript", "safetensors", "tensorboard", "wandb"}
UNUSED = {
    "hydra",
    "jinja2",
    "kindling.inference",
    "kindling.plots",
    "kindling.reports",
    "kindling.sweeps",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "unused"),
    [
        ("src.evaluate, src.train, kindling.sweeps.command_line", TORCH | HEAVY | OPTIONAL),
        ("kindling.sweeps.search.command, kindling.inference.inputs", TORCH | HEAVY | OPTIONAL),
        ("kindling.reports.page", TORCH | OPTIONAL),
        (
            "kindling.inference.prediction, kindling.inference.export.export",
            TORCH - {"torch"} | HEAVY | OPTIONAL | {"hydra"},
        ),
        ("kindling.training.preload", {"optuna", "torch._dynamo", "sklearn"} | OPTIONAL | UNUSED),
        ("kindling.sweeps.preload", {"optuna", "pandas", "sklearn"} | OPTIONAL),
    ],
)
def test_a_command_imports_nothing_heavy_that_it_may_not_use(
    modules: str, unused: set[str]
) -> None:
    assert _printed(f"import sys, {modules}\nprint({unused} & set(sys.modules))") == "set()\n"


@pytest.mark.slow
def test_what_is_imported_is_never_collected() -> None:
    """The objects are in the generation that the collector leaves alone. Later objects are not."""
    code = (
        "import gc\n"
        "from kindling.system.process import importing\n"
        "before = gc.get_freeze_count()\n"
        "with importing(): import torch\n"
        "frozen = gc.get_freeze_count()\n"
        "with importing(): import torch\n"
        "print(frozen - before > 100_000, gc.get_freeze_count() <= frozen, gc.isenabled())"
    )
    assert _printed(code) == "True True True\n"


def test_a_failed_import_leaves_the_collector_on() -> None:
    code = (
        "import gc\n"
        "from kindling.system.process import importing\n"
        "try:\n"
        "    with importing(): import nowhere\n"
        "except ImportError: print(gc.isenabled())"
    )
    assert _printed(code) == "True\n"


STATUS = "loading libraries ..."


@pytest.mark.parametrize(
    ("run", "environment", "shown"),
    [
        ("run(main)", {}, f"{STATUS}\r{' ' * len(STATUS)}\r"),
        ("run(main)", {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}, ""),
        ("main()", {}, ""),  # not a command, for example a process of joblib
    ],
)
def test_a_terminal_shows_that_libraries_are_loaded(
    run: str, environment: dict[str, str], shown: str
) -> None:
    """And the line is removed."""
    code = (
        "from kindling.system.process import importing, run\n"
        "def main():\n"
        "    with importing(): import decimal\n"
        f"{run}"
    )
    ours, terminal = pty.openpty()
    environment = os.environ | {"SLURM_JOB_NAME": "train", "TERM": "xterm"} | environment
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stderr=terminal, env=environment, check=True
    )
    os.write(terminal, b"|")
    read = b""
    while not read.endswith(b"|"):
        read += os.read(ours, 1000)
    assert read.decode() == f"{shown}|"
    os.close(ours)
    os.close(terminal)


FORKED = """
import gc, multiprocessing, os, signal, sys, threading
from pathlib import Path
from kindling.system import process, warm

def state():
    tasks = [*Path("/proc/self/task").iterdir()]
    return "marker" in sys.modules, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, len(tasks)

def inner(pipe):
    pipe.send(state())

def outer(pipe, number):
    here, there = multiprocessing.get_context("forkserver").Pipe()
    other = multiprocessing.get_context("forkserver").Process(target=inner, args=(there,))
    other.start()
    other.join()
    held = Path(f"/proc/self/fd/{number}").exists()
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
    gc.collect()
    for each in opened:
        os.fstat(each)
    pipe.send((state(), here.recv(), held))

def main(taken, threads):
    sys.modules["marker"] = sys
    signal.signal(signal.SIGTERM, lambda *_: None)
    number = os.open("/dev/null", os.O_RDONLY)
    os.dup2(number, 99)
    warm.taken = taken
    gc.disable()  # of files that nobody can reach any more
    lost = [open("/dev/null") for _ in range(9)]
    lost.append(lost)
    del lost
    for _ in range(threads):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("told once", end="")
    process.import_for_ranks(module="math")
    process.import_for_ranks(module="math")
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    other = context.Process(target=outer, args=(there, 99))
    other.start()
    other.join()
    print("", *here.recv(), other.exitcode)

if __name__ == "__main__":
    process.run(lambda: main(*map(int, sys.argv[1:])))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the warm process needs Linux")
@pytest.mark.parametrize(
    ("taken", "threads", "forked"), [(1, 0, True), (0, 0, False), (1, 1, False)]
)
def test_the_fork_server_of_a_command_of_the_warm_process_is_its_fork(
    taken: int, threads: int, forked: bool, tmp_path: Path
) -> None:
    """Which has the modules, but no handlers, descriptors and buffered lines of the command. With a
    second thread, a fork could wait for ever. A process of the fork server may have another. What
    nobody could reach in the command closes no file of these processes."""
    script = tmp_path / "script.py"
    script.write_text(FORKED)
    environment = os.environ | {"KINDLING_WARM": "off"}
    environment.pop("PYTHONUNBUFFERED", None)  # lines would wait in no buffer
    done = subprocess.run(
        [sys.executable, script, str(taken), str(threads)], capture_output=True, text=True,
        check=True, timeout=60, env=environment,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout == f"told once {(forked, True, 1)} {(forked, True, 1)} False 0\n"


def test_the_operators_of_torch_stay_until_the_end() -> None:
    """And all other finalizers are called."""
    code = (
        "import torch, weakref, kindling.system.process as process\n"
        "class Kept: pass\n"
        "kept = Kept(); own = weakref.finalize(kept, print, 'called')\n"
        "process._keep_operators()\n"
        "of_torch = [f for f in weakref.finalize._registry if f is not own\n"
        "            and f.peek()[1] is torch.library._del_library]\n"
        "print(len(of_torch) > 9, any(f.atexit for f in of_torch), own.atexit)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.stdout.split() == ["True", "False", "True", "called"]


def test_after_a_broken_connection_a_process_gets_a_new_fork_server() -> None:
    """Also where the old server lives."""
    context = multiprocessing.get_context("forkserver")
    forkserver.ensure_running()
    old = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    with pytest.raises(ForkServerError), from_fork_server():
        raise ConnectionResetError
    process = context.Process(target=os.getpid)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert forkserver._forkserver._forkserver_pid != old  # type: ignore[attr-defined]
