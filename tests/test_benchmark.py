"""A tiny run of each suite: it runs what it names and reports it whole."""

import json

import pytest

from src.benchmarks import run_suite
from src.benchmarks.settings import read_settings
from src.errors import InputError


def test_loops() -> None:
    table, line = run_suite(read_settings(["suite=loops", "rounds=1", "data=digits"]))
    found = json.loads(line)
    contenders = {"tutorial", "bare", "lightning", "sklearn", "ours", "gemm"}
    assert set(found["rows"]) == contenders
    assert {"ours/bare", "tutorial/ours", "lightning/ours", "sklearn/ours"} <= set(found["ratios"])
    assert found["suite"] == "loops"
    assert found["data"] == "digits"
    assert {"hardware", "versions", "commit"} <= set(found)
    rows = {name: row["median"] for name, row in found["rows"].items()}
    assert found["ratios"]["ours/bare"] == pytest.approx(rows["ours"] / rows["bare"])
    assert all(name in table for name in contenders)


@pytest.mark.parametrize(
    ("argument", "answer"),
    [("suite=loop", "suite: "), ("suit=loops", "suit: "), ("suite=loops rounds=0", "rounds: ")],
)
def test_a_wrong_argument_tells_the_usage(argument: str, answer: str) -> None:
    with pytest.raises(InputError, match=rf"{answer}.*type python -m src\.benchmark suite="):
        read_settings(argument.split())
    with pytest.raises(InputError, match="data=nothing: must be one of"):
        read_settings(["suite=loops", "data=nothing"])
