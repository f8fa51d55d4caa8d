"""Commands through a warm process of their own."""

import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

import pytest

from kindling.system import warm
from tests.helpers.sweeps import until


class Place:
    """Commands in a folder, with a folder for the socket of their own warm process."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.runtime = Path(tempfile.mkdtemp(prefix="w"))  # a socket's path has 107 bytes
        weakref.finalize(self, shutil.rmtree, self.runtime, ignore_errors=True)
        self.environment = {
            **os.environ, "KINDLING_WARM": "on", "XDG_RUNTIME_DIR": str(self.runtime),
            **environment,
        }  # fmt: skip

    def command(self, module: str, *arguments: str, **environment: str) -> list[Any]:
        return [sys.executable, "-m", module, *arguments]

    def run(
        self, module: str, *arguments: str, options: dict[str, Any] | None = None, **more: str
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(module, *arguments), cwd=self.folder, env={**self.environment, **more},
            text=True, capture_output=True, check=False, timeout=300, **(options or {}),
        )  # fmt: skip

    def begin(self, module: str, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.command(module, *arguments), cwd=self.folder, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip

    def state(self) -> dict[str, Any] | None:
        """What the warm process tells of itself."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_RUNTIME_DIR", self.environment["XDG_RUNTIME_DIR"])
            return warm.asked(b"s")

    def start(self, *arguments: str) -> None:
        done = self.run("src.warm", *arguments)
        assert done.returncode == 0, done.stderr
        until(self.state)

    def stop(self) -> None:
        assert self.run("src.warm", "--stop").returncode == 0
        until(lambda: self.state() is None)

    def told(self) -> dict[str, Any]:
        """The same of a process that lives, however busy the machine is."""
        until(self.state)
        return self.state() or self.told()

    def commands(self) -> int:
        return int(self.told()["commands"])
