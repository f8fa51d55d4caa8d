"""Commands without their start: a process that has imported the libraries forks for each.

Importing torch and Lightning is most of what a small command takes. Importing the project's own
modules and composing what most commands begin with is the half of the rest.
"""

import functools
import importlib
import json
import os
import resource
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PREPARED = ((), ("data=digits",), ("data=digits", "trainer=cpu"))  # what most commands choose
PATIENCE = 300.0  # seconds, for one command
# What commands import of others.
LIBRARIES = (
    "lightning.pytorch", "hydra.main", "pydantic", "sklearn.metrics",
    "torchvision", "optuna", "tabulate", "jinja2", "psutil", "matplotlib.figure",
)  # fmt: skip


class Warm:
    """Runs commands, one at a time, in children of a process that waits beside the tests."""

    def __init__(self, *modules: str, root: Path = ROOT, preload: Path | None = None) -> None:
        """`modules` are imported once for all commands. Without them, these are the libraries: each
        command imports the project's own modules for itself. `root` holds src and this module;
        `preload` is a library for LD_PRELOAD."""
        self.preload = {} if preload is None else {"LD_PRELOAD": str(preload)}
        self.modules, self.root = modules or LIBRARIES, root
        self.process: subprocess.Popen[str] | None = None

    def __call__(
        self,
        folder: Path,
        module: str,
        *arguments: str,
        stdout: str = "file",
        limit: int | None = None,
        **environment: str,
    ) -> "subprocess.CompletedProcess[str]":
        """`module` is that of `python -m`, or -c with a program as the first argument. `PYTHONPATH`
        is searched as in a process of its own. `stdout` is file, full, closed or broken: a pipe
        that nobody reads. `limit` is the largest size of a file in bytes, that of the error output
        too."""
        process = self.process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with tempfile.TemporaryDirectory() as place:
            out, errors = Path(place) / "out", Path(place) / "errors"
            order = {
                "folder": str(folder),
                "environment": {**os.environ, **environment},
                "command": [module, *arguments],
                "streams": [str(out), str(errors)],
                "stdout": stdout,
                "limit": limit,
            }
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], PATIENCE)[0]:
                self.stop()
                raise subprocess.TimeoutExpired([module, *arguments], PATIENCE)
            status = int(process.stdout.readline())
            return subprocess.CompletedProcess(
                [module, *arguments], status, out.read_text(), errors.read_text()
            )

    def _start(self) -> "subprocess.Popen[str]":
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.warm", *self.modules],
            cwd=self.root,
            env={
                **os.environ,
                **self.preload,
                "PYTHONPATH": f"{self.root / 'src'}{os.pathsep}{self.root}",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self.process

    def stop(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            self.process = None


@functools.cache
def shared() -> Warm:
    """The Warm of all tests of this process, without the project's own modules: for commands with
    other extensions, or another environment. Its process ends with this one."""
    return Warm()


@functools.cache
def prepared() -> Warm:
    """The same with the project's own modules."""
    from kindling.commands.warm import LIBRARIES as OWN

    return Warm(*LIBRARIES, *OWN)


def serve() -> None:
    """For each line of stdin a child; its exit status becomes a line of stdout."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    ours = {name for name in sys.modules if name.partition(".")[0] == "kindling"}
    assert not ours or any(name.startswith("kindling.") for name in sys.argv[1:]), ours
    if "kindling.sweeps.run_command" in ours:
        from kindling.config.compose import shared_composer

        for choices in PREPARED:
            shared_composer(None).values(choices)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _become(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(order: dict[str, Any]) -> None:
    """Runs `python -m` with the command, and ends as the interpreter would."""
    for number, name in zip((0, 1, 2), (os.devnull, *order["streams"]), strict=True):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(name, flags), number)
    match order["stdout"]:
        case "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        case "closed":
            os.close(1)
        case "broken":
            reader, writer = os.pipe()
            os.dup2(writer, 1)
            os.close(reader)
    if order["limit"] is not None:
        # Python keeps what the limit left of a module's bytecode, for every later process.
        sys.dont_write_bytecode = True
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["limit"],) * 2)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [order["folder"], *(each for each in places if each not in sys.path)]
    module, *arguments = order["command"]
    # As an interpreter of this one's locale reads them.
    sys.argv[1:] = [os.fsdecode(each.encode(errors="surrogateescape")) for each in arguments]
    status = 1
    try:
        if module == "-c":
            sys.argv[0], program = "-c", sys.argv.pop(1)
            sys.modules["__main__"] = ModuleType("__main__")
            exec(program, vars(sys.modules["__main__"]))
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            status = end.code or 0
        else:
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
