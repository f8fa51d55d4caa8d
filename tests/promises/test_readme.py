"""What the README says is followed to the letter."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from src.runs.folder import Run
from tests.helpers.commands import ROOT

README = (ROOT / "README.md").read_text()


def apply(diff: str, root: Path) -> None:
    """Does what a reader does: looks for the lines as they are and makes them what they should be.

    `+++ FILE` names a file; `…` stands between two places in it.
    """
    for part in re.split(r"^\+\+\+ ", diff, flags=re.M)[1:]:
        name, _, lines = part.partition("\n")
        path = root / name
        for place in lines.split(" …\n"):
            old = [line[1:] for line in place.splitlines() if line[0] in " -"]
            new = [line[1:] for line in place.splitlines() if line[0] in " +"]
            if not old:
                assert not path.exists()
                path.write_text("\n".join(new) + "\n")
                continue
            before = "".join(f"{line}\n" for line in old)
            text = path.read_text()
            assert text.count(before) == 1, before
            path.write_text(text.replace(before, "".join(f"{line}\n" for line in new)))


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with everything that the README adds to them."""
    root = tmp_path_factory.mktemp("added")
    for folder in ("src", "conf", "hydra_plugins"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    for diff in re.findall(r"```diff\n(.*?)```", README, re.S):
        added = [line for line in diff.splitlines() if line[0] == "+" and line[1:].strip("+ ")]
        assert len(added) <= 20
        apply(diff, root)
    return root


def train(added: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "src.train", *overrides, "trainer=cpu"],
        cwd=added, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "accuracy"),
    [
        (("model=cnn", "data=digits", "experiment=few_samples"), 0.95),
        (("data=iris", "model=logistic_regression"), 0.9),
    ],
    ids=["a model", "a data set"],
)
def test_what_is_added_as_the_readme_says_trains(
    choice: tuple[str, ...], accuracy: float, added: Path, tmp_path: Path
) -> None:
    assert f"python -m src.train {' '.join(choice)}" in README
    done = train(added, *choice, f"hydra.run.dir={tmp_path}/run")
    assert done.returncode == 0, done.stderr
    result = Run(tmp_path / "run").result
    assert (result["test/acc"] or 0) > accuracy
    assert result["data"]["name"] == dict(text.split("=") for text in choice)["data"]


def test_a_model_of_pictures_and_a_table_say_what_to_type(added: Path, tmp_path: Path) -> None:
    done = train(added, "model=cnn", "data=iris", f"hydra.run.dir={tmp_path}/run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: model=cnn: cannot take samples of shape [4] (Expected 3D")
    assert "type model=logistic_regression or model=mlp, which take any shape" in done.stderr
    assert len(done.stderr.splitlines()) == 1
