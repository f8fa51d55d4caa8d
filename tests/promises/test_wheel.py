"""The wheel: what `pip install` gives somebody who has no checkout."""

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import nbformat
import pytest

import kindling
from tests.helpers.commands import COMMANDS, ROOT
from tests.helpers.once import made_once


def install(folder: Path) -> None:
    """Builds the wheel into a folder, and puts its content into the folder's `site`."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    built = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)]
    subprocess.run(built, check=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "kindling", "kindling_digits", "hydra_plugins",
    }  # fmt: skip
    assert not [name for name in names if "/builds/" in name or name.endswith((".so", ".cubin"))]
    subprocess.run(
        [
            *pip,
            "install",
            "--no-deps",
            "--no-compile",
            "--target",
            str(folder / "site"),
            str(wheel),
        ],
        check=True,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the content of the wheel. Its dependencies are those of this environment."""
    return made_once(tmp_path_factory, "wheel", install) / "site"


def started(installed: Path, folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_tab_completes_the_api_alone() -> None:
    assert dir(kindling) == sorted(kindling.__all__)
    assert all(getattr(kindling, name).__name__ == name for name in dir(kindling))


@pytest.mark.slow
def test_from_any_folder(installed: Path, tmp_path: Path) -> None:
    """Training, a fused sweep, the list, and a library; the engine once it was built."""
    kindling = str(installed / "bin" / "kindling")
    small = ("data=digits", "trainer=cpu", "trainer.max_epochs=1")
    steps = []
    for name in ("first", "second"):
        done = started(installed, tmp_path, kindling, "train", *small, f"name={name}")
        assert done.returncode == 0, done.stderr
        asked = ("runs", "--where", f"name={name}", "--json")
        (row,) = json.loads(started(installed, tmp_path, kindling, *asked).stdout)
        steps.append(json.loads((tmp_path / row["folder"] / "result.json").read_text())["step"])
        if name == "first":
            assert started(installed, tmp_path, kindling, "build").returncode == 0
    assert steps == ["closed_form", "native"]
    swept = started(
        installed, tmp_path, kindling, "train", "-m", "hydra/launcher=fused", *small, "seed=0,1"
    )
    assert "1 stack of 2" in swept.stdout, swept.stderr
    script = (
        "import kindling; print(kindling.__file__); print(kindling.load('first').labels[3]);"
        "print(len(kindling.sweep('data=digits', 'trainer.max_epochs=1', 'seed=2,3')))"
    )
    done = started(installed, tmp_path, "-c", script)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [str(installed / "kindling" / "__init__.py"), "3"]
    assert lines[-1] == "2"


@pytest.mark.slow
def test_the_command(installed: Path, tmp_path: Path) -> None:
    kindling = str(installed / "bin" / "kindling")
    usage = started(installed, tmp_path, kindling)
    assert usage.returncode == 2
    assert usage.stderr == "error: COMMAND: is missing; type kindling --help for help\n"
    shown = started(installed, tmp_path, kindling, "--help")
    assert shown.returncode == 0
    rows = [
        line.split(maxsplit=1) for line in shown.stdout.partition("commands:\n")[2].splitlines()
    ]
    assert [name for name, _ in rows] == COMMANDS
    assert dict(rows)["evaluate"] == "Tests a trained model on a test set"
    misspelt = started(installed, tmp_path, kindling, "trian")
    assert misspelt.stderr.endswith("; did you mean train?\n")
    unknown = started(installed, tmp_path, kindling, "nix")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert f"COMMAND nix: must be one of {', '.join(COMMANDS)}" in unknown.stderr
    wrong = started(installed, tmp_path, kindling, "train", "sed=1")
    assert wrong.returncode == 2
    assert "did you mean seed" in wrong.stderr
    assert "torch" not in wrong.stderr


@pytest.mark.slow
def test_in_a_project_with_a_folder_src(installed: Path, tmp_path: Path) -> None:
    """From a script, a test, a notebook, and that project's own python -m src.train."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "__init__.py").write_text("")
    program = (
        "import kindling\n"
        "from kindling.system.installation import as_command\n"
        "def test(): print(kindling.compose('data=toy').seed, as_command('train'))\n"
        "if __name__ == '__main__': test()\n"
    )
    for name in ("src/train.py", "script.py", "test_own.py"):
        (tmp_path / name).write_text(program)
    for command in (
        ("-m", "src.train"),
        ("script.py",),
        ("-m", "pytest", "-sq", "-p", "no:cacheprovider", "test_own.py"),
    ):
        done = started(installed, tmp_path, *command)
        assert done.returncode == 0, done.stderr
        assert "0 kindling train" in done.stdout
    cell = nbformat.v4.new_code_cell(program)  # type: ignore[no-untyped-call]
    book = nbformat.v4.new_notebook(cells=[cell])  # type: ignore[no-untyped-call]
    nbformat.write(book, tmp_path / "own.ipynb")  # type: ignore[no-untyped-call]
    execute = "import nbformat, nbclient; book = nbformat.read('own.ipynb', 4); "
    execute += "nbclient.NotebookClient(book).execute(); print(book.cells[0].outputs)"
    done = started(installed, tmp_path, "-c", execute)
    assert done.returncode == 0, done.stderr
    assert "0 kindling train" in done.stdout


@pytest.mark.slow
def test_a_new_project_is_installed_and_trains(installed: Path, tmp_path: Path) -> None:
    """As its README says, in an environment with the packages of this one."""
    kindling = str(installed / "bin" / "kindling")
    told = started(installed, tmp_path, kindling, "new", "mine").stdout
    assert told.splitlines()[1:] == [
        "  cd mine", "  pip install -e .", "  kindling train experiment=mine",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    (packages,) = (tmp_path / "env").glob("lib/*/site-packages")
    here = sysconfig.get_path("purelib")
    (packages / "here.pth").write_text(f"{installed}\nimport site; site.addsitedir({here!r})\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    project = tmp_path / "mine"
    add = [*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", str(project)]
    subprocess.run(add, check=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for command in (
        ("kindling", "train", "experiment=mine", "hydra.run.dir=first"),
        ("src.train", "experiment=mine", "trainer.max_epochs=1", "hydra.run.dir=second"),
        ("pytest", "-q", "-p", "no:cacheprovider"),
        ("kindling", "evaluate", "first"),
        ("kindling", "report", "first"),
    ):
        done = subprocess.run(
            [python, "-m", *command], cwd=project, env=environment, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((project / "first" / "result.json").read_text())
    assert result["test/acc"] > 0.98
    assert (project / "second" / "result.json").exists()


@pytest.mark.slow
def test_a_project_that_installs_a_package_src(installed: Path, tmp_path: Path) -> None:
    """As half of the templates do: installed before ours or after it, neither breaks the other."""
    (wheel,) = installed.parent.glob("*.whl")
    other = tmp_path / "other"
    (other / "src").mkdir(parents=True)
    (other / "src" / "__init__.py").write_text("")
    (other / "src" / "train.py").write_text("print('the other')")
    (other / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        "[project]\nname = 'other'\nversion = '1'\n[tool.setuptools]\npackages = ['src']\n"
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python"]
    here = sysconfig.get_path("purelib")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for number, order in enumerate(([wheel, other], [other, wheel])):
        place = tmp_path / str(number)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        python = place / "bin" / "python"
        (packages,) = place.glob("lib/*/site-packages")
        (packages / "here.pth").write_text(f"{here}\n")  # the dependencies, but not the checkout
        add = ("install", "--quiet", "--no-deps", "--no-build-isolation", "--force-reinstall")
        for package in order:
            subprocess.run([*pip, python, *add, package], check=True)
        said = {"src.train": b"the other", "kindling": b"usage: kindling"}
        removed = "src.train" if number else "kindling"
        for left in (said, {name: text for name, text in said.items() if name != removed}):
            if left != said:
                remove = ("uninstall", "--quiet", "--yes", removed.replace("src.train", "other"))
                subprocess.run([*pip, python, *remove], check=True)
            for module, text in left.items():
                program = f"import {module} as m; print(m.__file__)"
                for command, found in (
                    (("-c", program), os.fsencode(packages)),
                    (("-m", module, "--help"), text),
                ):
                    done = subprocess.run(
                        [python, *command],
                        cwd=tmp_path, env=environment, capture_output=True, check=True,
                    )  # fmt: skip
                    assert found in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_commands_as_they_were_typed(name: str, tmp_path: Path) -> None:
    """Those of docstrings and of comments in the configurations too."""
    program = "import sys; from kindling.__main__ import main; sys.argv[0] = 'kindling'; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, name, "--help"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"usage: kindling {name} [")
    assert "python -m src" not in done.stdout + done.stderr


def test_a_checkout_takes_its_own_package_and_hides_no_other(tmp_path: Path) -> None:
    """src/evaluate.py has the name of a package that many install."""
    (tmp_path / "evaluate.py").write_text("")
    (tmp_path / "kindling.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", "import src, evaluate, kindling; print(evaluate, kindling)"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"{tmp_path / 'evaluate.py'}" in done.stdout
    assert f"{ROOT / 'src' / 'kindling' / '__init__.py'}" in done.stdout


def test_every_name_of_the_library() -> None:
    import kindling

    assert sorted(kindling.PLACES) == sorted(kindling.__all__)
    for name in kindling.__all__:
        assert getattr(kindling, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nix'"):
        kindling.nix  # noqa: B018
