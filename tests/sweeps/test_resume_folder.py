"""Runs and sweeps that are resumed from the command line."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.crashes import fingerprint
from kindling.config.compose import compose
from kindling.inference.evaluation import evaluate_path
from kindling.records.folder import Run
from kindling.sweeps.command_line import check_command_line
from kindling.sweeps.resume_folder import continued, is_execution
from kindling.system.errors import InputError
from kindling.training.fit import fit, fit_stack
from tests.helpers.commands import ROOT, SMALL, Command, Train, started


def test_resume_from_the_command_line(command: Command, tmp_path: Path) -> None:
    done = command("src.train", *SMALL, "hydra.run.dir=run", "resume=auto")
    assert done.returncode == 0, done.stderr
    again = command("src.train", *SMALL, "hydra.run.dir=run", "resume=auto")
    assert again.returncode == 0
    assert "run: finished after 2 epochs" in again.stdout
    more = command("src.train", "resume=run", "trainer.max_epochs=4")
    assert more.returncode == 0, more.stderr
    assert "going on from epoch 2, batch 0" in more.stdout
    run = Run(tmp_path / "run")
    assert [row["epoch"] for row in run.history] == [0, 1, 2, 3, 4]
    assert fingerprint(run) == fingerprint(fit(run.config, tmp_path / "whole"))


@pytest.mark.slow
def test_faults_of_resume_cost_no_torch(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train("model=logistic_regression")
    folder = run.folder

    def fault(*argv: str) -> str:
        with pytest.raises(InputError) as caught:
            check_command_line(argv)
        return str(caught.value)

    assert (
        "may only change to a larger trainer.max_epochs\n  optimizer.lr: it was 0.5, now 0.1"
        in fault(f"resume={folder}", "optimizer.lr=0.1", "trainer.max_epochs=5")
    )
    assert "trainer.max_epochs: it was 2, now 1" in fault(
        f"resume={folder}", "trainer.max_epochs=1"
    )
    assert "its model is not mlp; leave out model=mlp" in fault(f"resume={folder}", "model=mlp")
    assert "leave out -m" in fault("-m", f"resume={folder}", "seed=1,2")
    assert "is not a run or sweep folder" in fault(f"resume={tmp_path}")
    assert "type hydra.run.dir=FOLDER too" in fault("resume=auto")
    assert "type hydra.sweep.dir=FOLDER too" in fault("-m", "resume=auto", "seed=1,2")
    assert f"type resume={folder} to resume it" in fault(f"hydra.run.dir={folder}")
    assert "optimizer.lr: it was 0.5, now 0.2" in fault(
        *SMALL, "model=logistic_regression", "optimizer.lr=0.2", "resume=auto",
        f"hydra.run.dir={folder}",
    )  # fmt: skip
    (tmp_path / "t.csv").write_text("a,kind\n" + "1,0\n2,1\n" * 9)
    data = ("data=csv", f"data.path={tmp_path}/t.csv", "data.target=kind")
    own = train(*data, "trainer.max_epochs=1").folder
    assert fault(f"resume={own}", "data.path=new.csv").endswith(
        "keeps its data.path; leave out data.path=new.csv"
    )
    (tmp_path / "t.csv").rename(tmp_path / "new.csv")
    assert fault(f"resume={own}", "trainer.max_epochs=3").endswith(
        f"cannot continue here\n  data.path={tmp_path}/t.csv: there is no such file or folder; put "
        "it back as it was"
    )
    code = (
        "import sys; from kindling.sweeps.command_line import check_command_line\n"
        f"check_command_line(['resume={folder}', 'trainer.max_epochs=7'])\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("keep", ["best", "1"])
def test_what_stays_of_a_single_run(keep: str, command: Command, tmp_path: Path) -> None:
    """A run with a number keeps all: it has no others to compare with."""
    done = command("src.train", *SMALL, f"checkpoint.keep={keep}", "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    run = Run(tmp_path / "run")
    names = ["best.ckpt"] if keep == "best" else ["best.ckpt", "last.ckpt", "previous.ckpt"]
    assert sorted(path.name for path in run.checkpoints.iterdir()) == names
    run.previous_checkpoint.touch()  # as if it had been killed before the removal
    again = command("src.train", "resume=run")
    assert again.returncode == 0
    assert ("to train on:" in again.stdout) == (keep == "1")
    assert sorted(path.name for path in run.checkpoints.iterdir()) == names
    more = command("src.train", "resume=run", "trainer.max_epochs=3")
    if keep == "1":
        assert more.returncode == 0, more.stderr
        return
    assert more.returncode == 2
    assert more.stderr.strip() == (
        "error: run: cannot be trained on, because checkpoint.keep=best has kept only its best "
        "weights; to train it again from the start, type python -m src.train data=digits "
        "trainer=cpu trainer.max_epochs=2 checkpoint.keep=best trainer.max_epochs=3"
    )
    with pytest.raises(InputError, match="has kept only its best weights; train it in a new"):
        fit(
            compose(*SMALL, "checkpoint.keep=best", "trainer.max_epochs=3"), run.folder, resume=True
        )
    assert evaluate_path(run.folder, None).accuracy == run.result["test/acc"]


@pytest.mark.parametrize(
    "launcher", ["basic", "fused", pytest.param("local", marks=pytest.mark.slow)]
)
def test_what_stays_of_a_sweep(launcher: str, command: Command, tmp_path: Path) -> None:
    where = ("hydra/launcher=fused", "hydra.launcher.executor=local", "hydra.launcher.slots=2")
    done = command(
        "src.train", "-m", *SMALL, "optimizer.lr=1e-4,0.1,0.01", "checkpoint.keep=1",
        *(where if launcher == "local" else [f"hydra/launcher={launcher}"]),
        "hydra.sweep.dir=sweep",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = [Run(tmp_path / "sweep" / number) for number in "012"]
    assert [run.checkpoints.exists() for run in runs] == [False, True, False]
    assert runs[1].last_checkpoint.exists()
    assert all(run.result["status"] == "finished" and len(run.history) == 3 for run in runs)
    again = command("src.train", "resume=sweep")
    assert again.returncode == 0, again.stderr
    assert [run.checkpoints.exists() for run in runs] == [False, True, False]


@pytest.mark.slow
def test_a_trial_without_weights(command: Command, tmp_path: Path) -> None:
    sweep = ("hydra/launcher=fused", "hydra.sweep.dir=sweep", "checkpoint.keep=1")
    done = command("src.train", "-m", *SMALL, "optimizer.lr=1e-4,0.1", *sweep)
    assert done.returncode == 0, done.stderr
    expected = (
        "error: sweep/0: has no weights, because checkpoint.keep=1 keeps those of the best trial; "
        "name a trial that has checkpoints/best.ckpt, or train this one again: python -m src.train "
        "data=digits trainer=cpu trainer.max_epochs=2 optimizer.lr=0.0001 checkpoint.keep=1\n"
    )
    for arguments in (
        ("src.evaluate", "sweep/0"), ("src.predict", "sweep/0", "x.png"),
        ("src.export", "sweep/0"), ("src.report", "sweep/0", "--bundle", "x.zip"),
    ):  # fmt: skip
        refused = command(*arguments)
        assert (refused.returncode, refused.stderr) == (2, expected), arguments
    refused = command("src.train", "resume=sweep/0", "trainer.max_epochs=3")
    assert "because checkpoint.keep=1 has kept only better trials; to train" in refused.stderr
    assert command("src.report", "sweep").returncode == 0
    page = command("src.report", "sweep/0")
    assert page.returncode == 0, page.stderr
    assert (
        "has no weights, because checkpoint.keep=1"
        in (tmp_path / "sweep" / "0" / "report.html").read_text()
    )


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "fused"])
def test_a_sweep_is_resumed_by_its_folder(launcher: str, command: Command, tmp_path: Path) -> None:
    """Interrupted in its first stack or trial, gone on with by the command that it names."""
    common = ("data=digits", "trainer=cpu", "trainer.max_epochs=50")
    arguments = ("-m", *common, "optimizer.lr=0.05,0.1", f"hydra/launcher={launcher}")
    process = started(tmp_path, *arguments, "hydra.sweep.dir=sweep")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert "python -m src.train resume=sweep" in errors
    statuses = [Run(tmp_path / "sweep" / trial).result.get("status") for trial in "01"]
    assert statuses == ["interrupted", "interrupted" if launcher == "fused" else None]
    refused = command("src.train", *arguments, "hydra.sweep.dir=sweep")
    assert refused.returncode == 2
    assert "type resume=sweep to resume it" in refused.stderr
    alone = command("src.train", "resume=sweep/0")
    assert alone.returncode == 2
    assert "type python -m src.train resume=sweep" in alone.stderr
    done = command("src.train", "resume=sweep")
    assert done.returncode == 0, done.stderr
    assert "going on from epoch" in done.stdout
    assert "best trial, to train it alone: python -m src.train" in done.stdout
    assert "resume" not in done.stdout.partition("trial, to train it alone: ")[2].splitlines()[0]
    assert "resume" not in (tmp_path / "sweep" / "results.csv").read_text()
    configs = [compose(*common, f"optimizer.lr={rate}") for rate in (0.05, 0.1)]
    folders = [tmp_path / "whole" / trial for trial in "01"]
    if launcher == "fused":
        fit_stack(configs, folders, tmp_path / "whole" / "stack")
    else:
        for config, folder in zip(configs, folders, strict=True):
            fit(config, folder)
    for folder in folders:
        assert fingerprint(Run(tmp_path / "sweep" / folder.name)) == fingerprint(Run(folder))


# --- the keys of an executor -------------------------------------------------------------------

SECTION = "hydra.launcher"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hydra.launcher.executor=slurm", True),
        ("++hydra.launcher.setup=[a]", True),
        ("hydra.launcher.wait=false", True),
        ("hydra.launcher.max_trials=3", False),
        ("search.executor=slurm", False),
        ("executor=slurm", False),
        ("seed=", False),
    ],
)
def test_keys_of_an_executor(text: str, expected: bool) -> None:
    assert is_execution(text, SECTION) == expected


def _continued(recorded: list[str], typed: list[str]) -> list[str]:
    record, now = ([f"{SECTION}.{text}" for text in texts] for texts in (recorded, typed))
    kept = continued(Path("sweep"), [*record, "seed=1,2"], now, SECTION)
    assert kept.pop(0) == "seed=1,2"
    return [text.removeprefix(f"{SECTION}.") for text in kept]


def test_the_record_holds_until_something_else_is_typed() -> None:
    recorded = ["executor=slurm", "partition=a", "minutes=5", "wait=false"]
    assert _continued(recorded, []) == ["executor=slurm", "partition=a", "minutes=5"]
    assert _continued(recorded, ["partition=b"]) == ["executor=slurm", "partition=b", "minutes=5"]
    assert _continued([*recorded, "slots=2"], ["executor=local"]) == ["executor=local", "slots=2"]
    assert _continued(recorded, ["executor=null"]) == ["executor=null"]


def test_what_could_run_code_is_typed_anew() -> None:
    recorded = ["executor=slurm", "setup=[evil]"]
    with pytest.raises(InputError) as caught:
        _continued(recorded, [])
    assert str(caught.value) == (
        "resume=sweep: its record has hydra.launcher.setup=[evil], which is not used unread; type "
        "hydra.launcher.setup=… anew, or hydra.launcher.setup=null"
    )
    assert _continued(recorded, ["setup=[good]"]) == ["executor=slurm", "setup=[good]"]
    assert _continued(recorded, ["executor=local"]) == ["executor=local"]
    with pytest.raises(InputError, match=r"hydra\.launcher\.address=null$"):
        _continued(["executor=ray", "address=far:1"], [])
