"""What the README says is followed to the letter."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from src.run import Run
from tests.conftest import ROOT

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


@pytest.mark.parametrize(
    ("block", "choice", "accuracy"),
    [(0, ("model=cnn", "data=digits"), 0.7), (1, ("data=iris", "model=logistic_regression"), 0.6)],
    ids=["a model", "a data set"],
)
def test_what_is_added_as_the_readme_says_trains(
    block: int, choice: tuple[str, ...], accuracy: float, tmp_path: Path
) -> None:
    for folder in ("src", "conf", "hydra_plugins"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    diff = re.findall(r"```diff\n(.*?)```", README, re.S)[block]
    added = [line for line in diff.splitlines() if line[0] == "+" and line[1:].strip("+ ")]
    assert len(added) <= 20
    assert f"python -m src.train {' '.join(choice)}" in README
    apply(diff, tmp_path)
    recipe = ("data.batch_size=10", "optimizer.lr=0.05", "trainer=cpu", "trainer.max_epochs=3")
    done = subprocess.run(
        [sys.executable, "-m", "src.train", *choice, *recipe, "hydra.run.dir=run"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = Run(tmp_path / "run").result
    assert result["test/acc"] > accuracy
    assert result["data"]["name"] == dict(text.split("=") for text in choice)["data"]
