"""A command is composed and checked once, and what was checked is what trains."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from hydra.types import RunMode

from src import train
from src.config.compose import compose, job_config, shared_composer
from src.config.schema import Config
from src.runs.folder import Run
from src.sweeps import command_line, run_command, trials
from src.sweeps.command_line import check_command_line
from tests.helpers.commands import SMALL, Command
from tests.helpers.runs import ended
from tests.helpers.warm import Warm

# How often Hydra composes from files, how many points are checked, and for how many jobs OmegaConf
# makes a configuration: with hydra/launcher=fused only for the first, for its logging.
COMMANDS = {
    "run": (SMALL, 1, 1, 0),
    "run in a named folder": ((*SMALL, "hydra.run.dir=here"), 1, 1, 0),
    "basic": (("-m", *SMALL, "seed=1,2,3", "hydra.sweep.dir=here"), 1, 3, 3),
    "fused": (("-m", *SMALL, "seed=1,2,3", "hydra/launcher=fused"), 1, 3, 1),
    "zipped": (("-m", *SMALL, "seed=zip(1,2)", "optimizer.lr=zip(0.1,0.2)"), 1, 2, 2),
    "zipped and fused": (
        ("-m", *SMALL, "seed=zip(1,2)", "optimizer.lr=0.1,0.2", "hydra/launcher=fused"),
        1,
        4,
        1,
    ),
    # The sweep itself has the default model: a third choice of groups.
    "models": (("-m", *SMALL, "model=logistic_regression,mlp", "seed=1,2"), 3, 4, 4),
}


@pytest.fixture
def hydra_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is composed yet, and Hydra's patched parts are put back."""
    state = Singleton.get_state()
    monkeypatch.setattr("hydra.core.utils._save_config", None)
    # By the module itself: Hydra's search for plugins leaves it without a name in its package.
    sweeper = import_module("hydra._internal.core_plugins.basic_sweeper")
    monkeypatch.setattr(sweeper, "OmegaConf", sys.modules["omegaconf"].OmegaConf)
    validate = sweeper.BasicSweeper.validate_batch_is_legal
    monkeypatch.setattr(sweeper.BasicSweeper, "validate_batch_is_legal", validate)
    shared_composer.cache_clear()
    yield
    Singleton.set_state(state)


@pytest.mark.usefixtures("hydra_again")
@pytest.mark.parametrize("name", COMMANDS)
def test_composed_and_checked_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv, composed, checked, jobs = COMMANDS[name]
    counts = {"composed": 0, "checked": 0, "jobs": 0}
    trained: list[Config] = []
    command = []
    compose, check = ConfigLoaderImpl._load_configuration_impl, Config.model_validate
    compose_job = ConfigLoaderImpl.load_sweep_config

    def counting_compose(*given: Any, **named: Any) -> Any:
        counts["composed"] += 1
        return compose(*given, **named)

    def counting_compose_job(*given: Any) -> Any:
        counts["jobs"] += 1
        return compose_job(*given)

    def counting_check(values: Any) -> Config:
        counts["checked"] += 1
        return check(values)

    def checked_command(given: list[str], _: str) -> Any:
        command.append(check_command_line(given))
        return command[0]

    def fit(config: Config, folder: Path, *, resume: bool) -> Run:
        trained.append(config)
        assert (folder / ".hydra" / "config.yaml").exists()
        return Run(folder)

    def train_trials(configs: list[Config], *_: object) -> list[float]:
        trained.extend(configs)
        return [0.5] * len(configs)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", counting_compose)
    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", counting_compose_job)
    monkeypatch.setattr(Config, "model_validate", counting_check)
    monkeypatch.setattr("src.sweeps.command_line.check_command_line", checked_command)
    monkeypatch.setattr("src.training.fit.fit", fit)
    monkeypatch.setattr(trials, "train_trials", train_trials)
    monkeypatch.setattr(run_command, "finish_sweep", lambda _: None)
    monkeypatch.setattr("sys.argv", ["train", *argv])
    train.main()
    assert counts == {"composed": composed, "checked": checked, "jobs": jobs}
    assert len(trained) == checked
    assert all(one is other for one, other in zip(trained, command[0].points, strict=True))


def test_a_point_that_a_sweeper_chooses_is_checked_when_it_comes() -> None:
    command = check_command_line(["-m", *SMALL, "optimizer.lr=interval(0.1,1)"])
    assert command.points == []
    composer = command.composer
    assert composer is not None
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().hydra = composer.hydra
    try:
        for rate, faulty in ((0.25, False), (-1, True)):
            texts = [*SMALL, f"optimizer.lr={rate}"]
            composed = composer.load_configuration("train", texts, RunMode.RUN)
            config, found = job_config(composed, texts)
            assert (config is None) == faulty == ("optimizer.lr=-1" in " ".join(found))
    finally:
        GlobalHydra.instance().hydra = before


def test_groups_that_cannot_be_divided_end_a_sweep_before_it_trains(
    command: Command, tmp_path: Path
) -> None:
    """Once for all folds, and with status 2, not as the fault of each trial."""
    rows = "".join(f"{n},{'big' if n < 40 else n},{n % 2}\n" for n in range(60))
    (tmp_path / "t.csv").write_text(f"a,who,kind\n{rows}")
    data = ("data=csv", "data.path=t.csv", "data.target=kind", "data.group=who", "trainer=cpu")
    folds = ("data.folds=5", "data.fold=range(5)", "hydra.sweep.dir=here")
    done = command("src.train", "-m", "hydra/launcher=fused", *data, *folds)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: data.folds=5: the group 'big' of data.group=who has 40 of 48 training samples, "
        "more than a fold; choose smaller groups\n"
    )
    assert not (tmp_path / "here").exists()


def test_a_name_that_another_run_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line at the start, but not about the sweep's own folder when it is resumed."""
    monkeypatch.chdir(tmp_path)
    ended(Path("runs/a"), 0.5, "name=wide")
    for argv, warned in (
        ((*SMALL, "name=wide"), True), ((*SMALL, "name=wid"), False), (SMALL, False),
    ):  # fmt: skip
        run_command._warn_of_same_name(check_command_line(argv))
        told = capsys.readouterr().err
        assert bool(told) == warned
        if warned:
            assert told == (
                "name=wide: runs/a has this name too; to rename it, type python -m src.runs label "
                "runs/a --name OTHER\n"
            )
    ended(Path("runs/b/0"), 0.5, "name=rates")
    Path("runs/b/multirun.yaml").write_text("")
    command = command_line.Command(sweep_dir=Path("runs/b"), points=[compose(*SMALL, "name=rates")])
    run_command._warn_of_same_name(command)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_trials_of_other_processes(command: Command, tmp_path: Path) -> None:
    """joblib's processes get a composer that remembers nothing, and check each job."""
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


def test_the_report_of_a_sweep_repeats_nothing_about_its_data(warm: Warm, tmp_path: Path) -> None:
    """The categories of a table are told when training begins, and not below the results."""
    rows = [f"{n},{('Rome', 'Oslo')[n % 2]},{n % 3}" for n in range(30)]
    (tmp_path / "mine.csv").write_text("\n".join(["a,city,class", *rows]))
    table = ("data=csv", "data.path=mine.csv", "data.target=class", "data.encode=onehot")
    done = warm(tmp_path, "src.train", "-m", *table, *SMALL[1:], "data.batch_size=4", "seed=1,2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "mine.csv: columns of text, and their categories: city (2)" in lines
    assert [line.split(": ")[0] for line in lines[-2:]] == ["table", "report"]
