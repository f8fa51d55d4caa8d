"""Confirmations that train: the files they write, killed and resumed, and by the command line."""

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kindling.config.schema import Config
from kindling.records.confirm_record import trials
from kindling.records.folder import Run
from kindling.records.sweep_folder import Sweep
from kindling.reports.confirmation import read_confirmation, to_primitives
from kindling.reports.page import write_report
from kindling.sweeps.confirmation import loop
from kindling.sweeps.confirmation.command import check_command_line
from kindling.sweeps.confirmation.loop import confirm, show
from kindling.sweeps.search import loop as search_loop
from kindling.system.errors import InputError
from kindling.system.files import lock_or_fail
from kindling.training.fit import fit
from tests.helpers.commands import Command
from tests.helpers.confirmations import (
    begun,
    cross_validated_sweep,
    pretended_sweep,
    settle,
    trained_sweep,
)
from tests.helpers.kills import (
    Killed,
    dead_leave_files_open,
    die_after_writing,
    die_at_call,
    die_at_sync,
)
from tests.helpers.searches import searched, value_of
from tests.helpers.weights import same


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained sweep of three settings with two seeds, which no test writes into."""
    return trained_sweep(tmp_path_factory.mktemp("base") / "s")


@pytest.fixture
def sweep(base: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "s"
    shutil.copytree(base, folder)
    return folder


@pytest.fixture
def cross_validated(tmp_path: Path) -> Path:
    return cross_validated_sweep(tmp_path / "s")


@pytest.mark.slow
def test_a_confirmed_trial_equals_its_single_run(sweep: Path, tmp_path: Path) -> None:
    command = check_command_line(sweep, 2, 3)
    found = confirm(command)
    assert found.record.seeds == [2, 3, 4]
    for of_setting in trials(command.folder, command.record):
        for trial in of_setting:
            alone = fit(trial.config, tmp_path / "alone" / trial.run.folder.name)
            assert same(trial.run, alone)
            for name in ("test/acc", "test/loss", "best", "config_hash"):
                assert trial.run.result[name] == alone.result[name]
            assert trial.run.overrides["seed"] == str(trial.config.seed)
    values = [Run(command.folder / str(number)).monitored for number in range(6)]
    measured = {tuple(setting.measured) for setting in found.settings}
    assert measured == {tuple(values[:3]), tuple(values[3:])}
    told = json.loads((command.folder / "confirm.json").read_text())
    assert told == json.loads(json.dumps(to_primitives(found)))
    assert (command.folder / "confirm.png").read_bytes().startswith(b"\x89PNG")
    left = {path.name for path in command.folder.iterdir() if not path.name.isdigit()}
    files = {f"confirm.{suffix}" for suffix in ("html", "json", "png", "svg", "yaml")}
    assert left == {".lock", "results.csv", *files}
    # The promise is the mean of the sweep's own trials.
    own = [Run(sweep / str(number)).monitored for number in found.settings[0].chosen.trials]
    assert found.settings[0].chosen.promised == pytest.approx(sum(own) / 2)


@pytest.mark.slow
def test_a_confirmed_trial_on_a_fold_equals_its_single_run(
    cross_validated: Path, tmp_path: Path
) -> None:
    command = check_command_line(cross_validated, 2, 3)
    found = confirm(command)
    assert Run(command.folder / "0").result["stacked"] == 6
    for of_setting in trials(command.folder, command.record):
        assert [trial.run.config.data.fold for trial in of_setting] == [0, 1, 0]
        for trial in of_setting:
            alone = fit(trial.config, tmp_path / "alone" / trial.run.folder.name)
            assert same(trial.run, alone)
            assert trial.run.result["best"] == alone.result["best"]
    values = [Run(command.folder / str(number)).monitored for number in range(6)]
    means = [((a + c) / 2, b) for a, b, c in (values[:3], values[3:])]
    found_means = sorted(setting.means_of_folds for setting in found.settings)
    assert np.array(found_means) == pytest.approx(np.array(sorted(means)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sweep", "cross_validated"])
def test_killed_within_training_and_continued(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    sweep: Path = request.getfixturevalue(kind)
    expected = confirm(check_command_line(sweep, 2, 2, tmp_path / "whole"))
    live = die_after_writing(monkeypatch)
    deaths = 0
    for _ in range(20):
        try:
            found = confirm(check_command_line(sweep, 2, 2))
            break
        except Killed:
            deaths += 1
            assert not (sweep / "confirm" / "confirm.json").exists()
    live()
    assert deaths >= 1
    assert to_primitives(found) == to_primitives(expected)
    for number in range(4):
        assert same(Run(sweep / "confirm" / str(number)), Run(tmp_path / "whole" / str(number)))


@pytest.fixture
def trained_at_once(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Trials end at once; the numbers of those that were to train are noted."""
    noted: list[list[int]] = []

    def train(configs: Sequence[Any], folders: Sequence[Path], *_: object) -> None:
        noted.append([int(folder.name) for folder in folders if not Run(folder).ended])
        for config, folder in zip(configs, folders, strict=True):
            settle(Run(folder), config, 0.5 + config.seed / 100 + config.optimizer.lr / 10)

    monkeypatch.setattr(loop, "train_trials", train)
    return noted


@pytest.mark.slow
def test_a_search_over_folds_is_confirmed(
    trained_at_once: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(configs: Sequence[Config], folders: Sequence[Path], *_: object) -> list[float]:
        for config, folder in zip(configs, folders, strict=True):
            settle(Run(folder), config, value_of(config))
        return []

    monkeypatch.setattr(search_loop, "train_trials", train)
    folder = tmp_path / "search"
    told = searched(folder, "search.trials=4", "search.batch=2", "search.folds=3")
    best = max(value or 0 for _, value, _ in told)
    command = check_command_line(folder, 2, 4)
    record = command.record
    assert (record.found, record.folds, record.fold_of) == (4, 3, [0, 1, 2, 0])
    assert record.keys == ["model.hidden_sizes", "optimizer.lr", "optimizer.momentum"]
    assert record.settings[0].promised == pytest.approx(best)
    first = record.settings[0].trials[0]
    assert record.settings[0].trials == [first, first + 1, first + 2]
    found = confirm(command)
    assert trained_at_once == [[*range(8)]]
    assert found.settings[0].estimate.count == 3


def small(folder: Path) -> Path:
    return pretended_sweep(
        folder, (("optimizer.lr=0.1",), 0.9), (("optimizer.lr=0.3",), 0.8), (("seed=5",), 0.9)
    )


@pytest.mark.slow
def test_killed_at_every_write(
    trained_at_once: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = small(tmp_path / "s")
    expected = to_primitives(confirm(check_command_line(sweep, 2, 2, tmp_path / "whole")))
    for number in range(0, 100, 3):
        with monkeypatch.context() as patch:
            die_at_sync(patch, number)
            try:
                confirm(check_command_line(sweep, 2, 2))
                break
            except Killed:
                pass
        found = confirm(check_command_line(sweep, 2, 2))
        assert to_primitives(found) == expected
        shutil.rmtree(sweep / "confirm")
    assert number > 10


@pytest.mark.slow
@dead_leave_files_open
def test_killed_between_the_results_and_their_table(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each call that writes after the last trial has ended: the table and the folders are those
    of a confirmation that nothing stopped."""
    monkeypatch.setattr(loop, "write_page", lambda _: None)
    expected = files_of(confirm(check_command_line(sweep, 2, 2)).folder)
    folder = sweep / "confirm"
    (folder / ".stacks" / "ab").mkdir(parents=True)
    before = sweep / "before"
    shutil.copytree(folder, before)
    for number in range(100):
        for path in ("results.csv", "confirm.json"):
            (folder / path).unlink(missing_ok=True)
        if not (folder / ".stacks").exists():
            shutil.copytree(before / ".stacks", folder / ".stacks")
        with monkeypatch.context() as patch:
            die_at_call(patch, number)
            try:
                confirm(check_command_line(folder))
                break
            except Killed:
                pass
        confirm(check_command_line(folder))
        assert files_of(folder) == expected
    assert number > 10


def files_of(folder: Path) -> dict[str, str | None]:
    """The names of all files, and what the table holds."""
    return {
        str(path.relative_to(folder)): path.read_text() if path.name == "results.csv" else None
        for path in folder.rglob("*")
    }


@pytest.mark.slow
def test_what_has_ended_is_not_trained_again(
    trained_at_once: list[list[int]], tmp_path: Path
) -> None:
    sweep = small(tmp_path / "s")
    first = confirm(check_command_line(sweep, 2, 2))
    assert trained_at_once == [[0, 1, 2, 3]]
    confirm(check_command_line(sweep, 2, 2))
    assert trained_at_once == [[0, 1, 2, 3]]
    Run(sweep / "confirm" / "2").write_result({"status": "failed", "error": "no memory"})
    again = confirm(check_command_line(sweep / "confirm"))
    assert trained_at_once[1:] == [[2]]
    assert to_primitives(again) == to_primitives(first)


def test_one_process_at_a_time(trained_at_once: list[list[int]], tmp_path: Path) -> None:
    command = check_command_line(small(tmp_path / "s"), 2, 2)
    with (
        lock_or_fail(command.folder / ".confirm.lock"),
        pytest.raises(InputError, match="is writing there"),
    ):
        confirm(command)
    assert not trained_at_once


def test_a_sweep_that_is_removed_meanwhile(
    trained_at_once: list[list[int]], tmp_path: Path
) -> None:
    """Before the confirmation begins, or goes on. Another folder needs no sweep any more."""
    sweep = small(tmp_path / "s")
    new = check_command_line(sweep, 2, 2)
    elsewhere = check_command_line(sweep, 2, 2, tmp_path / "other")
    confirm(new)
    again = check_command_line(sweep / "confirm")
    shutil.rmtree(sweep)
    for command, removed in ((new, sweep), (again, sweep / "confirm")):
        told = f"^{removed}: another command has removed it meanwhile$"
        with pytest.raises(InputError, match=told):
            confirm(command)
    assert not sweep.exists()
    confirm(elsewhere)
    assert trained_at_once == [[0, 1, 2, 3]] * 2


@pytest.mark.slow
def test_by_the_command_line(command: Command, sweep: Path) -> None:
    done = command("src.confirm", str(sweep), "--top", "2", "--seeds", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"2 of 3 settings of {sweep}, each with 2 fresh seeds, 2, 3\n" in done.stdout
    assert "test set, for setting 1 only: test/acc " in done.stdout
    folder = sweep / "confirm"
    assert done.stdout.endswith(
        f"figures: {folder / 'confirm.json'}\nreport: {folder / 'confirm.html'}\n"
    )
    again = command("src.confirm", str(folder), "--json")
    assert (again.returncode, again.stderr) == (0, "")
    assert json.loads(again.stdout) == json.loads((folder / "confirm.json").read_text())
    other = command("src.confirm", str(sweep), "--top", "2", "--seeds", "3")
    assert other.returncode == 2
    assert other.stderr.startswith(f"error: {folder}: holds another confirmation (it confirms 2 ")
    assert len(other.stderr.splitlines()) == 1


@pytest.mark.slow
def test_only_the_first_settings_test_metrics_are_printed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when trials train alone: a single run logs its test metrics at its end."""
    sweep = trained_sweep(tmp_path / "s", "trainer.step=autograd")
    caplog.clear()
    with caplog.at_level(logging.INFO):
        found = confirm(check_command_line(sweep, 2, 2))
    assert "trials 0, 1, 2, 3 train alone" in caplog.text
    assert "accuracy" not in caplog.text
    for number in range(4):
        run = Run(sweep / "confirm" / str(number))
        assert f"accuracy {run.result['test/acc']:.2%}" in run.log_file.read_text()
    capsys.readouterr()
    show(found, as_json=False)
    assert capsys.readouterr().out.count("test/acc") == 1


@pytest.mark.slow
def test_seeds_that_diverge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sweep is pretended, because a trial that diverges has no value."""
    sweep = pretended_sweep(
        tmp_path / "s", (("optimizer.lr=1e6",), 0.9), (("optimizer.lr=0.1",), 0.8)
    )
    found = confirm(check_command_line(sweep, 2, 2))
    show(found, as_json=False)
    printed = capsys.readouterr()
    assert "setting 2: 2 of 2 seeds diverged, 1, 2; the mean is over the others" in printed.out
    assert ("nan" not in printed.out.lower(), printed.err) == (True, "")
    none = confirm(check_command_line(sweep, 1, 2, tmp_path / "c"))
    with pytest.raises(SystemExit) as end:
        show(none, as_json=False)
    assert end.value.code == 1
    assert "no setting has a value, so none is confirmed\n" in capsys.readouterr().out


def test_failed_trials_end_with_1(
    trained_at_once: list[list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = check_command_line(small(tmp_path / "s"), 2, 2)
    confirm(command)
    Run(command.folder / "2").write_result({"status": "failed", "error": "no memory"})
    with pytest.raises(SystemExit) as end:
        show(read_confirmation(command.folder, command.record), as_json=True)
    assert end.value.code == 1
    printed = capsys.readouterr()
    assert printed.err == "error: 1 of 4 trials failed\n"
    assert json.loads(printed.out)["settings"][0]["failed_seeds"] == [6]


@pytest.mark.slow
def test_a_report_shows_the_sweep_and_its_confirmation(
    trained_at_once: list[list[int]], tmp_path: Path
) -> None:
    sweep = small(tmp_path / "s")
    confirm(check_command_line(sweep, 2, 2))
    page = write_report([sweep], models=False).read_text()
    assert "3 trials, and a confirmation</h1>" in page
    assert '<h2 id="sweep2">Confirmation confirm</h2>' in page
    begun(sweep, 3)
    assert [each.run.folder.name for each in Sweep(sweep).outcomes()] == ["0", "1", "2"]
    assert len(Sweep(sweep).runs) == 4
