"""The files of a run folder."""

import json
from pathlib import Path

import pytest

from src.runs.folder import HISTORY, Run
from src.system.errors import InputError


def test_a_history_of_more_rows_than_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    monkeypatch.setattr("src.runs.folder.MAX_EPOCHS", 5)
    run.write_history([dict.fromkeys(HISTORY, number) for number in range(6)])
    assert len(run.history) == 6
    run.append_history(dict.fromkeys(HISTORY, 6))
    with pytest.raises(InputError, match="has more than 5 epochs"):
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
