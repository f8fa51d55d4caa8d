"""Sweeps whose keys change together, from the command line to their trials."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.plugins.launcher import Launcher

from hydra_plugins.zip_sweeper import ZipSweeper
from kindling.config.compose import compose
from kindling.records.folder import Run
from kindling.sweeps import jobs
from kindling.sweeps.command_line import check_command_line
from kindling.sweeps.confirmation import command as confirm_command
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.commands import SMALL, Command, require_told_without_torch
from tests.helpers.faults import faults
from tests.helpers.weights import same

RATES = "optimizer.lr=zip(0.1,0.3)"
WIDTHS = "model.hidden_sizes=zip([8],[16])"


def test_points_are_checked_in_the_order_of_nested_loops() -> None:
    argv = ["-m", *SMALL, RATES, "seed=1,2", WIDTHS, "optimizer.momentum=zip(0,0.5)"]
    command = check_command_line(argv)
    places = zip([0.1, 0.3], [[8], [16]], [0, 0.5], strict=True)
    expected = [(*place, seed) for place, seed in itertools.product(places, [1, 2])]
    found: list[Any] = [point.to_primitives() for point in command.points]
    assert expected == [
        (values["optimizer"]["lr"], values["model"]["hidden_sizes"],
         values["optimizer"]["momentum"], values["seed"])
        for values in found
    ]  # fmt: skip
    assert command.argv[-2:] == ["hydra/sweeper=zip", f"hydra.sweep.dir={command.sweep_dir}"]
    assert "hydra/sweeper=zip" not in check_command_line(["-m", "seed=1,2"]).argv


def test_groups_can_be_zipped() -> None:
    choices = ("model=zip(mlp,logistic_regression)", "optimizer=zip(adam,sgd)")
    points = check_command_line(["-m", *SMALL, *choices, "logger=zip([tensorboard],none)"]).points
    found = [(each.model.name, each.optimizer.name, each.logger.chosen) for each in points]
    assert found == [("mlp", "adam", ["tensorboard"]), ("logistic_regression", "sgd", [])]
    text = faults("-m", *choices[:1], "optimizer=zip(adam,sdg)", "scheduler=zip(none)")
    assert "optimizer=sdg: must be one of adam, adamw, sgd; did you mean sgd?" in text


def test_faults_of_a_point_name_its_trials() -> None:
    text = faults("-m", "optimizer.lr=zip(0.1,-1)", "model.hidden_sizes=zip(0,8)", "seed=1,2")
    assert "trials 0, 1: model.hidden_sizes=0: must" in text
    assert "trials 2, 3: optimizer.lr=-1: must be greater than 0" in text


@pytest.mark.slow
def test_faults_cost_no_torch_and_exit_with_2() -> None:
    require_told_without_torch(
        "train",
        {
            (RATES,): f"{RATES}: several values need a sweep; type -m too",
            ("-m", RATES, "seed=zip(1,2,3)"): "optimizer.lr has 2 values, seed has 3 values; keys",
            ("-m", RATES, RATES): f"{RATES}: optimizer.lr is given twice; type it once",
            ("-m", RATES, "hydra/sweeper=basic"):
                "hydra/sweeper=basic: does not know zip(…); leave hydra/sweeper out",
            ("-m", "hydra.launcher.n_jobs=zip(1,2)"): "have one value for a whole sweep",
            ("-m", "seed=zip()"): "seed=zip(): zip(…) has no values; type them",
            ("--cfg", "job", RATES): f"{RATES}: several values need a sweep",
        },
    )  # fmt: skip


def test_the_sweeper_is_chosen_for_zip_alone() -> None:
    chosen = ["hydra/sweeper=zip", RATES]
    assert check_command_line(["-m", *SMALL, *chosen]).argv[1:-1] == [*SMALL, *chosen]


class NotedLauncher(Launcher):
    """Notes the numbers and the overrides of the jobs of each batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[list[str]]]] = []

    def setup(self, **_: Any) -> None: ...

    def launch(self, job_overrides: Any, initial_job_idx: int) -> list[Any]:
        self.batches.append((initial_job_idx, [list(job) for job in job_overrides]))
        return []


@pytest.mark.parametrize("size", [None, 3])
def test_the_sweeper_has_hydras_batches_and_parameters(
    size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_zipped", ["a=zip(x,'y z')", "b=3,4"])
    sweeper = ZipSweeper(size, {"seed": "zip(1,2)"})
    sweeper.launcher = launcher = NotedLauncher()
    sweeper.sweep([])
    told = [
        [f"seed={seed}", f"a={a}", f"b={b}"]
        for (seed, a), b in itertools.product([(1, "x"), (2, "'y z'")], [3, 4])
    ]
    assert launcher.batches == ([(0, told)] if size is None else [(0, told[:3]), (3, told[3:])])
    with pytest.raises(InputError, match=r"seed has 1 value, a has 2 values;"):
        jobs.zip_jobs({"seed": "zip(1)"})


EXPECTED = [
    ("optimizer.lr=0.1", "model.hidden_sizes=[8]"), ("optimizer.lr=0.3", "model.hidden_sizes=[16]")
]  # fmt: skip


@pytest.fixture(scope="module")
def single_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("single")
    points = itertools.product(EXPECTED, ("seed=1", "seed=2"))
    return [
        fit(compose(*SMALL, *pair, seed), folder / str(number))
        for number, (pair, seed) in enumerate(points)
    ]


@pytest.mark.slow
def test_trials_are_their_single_runs_and_are_resumed(
    single_runs: list[Run], command: Command, tmp_path: Path
) -> None:
    """Bit for bit."""
    where = ("hydra/launcher=fused", "hydra.sweep.dir=sweep")
    done = command("src.train", "-m", *SMALL, RATES, WIDTHS, "seed=1,2", *where)
    assert done.returncode == 0, done.stderr
    sweep = tmp_path / "sweep"
    trials = [Run(sweep / str(number)) for number in range(4)]

    def require_single_runs() -> None:
        for trial, run in zip(trials, single_runs, strict=True):
            assert same(trial, run)
            assert trial.result["test/loss"] == run.result["test/loss"]
            assert trial.config.model_copy(update={"resume": None}) == run.config

    require_single_runs()
    for trial, (pair, seed) in zip(trials, itertools.product(EXPECTED, (1, 2)), strict=True):
        typed = [*SMALL, *pair, f"seed={seed}"]
        assert yaml.safe_load(trial.overrides_file.read_text()) == typed
        assert trial.command == f"python -m src.train {' '.join(typed)}".replace(
            pair[1], f"'{pair[1]}'"
        )
    record = yaml.safe_load((sweep / "multirun.yaml").read_text())["hydra"]["overrides"]
    assert record["task"] == [*SMALL, RATES, WIDTHS, "seed=1,2"]
    # Trials that differ only in their seed repeat one setting.
    first, second = (sum(run.monitored for run in single_runs[at : at + 2]) for at in (0, 2))
    setting = " ".join([*SMALL, EXPECTED[second > first][0]])
    assert f"best setting by its mean: python -m src.train {setting} 'model" in done.stdout
    chosen = confirm_command.check_command_line(sweep, 2, 2).record
    assert sorted(chosen.keys) == ["model.hidden_sizes", "optimizer.lr"]
    assert sorted(setting.trials for setting in chosen.settings) == [[0, 1], [2, 3]]

    for trial in trials:  # as if the sweep had been killed at once
        shutil.rmtree(trial.folder)
    again = command("src.train", "resume=sweep")
    assert again.returncode == 0, again.stderr
    require_single_runs()
