"""A command is composed and checked once, and what was checked is what trains."""

import csv
import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import hydra
import pytest

from kindling.commands import train
from kindling.config import faults
from kindling.config.compose import compose, shared_composer
from kindling.config.schema import Config
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.sweeps import command_line, run_command, trials
from kindling.sweeps.command_line import check_command_line
from kindling.system.errors import InputError
from tests.helpers.commands import SMALL, Command
from tests.helpers.runs import ended, parsed_configs
from tests.helpers.sweeps import trained_here
from tests.helpers.warm import Warm

# How often Hydra composes from files, and how many points are checked.
COMMANDS = {
    "run": (SMALL, 1, 1),
    "run in a named folder": ((*SMALL, "hydra.run.dir=here"), 1, 1),
    "basic": (("-m", *SMALL, "seed=1,2,3", "hydra.sweep.dir=here"), 1, 3),
    "fused": (("-m", *SMALL, "seed=1,2,3", "hydra/launcher=fused"), 1, 3),
    "zipped": (("-m", *SMALL, "seed=zip(1,2)", "optimizer.lr=zip(0.1,0.2)"), 1, 2),
    "zipped and fused": (
        ("-m", *SMALL, "seed=zip(1,2)", "optimizer.lr=0.1,0.2", "hydra/launcher=fused"), 1, 4,
    ),
    # The sweep itself has the default model: a third choice of groups.
    "models": (("-m", *SMALL, "model=logistic_regression,mlp", "seed=1,2"), 3, 4),
}  # fmt: skip


@pytest.mark.parametrize("launcher", ["fused", "basic"])
def test_no_configuration_of_a_sweep_is_parsed(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the memory is as large as the sweep."""
    parsed = parsed_configs(monkeypatch)
    monkeypatch.setattr(faults._READ, "most", 4)
    sweep = run_command.sweep
    sweep(*SMALL, "seed=range(4)", f"hydra/launcher={launcher}", folder=tmp_path / "sweep")
    assert (tmp_path / "sweep" / "3" / "result.json").exists()
    assert not parsed


@pytest.mark.parametrize("name", COMMANDS)
def test_composed_and_checked_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv, composed, checked = COMMANDS[name]
    counts = {"composed": 0, "checked": 0}
    trained: list[Config] = []
    command = []
    compose, check = hydra.compose, Config.model_validate

    def counting_compose(*given: Any, **named: Any) -> Any:
        counts["composed"] += 1
        return compose(*given, **named)

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
    shared_composer.cache_clear()
    monkeypatch.setattr(hydra, "compose", counting_compose)
    monkeypatch.setattr(Config, "model_validate", counting_check)
    monkeypatch.setattr("kindling.sweeps.command_line.check_command_line", checked_command)
    monkeypatch.setattr("kindling.training.fit.fit", fit)
    monkeypatch.setattr(trials, "train_trials", train_trials)
    monkeypatch.setattr(run_command, "finish_sweep", lambda _: None)
    monkeypatch.setattr("sys.argv", ["train", *argv])
    train.main()
    assert counts == {"composed": composed, "checked": checked}
    assert len(trained) == checked
    assert trained == [*command[0].points]


@pytest.mark.slow
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
    pair = [float(row["val/acc"]) for row in rows if row["model.hidden_sizes"] == "16"]
    rates = [row["optimizer.lr"] for row in rows if row["model.hidden_sizes"] == "16"]
    mine = [a for a, rate in zip(pair, rates, strict=True) if rate == summary.split()[1]]
    mean = sum(mine) / 2
    deviation = abs(mine[0] - mine[1]) / math.sqrt(2)
    assert f" {mean:.2%} ± {deviation:.2%} " in summary
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


def test_a_run_that_is_removed_before_its_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, real = ended(tmp_path / "run", 0.5), Run.ended

    def removed(self: Run) -> bool:
        ended_before = bool(real.__get__(self))
        shutil.rmtree(self.folder)
        return ended_before

    command = command_line.Command(resumes=(run.folder, run.config))
    monkeypatch.setattr(Run, "ended", property(removed))
    with pytest.raises(InputError, match="run: another command has removed it meanwhile"):
        run_command.run_command(command)


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
                "name=wide: runs/a has this name too; the name alone now means this one. To rename "
                "the other, type python -m src.runs label runs/a --name OTHER\n"
            )
    ended(Path("runs/b/0"), 0.5, "name=rates")
    Path("runs/b/multirun.yaml").write_text("")
    command = command_line.Command(sweep_dir=Path("runs/b"), points=[compose(*SMALL, "name=rates")])
    run_command._warn_of_same_name(command)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_the_report_of_a_sweep_has_no_charts_where_plotly_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained_here(tmp_path, "trainer.max_epochs=1")
    monkeypatch.setitem(sys.modules, "plotly", None)
    run_command.finish_sweep(tmp_path)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert f"report: {tmp_path / 'report.html'}" in printed.out
    told = (tmp_path / "report.html").read_text()
    assert "The pictures are not interactive, because plotly is not installed; type" in told


@pytest.mark.slow
def test_the_report_of_a_sweep_repeats_nothing_about_its_data(warm: Warm, tmp_path: Path) -> None:
    """The categories of a table are told when training begins, and not below the results."""
    rows = [f"{n},{('Rome', 'Oslo')[n % 2]},{n % 3}" for n in range(30)]
    (tmp_path / "mine.csv").write_text("\n".join(["a,city,class", *rows]))
    table = ("data=csv", "data.path=mine.csv", "data.target=class", "data.encode=onehot")
    done = warm(tmp_path, "src.train", "-m", *table, *SMALL[1:], "data.batch_size=4", "seed=1,2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "mine.csv: columns of text, and their categories: city (2)" in lines
    (place,) = (n for n, line in enumerate(lines) if line.startswith("table: "))
    after = lines[place:]
    assert after[-1].startswith("report: ")
    assert not [line for line in after if "mine.csv" in line or "categories" in line]


@pytest.mark.slow
@pytest.mark.parametrize(
    "argv",
    [SMALL, (*SMALL, "hydra.run.dir=a/b/c"), ("-m", *SMALL, "seed=1,2"),
     ("-m", *SMALL, "seed=1,2", "hydra/launcher=fused", "hydra.sweep.dir=a/b")],
    ids=["run", "run in a named folder", "basic", "fused"],
)  # fmt: skip
def test_new_folders_survive_a_power_cut(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each folder that a run or sweep makes is synced in its parent before the first result."""
    monkeypatch.chdir(tmp_path)
    unsynced: set[Path] = set()
    made, mkdir, fsync, replace = [], os.mkdir, os.fsync, os.replace

    def note(path: Any, *others: Any, **named: Any) -> None:
        mkdir(path, *others, **named)
        if Path(path).absolute().is_relative_to(tmp_path):
            unsynced.add(Path(path).absolute())
            made.append(path)

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        status = os.fstat(descriptor)
        done = {each for each in [*unsynced] if os.path.samestat(each.parent.stat(), status)}
        unsynced.difference_update(done)

    def written(source: Any, target: Any, **named: Any) -> None:
        if Path(target).name == "result.json":
            assert unsynced == set()
        replace(source, target, **named)

    monkeypatch.setattr(os, "mkdir", note)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", written)
    run_command.run_command(check_command_line(argv))
    assert len(made) >= 5
    assert len(list(tmp_path.rglob("result.json"))) == (2 if "-m" in argv else 1)


LOG = """version: 1
formatters:
  plain:
    format: "FORMAT %(message)s"
handlers:
  console:
    class: logging.StreamHandler
    formatter: plain
    stream: ext://sys.stdout
root:
  level: INFO
  handlers: [console]
disable_existing_loggers: false
"""


@pytest.mark.slow
@pytest.mark.parametrize(("text", "begins"), [("plain", "plain"), ("${hydra.job.num}:", "1:")])
def test_a_log_of_ones_own(command: Command, tmp_path: Path, text: str, begins: str) -> None:
    file = tmp_path / "own" / "hydra" / "job_logging" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(LOG.replace("FORMAT", text))
    own = (f"--config-dir={tmp_path / 'own'}", "hydra/job_logging=mine", "trainer.max_epochs=1")
    done = command("src.train", "-m", *SMALL, *own, "seed=1,2", "hydra/launcher=basic")
    assert f"\n{begins} trial 2 of 2, in " in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["null", "local"])
def test_the_log_of_each_fused_trial_lies_in_its_folder(
    command: Command, tmp_path: Path, executor: str
) -> None:
    more = ("hydra.launcher.max_trials=1", f"hydra.launcher.executor={executor}", "seed=1,2,3")
    own = ("hydra/launcher=fused", "hydra/job_logging=default", "hydra.sweep.dir=here")
    done = command("src.train", "-m", *SMALL, *own, *more)
    assert done.returncode == 0, done.stderr
    logs = [(tmp_path / "here" / str(trial) / "train.log").read_text() for trial in range(3)]
    assert all("epoch 2/2" in log for log in logs)
    assert "3 trials: 3 alone" in logs[0]


def test_a_sweep_that_is_removed_before_it_goes_on_is_not_trained_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = ["-m", *SMALL, "hydra.sweep.dir=sweep", "seed=1,2"]
    new = check_command_line(typed)
    with monkeypatch.context() as patch:
        patch.setattr(run_command, "train_trial", lambda *_: None)
        run_command.train_points(new)
    command = check_command_line(["resume=sweep"])
    shutil.rmtree("sweep")
    with pytest.raises(InputError, match="sweep: another command has removed it meanwhile"):
        run_command.train_points(command)
    assert not Path("sweep").exists()
