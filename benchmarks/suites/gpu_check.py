"""What needs a CUDA GPU, part by part: the tests marked gpu, seconds of an epoch, of stacks and of
a command, the kernels of a step, and the suites that compare the ways of a GPU.

After each part, `gpu_check.json` in the folder `out` has what is known so far, and `gpu_check.log`
what the parts printed.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks import run_suite
from benchmarks.contenders import bare, by_jax, default_lightning, graphed
from benchmarks.measure import ROOT, SWEEP, quiet, seconds_per_epoch, time_command, wait_for_gpu
from benchmarks.parts import Part, run_part
from benchmarks.settings import Settings
from benchmarks.stacks import Training, configure, trials
from kindling.config.compose import compose
from kindling.data.module import DataModule
from kindling.native.engine import state
from kindling.records.folder import Result, Run
from kindling.system.errors import InputError
from kindling.system.files import write_durably
from kindling.system.machine import survey
from kindling.system.resources import out_of_memory
from kindling.training.fit import fit

FILE, LOG = "gpu_check.json", "gpu_check.log"
TESTS = Path("tests/promises/test_gpu.py")
SUITES = ("graph", "batch_size", "hidden_size", "precision", "transfer", "augmentation")
TRIALS = (1, 64, 132, 1_000, 10_000)  # an H200 has 132 multiprocessors
EPOCHS = 10


def run(settings: Settings) -> tuple[str, str]:
    """Raises InputError without a GPU, unless it rehearses, and without the data."""
    if not settings.rehearse and not torch.cuda.is_available():
        raise InputError(
            "suite=gpu_check: torch sees no CUDA GPU; python -m src.devices lists the devices, and "
            "rehearse=true trains on the CPU, to find what is missing on this machine"
        )
    # Figures of digits would be mistaken for figures of MNIST.
    data = "mnist" if settings.data == "mnist_or_digits" else settings.data
    out = Path(settings.out).absolute()
    settings = settings.model_copy(update={"data": data, "out": str(out)})
    parts = _parts(settings)
    unknown = [name for name in settings.parts or () if name not in parts]
    if unknown:
        raise InputError(f"parts: there is no {unknown[0]}; the parts are {', '.join(parts)}")
    with quiet():
        DataModule(compose(f"data={settings.data}").data).setup()
    out.mkdir(parents=True, exist_ok=True)
    file, names = out / FILE, settings.parts or [*parts]
    found: dict[str, Any] = {
        "suite": "gpu_check", "data": settings.data, "rehearsal": settings.rehearse,
        "survey": survey(state()), "parts": {},
    }  # fmt: skip
    for name in names:
        print(f"{name}: at most {parts[name].limit:g} s", file=sys.stderr, flush=True)
        found["parts"][name] = run_part(name, parts[name], out / LOG)
        write_durably(file, json.dumps(found, indent=2) + "\n")
    table = f"{_table(found['parts'])}\n\n{file}"
    failed = [name for name, part in found["parts"].items() if "error" in part]
    if failed:
        raise InputError(
            f"suite=gpu_check: failed: {', '.join(failed)}; see {out / LOG}\n\n{table}"
        )
    return table, json.dumps(found)


def _table(parts: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [[name, part["seconds"], part.get("error", "done")] for name, part in parts.items()]
    table = tabulate(rows, ["part", "seconds", "outcome"], floatfmt=".1f", maxcolwidths=70)
    values = [
        (f"{name}: {key}", value)
        for name in ("tests", "figures", "step", "stacks", "sweep")
        for key, value in parts.get(name, {}).get("found", {}).items()
        if isinstance(value, int | float | str)
    ]
    figures = tabulate(values, ["figure", "value"], floatfmt=".4g")
    return f"{table}\n\n{figures}"


def _device(settings: Settings) -> str:
    return "cpu" if settings.rehearse else "cuda"


def _tests(settings: Settings) -> dict[str, int]:
    """Counts of the tests by outcome. Raises RuntimeError if one fails or none runs."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        workers = min(4, os.cpu_count() or 1)
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", f"-n{workers}", "-m", "gpu", str(TESTS),
             f"--accelerator={_device(settings)}", f"--junitxml={report}",
             "-p", "no:cacheprovider", "-p", "xdist"],
            cwd=ROOT, check=False,
            # Plugins that happen to be installed may warn, and a warning is an error.
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )  # fmt: skip
        suite = ET.parse(report).getroot().find("testsuite")
        assert suite is not None
    names = ("tests", "failures", "errors", "skipped")
    counts = {name: int(suite.get(name, 0)) for name in names}
    if counts["failures"] or counts["errors"] or counts["tests"] == counts["skipped"]:
        raise RuntimeError(f"{counts}; see {LOG}")
    return counts


def _overrides(settings: Settings) -> tuple[str, ...]:
    return (
        f"data={settings.data}", f"trainer.accelerator={_device(settings)}", "trainer.devices=1",
        "scheduler=none", "optimizer.lr=0.1",
    )  # fmt: skip


def _figures(settings: Settings) -> dict[str, Any]:
    """Seconds per epoch of 784-32-10 at batch size 100, and figures to compare them with."""
    overrides = (*_overrides(settings), f"trainer.max_epochs={EPOCHS}")

    def seconds(*more: str) -> tuple[float, Result]:
        with tempfile.TemporaryDirectory() as folder:
            run = fit(compose(*overrides, *more), Path(folder))
            return seconds_per_epoch(run.history, warm_up=2), run.result

    usual, result = seconds()
    graph, _ = seconds("trainer.step=closed_form")
    eager, _ = seconds("trainer.step=closed_form", "trainer.cuda_graph=false")
    autograd, _ = seconds("trainer.step=autograd")
    count = 4_800 if settings.rehearse else 48_000
    stream = torch.Generator().manual_seed(0)
    features = torch.randn(count, 784, generator=stream)
    labels = torch.randint(10, (count,), generator=stream)
    device = _device(settings)
    features, labels = features.to(device), labels.to(device)
    lightning = default_lightning(features, labels, device).train()
    others = {"plain PyTorch": bare(features, labels)}
    if device == "cuda":
        others["a CUDA graph of torch.compile's step"] = graphed(features, labels)
    if importlib.util.find_spec("jax"):
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # else JAX takes most of the memory
        others["JAX"] = by_jax(features.cpu(), labels.cpu())
    return {
        "step of an epoch": _told(result["step"], result["step_reason"]),
        "epoch": usual,
        "epoch by closed form": graph,
        "epoch by closed form without a CUDA graph": eager,
        "epoch by autograd": autograd,
        "epoch of Lightning's default loop": lightning,
        "Lightning's default loop/ours": lightning / usual,
        **{f"epoch of {name}": _best_of(other.train) for name, other in others.items()},
        f"fit of {EPOCHS} epochs": result["seconds"]["fit"],
        "test accuracy": result["test/acc"],
    }


def _best_of(train: Callable[[], float]) -> float:
    """The seconds of the fastest of three epochs after a first one, which may compile."""
    train()
    return min(train() for _ in range(3))


def _told(step: str, reason: str | None) -> str:
    """The way of the steps, and why it is not a faster one."""
    return f"{step} ({reason})" if reason else step


def _training(settings: Settings, count: int, *more: str, own_seeds: bool = False) -> Training:
    config, data = configure(*_overrides(settings), *more)
    rates = np.geomspace(0.01, 0.5, count).tolist()
    seeds = range(count) if own_seeds else [0] * count
    return Training(data, trials(config, rates, seeds))


def _step(settings: Settings) -> dict[str, Any]:
    """The kernels of an epoch by their total time, for one trial and for 64, by each kind of step
    that a GPU has."""
    found: dict[str, Any] = {}
    for kind, count in product(("auto", "closed_form"), (1, 64)):
        training = _training(settings, count, f"trainer.step={kind}")
        training.epoch()
        training.epoch()  # builds graphs
        kernels = _kernels(training.epoch)
        steps = training.plan.steps_per_epoch
        found[f"{kind}, {count} trials: step"] = _told(training.step.kind, training.step.reason)
        found[f"{kind}, {count} trials: kernels a step"] = (
            sum(n for n, _ in kernels.values()) / steps
        )
        found[f"{kind}, {count} trials: microseconds a step in kernels"] = (
            sum(spent for _, spent in kernels.values()) / steps
        )
        found[f"{kind}, {count} trials, by kernel"] = {
            name: {"number a step": number / steps, "microseconds a step": spent / steps}
            for name, (number, spent) in sorted(kernels.items(), key=lambda item: -item[1][1])[:40]
        }
    return found


def _kernels(epoch: Callable[[], object]) -> dict[str, tuple[int, float]]:
    """How often each kernel ran on the GPU, and its microseconds."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, acc_events=True) as recorded:
        epoch()
        wait_for_gpu()
    return {
        event.key: (event.count, event.self_device_time_total)
        for event in recorded.key_averages()
        if event.device_type == DeviceType.CUDA
    }


def _stacks(settings: Settings) -> dict[str, Any]:
    """Seconds of an epoch of a stack: of this program until all is queued, whole, and in kernels.
    A stack that needs too much memory gets none."""
    found: dict[str, Any] = {}
    for own_seeds in (False, True):
        for count in (1, 8) if settings.rehearse else TRIALS:
            name = f"{count} trials" + (" with own seeds" if own_seeds else "")
            try:
                training = _training(settings, count, own_seeds=own_seeds)
                training.epoch()
                training.epoch()
                wait_for_gpu()
                began = time.perf_counter()
                training.epoch()
                queued = time.perf_counter() - began
                wait_for_gpu()
                found[f"{name}, epoch"] = time.perf_counter() - began
                found[f"{name}, until all is queued"] = queued
                found[f"{name}, step"] = _told(training.step.kind, training.step.reason)
                spent = sum(spent for _, spent in _kernels(training.epoch).values())
                found[f"{name}, in kernels"] = spent / 1e6
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                found[name] = "out of memory"
    return found


def _sweep(settings: Settings) -> dict[str, Any]:
    """Seconds of the whole command, and of the phases of its first stack; how many trials were
    trained by each way."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = time_command(
            ROOT, "src.train", "-m", "hydra/launcher=fused", *SWEEP, f"data={settings.data}",
            f"trainer.accelerator={_device(settings)}", f"hydra.sweep.dir={folder}/sweep",
        )  # fmt: skip
        results = [Run(file.parent).result for file in Path(folder).glob("sweep/*/result.json")]
        ways = Counter(_told(result["step"], result["step_reason"]) for result in results)
        first = Run(Path(folder) / "sweep" / "0").result["seconds"]
        return {
            "command": seconds,
            **{f"stack, {phase}": value for phase, value in first.items()},
            **{f"trials by {way}": count for way, count in ways.items()},
        }


def _suite(name: str, settings: Settings) -> Any:
    """The report of a suite on this device. Its picture lands beside the results."""
    changes = {"suite": name, "accelerators": [_device(settings)], "rounds": 1}
    os.chdir(settings.out)
    return json.loads(run_suite(settings.model_copy(update=changes))[1])


def _parts(settings: Settings) -> dict[str, Part]:
    limits: dict[Callable[[Settings], Any], float] = {
        _tests: 240, _figures: 90, _step: 60, _stacks: 150, _sweep: 90,
    }  # fmt: skip
    own = {
        function.__name__[1:]: Part(partial(function, settings), limit)
        for function, limit in limits.items()
    }
    return own | {name: Part(partial(_suite, name, settings), 120) for name in SUITES}
