"""A command gives the same values and prints nothing else in any environment: variables of a
cluster, a display, a proxy, a time zone, a locale, a home folder that cannot be written."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from kindling.config.compose import compose
from kindling.inference.evaluation import evaluate_path
from kindling.records.folder import Run
from kindling.sweeps.search import loop
from kindling.sweeps.search.command import check_command_line
from kindling.sweeps.search.loop import SearchLoop
from kindling.sweeps.search.study import open_study
from kindling.training.fit import fit
from tests.helpers.commands import SMALL, Command
from tests.helpers.warm import Warm
from tests.helpers.weights import same

JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
DEAD = "http://127.0.0.1:9"
ENVIRONMENTS = {
    "srun is installed": {},
    "salloc": {**JOB, "SLURM_JOB_NAME": "interactive"},
    "sbatch": {**JOB, "SLURM_JOB_NAME": "train", "SLURM_PROCID": "0"},
    "sbatch by the node": {**JOB, "SLURM_NTASKS_PER_NODE": "2", "SLURM_PROCID": "0"},
    "srun of one task": {**JOB, "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"},
    "lsf": {
        "LSB_JOBID": "1", "LSB_DJOB_RANKFILE": "/nowhere", "JSM_NAMESPACE_RANK": "1",
        "JSM_NAMESPACE_LOCAL_RANK": "1", "JSM_NAMESPACE_SIZE": "2",
    },
    "variables of ranks": {
        "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "nowhere",
    },
    "a display that is gone": {"DISPLAY": ":99", "WAYLAND_DISPLAY": "wayland-9"},
    "no CUDA device": {"CUDA_VISIBLE_DEVICES": "-1"},
    "one CUDA device": {"CUDA_VISIBLE_DEVICES": "0"},
    "a proxy": {"http_proxy": DEAD, "https_proxy": DEAD, "ALL_PROXY": DEAD},
    "a time zone": {"TZ": "Asia/Kolkata"},
}  # fmt: skip


def with_srun(folder: Path) -> str:
    """A search path with an srun."""
    srun = folder / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/sh\nexit 1\n")
    srun.chmod(0o755)
    return str(srun.parent)


@pytest.fixture(autouse=True)
def _without_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "finish_sweep", lambda *_: None)


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Any]]:
    """A run, and the values of a search of two trials, in the ordinary environment."""
    folder = tmp_path_factory.mktemp("ordinary")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "finish_sweep", lambda *_: None)
        return trained(folder / "run"), searched(folder / "search")


def trained(folder: Path) -> Run:
    return fit(compose(*SMALL), folder)


def searched(folder: Path) -> list[Any]:
    command = check_command_line(
        [*SMALL, "optimizer.lr=interval(0.1,0.2)", "search.trials=2", f"search.folder={folder}"]
    )
    study = open_study(command)
    SearchLoop(command, study).run()
    return [(trial.params, trial.value) for trial in study.trials]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_changes_nothing(
    name: str,
    ordinary: tuple[Run, list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A warning is an error here, as in every test."""
    monkeypatch.setenv("PATH", with_srun(tmp_path), prepend=os.pathsep)
    for key, value in ENVIRONMENTS[name].items():
        monkeypatch.setenv(key, value)
    run, values = ordinary
    found = trained(tmp_path / "run")
    assert same(found, run)
    assert evaluate_path(found.folder, None).accuracy == run.result["test/acc"]
    assert searched(tmp_path / "search") == values
    assert capfd.readouterr().err == ""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """command(module, *arguments) with all environments at once, from the interpreter's start."""
    (tmp_path / "file").touch()
    home = str(tmp_path / "file" / "home")
    for key, value in {
        **dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"), home),
        **dict.fromkeys(("LANG", "MPLCONFIGDIR"), ""),
        "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0",  # ASCII alone
        **ENVIRONMENTS["sbatch"], **ENVIRONMENTS["a display that is gone"],
        **ENVIRONMENTS["a proxy"], **ENVIRONMENTS["a time zone"],
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": f"{with_srun(tmp_path)}{os.pathsep}{os.environ['PATH']}",
    }.items():  # fmt: skip
        monkeypatch.setenv(key, value)
    warm = Warm("torchvision")  # matplotlib's folder for fonts is each command's own
    yield partial(warm, tmp_path)
    warm.stop()


@pytest.mark.slow
def test_every_command_in_a_hostile_environment(hostile: Command, tmp_path: Path) -> None:
    """Also with names that the locale cannot encode."""
    picture = tmp_path / "zähl.png"
    drawn = Image.new("L", (28, 28))
    drawn.paste(255, (12, 4, 16, 24))
    drawn.save(picture)
    folder = "söck"
    commands = {
        "src.search": [
            "data=digits", "trainer.max_epochs=1", "optimizer.lr=interval(0.1,0.2)",
            "search.trials=2", f"search.folder='{folder}'",
        ],
        "src.train": ["data=digits", "trainer.max_epochs=1", f"hydra.run.dir='{folder}/läuf'"],
        "src.evaluate": [f"{folder}/0"],
        "src.predict": [f"{folder}/0", picture.name],
        "src.export": [f"{folder}/0"],
        "src.devices": [],
    }  # fmt: skip
    for module, arguments in commands.items():
        done = hostile(module, *arguments)
        assert (module, done.returncode, done.stderr) == (module, 0, ""), done.stderr
        assert "matplotlib" not in done.stdout
        assert "fontManager" not in done.stdout
    log = (tmp_path / folder / "läuf" / "train.log").read_text("utf-8")
    assert "l\\udcc3\\udca4uf" in log
