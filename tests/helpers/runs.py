"""Run folders that no training has made."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kindling.config import faults
from kindling.config.compose import compose
from kindling.records.config_files import create_run_folder
from kindling.records.folder import Run
from kindling.system.files import parse_yaml
from tests.helpers.commands import SMALL

FILES = ("previous.ckpt", "last.ckpt", "best.ckpt")


def ended(
    folder: Path,
    value: float | None,
    *overrides: str,
    status: str = "finished",
    also: Mapping[str, Any] | None = None,
) -> Run:
    """A run folder with files in place of checkpoints, and with a result, which has the fields of
    `also` too."""
    config, run = compose(*SMALL, *overrides), Run(folder)
    create_run_folder(run, config.to_primitives(), overrides)
    for name in FILES:
        run.checkpoints.mkdir(exist_ok=True)
        (run.checkpoints / name).write_text(name)
    best, data = {"epoch": 1, config.checkpoint.monitor: value}, {"name": config.data.name}
    common = {"monitor": config.checkpoint.monitor, "config_hash": config.hash()}
    run.write_result({"status": status, "best": best, "data": data, **common, **(also or {})})
    return run


def parsed_configs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The configurations that are parsed from now on, though none is remembered."""
    parsed: list[Path] = []

    def noting(content: bytes, path: Path) -> Any:
        parsed.append(path)
        return parse_yaml(content, path)

    monkeypatch.setattr(faults, "parse_yaml", noting)
    faults._READ.clear()
    return parsed
