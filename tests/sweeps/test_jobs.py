"""Launchers and sweepers of others, callbacks, and this project's launcher in Hydra's own tests."""

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.singleton import Singleton
from hydra.test_utils.launcher_common_tests import IntegrationTestSuite, LauncherTestSuite
from hydra.version import VersionBase

from kindling.records.folder import Run
from kindling.system.installation import PATHS
from tests.helpers.commands import PYTHONPATH, SMALL, Command

CALLED = """
from hydra.experimental.callback import Callback

class Noted(Callback):
    def on_job_end(self, config, job_return, **_):
        with open("noted", "a") as file:
            print(config.hydra.job.num, job_return.return_value, file=file)
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "fused"])
def test_callbacks_are_called(launcher: str, cold_command: Command, tmp_path: Path) -> None:
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "called.py").write_text(CALLED)
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nhydra:\n  callbacks:\n    mine:\n      _target_: called.Noted\n"
    )
    own = ("--config-dir=own", "experiment=mine", f"hydra/launcher={launcher}")
    done = cold_command(
        "src.train", "-m", *own, *SMALL, "seed=zip(1,2)", "hydra.sweep.dir=here",
        PYTHONPATH=f"{PYTHONPATH}:{tmp_path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = [Run(tmp_path / "here" / str(number)) for number in range(2)]
    lines = (tmp_path / "noted").read_text().splitlines()
    assert lines == [f"{number} {run.monitored}" for number, run in enumerate(runs)]
    assert [run.config.seed for run in runs] == [1, 2]
    record = (tmp_path / "here" / "multirun.yaml").read_text()
    assert "    - seed=zip(1,2)\n" in record


@pytest.mark.slow
def test_values_of_the_sweeper_itself(command: Command, tmp_path: Path) -> None:
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nhydra:\n  sweeper:\n    params:\n      seed: 1,2\n"
    )
    own = ("--config-dir=own", "experiment=mine", "hydra.sweep.dir=here")
    assert command("src.train", "-m", *own, *SMALL).returncode == 0
    runs = [Run(tmp_path / "here" / str(number)) for number in range(2)]
    assert [run.config.seed for run in runs] == [1, 2]


def test_a_sweeper_that_does_not_know_a_space_says_so(command: Command) -> None:
    done = command("src.train", "-m", *SMALL, "optimizer.lr=interval(0.1,1)")
    assert done.returncode == 2
    assert done.stderr.startswith("error: BasicSweeper does not support sweep type")


@pytest.mark.slow
def test_trials_of_other_processes(command: Command, tmp_path: Path) -> None:
    """joblib's processes check each job."""
    sweep = ("-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", *SMALL, "seed=1,2")
    done = command("src.train", *sweep, "trainer.max_epochs=1", "hydra.sweep.dir=here")
    assert done.returncode == 0, done.stderr
    for number, seed in enumerate((1, 2)):
        run = Run(tmp_path / "here" / str(number))
        assert run.config.seed == seed
        assert run.result["status"] == "finished"
        assert run.overrides["seed"] == str(seed)
        settings = f"data=digits trainer=cpu trainer.max_epochs=1 seed={seed}"
        assert f"trial {seed} of 2, in here/{number}: {settings}\n" in done.stdout


@pytest.mark.slow
def test_sweepers_get_the_monitored_values(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path[:0] = {PATHS}
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from kindling.system.installation import CONF
with initialize_config_dir(str(CONF), version_base="1.3"):
    overrides = ["hydra/launcher=fused", "hydra.sweep.dir=here", "seed=1,2", *{SMALL}]
    overrides.append("checkpoint.monitor=val/recall")
    hydra = GlobalHydra.instance().hydra
    (batch,) = hydra.multirun("train", lambda config: None, overrides, with_log_configuration=False)
    print(*(job.return_value for job in batch), file=sys.stderr)
    job = batch[1]
    print(job.cfg.seed, job.hydra_cfg.hydra.job.num, job.overrides[0], file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    values, job = done.stderr.splitlines()[-2:]
    runs = [Run(tmp_path / "here" / str(number)) for number in range(2)]
    assert [float(value) for value in values.split()] == [run.monitored for run in runs]
    best = [dict(run.result["best"]) for run in runs]
    assert [each["val/recall"] for each in best] == [run.monitored for run in runs]
    assert job == "2 1 seed=2"


@pytest.fixture
def fresh_hydra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hydra as a process finds it: no version base set, the plugin on the path."""
    state = copy.deepcopy(Singleton.get_state())
    Singleton._instances.pop(VersionBase, None)
    yield
    Singleton.set_state(state)


@pytest.mark.usefixtures("fresh_hydra")
@pytest.mark.filterwarnings("ignore")  # Hydra's own suite, with its own warnings
@pytest.mark.parametrize(("launcher_name", "overrides"), [("fused", [])])
class TestHydrasLauncherSuite(LauncherTestSuite):
    """Hydra's tests of what a launcher must do; their jobs are no training runs."""


@pytest.mark.usefixtures("fresh_hydra")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("task_launcher_cfg", "extra_flags"),
    [({"defaults": [{"override hydra/launcher": "fused"}]}, ["-m"])],
)
class TestHydrasIntegrationSuite(IntegrationTestSuite):
    """Hydra's tests of whole applications under a launcher."""


def test_the_plugin_is_light() -> None:
    script = f"import sys; sys.path[:0] = {PATHS}; import hydra_plugins.fused_launcher; "
    done = subprocess.run(
        [sys.executable, "-c", script + "print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
