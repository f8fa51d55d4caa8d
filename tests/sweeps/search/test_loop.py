"""The course of a search: a killed one ends as one that was left alone."""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.crashes import fingerprint
from kindling.config.compose import compose
from kindling.config.schema import Config
from kindling.records.folder import Run
from kindling.records.sweep_folder import Sweep, read_importance
from kindling.sweeps.search import loop
from kindling.sweeps.search.command import CheckedSearch, check_command_line
from kindling.sweeps.search.loop import SearchLoop
from kindling.sweeps.search.study import Study, open_study
from kindling.system.errors import InputError, Interrupted
from kindling.system.files import lock_or_fail
from kindling.system.signals import handled
from tests.helpers import commands
from tests.helpers.kills import Killed, die_after_writing
from tests.helpers.searches import (
    MOMENTUM,
    RATE,
    SMALL,
    SPACE,
    Trained,
    checked,
    searched,
    told,
    trials_of,
    value_of,
)


@pytest.mark.slow
def test_zipped_keys_are_proposed_together(pretended: Trained, tmp_path: Path) -> None:
    """As one choice: the sampler proposes the places that it would for any choice of three."""
    rates, widths = ("0.1", "0.3", "1"), ("[2]", "[3,3]", "[4]")
    typed = (f"optimizer.lr=zip({','.join(rates)})", f"model.hidden_sizes=zip({','.join(widths)})")
    own = (*commands.SMALL, "search.trials=12", "search.batch=6", MOMENTUM)
    folders = [tmp_path / name for name in ("zip", "choice")]

    def searched_places(folder: Path, *space: str) -> list[Any]:
        command = check_command_line([*own, *space, f"search.folder={folder}"])
        study = open_study(command)
        SearchLoop(command, study).run()
        return [[*trial.params.values()] for trial in study.trials]

    places = searched_places(folders[0], *typed)
    for number, (place, _momentum) in enumerate(places):
        run = Run(folders[0] / str(number))
        assert run.overrides["optimizer.lr"] == rates[place]
        assert run.overrides["model.hidden_sizes"] == widths[place]
        assert run.config.optimizer.lr == float(rates[place])
    assert {place for place, _ in places} == {0, 1, 2}
    # The same command, in another order, has nothing left to do.
    before = [*pretended]
    assert searched_places(folders[0], *typed[::-1]) == places
    assert pretended == before
    # A choice of three, with the same values of its trials.
    chosen = searched_places(folders[1], "optimizer.lr=choice(0.1,0.3,1)")
    assert [(rates.index(rate), momentum) for rate, momentum in chosen] == [
        (place, momentum) for place, momentum in places
    ]
    with pytest.raises(InputError, match=r"optimizer\.lr: it was zip\(0\.1,0\.3,1\), now 0\.1"):
        searched_places(folders[0], "optimizer.lr=0.1", "model.hidden_sizes=zip([2],[3,3],[4])")


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_is_a_function_of_its_seed(
    sampler: str, pretended: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = (f"search.sampler={sampler}", "search.trials=13", "search.batch=10")
    one, same = (searched(tmp_path / name, *own) for name in ("one", "same"))
    assert one == same
    assert searched(tmp_path / "other", *own[:1], "search.trials=2", "search.seed=1") != one[:2]
    assert pretended[:2] == [[*range(10)], [*range(10, 13)]]
    for number, (params, value, state) in enumerate(one):
        run = Run(tmp_path / "one" / str(number))
        assert run.overrides["optimizer.lr"] == repr(params["optimizer.lr"])
        assert run.config.to_primitives()["optimizer"]["lr"] == params["optimizer.lr"]
        assert run.overrides["model.hidden_sizes"] == params["model.hidden_sizes"]
        assert run.overrides["data"] == "synthetic"
        assert (value, state) == (value_of(run.config), "COMPLETE")
    results(monkeypatch, *({"status": "finished", "best": {"val/acc": n / 10}} for n in range(10)))
    points = [params for params, _, _ in one]
    others = [params for params, _, _ in searched(tmp_path / "values", *own)]
    assert others[:10] == points[:10]
    assert (others[10:] != points[10:]) == (sampler == "tpe")  # which learns from the first batch


def killed_until_it_ends(command: CheckedSearch) -> tuple[int, Study]:
    """Starts the search again after every death; how many there were."""
    deaths = 0
    while True:
        study = open_study(command)
        try:
            SearchLoop(command, study).run()
            return deaths, study
        except Killed:
            deaths += 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "expected_deaths"),
    [(("search.trials=13", "search.batch=5"), 25),
     (("search.trials=4", "search.batch=2", "search.folds=3"), 7)],
    ids=["", "folds"],
)  # fmt: skip
def test_killed_after_every_write(
    own: tuple[str, ...], expected_deaths: int, pretended: Trained, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A process dies after its first write to the study, the next one after its own, …"""
    expected = searched(tmp_path / "whole", *own)
    command = checked(tmp_path / "killed", *own)
    written = Study._written

    @contextmanager
    def fatal(self: Study) -> Iterator[None]:
        count = len(self.study.trials) if hasattr(self, "study") else 0
        states = [trial.state for trial in self.study.trials] if count else []
        with written(self):
            yield
        if count and states != [trial.state for trial in self.study.trials]:
            raise Killed

    monkeypatch.setattr(Study, "_written", fatal)
    deaths, study = killed_until_it_ends(command)
    assert deaths == expected_deaths  # all asked but the very first, and all told
    assert trials_of(study) == expected


@pytest.mark.slow
def test_killed_within_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With real trials, at every checkpoint: their weights are the same bit for bit."""
    monkeypatch.setattr(loop, "finish_sweep", lambda *_: None)
    own = ("search.trials=3", "search.batch=2", "checkpoint.every_n_steps=2")
    expected = searched(tmp_path / "whole", *own)
    command = checked(tmp_path / "killed", *own)
    die_after_writing(monkeypatch)
    deaths, study = killed_until_it_ends(command)
    assert trials_of(study) == expected
    assert deaths >= 2 * 4  # two batches at least, two epochs, twice in each
    assert all(value is not None and 0 <= value <= 1 for _, value, _ in expected)
    for number in range(3):
        runs = [Run(tmp_path / name / str(number)) for name in ("whole", "killed")]
        assert fingerprint(runs[0]) == fingerprint(runs[1])
    left = {path.name for path in (tmp_path / "killed").iterdir() if not path.name.isdigit()}
    assert left == {".lock", "study.db", "search.yaml", "results.csv", "importance.json"}


@pytest.mark.slow
def test_more_trials_go_on(pretended: Trained, tmp_path: Path) -> None:
    before = searched(tmp_path / "s", "search.trials=3", "search.batch=2")
    after = searched(tmp_path / "s", "search.trials=6", "search.batch=2")
    assert after[:3] == before
    assert pretended == [[0, 1], [2], [3, 4], [5]]
    command = check_command_line([f"resume={tmp_path / 's'}", "search.trials=7"])
    SearchLoop(command, open_study(command)).run()
    assert pretended[4:] == [[6]]
    command = check_command_line([f"resume={tmp_path / 's'}"])
    assert (command.settings.trials, command.folder) == (7, tmp_path / "s")
    with pytest.raises(InputError, match=r"search\.trials alone may grow; leave out seed=1"):
        check_command_line([f"resume={tmp_path / 's'}", "seed=1"])


@pytest.mark.slow
def test_two_processes(
    pretended: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """While one trains its first batch, another does all that it may."""
    finished: list[Path] = []
    monkeypatch.setattr(loop, "finish_sweep", lambda folder, _: finished.append(folder))
    command = checked(tmp_path / "s", "search.trials=7", "search.batch=2")
    one, other = (loop.SearchLoop(command, open_study(command)) for _ in range(2))
    train, reports = vars(loop)["train_trials"], []

    def beside(*arguments: Any) -> Any:
        monkeypatch.setattr(loop, "train_trials", train)
        with caplog.at_level("INFO", "kindling"):
            other.run()
        reports.append(len(finished))
        return train(*arguments)

    monkeypatch.setattr(loop, "train_trials", beside)
    one.run()
    assert pretended == [[2, 3], [4, 5], [6], [0, 1]]
    assert "another process trains batch 0, and writes the report when it ends" in caplog.text
    assert (reports, finished) == ([0], [tmp_path / "s"])
    found = told(tmp_path / "s", "search.trials=7", "search.batch=2")
    assert [state for _, _, state in found] == ["COMPLETE"] * 7


@pytest.mark.slow
def test_a_batch_of_a_living_process_is_not_taken(pretended: Trained, tmp_path: Path) -> None:
    own = ("search.trials=4", "search.batch=2")
    command = checked(tmp_path / "s", *own)
    study = open_study(command)
    study.ask(0, 2)
    with lock_or_fail(tmp_path / "s" / ".batch0.lock"):
        searched(tmp_path / "s", *own)
    assert pretended == [[2, 3]]
    searched(tmp_path / "s", *own)
    assert pretended == [[2, 3], [0, 1]]


def results(monkeypatch: pytest.MonkeyPatch, *given: dict[str, Any]) -> None:
    def train(configs: Sequence[Config], folders: Sequence[Path], *_rest: object) -> None:
        for folder in folders:
            Run(folder).write_result({"monitor": "val/acc", **given[int(folder.name) % len(given)]})

    monkeypatch.setattr(loop, "train_trials", train)
    monkeypatch.setattr(loop, "finish_sweep", lambda *_: None)


@pytest.mark.slow
def test_what_has_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A diverged trial is no failure: the sampler learns from it that it is worse than any."""
    best = {"val/acc": 0.5}
    results(
        monkeypatch,
        {"status": "finished", "best": best},
        {"status": "diverged", "best": best},
        {"status": "failed", "error": "ValueError: x"},
        {"status": "finished", "best": {"val/acc": None}},
    )
    found = searched(tmp_path / "s", "search.trials=4")
    assert [(value, state) for _, value, state in found] == [
        (0.5, "COMPLETE"),
        (None, "PRUNED"),
        (None, "FAIL"),
        (None, "FAIL"),
    ]


@pytest.mark.slow
def test_folds_are_runs_whose_mean_is_told(pretended: Trained, tmp_path: Path) -> None:
    """As many settings as search.trials says; the first are those of the search without folds."""
    own = ("search.trials=5", "search.batch=3")
    plain = searched(tmp_path / "plain", *own)
    found = searched(tmp_path / "folds", *own, "search.folds=4")
    assert pretended[2:] == [[*range(12)], [*range(12, 20)]]
    assert [params for params, _, _ in found[:3]] == [params for params, _, _ in plain[:3]]
    for number, (params, value, state) in enumerate(found):
        runs = [Run(tmp_path / "folds" / str(4 * number + fold)) for fold in range(4)]
        for fold, run in enumerate(runs):
            expected = [*SMALL, *(f"{key}={text}" for key, text in params.items())]
            assert run.config == compose(*expected, "data.folds=4", f"data.fold={fold}")
            assert (run.overrides["data.folds"], run.overrides["data.fold"]) == ("4", str(fold))
        mean = sum(value_of(run.config) for run in runs) / 4
        assert value == pytest.approx(mean, abs=1e-12)
        assert state == "COMPLETE"
    more = searched(tmp_path / "folds", "search.trials=6", "search.batch=3", "search.folds=4")
    assert (more[:5], pretended[4:]) == (found, [[20, 21, 22, 23]])
    with pytest.raises(InputError) as caught:
        searched(tmp_path / "folds", *own, "search.folds=3")
    assert str(caught.value).splitlines()[1:] == ["  search.folds: it was 4, now 3"]


def test_a_setting_with_a_fold_without_value_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    best = {"status": "finished", "best": {"val/acc": 0.5}}
    better = {"status": "finished", "best": {"val/acc": 0.8}}
    diverged, failed = {"status": "diverged", "best": {"val/acc": 0.9}}, {"status": "failed"}
    unknown = {"status": "finished", "best": {"val/acc": None}}
    results(
        monkeypatch, best, diverged, best, failed, failed, diverged, best, unknown, best, better
    )
    with caplog.at_level("INFO", "kindling"):
        found = searched(tmp_path / "s", "search.trials=5", "search.folds=2")
    assert [state for _, _, state in found] == ["PRUNED", "FAIL", "PRUNED", "FAIL", "COMPLETE"]
    assert [value for _, value, _ in found] == [None, None, None, None, 0.65]
    assert "5 of 5 settings done, best mean of val/acc 65.00%, trials 8 to 9: " in caplog.text
    table = Sweep(tmp_path / "s").table()
    (row,) = [line for line in table.splitlines() if " ± " in line]
    assert re.search(r" 2 +65\.00% ± 21\.21% ", row)


@pytest.mark.slow
def test_folds_train_in_one_stack_and_end_in_a_table_of_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ("search.trials=2", "search.batch=2", "search.folds=2")
    command = check_command_line([*SMALL, RATE, MOMENTUM, *own], tmp_path / "s")
    study = open_study(command)
    with caplog.at_level("INFO", "kindling"):
        SearchLoop(command, study).run()
    assert "4 trials: 1 stack of 4" in caplog.text
    runs = [Run(tmp_path / "s" / str(number)) for number in range(4)]
    for number, trial in enumerate(study.trials):
        pair = runs[2 * number : 2 * number + 2]
        assert trial.value == sum(run.monitored for run in pair) / 2
    printed = capsys.readouterr().out
    assert "best setting by its mean: python -m src.train " in printed
    assert (tmp_path / "s" / "report.html").exists()
    again = check_command_line([f"resume={tmp_path / 's'}"])
    assert (again.settings.folds, again.identity) == (2, command.identity)


def test_groups_that_cannot_be_divided_end_a_search_before_it_trains(
    pretended: Trained, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(20), y=np.arange(20) % 2, who=np.arange(20) // 5)
    data = ("data=npz", f"data.path={tmp_path}/a.npz", "data.group=who", "trainer=cpu")
    command = check_command_line([*data, RATE, "search.folds=5"], tmp_path / "s")
    with pytest.raises(InputError) as caught:
        SearchLoop(command, open_study(command)).run()
    assert str(caught.value) == (
        "data.folds=5: data.group=who has only 3 groups in the training set; type data.folds=3 or "
        "less"
    )
    assert pretended == []


@pytest.mark.slow
def test_nothing_can_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without data: what is wrong is told at once, and the same trials come again."""
    results(monkeypatch, {"status": "failed", "error": "InputError: no data"})
    own = ("search.trials=4", "search.batch=2")
    with pytest.raises(InputError) as caught:
        searched(tmp_path / "s", *own)
    assert str(caught.value).startswith("none of the first 2 trials could be trained (InputError: ")
    assert str(caught.value).endswith(f"python -m src.search resume={tmp_path / 's'}")
    before = told(tmp_path / "s", *own)
    assert [state for _, _, state in before] == ["RUNNING"] * 2
    results(monkeypatch, {"status": "finished", "best": {"val/acc": 0.5}})
    assert [params for params, _, _ in searched(tmp_path / "s", *own)][:2] == [
        params for params, _, _ in before
    ]


def test_minimised_where_the_mode_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    losses = ({"val/loss": 2.0}, {"val/loss": 1.0}, {"val/loss": 3.0})
    monitor = {"monitor": "val/loss", "status": "finished"}
    results(monkeypatch, *({**monitor, "best": best} for best in losses))
    own = ("checkpoint.monitor=val/loss", "checkpoint.mode=min", "search.trials=3")
    with caplog.at_level("INFO", "kindling"):
        searched(tmp_path / "s", *own)
    assert "batch 0: 3 of 3 trials done, best val/loss 1.0000, trial 1: " in caplog.text


def test_a_signal_says_what_goes_on(
    pretended: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = vars(loop)["train_trials"]

    def interrupted(*arguments: Any) -> None:
        train(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(loop, "train_trials", interrupted)
    with pytest.raises(Interrupted) as caught, handled(rank=False):
        searched(tmp_path / "s", "search.trials=4")
    assert caught.value.number == signal.SIGTERM
    assert str(caught.value) == (
        f"stopped; to go on, type\n  python -m src.search resume={tmp_path / 's'}"
    )


def test_searches_of_strange_paths(pretended: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "50% {of} a?b#c ü"
    command = check_command_line([*SMALL, *SPACE, "search.trials=1"], folder)
    SearchLoop(command, open_study(command)).run()
    assert (folder / "study.db").exists()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.slow
def test_halving_within_a_batch(tmp_path: Path) -> None:
    """What is dropped is told all the same, with what it had come to."""
    own = ("search.trials=8", "search.batch=4", "search.halving=2")
    command = check_command_line([*SMALL, RATE, MOMENTUM, *own], tmp_path / "s")
    study = open_study(command)
    SearchLoop(command, study).run()
    runs = [Run(tmp_path / "s" / str(number)) for number in range(8)]
    for batch in (runs[:4], runs[4:]):
        assert sorted(run.result["epochs"] for run in batch) == [1, 1, 2, 2]
        first = {run: run.history[1]["val/acc"] or 0 for run in batch}
        dropped = [run for run in batch if run.result["stopped"] == "halving"]
        assert max(first[run] for run in dropped) <= min(
            first[r] for r in batch if r not in dropped
        )
    assert [trial.value for trial in study.trials] == [run.monitored for run in runs]
    with pytest.raises(InputError, match=r"search\.halving: it was 2, now 3"):
        open_study(
            check_command_line(
                [*SMALL, RATE, MOMENTUM, *own[:2], "search.halving=3"], tmp_path / "s"
            )
        )


@pytest.mark.slow
def test_a_search_from_the_command_line(cold_command: commands.Command, tmp_path: Path) -> None:
    own = ("search.trials=4", "search.batch=2", "search.folder=here")
    done = cold_command("src.search", *SMALL, *SPACE, *own)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "batch 1: 4 of 4 trials done, best val/acc" in done.stdout
    best = max(Sweep(tmp_path / "here").runs, key=lambda run: run.monitored)
    assert f"best trial, to train it alone: {best.command}" in done.stdout
    assert "report: here/report.html" in done.stdout
    assert done.stdout.index("\ntable: ") < done.stdout.index("\nimportance: ")
    shares = read_importance(tmp_path / "here")
    assert {*shares} == {text.partition("=")[0] for text in SPACE}
    assert sum(each.share for each in shares.values()) == pytest.approx(1)
    page = (tmp_path / "here" / "report.html").read_text()
    assert 'id="sweep1-importance"' in page
    assert 'data-chart="history"' in page
    assert '<h2 id="sweep1">Search here</h2>' in page
    rows = (tmp_path / "here" / "results.csv").read_text().splitlines()
    assert len(rows) == 5
    assert yaml.safe_load((tmp_path / "here" / "search.yaml").read_text()) == [
        *SMALL, *SPACE, *own[:2]
    ]  # fmt: skip
    config = compose(*(f"{k}={v}" for k, v in best.overrides.items()))
    assert config == best.config
