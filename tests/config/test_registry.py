"""What extensions register: found by their entry points, and used by every command."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kindling.config import registry
from kindling.config.compose import compose
from kindling.config.faults import options
from kindling.data.paths import FOLDERS
from kindling.inference.pictures import reader_of
from kindling.system.errors import InputError
from kindling_digits import reader
from tests.helpers.commands import PYTHONPATH, ROOT

MODULE = """
from pathlib import Path
from typing import ClassVar, Literal

from kindling.config import registry
from kindling.config.section import DataSection, PositiveInt


class Points(DataSection):
    pictures: ClassVar = None
    name: Literal["points"]
    count: PositiveInt


registry.register_data(Points, "mine.points")
registry.register_configs(Path(__file__).parent / "conf")
registry.register_command("hello", "mine.hello")
"""
POINTS = """
import torch
from kindling.data.sources.source import Source, Split

def open_source(config):
    x = torch.linspace(-1, 1, config.count)[:, None]
    split = Split(x, (x[:, 0] > 0).long())
    return Source("points", split, split, ("left", "right"))
"""
HELLO = '''"""Greets. More follows."""

def main():
    print("hello")
'''


def python(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(folder), PYTHONPATH])
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with an installed package `mine`, which Kindling does not know."""
    files = {
        "mine/extension.py": MODULE,
        "mine/points.py": POINTS,
        "mine/hello.py": HELLO,
        "mine/conf/data/points.yaml": "defaults: [_common]\nname: points\ncount: 60\n",
        "mine-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n",
        "mine-1.0.dist-info/entry_points.txt": "[kindling.extensions]\nmine = mine.extension\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def test_an_installed_extension_brings_a_data_set_and_a_command(installed: Path) -> None:
    wrong = python(installed, "-m", "kindling", "train", "data=point", "data.cout=1")
    assert wrong.returncode == 2
    assert "data=point: must be one of " in wrong.stderr
    assert "did you mean points?" in wrong.stderr
    assert "data.cout=1: unknown key; did you mean data.count?" in wrong.stderr
    small = ("trainer=cpu", "trainer.max_epochs=1", "hydra.run.dir=run")
    done = python(installed, "-m", "kindling", "train", "data=points", "data.count=80", *small)
    assert done.returncode == 0, done.stderr
    assert "points: 2 classes" in done.stdout
    again = python(installed, "-m", "kindling", "evaluate", "run")
    assert "on 80 test samples of points" in again.stdout, again.stderr
    assert python(installed, "-m", "kindling", "hello").stdout == "hello\n"
    shown = python(installed, "-m", "kindling", "--help").stdout
    assert "  demo       Serves a page on which you draw a digit" in shown
    assert "  hello      Greets\n" in shown


def test_the_own_extension_is_the_one_of_the_wheel() -> None:
    """A checkout that is not installed has no entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [*project["entry-points"][registry.GROUP].values()] == [registry.OWN]


def test_what_the_digits_bring() -> None:
    assert str(compose("data=mnist_and_none").data.name) == "mnist_and_none"
    assert "mnist_and_none" in options("data")
    assert "digits_or_none" in options("experiment")
    assert FOLDERS["mnist_and_none"] == FOLDERS["mnist"]
    assert reader_of(compose("data=mnist").data.pictures) is reader
    assert reader_of(compose("data=kmnist").data.pictures) is not reader


def test_an_absent_reader_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry.PICTURE_READERS, "drawing")
    with pytest.raises(InputError, match=r"^no installed extension reads pictures as drawing$"):
        reader_of("drawing")


def test_registering_does_not_import_torch() -> None:
    code = "import sys, kindling.config.schema as s; print('torch' in sys.modules, s.Data)"
    done = python(ROOT, "-c", code)
    assert done.stdout.startswith("False ")
    assert "MnistAndNone" in done.stdout


def test_another_hydra_application_gets_nothing(tmp_path: Path) -> None:
    """Hydra asks the plugins of an environment in every application."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("a: 1\n")
    (tmp_path / "app.py").write_text(
        "import sys, hydra\n"
        "@hydra.main(version_base=None, config_path='conf', config_name='config')\n"
        "def main(config): print(config, 'kindling.config.registry' in sys.modules)\n"
        "main()\n"
    )
    assert python(tmp_path, "app.py").stdout == "{'a': 1} False\n"
    # As a group of the extension, the word would become the data set's keys.
    plain = python(tmp_path, "app.py", "+data=mnist_and_none")
    assert plain.stdout == "{'a': 1, 'data': 'mnist_and_none'} False\n"
