"""data.batch_size=auto, with a memory of a given size."""

import logging
from pathlib import Path

import pytest

from src.config.compose import compose
from src.system.errors import InputError
from src.training import batch_size, grouping
from src.training.fit import fit
from tests.helpers.commands import SMALL


def test_the_largest_batch_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert batch_size.largest(1150, lambda _size: True) == 1024
    assert batch_size.largest(1150, lambda size: size <= 300) == 256
    assert batch_size.largest(40, lambda _size: True) == 40
    with pytest.raises(InputError, match="not even a batch of 64 fits"):
        batch_size.largest(1150, lambda _size: False)
    config = compose(*SMALL, "data.batch_size=auto")
    one = grouping.bytes_per_trial(config, (784,), 10, 300)
    monkeypatch.setattr(batch_size, "free_bytes", lambda _config: 2 * one)
    with caplog.at_level(logging.INFO, "src"):
        run = fit(config, tmp_path / "run")
    assert "data.batch_size=auto: 256 chosen, more do not fit into memory" in caplog.text
    assert run.config.data.batch_size == 256
    assert run.result["effective_batch_size"] == 256
    monkeypatch.setattr(batch_size, "free_bytes", lambda _config: 2**40)
    fit(compose(*SMALL, "data.batch_size=auto", "trainer.max_epochs=3"), run.folder, resume=True)
    assert run.config.data.batch_size == 256  # what was decided stays
    assert run.result["epochs"] == 3
