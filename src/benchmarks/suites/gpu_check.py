"""All that needs a CUDA GPU, written into gpu_check.json: the tests marked gpu, the suites that
compare devices, an epoch of the default network, and the README's sweep as a command."""

import json
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from src.benchmarks import run_suite
from src.benchmarks.contenders import default_lightning
from src.benchmarks.measure import ROOT, SWEEP, seconds_per_epoch, time_command
from src.benchmarks.settings import Settings
from src.config.compose import compose
from src.native.engine import state
from src.runs.folder import Result, Run
from src.system.errors import InputError
from src.system.files import write_durably
from src.system.survey import survey
from src.training.fit import fit

FILE = Path("gpu_check.json")
SUITES = (
    "devices", "precision", "batch_size", "hidden_size", "dataset_size", "transfer",
    "augmentation", "ranks", "graph",
)  # fmt: skip


def run(settings: Settings) -> tuple[str, str]:
    if not torch.cuda.is_available():
        raise InputError(
            "suite=gpu_check: torch sees no CUDA GPU; python -m src.devices lists the devices"
        )
    parts: dict[str, Callable[[], Any]] = {
        "tests": _tests,
        "figures": partial(_figures, settings.data),
        **{
            suite: partial(_suite, settings.model_copy(update={"suite": suite})) for suite in SUITES
        },
        "sweep": partial(_sweep, settings.data),
    }
    results: dict[str, Any] = {"suite": "gpu_check", "survey": survey(state()), "seconds": {}}
    for name, part in parts.items():
        began = time.perf_counter()
        results[name] = part()
        results["seconds"][name] = time.perf_counter() - began
        write_durably(FILE, json.dumps(results, indent=2) + "\n")  # after each part
    table = tabulate(results["seconds"].items(), ["part", "seconds"], floatfmt=".1f")
    figures = tabulate(results["figures"].items(), ["figure", "value"], floatfmt=".4g")
    return f"{table}\n\n{figures}\n\n{FILE}", json.dumps(results)


def _suite(settings: Settings) -> Any:
    return json.loads(run_suite(settings)[1])


def _tests() -> dict[str, int]:
    """Counts of the tests marked gpu, by outcome."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = ["-m", "pytest", "-q", "-n0", "-m", "gpu", f"--junitxml={report}"]
        subprocess.run([sys.executable, *command], cwd=ROOT, check=False)
        suite = ET.parse(report).getroot().find("testsuite")
        assert suite is not None
        names = ("tests", "failures", "errors", "skipped")
        return {name: int(suite.get(name, 0)) for name in names}


def _figures(data: str) -> dict[str, float]:
    """Seconds per epoch of 784-32-10 at batch size 100, and figures to compare them with."""
    overrides = (f"data={data}", "trainer.accelerator=cuda", "scheduler=none", "optimizer.lr=0.1")

    def seconds(*more: str) -> tuple[float, Result]:
        config = compose(*overrides, "trainer.max_epochs=10", *more)
        with tempfile.TemporaryDirectory() as folder:
            run = fit(config, Path(folder))
            return seconds_per_epoch(run.history, warm_up=2), run.result

    graph, result = seconds()
    eager, _ = seconds("trainer.cuda_graph=false")
    stream = torch.Generator().manual_seed(0)
    features = torch.randn(48_000, 784, generator=stream)
    labels = torch.randint(10, (48_000,), generator=stream)
    lightning = default_lightning(features.cuda(), labels.cuda(), "cuda").train()
    return {
        "epoch, graph": graph,
        "epoch, eager": eager,
        "epoch, default Lightning": lightning,
        "default Lightning/graph": lightning / graph,
        "fit of ten epochs": result["seconds"]["fit"],
    }


def _sweep(data: str) -> dict[str, Any]:
    """Seconds of the whole command, and of the phases of its stack."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = time_command(
            ROOT, "src.train", "-m", "hydra/launcher=fused", *SWEEP, f"data={data}",
            "trainer.accelerator=cuda", f"hydra.sweep.dir={folder}/sweep",
        )  # fmt: skip
        result = Run(Path(folder) / "sweep" / "0").result
        return {"command_seconds": seconds, "seconds": result["seconds"]}
