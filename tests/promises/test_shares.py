"""CI runs a share of the slow tests: no test begins after its time, and each share is another."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [f"tests/system/test_{name}.py" for name in ("units", "colour", "terminal", "arguments")]


def output_of_pytest(*arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", *arguments]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return found.stdout


@pytest.mark.slow
def test_after_the_time_tests_are_skipped_with_the_reason() -> None:
    skipped = output_of_pytest("--until", "0", *FILES)
    count = re.search(r"(\d+) skipped", skipped)
    assert count is not None
    assert int(count[1]) > 4
    assert "passed" not in skipped
    assert "this share of the tests has had its time" in skipped
    assert "skipped" not in output_of_pytest("--until", "1e18", FILES[0])


@pytest.mark.slow
def test_another_time_has_other_files_first() -> None:
    orders, tests = set(), set()
    for until in (1, 2, 3):
        found = output_of_pytest("--collect-only", "--until", str(until), *FILES)
        names = [line for line in found.splitlines() if "::" in line]
        tests.add(frozenset(names))
        files = [name.partition("::")[0] for name in names]
        together = [
            file for file, before in zip(files, ["", *files], strict=False) if file != before
        ]
        assert sorted(together) == sorted(FILES)
        orders.add(tuple(together))
    assert len(tests) == 1
    assert len(orders) > 1
