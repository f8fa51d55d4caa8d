"""Hydra's files are whole at every instant."""

from pathlib import Path

import hydra.core.utils
import pytest
from hydra._internal.core_plugins import basic_sweeper
from omegaconf import OmegaConf

from src import train
from src.sweeps import hydra_files, run_command
from tests.helpers.commands import SMALL
from tests.helpers.kills import Killed, die_at_sync


def test_what_hydra_writes_is_whole_at_every_instant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the new file is synced, the old one is as it was."""
    monkeypatch.setattr(hydra.core.utils, "_save_config", hydra.core.utils._save_config)
    monkeypatch.setattr(basic_sweeper, "OmegaConf", basic_sweeper.OmegaConf)  # type: ignore[attr-defined]
    monkeypatch.setattr(run_command, "run_and_report", lambda _: None)
    monkeypatch.setattr("sys.argv", ["train", *SMALL])
    train.main()
    assert hydra.core.utils._save_config is hydra_files._save_config
    file = tmp_path / "multirun.yaml"

    def write(value: int) -> None:
        basic_sweeper.OmegaConf.save(OmegaConf.create({"a": value}), file)  # type: ignore[attr-defined]

    write(1)
    with monkeypatch.context() as patch:
        die_at_sync(patch, 0)
        with pytest.raises(Killed):
            write(2)
    assert file.read_text() == "a: 1\n"
    write(3)
    assert file.read_text() == "a: 3\n"
