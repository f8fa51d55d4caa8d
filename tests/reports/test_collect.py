"""Runs that cannot be reported are named, and the rest is not lost."""

import shutil
from pathlib import Path

import pytest

from src.reports.collect import collect
from src.reports.page import write_report
from src.runs.folder import Run
from src.system.errors import InputError
from tests.helpers.commands import Train


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
    found = collect([tmp_path])
    assert [entry.name for entry in found.runs] == ["run1"]
    assert {path.name for path, _ in found.skipped} == set(broken)
    reasons = {path.name: reason for path, reason in found.skipped}
    assert "neither history.csv nor result.json" in reasons["half"]
    page = write_report([tmp_path]).read_text()
    assert all(f"{tmp_path / name}</code>" in page for name in broken)
    with pytest.raises(InputError, match=r"nothing to report(.|\n)*empty: holds no run"):
        write_report([empty])
    with pytest.raises(InputError, match="absent: there is no such folder"):
        write_report([tmp_path / "absent", good.folder])
