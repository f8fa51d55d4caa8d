"""The survey, against torch and the system."""

import json
import os

import pytest
import torch

from kindling.system import machine as hardware
from kindling.system.machine import describe_survey, survey
from tests.helpers.commands import Command

ENGINE = {"instruction_set": "x86-64-v4", "reason": None}
ABSENT = {"instruction_set": None, "reason": "the engine is not built; type X"}


def test_the_survey_of_this_machine() -> None:
    found = survey(ENGINE)
    assert found["cpu"]["cores"] == len(os.sched_getaffinity(0))
    assert found["cpu"]["threads"] == torch.get_num_threads()
    assert found["cuda"]["available"] == torch.cuda.is_available()
    assert len(found["cuda"]["devices"]) == torch.cuda.device_count()
    assert found["versions"]["torch"] == torch.__version__.partition("+")[0]
    gpu = "cuda" if torch.cuda.is_available() else "mps"
    has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    assert found["auto"]["accelerator"] == (gpu if has_gpu else "cpu")
    shown = describe_survey(found)
    assert found["cpu"]["model"] in shown
    assert f"trainer.accelerator=auto takes {found['auto']['accelerator']}: " in shown


def test_a_gpu_is_described_by_its_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU, simulated by made-up properties."""

    class Properties:
        name, major, minor, multi_processor_count = "A card", 9, 0, 132

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _number: Properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _number: (10 * 2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(hardware, "_driver", lambda: "570.1")
    shown = describe_survey(survey(ENGINE))
    assert "A card, 10.0 GiB of 80.0 GiB free" in shown
    assert "compute capability 9.0, 132 multiprocessors, bf16 yes" in shown
    assert "auto takes cuda: torch sees 1 CUDA device(s), which come first" in shown


def test_the_command(command: Command) -> None:
    done = command("src.devices", "--json")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {"cpu", "engine", "cuda", "mps", "auto", "versions"}


def test_the_engine_or_its_absence_is_shown() -> None:
    assert "engine: x86-64-v4\n" in describe_survey(survey(ENGINE))
    assert "engine: the engine is not built; type X\n" in describe_survey(survey(ABSENT))
    assert survey(ABSENT)["engine"] == ABSENT
