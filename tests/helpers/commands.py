"""Commands of the project, started as users start them."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from kindling.records.folder import Run
from kindling.system.installation import PATHS

ROOT = Path(__file__).parent.parent.parent
OWN = (ROOT / "src" / "kindling" / "commands").glob("[!_]*.py")
COMMANDS = sorted([*(path.stem for path in OWN), "demo"])
OF_A_CHECKOUT = ["benchmark", "torture"]
PYTHONPATH = os.pathsep.join(PATHS)
SMALL = ("data=digits", "trainer=cpu", "trainer.max_epochs=2")

Train = Callable[..., Run]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def run_command(
    folder: Path, module: str, *arguments: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# The limit of time ends what a killed test leaves behind.
LONG = (
    "data=digits",
    "trainer=cpu",
    "trainer.max_epochs=100000",
    "trainer.max_time='00:00:05:00'",
    "model.dropout=0.1",
)


def started(tmp_path: Path, *arguments: str, epoch: int = 2) -> "subprocess.Popen[str]":
    """A training command in its own process group, once that epoch has ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "src.train", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if re.match(rf"epoch +{epoch}/", line):
            break
    return process


def require_told_without_torch(name: str, told: Mapping[tuple[str, ...], str]) -> None:
    """The command src.NAME with each of these arguments prints the message, ends with status 2, and
    has not imported torch."""
    script = (
        "import sys, src; from kindling.system.errors import exit_on_error\n"
        f"from kindling.commands.{name} import main\n"
        f"for arguments in {list(told)}:\n"
        "    sys.argv[1:] = arguments\n"
        "    try:\n"
        "        with exit_on_error(): main()\n"
        "    except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2 False\n" * len(told)
    for message in told.values():
        assert message in done.stderr, f"{message}\nis not in\n{done.stderr}"
