"""A sweep from Python."""

import csv
import logging
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import kindling
from benchmarks.crashes import fingerprint
from kindling.records.folder import Run
from kindling.sweeps import run_command
from kindling.sweeps.command_line import check_command_line
from kindling.sweeps.requirements import from_python
from kindling.system.errors import InputError, Interrupted
from kindling.training.own import Given
from tests.helpers.commands import SMALL, Command
from tests.helpers.kills import Killed, die_after_writing
from tests.helpers.own import RECIPE, Net, X, Y, make, plain, recipe


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_the_table_is_that_of_the_command(command: Command, tmp_path: Path) -> None:
    swept = ("optimizer.lr=0.01,0.3", "seed=0,1")
    root = logging.getLogger()
    own = logging.FileHandler("own.log", "w")
    root.addHandler(own)
    before = root.handlers[:], root.level
    here = Path("here, with=a comma")
    rows = kindling.sweep(*SMALL, *swept, folder=here)
    assert (root.handlers[:], root.level) == before
    root.warning("after the sweep")
    root.removeHandler(own)
    own.close()
    assert Path("own.log").read_text().endswith("after the sweep\n")
    assert [row["folder"] for row in rows] == [here / str(row["trial"]) for row in rows]
    values = [row["val/acc"] for row in rows]
    assert values == sorted(values, reverse=True)
    assert {(row["optimizer.lr"], row["seed"]) for row in rows} == {
        (rate, seed) for rate in (0.01, 0.3) for seed in (0, 1)
    }
    line = ("src.train", "-m", "hydra/launcher=fused", "hydra.sweep.dir=there", *SMALL, *swept)
    assert command(*line).returncode == 0
    names = ("val/acc", "val/loss", "test/acc")
    tables = []
    for folder in (here, "there"):
        with Path(folder, "results.csv").open() as file:
            tables.append([[row[name] for name in names] for row in csv.DictReader(file)])
    assert tables[0] == tables[1]


def test_the_default_folder_and_another_launcher() -> None:
    (row,) = kindling.sweep(
        *SMALL, "hydra/launcher=basic", "seed=3", "model.hidden_sizes=[8,4]", "optimizer.lr=1e-2",
        "model.activation=tanh", "optimizer.nesterov=false", "optimizer.momentum=0.5",
    )  # fmt: skip
    assert [
        row[key]
        for key in (
            "seed",
            "model.hidden_sizes",
            "optimizer.lr",
            "model.activation",
            "optimizer.nesterov",
        )
    ] == [3, [8, 4], 0.01, "tanh", False]
    assert row["folder"].parts[0] == "sweeps"
    assert row["status"] == "finished"


def test_a_stopped_sweep_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    kindling.sweep(*SMALL, "seed=0,1", folder="a")
    Path("a/1/result.json").unlink()
    with pytest.raises(InputError, match="holds a sweep already"):
        kindling.sweep(*SMALL, "seed=0,1", folder="a")
    rows = kindling.sweep(*SMALL, "seed=0,1", "resume=auto", folder="a")
    assert [row["status"] for row in rows] == ["finished"] * 2


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("optimizer.lr=-1,0.1", "sed=1"), "2 faults"),
        (("--help",), "trains nothing"),
        (("--cfg=job",), "exclude each other|trains nothing"),
    ],
)
def test_nothing_starts_with_a_fault(overrides: tuple[str, ...], told: str) -> None:
    with pytest.raises(InputError, match=told):
        kindling.sweep(*overrides)
    assert not list(Path().iterdir())


def test_a_trial_that_fails_is_a_row() -> None:
    rows = kindling.sweep(*SMALL, "data.drop_last=true", "data.batch_size=50,5000")
    assert [row["status"] for row in rows] == ["finished", "failed"]
    assert "data.batch_size=1150" in rows[1]["error"]


# --- a model and arrays of the program ----------------------------------------------------------

OWN = (*RECIPE, "trainer.max_epochs=2")


@pytest.mark.slow
def test_trials_of_a_module_train_as_one_stack() -> None:
    """With the weights of single runs, up to rounding."""
    rows = kindling.sweep(*OWN, "optimizer.lr=0.01,0.03", "seed=0,1", model=plain, data=(X, Y))
    assert {Run(row["folder"]).result["step"] for row in rows} == {"vmap"}
    assert {Run(row["folder"]).result["stacked"] for row in rows} == {4}
    assert not from_python.get()
    for number, row in enumerate(rows):
        typed = (f"optimizer.lr={row['optimizer.lr']}", f"seed={row['seed']}")
        single = kindling.fit(recipe(*typed), f"single{number}", model=plain, data=(X, Y))
        fused, alone = (
            kindling.load(folder, model=plain).trained.model.state_dict()
            for folder in (row["folder"], single.folder)
        )
        for name, value in alone.items():
            torch.testing.assert_close(fused[name], value)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["fused", "basic"])
def test_a_trial_that_trains_alone_has_the_bits_of_its_single_run(launcher: str) -> None:
    """trainer.step=autograd, and a launcher that makes no stacks."""
    typed = ("trainer.step=autograd", f"hydra/launcher={launcher}")
    rows = kindling.sweep(*OWN, *typed, "seed=0,1", model=make, data=(X, Y), folder="a")
    assert [row["status"] for row in rows] == ["finished", "finished"]
    for seed in (0, 1):
        (row,) = [row for row in rows if row["seed"] == seed]
        config = recipe("trainer.step=autograd", f"seed={seed}")
        single = kindling.fit(config, f"single{seed}", model=make, data=(X, Y))
        assert fingerprint(Run(row["folder"])) == fingerprint(single)


def test_each_trial_starts_from_the_weights_of_the_module() -> None:
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    rows = kindling.sweep(
        *OWN, "optimizer.lr=1e-12", "seed=0,1", "data.kind=numbers", model=net, data=(X, Y),
        test=(X, Y),
    )  # fmt: skip
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    for row in rows:
        trained = kindling.load(row["folder"], model=net).trained.model.state_dict()
        torch.testing.assert_close(trained["last.weight"], before["last.weight"])
    assert (rows[0]["model.class_name"], rows[0]["data"]) == ("Net", "arrays")


def test_folds_of_arrays() -> None:
    folds = ("data.folds=3", "data.fold=range(3)")
    rows = kindling.sweep(*OWN, *folds, model=plain, data=(X, Y), validation=None)
    assert [row["status"] for row in rows] == ["finished"] * 3
    assert sum(Run(row["folder"]).result["data"]["val"] for row in rows) == 160


@pytest.mark.slow
def test_a_killed_sweep_of_a_module_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def swept(folder: str, *more: str, data: Any = (X, Y)) -> list[dict[str, Any]]:
        typed = ("checkpoint.every_n_epochs=1", "seed=0,1", *more)
        return kindling.sweep(*OWN, *typed, model=plain, data=data, folder=folder)

    whole = swept("whole")
    undo = die_after_writing(monkeypatch)
    with pytest.raises(Killed):
        swept("killed")
    undo()
    with pytest.raises(InputError, match=r"data\.digest: it was"):
        swept("killed", "resume=auto", data=(X + 1, Y))
    again = swept("killed", "resume=auto")
    for row in whole:
        (other,) = [each for each in again if each["seed"] == row["seed"]]
        assert row["folder"] != other["folder"]
        assert fingerprint(Run(row["folder"])) == fingerprint(Run(other["folder"]))


def test_an_interrupted_sweep_says_what_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise Interrupted(signal.SIGINT, "stopped; to go on, type\n  kindling train resume=s")

    monkeypatch.setattr(run_command, "train_sweep", interrupted)
    call = r"stopped; to go on, call sweep\(…, 'resume=auto', (.*)folder='s'\) with the same"
    own: dict[str, Any] = {"model": make, "data": (X, Y)}
    cases: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
        (("data=digits",), {}, ""), ((), own, "model=…, data=…, "),
    ]  # fmt: skip
    for chosen, given, told in cases:
        with pytest.raises(KeyboardInterrupt) as caught:
            kindling.sweep(*chosen, "optimizer.lr=0.1,0.2", folder="s", **given)
        found = re.match(call, str(caught.value))
        assert found is not None
        assert found[1] == told


@pytest.mark.slow
@pytest.mark.parametrize("digest", ["123456789012", "123456789e12", "000000000000"])
def test_digests_that_look_like_numbers_and_names_of_inner_classes(
    digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Inner(Net):
        pass

    own = Given.of(Inner, (X, Y), None, None)
    assert own.arrays is not None
    own.arrays.short_digest = digest
    monkeypatch.setattr(Given, "of", lambda *_: own)
    (row,) = kindling.sweep(*OWN, "seed=3", model=Inner, data=(X, Y), folder="sweep")
    run = kindling.fit(recipe("seed=3"), "run", model=Inner, data=(X, Y))
    for each in (Run(row["folder"]), run):
        read = {key: each.config.read(key) for key in ("data.digest", "model.class_name")}
        assert read == {"data.digest": digest, "model.class_name": Inner.__qualname__}
    assert row["data.digest"] == digest
    assert kindling.load("sweep/0", model=Inner()).labels == ("high", "low")


@pytest.mark.slow
def test_processes_of_an_executor_get_the_model_and_the_arrays() -> None:
    typed = ("seed=0,1,2", "hydra.launcher.executor=local", "hydra.launcher.slots=2")
    rows = kindling.sweep(*OWN, *typed, model=make, data=(X, Y))
    assert [row["status"] for row in rows] == ["finished"] * 3
    with pytest.raises(InputError, match="cannot go to another process"):
        kindling.sweep(*OWN, *typed, model=lambda: Net(4), data=(X, Y))


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("data=digits",), "^data: sweep.* was given others; leave the texts out"),
        (("model=cnn",), "^model: sweep.* was given others"),
        (("model.hidden_sizes=[3]",), "model=own has no such key"),
        (("hydra/launcher=joblib",), "type hydra/launcher=fused, or basic"),
        (("data.kind=pictures",), "x goes from"),
        (("data.test_fraction=2",), "data.test_fraction=2"),
    ],
)
def test_faults_of_a_sweep_of_ones_own(typed: tuple[str, ...], told: str) -> None:
    with pytest.raises(InputError, match=told):
        kindling.sweep(*OWN, "seed=0,1", *typed, model=make, data=(X, Y))
    assert not list(Path().iterdir())
    assert not from_python.get()


def test_a_command_line_has_no_such_model_and_no_such_arrays() -> None:
    with pytest.raises(InputError) as caught:
        check_command_line(["data=arrays", "model=own", "data.digest=0123456789ab"])
    _, *lines = str(caught.value).splitlines()
    assert [line.partition(":")[0].strip() for line in lines] == ["data=arrays", "model=own"]
    assert "call kindling.fit(config, data=(x, y)) or kindling.sweep(…, data=(x, y))" in lines[0]


def test_a_folder_of_a_program_is_resumed_there() -> None:
    run = kindling.fit(recipe(), "run", model=make, data=(X, Y))
    call = r"there, call kindling.fit\(config, 'run', model=…, data=…, resume=True\)$"
    with pytest.raises(InputError, match=f"^resume=run: .*{call}"):
        check_command_line(["resume=run", "trainer.max_epochs=9"])
    kindling.sweep(*OWN, "seed=0,1", model=make, data=(X, Y), folder="sweep")
    Path("sweep/1/result.json").unlink()
    with pytest.raises(InputError, match="data=arrays: is in the memory of a Python program"):
        check_command_line(["resume=sweep"])
    assert run.result["status"] == "finished"
