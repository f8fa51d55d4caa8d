"""Slow file system calls, so that src/benchmarks/crashes.py can kill a process in the midst of one.

On its own and light, because a process that is started anew imports it before anything else.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PIPE = "KINDLING_SLOW_FILES"  # names the pipe that is told of each call before it begins
SECONDS = 0.02  # before and after each call


def slow_down() -> None:
    """Makes every sync, link and rename of this process slow."""
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
    """Makes them slow here and in every Python process that this one starts."""
    os.environ[PIPE] = str(pipe)
    (folder / "sitecustomize.py").write_text(
        "from src.system.slow_files import slow_down\nslow_down()\n"
    )
    root = Path(__file__).parent.parent.parent
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(root)])
    slow_down()
