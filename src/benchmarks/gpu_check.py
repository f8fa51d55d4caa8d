"""Everything that needs a CUDA GPU, in one go and into one file.

The tests marked gpu, the tutorials' questions on every device, the figures that are wanted of a
GPU, and a sweep of 64 trials as its users type it.
"""

import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from src.benchmarks import questions
from src.benchmarks.loops import default_lightning
from src.config import compose as composition
from src.runs.folder import Result
from src.system.errors import InputError
from src.system.survey import survey
from src.training.fit import fit

ROOT = Path(__file__).parent.parent.parent
FILE = Path("gpu_check.json")
SWEEP = (
    "-m", "hydra/launcher=fused", "model.hidden_sizes=16,32,64,128",
    "optimizer.lr=0.03,0.1,0.3,0.5", "seed=0,1,2,3",
)  # fmt: skip


def run(rounds: int, data: str) -> tuple[str, str]:
    """The table of seconds by part, and the JSON line. Writes gpu_check.json."""
    if not torch.cuda.is_available():
        raise InputError(
            "suite=gpu_check: torch sees no CUDA GPU; python -m src.devices tells what there is"
        )
    found: dict[str, Any] = {"suite": "gpu_check", "survey": survey(), "seconds": {}}

    def part(name: str, content: Any, began: float) -> None:
        found[name] = content
        found["seconds"][name] = time.perf_counter() - began
        FILE.write_text(json.dumps(found, indent=2) + "\n")  # what is there already is kept

    began = time.perf_counter()
    part("tests", _tests(), began)
    began = time.perf_counter()
    part("figures", _figures(data), began)
    for suite in questions.QUESTIONS:
        began = time.perf_counter()
        part(suite, json.loads(questions.run(suite, rounds)[1]), began)
    began = time.perf_counter()
    part("sweep", _sweep(data), began)
    table = tabulate(found["seconds"].items(), ["part", "seconds"], floatfmt=".1f")
    figures = tabulate(found["figures"].items(), ["figure", "value"], floatfmt=".4g")
    return f"{table}\n\n{figures}\n\n{FILE}", json.dumps(found)


def _tests() -> dict[str, int]:
    """Counts of the tests marked gpu, by outcome."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "gpu", f"--junitxml={report}"],
            cwd=ROOT,
            check=False,
        )
        suite = ET.parse(report).getroot().find("testsuite")
        assert suite is not None
        return {
            name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")
        }


def _figures(data: str) -> dict[str, float]:
    """Seconds per epoch of 784-32-10 at batch 100, and what stands beside them."""
    overrides = (f"data={data}", "trainer.accelerator=cuda", "scheduler=none", "optimizer.lr=0.1")

    def seconds(*more: str) -> tuple[float, Result]:
        config = composition.compose(*overrides, "trainer.max_epochs=10", *more)
        with tempfile.TemporaryDirectory() as folder:
            run = fit(config, Path(folder))
            rows = run.history
            per_epoch = (float(rows[-1]["seconds"] or 0) - float(rows[2]["seconds"] or 0)) / 8
            return per_epoch, run.result

    graph, result = seconds()
    eager, _ = seconds("trainer.cuda_graph=false")
    stream = torch.Generator().manual_seed(0)
    features = torch.randn(48_000, 784, generator=stream)
    labels = torch.randint(10, (48_000,), generator=stream)
    lightning = default_lightning(features.cuda(), labels.cuda(), "cuda")()
    return {
        "epoch, graph": graph,
        "epoch, eager": eager,
        "epoch, default Lightning": lightning,
        "default Lightning/graph": lightning / graph,
        "fit of ten epochs": result["seconds"]["fit"],
    }


def _sweep(data: str) -> dict[str, Any]:
    """Whole command of 64 trials, and the seconds of its training."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "src.train", *SWEEP, f"data={data}",
             "trainer.accelerator=cuda", f"hydra.sweep.dir={folder}/sweep"],
            cwd=ROOT, check=True, capture_output=True,
        )  # fmt: skip
        result = json.loads((Path(folder) / "sweep" / "0" / "result.json").read_text())
        return {"command_seconds": time.perf_counter() - began, "seconds": result["seconds"]}
