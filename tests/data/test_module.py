"""The data of a run: its three parts and their batches."""

from pathlib import Path

import pytest

from src.config.compose import compose
from src.runs.folder import Run
from src.system.errors import InputError
from src.training.fit import fit
from tests.helpers.commands import SMALL
from tests.helpers.data_files import write_pictures


def test_a_batch_larger_than_the_split_is_an_error(tmp_path: Path) -> None:
    config = compose(*SMALL, "data.batch_size=2000", "data.drop_last=true")
    with pytest.raises(InputError, match=r"type data\.batch_size=1150 or less"):
        fit(config, tmp_path / "run")
    result = Run(tmp_path / "run").result
    assert result["status"] == "failed"
    assert "data.batch_size=2000" in result["error"]


def test_a_class_without_samples_in_a_split_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_pictures(tmp_path / "data", {"many": 9, "once": 1})
    config = compose(
        "data=image_folder", f"data.path={tmp_path}/data", "data.size=4", "trainer=cpu",
        "trainer.max_epochs=1",
    )  # fmt: skip
    fit(config, tmp_path / "run")
    assert "set has no sample of once" in caplog.text
