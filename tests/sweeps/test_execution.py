"""A sweep or search that is resumed goes on with the executor of its record, or with another."""

from pathlib import Path

import pytest

from src.sweeps.execution import continued, is_execution

SECTION = "hydra.launcher"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hydra.launcher.executor=slurm", True),
        ("++hydra.launcher.setup=[a]", True),
        ("hydra.launcher.wait=false", True),
        ("hydra.launcher.max_trials=3", False),
        ("search.executor=slurm", False),
        ("executor=slurm", False),
        ("seed=", False),
    ],
)
def test_keys_of_an_executor(text: str, expected: bool) -> None:
    assert is_execution(text, SECTION) == expected


def _continued(recorded: list[str], typed: list[str]) -> tuple[list[str], list[str]]:
    record, now = ([f"{SECTION}.{text}" for text in texts] for texts in (recorded, typed))
    kept, faults = continued(Path("sweep"), record, now, SECTION)
    return [text.removeprefix(f"{SECTION}.") for text in kept], faults


def test_the_record_holds_until_something_else_is_typed() -> None:
    recorded = ["executor=slurm", "partition=a", "minutes=5", "wait=false"]
    assert _continued(recorded, []) == (["executor=slurm", "partition=a", "minutes=5"], [])
    assert _continued(recorded, ["partition=b"]) == (
        ["executor=slurm", "partition=b", "minutes=5"], []
    )  # fmt: skip
    assert _continued([*recorded, "slots=2"], ["executor=local"]) == (
        ["executor=local", "slots=2"], []
    )  # fmt: skip
    assert _continued(recorded, ["executor=null"]) == (["executor=null"], [])


def test_what_could_run_code_is_typed_anew() -> None:
    recorded = ["executor=slurm", "setup=[evil]"]
    _, (fault,) = _continued(recorded, [])
    assert fault == (
        "resume=sweep: its record has hydra.launcher.setup=[evil], which is not used unread; type "
        "hydra.launcher.setup=… anew, or hydra.launcher.setup=null"
    )
    assert _continued(recorded, ["setup=[good]"]) == (["executor=slurm", "setup=[good]"], [])
    assert _continued(recorded, ["executor=local"]) == (["executor=local"], [])
    _, faults = _continued(["executor=ray", "address=far:1"], [])
    assert len(faults) == 1
