"""What a machine is good for."""

import pytest

from src.config.compose import compose
from src.system import machine


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
