"""train.log has the project's log, beside the log of the caller."""

import logging
from pathlib import Path

import pytest

from src.runs.folder import Run
from src.training.run_log import logging_to


def test_lines_go_to_every_run_and_to_the_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [Run(tmp_path / name) for name in ("a", "b", "absent")]
    for run in runs[:2]:
        run.folder.mkdir()
    ours = logging.getLogger("src")
    level, handlers = ours.level, list(ours.handlers)
    with logging_to(runs):
        logging.getLogger("src.training").info("epoch %d", 1)
        logging.getLogger("other").warning("noise")
    assert (ours.level, ours.handlers) == (level, handlers)
    for run in runs[:2]:
        (line,) = run.log_file.read_text().splitlines()
        assert line.endswith("[INFO] epoch 1")
    assert not runs[2].folder.exists()
    assert [record.getMessage() for record in caplog.records] == ["epoch 1", "noise"]
