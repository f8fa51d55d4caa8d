"""The files of a run folder."""

import json
import os
from pathlib import Path

import pytest

from kindling.records.folder import Row, Run
from kindling.system import files
from kindling.system.errors import InputError
from tests.helpers.tasks import HISTORY


def test_a_history_of_more_rows_than_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    monkeypatch.setattr("kindling.records.folder.MAX_EPOCHS", 5)
    run.write_history([dict.fromkeys(HISTORY, number) for number in range(6)])
    assert len(run.history) == 6
    run.append_history([dict.fromkeys(HISTORY, 6)])
    with pytest.raises(InputError, match="has more than 5 epochs"):
        _ = run.history


def test_a_history_may_have_a_measure_of_the_validation(tmp_path: Path) -> None:
    """Only the columns of some monitor are read: no other ones, not two measures, in no order."""
    run = Run(tmp_path)
    plain: Row = dict(zip(HISTORY, [1, 12, 0.5, 0.1, 2.0, 0.5, 1.0, 0.75], strict=True))
    run.append_history([plain | {"val/f1": 0.7}])
    run.append_history([plain | {"val/f1": None}])
    assert run.history == [plain | {"val/f1": 0.7}, plain | {"val/f1": None}]
    row = "1,12,0.5,0.1,2.0,0.5,1.0,0.75"
    for more, cells in (("", ""), (",val/recall", ",0.5")):
        run.history_file.write_text(f"{','.join(HISTORY)}{more}\n{row}{cells}\n")
        assert [*run.history[0]] == [*HISTORY, *filter(None, more.split(","))]
        assert list(run.history[0].values())[:8] == list(plain.values())
    for logged in (",val/top3", ",test/f1", ",mine 1"):  # by callbacks
        run.history_file.write_text(f"{','.join(HISTORY)}{logged}\n{row},0.5\n")
        assert run.history == [plain | {logged[1:]: 0.5}]
    for header in (",val/f1,val/recall", ",mine,val/f1", ",val/f1,", ",a,a", ",=a", ",lr"):
        run.history_file.write_text(f"{','.join(HISTORY)}{header}\n{row},0.5\n")
        with pytest.raises(InputError, match="or these and one of val/f1, val/precision, val/rec"):
            _ = run.history
    run.history_file.write_text(f"{','.join(HISTORY)},val/f1\n{row}\n")
    with pytest.raises(InputError, match="line 2 is not a row of a history"):
        _ = run.history


def test_json_of_a_result_has_no_nan(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.write_result({"a": float("nan"), "b": {"c": float("inf")}})
    assert json.loads(run.result_file.read_text()) == {"a": None, "b": {"c": None}}


def test_an_identity_is_kept_and_checked(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.identity() == Run(tmp_path).identity()
    assert run.identity() != Run(tmp_path / "other").identity()
    run.identity_file.write_text("../../elsewhere")
    with pytest.raises(InputError, match=r"\.identity: is not a run's identity; delete it"):
        run.identity()


def test_a_result_is_read_once_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SETTLED", -1)
    run, hardware = Run(tmp_path), {"cpu": "fast", "cores": 2}
    assert run.result == {}
    run.write_result({"status": "finished", "hardware": hardware, "steps": 1})
    first = run.result
    assert Run(tmp_path).result is first
    other = Run(tmp_path / "other")
    other.folder.mkdir()
    other.write_result({"status": "failed", "hardware": hardware, "steps": 2})
    assert other.result == {"status": "failed", "hardware": hardware, "steps": 2}
    assert other.result["hardware"] is first["hardware"]
    run.write_result({"status": "finished", "hardware": hardware | {"cores": 3}, "steps": 1})
    assert run.result["hardware"] == {"cpu": "fast", "cores": 3}
    run.result_file.unlink()
    assert run.result == {}
    run.result_file.symlink_to(run.result_file.name)
    assert run.result == {}


def test_a_result_that_is_new_may_change_within_a_tick(tmp_path: Path) -> None:
    """A file system's clock stands still for some milliseconds."""
    run = Run(tmp_path)
    run.write_result({"status": "finished", "steps": 1})
    status = run.result_file.stat()
    assert run.result["steps"] == 1
    run.result_file.write_text(run.result_file.read_text().replace("1", "2"))
    os.utime(run.result_file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run.result["steps"] == 2
