"""hydra/launcher=fused, from the command line and in Hydra's own tests of launchers."""

import copy
import csv
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.singleton import Singleton
from hydra.test_utils.launcher_common_tests import IntegrationTestSuite, LauncherTestSuite
from hydra.version import VersionBase

from src.runs.folder import Run
from src.runs.loading import open_trained
from tests.helpers.commands import ROOT, SMALL, Command


def test_a_sweep_from_the_command_line(command: Command, tmp_path: Path) -> None:
    points = ["model.hidden_sizes=8,16", "optimizer.lr=0.05,0.1", "seed=1,2"]
    arguments = ["-m", "hydra/launcher=fused", *SMALL, *points, "hydra.sweep.dir=here"]
    done = command("src.train", *arguments)
    assert done.returncode == 0, done.stderr
    assert "8 trials: 1 stack of 8" in done.stdout
    with (tmp_path / "here" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["model.hidden_sizes"] for row in rows] == ["8"] * 4 + ["16"] * 4
    assert [row["seed"] for row in rows] == ["1", "2"] * 4
    lines = done.stdout.splitlines()
    summary = next(line for line in lines if line.startswith("16 ") and "±" in line)
    pair = [float(row["test/acc"]) for row in rows if row["model.hidden_sizes"] == "16"]
    rates = [row["optimizer.lr"] for row in rows if row["model.hidden_sizes"] == "16"]
    mine = [a for a, rate in zip(pair, rates, strict=True) if rate == summary.split()[1]]
    mean = sum(mine) / 2
    deviation = abs(mine[0] - mine[1]) / math.sqrt(2)
    assert summary.endswith(f"{mean:.2%} ± {deviation:.2%}")
    for number in range(8):
        names = {path.name for path in (tmp_path / "here" / str(number) / ".hydra").iterdir()}
        assert names == {"config.yaml", "hydra.yaml", "overrides.yaml"}
    again = command("src.train", "resume=here")
    assert again.returncode == 0, again.stderr
    assert "epoch 1/2" not in again.stdout  # nothing is trained twice
    other = command("src.train", *arguments, "trainer.max_epochs=1", "resume=auto")
    assert other.returncode == 2
    assert "here/0: holds a run with other settings" in other.stderr
    assert "or another folder\n  trainer.max_epochs: it was 2, now 1" in other.stderr
    assert len(open_trained(tmp_path / "here" / "3").model.state_dict()) == 4


def test_a_bad_point_names_itself(command: Command, tmp_path: Path) -> None:
    done = command("src.train", "-m", "hydra/launcher=fused", "optimizer.lr=0.1,0", "seed=1,2")
    assert done.returncode == 2
    assert "trials 2, 3: optimizer.lr=0: must be greater than 0" in done.stderr
    assert not list(tmp_path.iterdir())


def test_halving_does_not_compare_folds(command: Command, tmp_path: Path) -> None:
    folds = ["data.folds=3", "data.fold=range(3)", "optimizer.lr=0.1,0.2", "hydra.sweep.dir=here"]
    done = command(
        "src.train", "-m", "hydra/launcher=fused", "hydra.launcher.halving=2", *SMALL, *folds
    )
    assert done.returncode == 2
    assert (
        "hydra.launcher.halving=2: compares trials, and those of data.fold=0,1,2 are validated on "
        "different samples; leave halving out, or type one fold"
    ) in done.stderr
    assert not list(tmp_path.glob("here/*/result.json"))


def test_sweepers_get_the_monitored_values(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from src.config.schema import CONF
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
    assert [run.result["best"]["val/recall"] for run in runs] == [run.monitored for run in runs]
    assert job == "2 1 seed=2"


@pytest.fixture
def fresh_hydra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hydra as a process finds it: no version base set, the plugin on the path."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
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
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import hydra_plugins.fused_launcher; "
    done = subprocess.run(
        [sys.executable, "-c", script + "print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
