"""Whatever a part does, the check goes on and says what happened."""

import os
import signal
from pathlib import Path

import pytest

from benchmarks.parts import Part, run_part
from tests.helpers import parts


@pytest.mark.slow
def test_each_part_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    functions = {
        "works": (parts.works, 60), "fails": (parts.fails, 60), "dies": (parts.dies, 60),
        "hangs": (parts.hangs, 3),
    }  # fmt: skip
    results = {
        name: run_part(name, Part(function, limit), log)
        for name, (function, limit) in functions.items()
    }
    assert all(result.pop("seconds") > 0 for result in results.values())
    child = results.pop("works")["found"]["child"]
    assert ended(child)
    assert results == {
        "fails": {"error": "ValueError: no such kernel"},
        "dies": {"error": f"its process ended with status {-signal.SIGABRT}"},
        "hangs": {"error": "took more than 3 s"},
    }
    text = log.read_text()
    assert [line for line in text.splitlines() if line.startswith("---")] == [
        f"--- {name}" for name in functions
    ]
    assert "to the log" in text
    assert 'raise ValueError("no such kernel")' in text


def ended(process: int) -> bool:
    """Whether a process is gone, or only waits for the one that adopted it."""
    status = Path(f"/proc/{process}/stat")
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z"
