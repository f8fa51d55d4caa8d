"""Commands of the project, started as users start them."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from src.runs.folder import Run

ROOT = Path(__file__).parent.parent.parent
COMMANDS = sorted(
    [path.stem for path in (ROOT / "src").glob("*.py") if "__main__" in path.read_text()]
    + [path.parent.name for path in (ROOT / "src").glob("*/__main__.py")]
)
SMALL = ("data=digits", "trainer=cpu", "trainer.max_epochs=2")

Train = Callable[..., Run]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def run_command(
    folder: Path, module: str, *arguments: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
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
        env={**os.environ, "PYTHONPATH": str(ROOT)},
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
        f"import sys; from src.system.errors import exit_on_error; from src.{name} import main\n"
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
