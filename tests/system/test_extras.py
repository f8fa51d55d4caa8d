"""Optional packages: which there are, and whether they are installed."""

import re
import tomllib
from pathlib import Path

import pytest

from kindling.system import extras
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


def test_a_plain_training_needs_neither_charts_nor_contenders() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plain = {re.split(r"[>=<\[]", text)[0] for text in project["dependencies"]}
    assert {"torch", "jinja2"} <= plain
    assert not plain & {"plotly", "keras", "jax"}
    others = project["optional-dependencies"]
    assert [text.partition(">")[0] for text in others["report"]] == ["plotly"]
    assert [text.partition(">")[0] for text in others["bench"]] == ["jax[cpu]", "keras"]
    together = re.findall(r"\[(.*)\]", others["dev"][0])[0].split(",")
    assert "report" in together  # whoever works on pages has charts
