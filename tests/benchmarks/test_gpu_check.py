"""The check of a GPU, without one: it refuses, or rehearses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from src.benchmarks import run_suite
from src.benchmarks.parts import Part
from src.benchmarks.settings import Settings, read_settings
from src.benchmarks.suites import gpu_check
from src.data.module import DataModule
from src.system.errors import InputError


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
    assert parts["step"]["auto, 64 trials: kernels a step"] == 0
    stacks = parts["stacks"]
    for name in ("1 trials", "8 trials", "8 trials with own seeds"):
        assert 0 < stacks[f"{name}, until all is queued"] <= stacks[f"{name}, epoch"]
        assert stacks[f"{name}, in kernels"] == 0


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
