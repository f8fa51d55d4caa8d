"""What a machine is good for."""

import pytest
import torch

from kindling.config.compose import compose
from kindling.system import machine


def test_missing_bf16_instructions_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = compose("trainer.precision=bf16-mixed").trainer
    monkeypatch.setattr(machine, "cpu_flags", lambda: {"avx2"})
    assert "this CPU has no bf16 instructions" in (
        machine.slow_precision(trainer.precision, "cpu") or ""
    )
    assert machine.slow_precision(trainer.precision, "cuda") is None
    assert machine.slow_precision("32", "cpu") is None
    monkeypatch.setattr(machine, "cpu_flags", lambda: {"avx2", "avx512_bf16"})
    assert machine.slow_precision(trainer.precision, "cpu") is None


def test_a_mac_computes_64_bit_floats_on_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "accelerators", lambda: {"cpu": 8, "cuda": 0, "mps": 1})
    chosen = {
        precision: machine.resolve(compose(f"trainer.precision={precision}").trainer).accelerator
        for precision in ("32", "64", "16-mixed")
    }
    assert chosen == {"32": "mps", "64": "cpu", "16-mixed": "mps"}


def test_threads_are_given_back() -> None:
    usual = torch.get_num_threads()

    def fail() -> None:
        with machine.torch_threads(1):
            raise ValueError(str(torch.get_num_threads()))

    with pytest.raises(ValueError, match=r"^1$"):
        fail()
    assert torch.get_num_threads() == usual
