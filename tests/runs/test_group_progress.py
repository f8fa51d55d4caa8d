"""progress.json, which the process that trains writes and others read."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from src.runs.group_progress import (
    GroupProgress,
    read_progress,
    remove_progress,
    trial_numbers,
    write_progress,
)
from src.system.errors import InputError
from tests.helpers.progress import progress


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
