"""What Tab completes: by the functions, and in a real bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kindling.config.faults import known_keys, options
from kindling.config.schema import GROUPS
from kindling.sweeps.completion import complete, complete_search
from tests.helpers.runs import ended


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("optimizer.l", ["optimizer.lr="]),
        ("model=", ["model=cnn", "model=ladder", "model=logistic_regression", "model=mlp"]),
        ("data=cif", ["data=cifar10", "data=cifar100"]),
        ("model.norm=", ["model.norm=batch", "model.norm=layer", "model.norm=null"]),
        ("trainer.compile=t", ["trainer.compile=true"]),
        ("checkpoint.monitor=val/f", ["checkpoint.monitor=val/f1"]),
        ("optimizer.lr=", []),
        ("hydra/launcher=f", ["hydra/launcher=fused"]),
        ("hydra.launcher.executor=s", ["hydra.launcher.executor=slurm"]),
        ("search.", []),
        ("nothing", []),
        ("nothing=", []),
        ("ä=[\n", []),
        ("=", []),
    ],
)  # fmt: skip
def test_an_override(typed: str, found: list[str]) -> None:
    assert complete(typed) == found


def test_no_key_is_missing() -> None:
    found = {text.removesuffix("=") for text in complete("")}
    assert found >= known_keys() | set(GROUPS)
    assert not any("_common" in text for text in complete("data="))


def test_a_search_has_more_keys() -> None:
    assert complete_search("search.sampler=") == ["search.sampler=tpe", "search.sampler=random"]
    assert complete_search("optimizer=") == [f"optimizer={name}" for name in options("optimizer")]
    assert complete_search("hydra/") == []


def test_runs_by_name_and_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended(Path("runs/2026-01-01/1"), 0.5, "name=wide")
    assert complete("resume=") == ["resume=latest", "resume=wide", "resume=runs/2026-01-01/1"]
    assert complete("start_from=w") == ["start_from=wide"]


# bash calls the function of argcomplete with the words of the line, and prints what it proposes.
ASK = """
eval "$(activate-global-python-argcomplete --dest=-)"
compopt() { :; }  # only allowed while Tab is pressed
while IFS= read -r line; do
    COMP_LINE="$line" COMP_POINT=${#line} COMP_TYPE=9 COMPREPLY=()
    COMP_WORDS=($line)
    _python_argcomplete_global "${COMP_WORDS[0]}"
    IFS=,; echo "${COMPREPLY[*]}"; unset IFS
done
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash(tmp_path: Path) -> None:
    ended(tmp_path / "runs/2026-01-01/1", 0.5, "name=wide")
    asked = {
        "python -m src.train optimizer=": "adam,adamw,sgd",
        "python -m src.train data=digits model.act": "model.activation=",
        "python -m src.search --he": "--help",
        "python -m src.evaluate wi": "wide",
        "python -m src.evaluate wide --data=kmn": "kmnist",
        "python -m src.runs comp": "compare",
        "python -m src.nothing ": "",
        "kindling expo": "export",
        "kindling export wide --format ": "onnx,torch,safetensors",
    }
    place = Path(sys.executable).parent
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK],
        input="".join(f"{line}\n" for line in asked),
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert dict(zip(asked, done.stdout.split("\n")[:-1], strict=True)) == asked
