"""Outputs that cannot be written."""

import subprocess
import sys
from pathlib import Path

import pytest

from src.runs.folder import Run
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
        "from src.system.process import run\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "atexit.register(lambda: logging.info('statistics'))\n"
        "atexit.register(lambda: print('ended'))\n"
        "run(lambda: print('done'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("done\nended\n", "")
