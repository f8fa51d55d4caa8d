"""How far groups are: progress.json, which the process that trains writes and others read, and the
table of the groups of a sweep."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from kindling.records.folder import Run
from kindling.records.groups import (
    GroupProgress,
    GroupStatus,
    Results,
    overview,
    ranges,
    read_progress,
    remove_progress,
    results_of,
    rows,
    seconds_left,
    shortened,
    trial_numbers,
    write_progress,
)
from kindling.system.errors import InputError
from tests.helpers.progress import progress

TRIALS, NONE = range(16), Results()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_progress(tmp_path) is None
    written = progress(epoch=4, best=None)
    write_progress(tmp_path, written)
    write_progress(tmp_path, later := progress())
    assert read_progress(tmp_path) == later
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]
    (tmp_path / ".progress.json.part").touch()  # of a process that was killed while it wrote
    remove_progress(tmp_path)
    assert not list(tmp_path.iterdir())
    remove_progress(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", "\x1b[2J"),
        ("host", "h" * 101),
        ("device", "<b>cpu</b>"),
        ("trials", [-1]),
        ("trials", "0"),
        ("epoch", 1.5),
        ("epoch", -1),
        ("best", "NaN"),
        ("seconds", -1.0),
        ("written", 1e400),
        ("monitor", "loss"),
        ("another", 1),
    ],
)
def test_a_wrong_field_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    content = progress().model_dump() | {field: value}
    (tmp_path / "progress.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"progress\.json: is not the progress of a run"):
        read_progress(tmp_path)


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    for content in (b"", b"\xff", b"[" * 10**5, b" " * (2**20 + 1)):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"progress\.json"):
            read_progress(tmp_path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(InputError, match="is a named pipe"):
        read_progress(tmp_path)


def test_the_time_that_is_left() -> None:
    def left(**values: Any) -> float | None:
        return progress(**values).seconds_left

    assert left(epoch=3, epochs=10, epoch_seconds=20.0) == pytest.approx(140, abs=5)
    assert left(epoch=3, epochs=10, epoch_seconds=20.0, age=100) == pytest.approx(40, abs=5)
    assert left(epoch=9, epochs=10, epoch_seconds=20.0, age=100) == 0
    assert left(epoch=0, epoch_seconds=None) is None
    begun = left(epoch=3, epochs=10, epoch_seconds=20.0, batch=150, batches=200)
    assert begun == pytest.approx(125, abs=5)


def test_a_process_without_news_is_silent() -> None:
    assert not progress(age=100).silent
    assert progress(age=200).silent
    assert not progress(age=200, epoch_seconds=100.0).silent  # an epoch may take so long
    assert progress(age=400, epoch_seconds=100.0).silent
    ahead = progress(age=-1000)  # by the clock of another machine
    assert (ahead.silent, ahead.age) == (False, 0)
    assert ahead.written > time.time()


def test_the_numbers_of_trials() -> None:
    assert trial_numbers([Path("sweep/3"), Path("sweep/12")]) == [3, 12]
    assert trial_numbers([Path("sweep/3"), Path("sweep/x")]) == []
    assert trial_numbers([Path("runs/12-00-00.5")]) == []
    assert isinstance(progress(), GroupProgress)


@pytest.mark.parametrize(
    ("trials", "text"),
    [
        ([], "the run"),
        ([3], "trial 3"),
        (TRIALS, "16 trials: 0–15"),
        ([0, 1, 2, 5, 7, 8], "6 trials: 0–2, 5, 7–8"),
        (range(0, 18, 2), "9 trials: 0, 2, … 16"),
        (range(10_000), "10,000 trials: 0–9999"),
    ],
)
def test_the_name_of_a_group(trials: list[int], text: str) -> None:
    assert shortened(trials) == text
    if len(trials) > 1:
        assert text.endswith(ranges(trials))


def test_the_cells_of_a_group() -> None:
    begun = GroupStatus(TRIALS, "running", progress(batch=1200, batches=5000))
    assert begun.cells[4] == "3/10, batch 1,200 of 5,000"
    assert progress(batch=1200).batch_told == ", batch 1,200"  # of a stream
    running = GroupStatus(TRIALS, "running", progress())
    assert running.cells == [
        "16 trials: 0–15", "node1", "cpu", "running", "3/10", "97.31%", "2 min",
    ]  # fmt: skip
    silent = GroupStatus(TRIALS, "silent", progress(age=900, device="cuda:3", epoch_seconds=None))
    assert silent.cells[1:] == ["node1", "cuda:3", "silent", "3/10", "97.31%", "–"]
    assert GroupStatus([4], "queued").cells == ["trial 4", "–", "–", "queued", "–", "–", "–"]
    damaged = GroupStatus([4], "running", damaged=True)
    assert damaged.cells == ["trial 4", "?", "?", "running", "?", "?", "?"]
    ended = GroupStatus([4], "ended", results=Results(1, monitor="val/loss", best=0.12345))
    assert ended.cells == ["trial 4", "–", "–", "ended", "–", "0.1235", "–"]


def test_groups_that_train_come_first() -> None:
    groups = [
        *[GroupStatus([n], "ended") for n in range(20)],
        *[GroupStatus([n], "queued") for n in range(20, 2020)],
        *[GroupStatus([n], "running") for n in range(2020, 2025)],
        GroupStatus([2025], "failed"),
    ]
    listed, omitted = rows(groups, 50)
    assert [row[3] for row in listed] == ["running"] * 5 + ["failed"] + ["queued"] * 2
    assert omitted == "and 1,998 queued, 20 ended"
    listed, omitted = rows(groups, 3)
    assert [row[0] for row in listed] == ["trial 2020", "trial 2021", "trial 2022"]
    assert omitted == "and 2 running, 1 failed, 2,000 queued, 20 ended"
    assert rows(groups[:2], 50)[1] == ""


def test_the_results_of_trials(tmp_path: Path) -> None:
    results: list[dict[str, Any]] = [
        {"status": "finished", "monitor": "val/acc", "best": {"val/acc": 0.5}, "stacked": 2,
         "seconds": {"fit": 4.0, "test": 2.0}},
        {"status": "diverged", "monitor": "val/acc", "best": {"val/acc": 0.75}, "stacked": 2,
         "seconds": {"fit": 4.0, "test": 2.0}},
        {"status": "failed", "error": "OSError: full\nmore"},
        {"status": "interrupted"},
    ]  # fmt: skip
    runs = [Run(tmp_path / str(number)) for number in range(6)]
    for run, result in zip(runs, results, strict=False):
        run.folder.mkdir()
        run.write_result(result)
    runs[4].folder.mkdir()
    runs[4].result_file.write_text("damaged")
    found, errors = results_of(runs)
    assert found == Results(4, 2, 1, 6.0, "val/acc", 0.75)
    assert [[run.folder.name for run in failed] for failed in errors.values()] == [["2"], ["4"]]
    assert next(iter(errors)) == "OSError: full"


def test_the_best_value_is_of_one_monitor() -> None:
    accuracy, loss = Results(1, best=0.5), Results(1, monitor="val/loss", best=0.1)
    assert (accuracy + loss).best == 0.5
    assert (loss + accuracy + Results(1, monitor="val/loss", best=0.05)).best == 0.05
    assert (Results(1) + loss).monitor == "val/loss"
    assert (accuracy + Results(1, best=0.9)).best == 0.9


def running(*trials: int, **values: Any) -> GroupStatus:
    return GroupStatus(trials, "running", progress(**values))


def test_the_time_that_a_sweep_takes() -> None:
    """Two groups of two trials train: each has 40 s left of 100 s."""
    groups = [
        running(0, 1, epoch=6, epochs=10, epoch_seconds=10.0, seconds=60.0),
        running(2, 3, epoch=6, epochs=10, epoch_seconds=10.0, seconds=60.0),
    ]

    def left(trials: int, results: Results = NONE, more: int = 0) -> float | None:
        return seconds_left([*groups, *[GroupStatus([9], "running")] * more], results, trials)

    assert left(4) == pytest.approx(40, abs=5)
    assert left(8) == pytest.approx(40 + 100, abs=5)
    assert left(7) == pytest.approx(40 + 75, abs=5)
    # Four trials took 10 s each: the mean of eight trials is 30 s.
    assert left(10, Results(4, seconds=40.0)) == pytest.approx((80 + 2 * 30) / 2, abs=5)
    assert left(5, more=1) == pytest.approx((80 + 50) / 3, abs=5)
    unequal = [*groups, running(4, 5, epoch=1, epochs=10, epoch_seconds=10.0, seconds=10.0)]
    assert seconds_left(unequal, Results(), 6) == pytest.approx(90, abs=5)
    assert seconds_left([GroupStatus([0], "queued")], Results(5, seconds=5.0), 6) is None
    assert seconds_left([running(0, epoch=0, epoch_seconds=None)], Results(), 1) is None


def test_the_totals() -> None:
    groups = [running(*range(16)), GroupStatus([16], "queued"), GroupStatus([17], "failed")]
    told = overview(groups, Results(1, 1, 0, 0.0), 18, count_groups=True)
    assert told.startswith(
        "1 of 3 groups ended, 1 of 18 trials ended, 1 failed, best val/acc 97.31%"
    )
    assert told.endswith(" left")
    ended = Results(1000, 0, 20, 5.0, "val/loss", 0.5)
    told = overview([], ended, 1000, count_groups=False)
    assert told == "1,000 of 1,000 trials ended, 20 diverged, best val/loss 0.5000"
