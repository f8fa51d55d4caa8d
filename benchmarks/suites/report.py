"""The cost of a report: the whole command over many runs and over one run."""

import shutil
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.measure import ROOT, interleave, quiet, ratio, report, time_command
from benchmarks.settings import Settings
from kindling.config.compose import compose
from kindling.training.fit import fit

MANY = 1000


def run(settings: Settings) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        with quiet():
            fit(compose(f"data={settings.data}"), base / "one" / "0")
        for number in range(MANY):
            shutil.copytree(base / "one" / "0", base / "many" / str(number))
        contenders = {
            name: partial(time_command, ROOT, "src.report", str(base / part))
            for name, part in (("1 run", "one"), (f"{MANY:,} runs", "many"))
        }
        seconds = interleave(contenders, settings.rounds)
    ratios = {f"{MANY:,} runs/1 run": ratio(seconds, f"{MANY:,} runs", "1 run")}
    return report("report", seconds, ratios, data=settings.data)
