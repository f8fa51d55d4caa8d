"""Slow file system calls, so that benchmarks/crashes.py can kill a process during a call.

Imports almost nothing, because each new process imports this module first.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kindling.system.installation import PATHS

PIPE = "KINDLING_SLOW_FILES"  # the variable that names a pipe; each call first writes into it
SECONDS = 0.02  # before and after each call


def slow_down() -> None:
    """Slows each sync, link and rename in this process."""
    pipe = os.open(os.environ[PIPE], os.O_WRONLY)

    def slowed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            os.write(pipe, b"w")
            time.sleep(SECONDS)
            answer = call(*given, **named)
            time.sleep(SECONDS)
            return answer

        return wrapped

    for name in ("fsync", "link", "replace"):
        setattr(os, name, slowed(getattr(os, name)))


def slow_down_with_children(pipe: Path, folder: Path) -> None:
    """Slows them in this process and in each Python process that it starts."""
    os.environ[PIPE] = str(pipe)
    (folder / "sitecustomize.py").write_text(
        "from benchmarks.slow_files import slow_down\nslow_down()\n"
    )
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *PATHS])
    slow_down()
