"""A project of a user's own, whose package is installed in a folder, and its processes."""

import os
import subprocess
import sys
from pathlib import Path

from tests.helpers.commands import PYTHONPATH, ROOT
from tests.helpers.warm import shared


def install(folder: Path, extension: str, name: str = "mine") -> Path:
    """What pip writes of a package with this module under the entry point of extensions."""
    record = folder / f"{name}-1.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(f"[kindling.extensions]\n{name} = {extension}\n")
    return folder


def python(
    folder: Path, *arguments: str, cold: bool = False, killed_at: int = 0
) -> "subprocess.CompletedProcess[str]":
    """`cold`: in a process of its own, else forked from the one that has the libraries. The
    extension may read `KILLED_AT`."""
    path = os.pathsep.join([str(folder), PYTHONPATH, str(ROOT)])
    if not cold:
        first, *rest = arguments if arguments[0] == "-c" else arguments[1:]
        return shared()(folder, first, *rest, PYTHONPATH=path, KILLED_AT=str(killed_at))
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path, "KILLED_AT": str(killed_at)},
    )  # fmt: skip
