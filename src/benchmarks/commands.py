"""Whole commands as their users type them, timed."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
# The sweep of 64 trials in the README.
SWEEP = ("model.hidden_sizes=16,32,64,128", "optimizer.lr=0.03,0.1,0.3,0.5", "seed=0,1,2,3")


def time_command(
    folder: Path, module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> float:
    """Seconds of `python -m MODULE ARGUMENTS` in a folder, with the code of this checkout. Raises
    CalledProcessError when the command fails."""
    own = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    if "DATA_ROOT" in os.environ:
        own["DATA_ROOT"] = str(Path(os.environ["DATA_ROOT"]).absolute())
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder, env=own, check=True, capture_output=True,
    )  # fmt: skip
    return time.perf_counter() - began
