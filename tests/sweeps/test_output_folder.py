"""The folder that a command names."""

from pathlib import Path

from tests.helpers.faults import faults


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "history.csv").write_text("mine")
    assert "holds a run already" in faults(f"hydra.run.dir={tmp_path}")
    (tmp_path / "results.csv").write_text("mine")
    assert "holds a sweep already" in faults("-m", "seed=1,2", f"hydra.sweep.dir={tmp_path}")
