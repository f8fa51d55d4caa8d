"""`python -m src.board` without a page; tests/reports/test_board.py opens the page."""

import socket
from pathlib import Path

from kindling.system.page_server import ADDRESS
from tests.helpers.commands import Command
from tests.helpers.runs import ended


def test_faults_are_told_and_nothing_is_served(command: Command, tmp_path: Path) -> None:
    ended(tmp_path / "runs" / "one", 0.5, "name=base")
    with socket.socket() as taken:
        taken.bind((ADDRESS, 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = {
            ("absent",): "error: absent: there is no such folder; name runs, sweeps or folders\n",
            ("base", "--port", "65536"): "error: --port 65536: must be from 1 to 65535, or 0",
            ("--port", "x"): "error: --port x: must be a whole number",
            ("--port", str(port)): f"error: --port {port}: is in use; type --port ",
        }
        for arguments, fault in told.items():
            done = command("src.board", *arguments)
            assert (done.returncode, done.stdout) == (2, "")
            assert fault in done.stderr
