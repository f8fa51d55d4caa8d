"""The check of a GPU, without one: it refuses, or rehearses."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import run_suite
from benchmarks.measure import ROOT
from benchmarks.parts import Part
from benchmarks.settings import Settings, read_settings
from benchmarks.suites import gpu_check
from kindling.config.schema import Config
from kindling.data.module import DataModule
from kindling.steps import kernel
from kindling.steps.base import StepChoice
from kindling.system.errors import InputError
from kindling.training import building


def here(name: str, part: Part, log: Path) -> dict[str, Any]:
    """The part in this process."""
    return {"seconds": 1.0, "found": part.run()}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data sets that are opened, for which there are small ones instead."""
    names: list[str] = []
    setup = DataModule.setup

    def note(self: DataModule, stage: str = "fit") -> None:
        names.append(self.config.name)
        assert getattr(self.config, "fallback", None) is None
        if self.config.name != "mnist":
            setup(self, stage)

    monkeypatch.setattr(DataModule, "setup", note)
    monkeypatch.setattr(gpu_check, "run_part", here)
    return names


def check(*settings: str) -> dict[str, Any]:
    _, line = run_suite(read_settings(["suite=gpu_check", "rehearse=true", *settings]))
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_gpu_check_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="suite=gpu_check: torch sees no CUDA GPU"):
        run_suite(read_settings(["suite=gpu_check"]))


def test_a_part_that_there_is_not() -> None:
    told = "parts: there is no kernels; the parts are tests, figures, step, stacks, sweep, graph"
    with pytest.raises(InputError, match=told):
        check("parts=[kernels]")


def test_its_figures_are_those_of_mnist(
    opened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never of the digits that a training command falls back to."""
    asked = []

    def fail(name: str, part: Part, log: Path) -> dict[str, Any]:
        asked.append(part.run.args[-1])  # type: ignore[attr-defined]
        return {"seconds": 1.0, "error": "no GPU"}

    monkeypatch.setattr(gpu_check, "run_part", fail)
    with pytest.raises(InputError, match=r"failed: tests, figures.*see .*gpu_check.log"):
        check(f"out={tmp_path}")
    assert opened == ["mnist"]
    assert {settings.data for settings in asked} == {"mnist"}


@pytest.mark.slow
def test_a_rehearsal(opened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each figure is there; those of kernels are those of a device that has none."""
    monkeypatch.setattr(gpu_check, "EPOCHS", 3)
    monkeypatch.chdir(tmp_path)
    found = check("data=digits", "out=out", "parts=[figures,step,stacks]")
    assert json.loads((tmp_path / "out" / "gpu_check.json").read_text()) == found
    parts = {name: part["found"] for name, part in found["parts"].items()}
    figures = parts["figures"]
    assert figures["test accuracy"] > 0.5
    ratio = figures["epoch of Lightning's default loop"] / figures["epoch"]
    assert figures["Lightning's default loop/ours"] == pytest.approx(ratio)
    assert figures["step of an epoch"].partition(" ")[0] in ("native", "closed_form")
    assert parts["step"]["auto, 64 trials: kernels a step"] == 0
    assert parts["step"]["closed_form, 64 trials: step"] == "closed_form"
    stacks = parts["stacks"]
    for name in ("1 trials", "8 trials", "8 trials with own seeds"):
        assert 0 < stacks[f"{name}, until all is queued"] <= stacks[f"{name}, epoch"]
        assert stacks[f"{name}, in kernels"] == 0
        assert stacks[f"{name}, step"] == figures["step of an epoch"]


@pytest.mark.slow
def test_what_trained_is_told(
    opened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A figure of the kernel is not one of the closed form that took over."""

    def chosen(configs: Sequence[Config], *_: Any, **__: Any) -> StepChoice:
        wanted = configs[0].trainer.step
        return StepChoice("kernel" if wanted == "auto" else wanted)

    def failing(*_: Any) -> None:
        raise OSError("no libnvrtc")

    monkeypatch.setattr(building, "choose_step", chosen)
    monkeypatch.setattr(kernel, "launch", failing)
    monkeypatch.setattr(gpu_check, "EPOCHS", 3)
    found = check("data=digits", f"out={tmp_path}", "parts=[figures,step,stacks]")["parts"]
    told = "closed_form (OSError: no libnvrtc)"
    assert found["figures"]["found"]["step of an epoch"] == told
    for count in (1, 64):
        assert found["step"]["found"][f"auto, {count} trials: step"] == told
        assert found["step"]["found"][f"closed_form, {count} trials: step"] == "closed_form"
    assert found["stacks"]["found"]["8 trials with own seeds, step"] == told


CALL = 600  # seconds of a call of a machine that is lent by the call
START = 60  # of them are for the imports before the first part and for what is written at the end


def test_the_parts_of_each_call_of_the_documentation_fit_a_call() -> None:
    text = (ROOT / "docs" / "devices.md").read_text()
    limits = {name: part.limit for name, part in gpu_check._parts(Settings(suite="loops")).items()}
    calls = re.findall(r"OUT=(\S+) +ARGS=.parts=\[(\S+)\].+at most (\d+) s", text)
    for _, parts, seconds in calls:
        assert sum(limits[part] for part in parts.split(",")) == int(seconds) <= CALL - START
    named = [part for _, parts, _ in calls for part in parts.split(",")]
    assert sorted(named) == sorted(limits)
    assert len({folder for folder, _, _ in calls}) == len(calls) > 1
    assert f"All limits together are {sum(limits.values()):,.0f} s" in text


def test_a_suite_of_it(opened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the device counts, and the picture lies among the results."""
    asked = []

    def quick(settings: Settings) -> tuple[str, str]:
        asked.append((Path.cwd(), settings.suite, settings.accelerators, settings.rounds))
        return "", '{"ratios": {}}'

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu_check, "run_suite", quick)
    found = check("data=digits", "out=out", "parts=[graph,transfer]")
    out = tmp_path / "out"
    assert asked == [(out, "graph", ["cpu"], 1), (out, "transfer", ["cpu"], 1)]
    assert found["parts"]["graph"]["found"] == {"ratios": {}}


@pytest.mark.torture
def test_its_tests_can_be_rehearsed(tmp_path: Path) -> None:
    """In processes of their own, by the command of `make gpu-check`; a test that a CPU cannot take
    is skipped, the others pass."""
    found = check("data=digits", f"out={tmp_path}", "parts=[tests]")
    counts = found["parts"]["tests"]["found"]
    assert counts["failures"] == counts["errors"] == 0
    assert counts["tests"] - counts["skipped"] > 40
