"""Optional packages: which there are, and whether they are installed."""

from pathlib import Path

import pytest

from src.system import extras
from tests.helpers.commands import ROOT


def test_every_extra_is_one_of_pip() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for extra, packages in extras.LOGGERS.items():
        assert f"\n{extra} = [" in text
        assert extras.missing_loggers([extra]) == [], packages


def test_a_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sheep").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(extras.LOGGERS, "wool", ("sheep", "json"))
    assert extras.missing_loggers(["wool"]) == [
        'logger=wool: needs sheep; type pip install -e ".[wool]"'
    ]
