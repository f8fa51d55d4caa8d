"""Wrong arguments of a benchmark."""

from importlib import import_module

import pytest

from benchmarks.settings import SHARED, SUITES, read_settings
from benchmarks.suites import gpu_check
from kindling.system.errors import InputError


@pytest.mark.parametrize(
    ("argument", "answer"),
    [
        ("suite=loop", "suite: there is no suite loop; did you mean loops"),
        ("suit=loops", "suit: "),
        ("suite=loops rounds=0", "rounds: "),
    ],
)
def test_a_wrong_argument_tells_the_usage(argument: str, answer: str) -> None:
    with pytest.raises(InputError, match=rf"{answer}.*type python -m src\.benchmark suite="):
        read_settings(argument.split())
    with pytest.raises(InputError, match="data=nothing: must be one of"):
        read_settings(["suite=loops", "data=nothing"])


def test_every_suite_is_found_and_can_be_run() -> None:
    assert {"loops", "sweep", "search", "checkpoints", "report", "busy", "gpu_check"} < {*SUITES}
    assert {*gpu_check.SUITES} < {*SUITES}
    modules = {import_module(f"benchmarks.suites.{SHARED.get(name, name)}") for name in SUITES}
    assert all(callable(module.run) for module in modules)
