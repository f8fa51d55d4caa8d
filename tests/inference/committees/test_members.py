"""Which runs may become members of a committee."""

import json
from pathlib import Path
from typing import Any

import pytest

from kindling.config.compose import compose
from kindling.inference.committees.members import differing_keys, read_request
from kindling.records.config_files import create_run_folder, yaml_text
from kindling.records.folder import Run
from kindling.system.errors import InputError
from tests.helpers.commands import SMALL, require_told_without_torch


def pretend(folder: Path, *overrides: str, accuracy: float = 0.5, **result: Any) -> Path:
    """A run folder as training leaves it, with a checkpoint that is not opened here."""
    run = Run(folder)
    config = compose(*SMALL, *overrides)
    create_run_folder(run, config.to_primitives())
    found = {
        "status": "finished", "monitor": "val/acc", "config_hash": config.hash(),
        "best": {"val/acc": accuracy, "val/loss": 1 + accuracy}, "data": {"name": "digits"},
    }  # fmt: skip
    run.write_result(found | result)
    run.checkpoints.mkdir()
    run.best_checkpoint.write_bytes(b"")
    return folder


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    folder = tmp_path / "sweep"
    for number, accuracy in enumerate((0.3, 0.9, 0.6)):
        pretend(folder / str(number), f"seed={number}", accuracy=accuracy)
    pretend(folder / "3", "seed=3", status="failed", error="no", accuracy=0.99)
    (folder / "multirun.yaml").write_text("{}\n")
    return folder


def numbers(sweep: Path, **arguments: Any) -> list[str]:
    request = read_request([sweep], **arguments)
    return [outcome.run.folder.name for (outcome,) in request.candidates]


def test_the_best_finished_trials(sweep: Path) -> None:
    assert numbers(sweep, best=2) == ["1", "2"]
    assert numbers(sweep, best=3) == ["1", "2", "0"]
    assert numbers(sweep, best=2, by="val/loss") == ["0", "2"]
    assert numbers(sweep, greedy=20) == ["1", "2", "0"]
    request = read_request([sweep], best=2)
    assert (request.folder, request.by) == (sweep / "committee", "val/acc")
    Run(sweep / "1").remove_checkpoints(but_best=False)  # as checkpoint.keep does
    assert numbers(sweep, greedy=20) == ["2", "0"]
    with pytest.raises(InputError, match=r"1: has lost its weights, checkpoints/best\.ckpt"):
        read_request([sweep], best=2)


def test_named_runs(sweep: Path) -> None:
    request = read_request([sweep / "0", sweep / "2"])
    assert [outcome.run.folder.name for (outcome,) in request.candidates] == ["2", "0"]
    assert request.folder.parts[0] == "runs"
    assert differing_keys([Run(sweep / "0"), Run(sweep / "2")]) == ["seed"]


def test_a_fold_is_a_validation_set(tmp_path: Path) -> None:
    folds = ("data.folds=3", "data.fold=1")
    paths = [
        pretend(tmp_path / "a", *folds, "data.val_fraction=null"),
        pretend(tmp_path / "b", *folds, "data.val_fraction=0.3", "data.sampler=balanced"),
    ]
    assert len(read_request(paths, greedy=5).candidates) == 2
    other = pretend(tmp_path / "c", "data.folds=3", "data.fold=2")
    told = (
        "a: of its setting, folds 0, 2 of 3 are not there, which a committee of folds needs; type"
    )
    with pytest.raises(InputError, match=told):
        read_request([paths[0], other])
    whole = pretend(tmp_path / "d")
    with pytest.raises(InputError, match=r"d: is of no fold; name the runs of folds alone"):
        read_request([paths[0], whole])


def test_keys_that_leave_the_validation_set_as_is_may_differ(tmp_path: Path) -> None:
    paths = [
        pretend(tmp_path / "a"), pretend(tmp_path / "b", "data.batch_size=7", "model.dropout=0.5"),
    ]  # fmt: skip
    assert len(read_request(paths).candidates) == 2
    for key in ("data.split_seed=9", "data.val_fraction=0.3", "data=toy"):
        other = pretend(tmp_path / key, key)
        with pytest.raises(InputError, match=rf"{key}: has other data than .*a: data\."):
            read_request([tmp_path / "a", other])
    fallback = pretend(tmp_path / "c", data={"name": "mnist"})
    with pytest.raises(InputError, match=r"data\.name=mnist \(there digits\)"):
        read_request([tmp_path / "a", fallback])


def test_faults_of_the_arguments_cost_no_torch(sweep: Path, tmp_path: Path) -> None:
    one, two, failed = (str(sweep / number) for number in "013")
    waiting = tmp_path / "waiting"
    create_run_folder(Run(waiting), compose(*SMALL).to_primitives())
    other = str(pretend(tmp_path / "other", monitor="val/loss"))
    training = str(pretend(tmp_path / "training", monitor="train/loss"))
    whole = [str(pretend(tmp_path / n, "data.val_fraction=null")) for n in ("whole1", "whole2")]
    (sweep / "committee").mkdir()
    made = pretend(tmp_path / "made")
    content = json.loads((made / "result.json").read_text())
    member = {"folder": "0", "votes": 1, "val/loss": None, "val/acc": None}
    content["committee"] = {
        "paths": [], "by": "val/acc", "best": None, "greedy": None, "differing": [],
        "members": [member] * 2,
    }  # fmt: skip
    (made / "result.json").write_text(json.dumps(content))
    told = {
        (str(sweep),): "is a sweep; type --best N or --greedy too",
        (str(sweep), "--best", "4"): "has 3 finished trials; type --best 3 or less",
        (str(sweep), "--best", "1"): "--best 1: must be from 2 to 256",
        (str(sweep), "--best", "2", "--start", "1"): "--start 1: must be from 1 to the number",
        (str(sweep), "--greedy", "9", "--start", "10"): "--start 10: must be from 1 to the number",
        (str(sweep), "--greedy", "9", "--start", "-1"): "--start -1: must be from 1 to the number",
        (str(sweep), "--greedy", "0"): "--greedy 0: must be from 2 to 1000",
        (str(sweep), "--best", "2"): "committee: exists already; type --folder FOLDER",
        (one,): f"{one}: is one run; name a sweep, or two runs or more",
        ("nowhere",): "nowhere: there is no such file or folder",
        (one, one): f"{one}: is named twice; name each run once",
        (one, str(sweep)): f"{sweep}: is a sweep; name it alone, or name its trials",
        (one, failed): f"{failed}: is failed; name finished runs only",
        (one, str(waiting)): f"{waiting}: is still running, or was killed",
        (one, str(made)): f"{made}: is a committee; name its members",
        (one, other): "the runs monitored val/acc, val/loss; type --by val/acc or --by val/loss",
        (training, training + "/../training/."): "is named twice",
        (*whole, "--greedy"): "has no validation set of its own (data.val_fraction=null)",
        (one, two, "--folder", two): f"{two}: exists already",
        (one, failed, "nowhere"): "2 faults, no committee was made",
    }
    require_told_without_torch("committee", told)


def test_a_sweep_with_too_few_trials(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / "multirun.yaml").write_text(yaml_text({}))
    with pytest.raises(InputError, match="has 0 finished trials with weights; a committee needs"):
        read_request([folder], greedy=5)
    pretend(folder / "0")
    with pytest.raises(InputError, match="has 1 finished trial; a committee needs two or more"):
        read_request([folder], best=5)
