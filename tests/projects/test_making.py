"""A project of one's own: what is written, and that it trains."""

import json
import os
import re
import subprocess
from pathlib import Path

import nbformat
import pytest

from kindling.projects.making import TEMPLATE, make
from kindling.system.errors import InputError
from tests.helpers.commands import PYTHONPATH
from tests.helpers.warm import shared


def run(project: Path, module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """As in an environment in which the project is installed."""
    path = os.pathsep.join([str(project / "src"), str(project), PYTHONPATH])
    done = shared()(project, module, *arguments, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "wind-ing"
    assert make(folder) == "wind_ing"
    about = folder / "wind_ing-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: wind_ing\nVersion: 0.1.0\n")
    points = re.search(
        r"^\[project\.entry-points\.\"(.+)\"\]\n(.+)$",
        (folder / "pyproject.toml").read_text(),
        re.M,
    )
    assert points is not None
    (about / "entry_points.txt").write_text(f"[{points[1]}]\n{points[2].replace(chr(34), '')}\n")
    return folder


def test_a_project_has_its_own_name_everywhere(tmp_path: Path) -> None:
    make(tmp_path / "there" / "project", "coils")
    files = [path for path in (tmp_path / "there" / "project").rglob("*") if path.is_file()]
    names = {str(path.relative_to(tmp_path / "there" / "project")) for path in files}
    assert {
        ".gitignore", "README.md", "pyproject.toml", "src/train.py", "src/coils/model.py",
        "src/coils/conf/model/coils.yaml", "tests/test_coils.py", "notebooks/first.ipynb",
    } <= names  # fmt: skip
    assert not any("mine" in name for name in names)
    assert not [path for path in files if re.search(r"\bmine\b", path.read_text())]
    notebook = (tmp_path / "there/project/notebooks/first.ipynb").read_text()
    nbformat.validate(nbformat.from_dict(json.loads(notebook)))  # type: ignore[no-untyped-call]
    assert len((tmp_path / "there/project/README.md").read_text().splitlines()) <= 25
    assert {path.name for path in (tmp_path / "there").iterdir()} == {"project"}


@pytest.mark.slow
def test_a_project_trains_and_its_tests_pass(project: Path) -> None:
    run(project, "pytest", "-q", "-p", "no:cacheprovider")
    swept = run(
        project, "kindling", "train", "experiment=wind_ing", "trainer.max_epochs=2",
        "callbacks=[]", "-m", "hydra/launcher=fused", "model.units=8,16", "seed=range(2)",
        "hydra.sweep.dir=sweep",
    ).stdout  # fmt: skip
    assert "2 stacks" in swept
    results = [json.loads(path.read_text()) for path in sorted(project.glob("sweep/*/result.json"))]
    assert [result["step"] for result in results] == ["vmap"] * 4


@pytest.mark.parametrize(
    ("folder", "name", "told"),
    [
        ("1st", None, "1st: is not the name of a package"),
        ("My Project", None, "My Project: is not the name of a package"),
        ("new", "class", "class: is not the name of a package"),
        ("new", "../x", "../x: is not the name of a package"),
        ("new", "numpy", "numpy: a package of this name is there already"),
        ("new", "kindling", "kindling: a package of this name is there already"),
        ("new", "src", "src: a package of this name is there already"),
        ("new", "mlp", "mlp: there is model=mlp already"),
        ("new", "digits", "digits: there is data=digits already"),
        (".", "coils", ".: is there already; name a new folder"),
        ("file", "coils", "file: is there already; name a new folder"),
    ],
)
def test_names_and_folders_that_are_refused(
    folder: str, name: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=rf"^{re.escape(told)}"):
        make(Path(folder), name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_template_is_complete() -> None:
    """What the configuration names is in the template."""
    assert (TEMPLATE / "src/mine/extension.py").exists()
    assert {path.parent.name for path in TEMPLATE.glob("src/mine/conf/*/mine.yaml")} == {
        "data", "experiment", "model",
    }  # fmt: skip
