"""A sweep's table."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from kindling.records import sweep_folder
from kindling.records.folder import Run
from kindling.records.outcome import Outcome, read_outcome
from kindling.records.sweep_folder import (
    KeyImportance,
    Sweep,
    read_importance,
    read_search,
    scales,
    write_importance,
)
from kindling.system import files
from kindling.system.errors import InputError
from tests.helpers.commands import Train
from tests.helpers.kills import Killed
from tests.helpers.runs import FILES, ended


@pytest.fixture
def sweep(train: Train, tmp_path: Path) -> Sweep:
    folder = tmp_path / "sweep"
    folder.mkdir()
    for number, rate in enumerate((1e-4, 0.1, 0.01)):
        train(f"optimizer.lr={rate}").folder.rename(folder / str(number))
    sweep = Sweep(folder)
    sweep.write_results()
    return sweep


def test_a_sweeps_table_ranks_its_trials(sweep: Sweep) -> None:
    sweep.write_results()
    assert len(sweep.results_file.read_text().splitlines()) == 4
    assert [line.split()[0] for line in sweep.table().splitlines()[2:5]] == ["1", "2", "0"]


def test_the_table_has_accuracies_in_percent(sweep: Sweep) -> None:
    """The CSV file has plain numbers for programs."""
    rows = list(csv.DictReader(io.StringIO(sweep.results_file.read_text())))
    lines = sweep.table().splitlines()
    assert len(rows) == 3
    for row in rows:
        (line,) = [line for line in lines if line.split()[:2] == [row["trial"], "finished"]]
        assert line.split()[-2] == f"{float(row['val/acc']):.2%}"


def test_the_test_set_is_not_for_choosing(sweep: Sweep) -> None:
    """The table has the test accuracy of the best trial alone, which validation has chosen."""
    text = sweep.table()
    best = sweep.ranked()[0]
    assert "test/" not in text.splitlines()[0]
    assert f"its test/acc: {best.metric('test/acc'):.2%}" in text.splitlines()
    assert text.count("test/acc") == 1
    others = {f"{trial.metric('test/acc'):.2%}" for trial in sweep.ranked()[1:]}
    validated = {f"{trial.metric('val/acc'):.2%}" for trial in sweep.ranked()}
    assert not [each for each in others - validated if each in text]


def with_files(sweep: Sweep) -> list[int]:
    """The trials that keep all files; the others keep none."""
    kept = [run for run in sweep.runs if run.checkpoints.exists()]
    assert all(sorted(path.name for path in run.checkpoints.iterdir()) == sorted(FILES)
               for run in kept)  # fmt: skip
    return [int(run.folder.name) for run in kept]


def test_the_best_trials_keep_their_checkpoints(tmp_path: Path) -> None:
    """Of equal trials the lower number; on each data set; of trials that have ended."""
    sweep, two = Sweep(tmp_path), "checkpoint.keep=2"
    ended(tmp_path / "0", 0.5, two)
    ended(tmp_path / "1", 0.7, two)
    ended(tmp_path / "2", 0.9, two, status="diverged")
    ended(tmp_path / "3", 0.1, two, status="interrupted")
    sweep.remove_surplus()
    assert with_files(sweep) == [0, 1, 3]
    ended(tmp_path / "3", 0.7, two)
    sweep.remove_surplus()
    assert with_files(sweep) == [1, 3]
    ended(tmp_path / "4", 0.7, two)
    ended(tmp_path / "5", 0.2, two, "data=toy")
    ended(tmp_path / "6", 0.1, "checkpoint.keep=all")
    ended(tmp_path / "10", 0.1, "checkpoint.keep=7")
    sweep.remove_surplus()
    assert with_files(sweep) == [1, 3, 5, 6, 10]
    assert len(sweep.runs) == 8


def test_a_large_sweep_prints_its_best_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_folder, "MOST_ROWS", 2)
    monkeypatch.setattr(sweep_folder, "MOST_ERRORS", 1)
    for number in range(6):
        overrides = (f"optimizer.lr={1 + number // 2}", f"seed={number % 2}")
        ended(tmp_path / str(number), number / 10, *overrides)
    for number in (6, 7, 8):
        run = Run(tmp_path / str(number))
        run.folder.mkdir()
        run.write_result({"status": "failed", "error": "broken"})
    lines = Sweep(tmp_path).table().splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["5", "4"]
    assert lines[4] == f"… and 7 more trials in {tmp_path}/results.csv"
    assert [line.split()[0] for line in lines[8:10]] == ["3", "2"]
    assert lines[10:14] == [
        "… and 1 more",
        "best setting by its mean: python -m src.train optimizer.lr=3",
        "trial 6 failed: broken",
        "… and 2 more failed trials",
    ]


def test_a_small_loss_is_the_best(tmp_path: Path) -> None:
    loss = ("checkpoint.keep=1", "checkpoint.monitor=val/loss", "checkpoint.mode=min")
    for number, value in enumerate((None, 0.3, 0.2, 0.4)):
        ended(tmp_path / str(number), value, *loss)
    sweep = Sweep(tmp_path)
    sweep.remove_surplus()
    assert with_files(sweep) == [2]
    lines = sweep.table().splitlines()
    assert lines[0].split()[-4:] == ["status", "val/loss", "val/acc", "seconds"]
    assert [line.split()[-3] for line in lines[2:6]] == ["0.2000", "0.3000", "0.4000", "–"]


def test_settings_have_the_mean_of_the_monitored_metric(tmp_path: Path) -> None:
    """A setting with a diverged fold comes last, however good its other folds are."""
    loss = ("checkpoint.monitor=val/loss", "checkpoint.mode=min", "data.folds=2")
    losses = {"0.1": (0.5, 0.75), "0.2": (0.25, 0.75), "0.3": (0.01, 0.02)}
    for place, (rate, values) in enumerate(losses.items()):
        for fold, value in enumerate(values):
            typed = (*loss, f"optimizer.lr={rate}", f"data.fold={fold}")
            ended(tmp_path / str(3 * place + fold), value, *typed)
    lost = (*loss, "optimizer.lr=0.3", "data.fold=1", "seed=1")
    ended(tmp_path / "8", None, *lost, status="diverged")
    lines = Sweep(tmp_path).table().splitlines()
    (header,) = [line for line in lines if line.startswith("optimizer.lr")]
    assert header.split()[:3] == ["optimizer.lr", "trials", "val/loss"]
    rows = [line.split()[:4] for line in lines[lines.index(header) + 2 :]][:3]
    assert rows == [
        ["0.2", "2", "0.5000", "±"], ["0.1", "2", "0.6250", "±"], ["0.3", "2", "of", "3"],
    ]  # fmt: skip
    assert any(line.startswith("best setting by its mean: ") and "lr=0.2" in line for line in lines)


def test_the_table_tells_which_trials_halving_has_dropped(tmp_path: Path) -> None:
    """And after how many epochs: a column that other sweeps lack."""
    for number, (value, epochs) in enumerate(((0.5, 1), (0.7, 4), (0.6, 2))):
        stopped = "halving" if epochs < 4 else None
        typed = f"optimizer.lr={number + 1}"
        ended(tmp_path / str(number), value, typed, also={"stopped": stopped, "epochs": epochs})
    sweep = Sweep(tmp_path)
    sweep.write_results()
    header, *rows = csv.reader(io.StringIO(sweep.results_file.read_text()))
    places = [header.index(name) for name in ("trial", "status", "epochs")]
    assert [[row[place] for place in places] for row in rows] == [
        ["0", "dropped", "1"], ["1", "finished", "4"], ["2", "dropped", "2"]
    ]  # fmt: skip
    lines = sweep.table().splitlines()
    assert lines[0].split()[-2:] == ["epochs", "seconds"]
    assert [[line.split()[place] for place in (0, 1, -2)] for line in lines[2:5]] == [
        ["1", "finished", "4"], ["2", "dropped", "2"], ["0", "dropped", "1"]
    ]  # fmt: skip
    for number in range(3):
        ended(tmp_path / str(number), 0.5, f"optimizer.lr={number + 1}", also={"epochs": 4})
    assert "epochs" not in Sweep(tmp_path).table()


def test_the_table_follows_a_measure(tmp_path: Path) -> None:
    """Its columns and means are those of the measure; another trial may have another monitor."""
    measure = ("checkpoint.keep=1", "checkpoint.monitor=val/f1")
    for number, value in enumerate((0.3, 0.5, 0.4)):
        ended(tmp_path / str(number), value, *measure, f"seed={number}")
    ended(tmp_path / "3", 0.1, "checkpoint.keep=1", "seed=3")
    sweep = Sweep(tmp_path)
    sweep.write_results()
    header, *rows = csv.reader(io.StringIO(sweep.results_file.read_text()))
    assert [row[header.index("val/f1")] for row in rows] == ["0.3", "0.5", "0.4", ""]
    assert {"val/acc", "val/loss", "test/acc", "test/loss", "test/f1"} < {*header}
    lines = sweep.table().splitlines()
    assert lines[0].split()[-3:] == ["val/f1", "val/acc", "seconds"]
    assert [line.split()[0] for line in lines[2:6]] == ["3", "1", "2", "0"]
    assert [line.split()[-3] for line in lines[2:6]] == ["–", "50.00%", "40.00%", "30.00%"]
    means = next(line for line in lines if "95% interval" in line)
    assert ("val/f1" in means, "test/f1" in means, "acc" in means) == (True, False, False)
    assert "40.00% ± 10.00%" in sweep.table()
    tested = [line for line in lines if line.startswith("its ")]  # not that of the luckiest seed
    assert [line.partition(":")[0] for line in tested] == ["its mean test/f1"] * len(tested)
    sweep.remove_surplus()
    assert with_files(sweep) == [1, 3]  # the best by each monitor


def test_killed_between_two_removals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process removes what is left, a file of a killed write too."""
    for number in range(8):
        folder = tmp_path / str(number)
        for trial, value in enumerate((0.1, 0.3, 0.2)):
            run = ended(folder / str(trial), value, "checkpoint.keep=1")
            if trial != 1:
                (run.checkpoints / ".best.ckpt.part").write_text("half")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", fatal_after(number))
            with pytest.raises(Killed):
                Sweep(folder).remove_surplus()
        sweep_folder._KNOWN.clear()  # another process
        Sweep(folder).remove_surplus()
        assert with_files(Sweep(folder)) == [1]


def fatal_after(calls: int) -> Callable[[Path, bool], None]:
    """Path.unlink, which kills the process at the call after so many."""
    left, unlink = iter(range(calls)), Path.unlink

    def call(path: Path, missing_ok: bool = False) -> None:
        if next(left, None) is None:
            raise Killed
        unlink(path, missing_ok)

    return call


def test_files_behind_a_link_stay(tmp_path: Path) -> None:
    elsewhere = ended(tmp_path / "elsewhere", 0.1, "checkpoint.keep=1")
    ended(tmp_path / "sweep" / "1", 0.3, "checkpoint.keep=1")
    (tmp_path / "sweep" / "0").symlink_to(elsewhere.folder)
    run = ended(tmp_path / "sweep" / "2", 0.2, "checkpoint.keep=1")
    run.remove_checkpoints(but_best=False)
    run.checkpoints.symlink_to(elsewhere.checkpoints)
    Sweep(tmp_path / "sweep").remove_surplus()
    assert len([*elsewhere.checkpoints.iterdir()]) == 3


def test_results_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced result is read again; the time of updates is a fiftieth at most."""
    read, now, written = [], [0.0], []

    def count(run: Run) -> Outcome:
        read.append(run.folder.name)
        return read_outcome(run)

    def write(folder: Path, text: str) -> None:
        written.append(now[0])
        now[0] += 0.1

    monkeypatch.setattr(files, "SETTLED", -1)
    monkeypatch.setattr(sweep_folder, "read_outcome", count)
    monkeypatch.setattr(sweep_folder, "write_durably", write)
    monkeypatch.setattr(sweep_folder, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for number in range(3):
        ended(tmp_path / str(number), 0.5)
        Sweep(tmp_path).update("all")
        now[0] += 2
    assert (read, written) == (["0"], [0])
    now[0] += 2
    Sweep(tmp_path).update("all")
    assert (read, written) == (["0", "1", "2"], [0, now[0] - 0.1])
    ended(tmp_path / "1", 0.6)
    assert [outcome.value for outcome in Sweep(tmp_path).outcomes()] == [0.5, 0.6, 0.5]
    assert read == ["0", "1", "2", "1"]


def test_the_scales_of_a_search_are_those_that_were_typed(tmp_path: Path) -> None:
    assert read_search(tmp_path) == []
    typed = [
        "optimizer.lr=tag(log,interval(0.001,1))", "optimizer.momentum=interval(0,0.95)",
        "a=tag( log , int(interval(16,256)))", "b=choice(0.1,1)", "c=zip(1,2)", "search.trials=9",
        "d=range(1,9)", "data.path=log,interval", "broken",
    ]  # fmt: skip
    (tmp_path / "search.yaml").write_text(json.dumps(typed))
    assert read_search(tmp_path) == typed
    assert scales(typed) == {
        "optimizer.lr": True, "optimizer.momentum": False, "a": True, "d": False
    }  # fmt: skip


@pytest.mark.parametrize("content", ["{a: b}", "[1]", "[", "\x00", ""])
def test_a_damaged_record_of_a_search_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "search.yaml").write_text(content)
    with pytest.raises(InputError, match=r"search\.yaml: "):
        read_search(tmp_path)


def test_the_importance_of_keys_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_importance(tmp_path) == {}
    shares = {"optimizer.lr": KeyImportance(0.75, 0.5, 0.9), "α": KeyImportance(0.25, 0.1, 0.5)}
    write_importance(tmp_path, shares)
    assert read_importance(tmp_path) == shares
    assert [*map(str, shares.values())] == ["75% (50% to 90%)", "25% (10% to 50%)"]


@pytest.mark.parametrize(
    "content",
    ['{"optimizer.lr": 0.75, "seed": 0.25}', '{"optimizer.lr": [0.75, 0.5, 0.9]}'],
)
def test_shares_of_another_meaning_are_left_out(content: str, tmp_path: Path) -> None:
    """Of searches before the shares were those that a key explains alone."""
    (tmp_path / "importance.json").write_text(content)
    assert read_importance(tmp_path) == {}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"a": "x"}',
        '{"a": NaN}',
        '{"a": 2}',
        '{"a": [0.5, 2, 3]}',
        '{"a": []}',
        '{"explained alone": {"a": [0.5, 2, 3]}}',
        "\0",
        " " * 70_000,
    ],
)
def test_a_damaged_importance_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "importance.json").write_text(content)
    with pytest.raises(
        InputError, match=r"importance\.json: (is not the importance|has more than)"
    ):
        read_importance(tmp_path)


def test_means_with_dropped_trials_say_so(tmp_path: Path) -> None:
    for number, stopped in enumerate((None, "halving", None, None)):
        typed = (f"optimizer.lr={1 + number // 2}", f"seed={number % 2}")
        ended(tmp_path / str(number), 0.5, *typed, also={"stopped": stopped, "epochs": 4})
    note = "the means include trials that halving dropped after fewer epochs"
    assert note in Sweep(tmp_path).table().splitlines()
    (tmp_path / "1" / "result.json").unlink()
    assert note not in Sweep(tmp_path).table()
