"""What a report costs: the whole command, over many runs and over one."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from src.benchmarks.measure import interleave, quiet, ratio, report
from src.config import compose as composition
from src.training.fit import fit

ROOT = Path(__file__).parent.parent.parent
MANY = 1000


def run(rounds: int, data: str, many: int = MANY) -> tuple[str, str]:
    """Contenders are numbers of runs."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        with quiet():
            fit(composition.compose(f"data={data}"), base / "one" / "0")
        for number in range(many):
            shutil.copytree(base / "one" / "0", base / "many" / str(number))
        contenders = {"1 run": _command(base / "one"), f"{many:,} runs": _command(base / "many")}
        seconds = interleave(contenders, rounds)
    ratios = {f"{many:,} runs/1 run": ratio(seconds, f"{many:,} runs", "1 run")}
    return report("report", seconds, ratios, data=data)


def _command(folder: Path) -> Callable[[], float]:
    def measure() -> float:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "src.report", str(folder)],
            cwd=ROOT, check=True, capture_output=True,
        )  # fmt: skip
        return time.perf_counter() - began

    return measure
