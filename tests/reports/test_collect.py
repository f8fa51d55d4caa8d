"""Runs that cannot be reported are named, and the rest is not lost."""

import shutil
from pathlib import Path

import pytest

from kindling.inference.committees.making import make_committee
from kindling.inference.committees.members import read_request
from kindling.records.folder import Run
from kindling.records.sweep_folder import Sweep
from kindling.reports.collect import collect
from kindling.reports.page import write_report
from kindling.system.errors import InputError
from tests.helpers.commands import Train


@pytest.mark.slow
def test_runs_that_cannot_be_read_are_skipped_and_listed(train: Train, tmp_path: Path) -> None:
    good = train()
    empty = tmp_path / "empty"
    empty.mkdir()
    broken = ("half", "garbled", "no-json", "foreign", "no-config")
    runs = {name: Run(shutil.copytree(good.folder, tmp_path / name)) for name in broken}
    runs["half"].history_file.unlink()
    runs["half"].result_file.unlink()
    runs["garbled"].history_file.write_text("a,b\n1,2\n")
    runs["no-json"].result_file.write_text("{")
    runs["foreign"].config_file.write_text("model: 5\n")
    runs["no-config"].config_file.unlink()
    (good.folder / "labels.json").write_text("[")  # the run is reported without a name
    found = collect([tmp_path])
    assert [entry.name for entry in found.runs] == ["run1"]
    assert {path.name for path, _ in found.skipped} == {*broken, "run1"}
    reasons = {path.name: reason for path, reason in found.skipped}
    assert "neither history.csv nor result.json" in reasons["half"]
    page = write_report([tmp_path]).read_text()
    assert all(f"{tmp_path / name}</code>" in page for name in broken)
    with pytest.raises(InputError, match=r"nothing to report(.|\n)*empty: holds no run"):
        write_report([empty])
    with pytest.raises(InputError, match="absent: there is no such folder"):
        write_report([tmp_path / "absent", good.folder])


@pytest.mark.slow
def test_a_committee_in_the_folder_of_its_sweep_is_not_a_trial(
    train: Train, tmp_path: Path
) -> None:
    sweep = tmp_path / "sweep"
    for number, width in enumerate((4, 8)):
        made = train(f"model.hidden_sizes=[{width}]", f"seed={number}")
        shutil.copytree(made.folder, sweep / str(number))
    (sweep / "multirun.yaml").write_text("{}\n")
    run = make_committee(read_request([sweep], best=2))
    assert run.folder == sweep / "committee"
    found = collect([sweep])
    (part,) = found.sweeps
    assert [trial.run.folder.name for trial in part.entries] == ["0", "1"]
    (entry,) = found.runs
    assert (entry.label, entry.name) == ("committee of 2", "committee")
    assert entry.settings["seed"] == entry.settings["model.hidden_sizes"] == "several"
    assert entry.settings["optimizer.lr"] == part.entries[0].settings["optimizer.lr"]
    assert entry.value == run.result["best"]["val/acc"]
    page = write_report([sweep]).read_text()
    assert "<h1>Committee of 2 on digits; a sweep over hidden_sizes, seed on digits: 2" in page
    assert f"python -m src.committee {sweep} --best 2 --by val/acc" in page
    assert [outcome.run.folder.name for outcome in Sweep(sweep).outcomes()] == ["0", "1"]
