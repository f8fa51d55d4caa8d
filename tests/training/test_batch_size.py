"""data.batch_size=auto, with a memory of a given size."""

import logging
import math
from pathlib import Path

import pytest
import torch

from kindling.config.compose import compose
from kindling.data.loader import batches_per_block
from kindling.data.sources.catalogue import open_source
from kindling.steps.closed_form import GRAPH_BATCHES
from kindling.system.errors import InputError
from kindling.training import batch_size
from kindling.training.fit import fit
from kindling.training.memory import bytes_per_trial
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
    one = bytes_per_trial(config, (784,), 10, 300)
    monkeypatch.setattr(batch_size, "free_bytes", lambda _config: 2 * one)
    with caplog.at_level(logging.INFO, "kindling"):
        run = fit(config, tmp_path / "run")
    assert (
        "data.batch_size=auto: 256 chosen, more do not fit into memory; an epoch has 5 steps"
        in caplog.text
    )
    assert run.config.data.batch_size == 256
    assert run.result["effective_batch_size"] == 256
    monkeypatch.setattr(batch_size, "free_bytes", lambda _config: 2**40)
    fit(compose(*SMALL, "data.batch_size=auto", "trainer.max_epochs=3"), run.folder, resume=True)
    assert run.config.data.batch_size == 256  # what was decided stays
    assert run.result["epochs"] == 3


def test_what_a_run_holds_beside_a_step() -> None:
    """The data as bytes, and floats of a block and of the batches in a graph."""
    config = compose("data=digits", "data.batch_size=auto")
    source = open_source(config.data)
    gpu = torch.device("cuda")
    held = batch_size.beside(config, source, 128, gpu)
    batch = 4 * 128 * (math.prod(source.shape) + 10)
    blocks = batches_per_block(batch, gpu) + GRAPH_BATCHES
    samples = len(source.train) + len(source.test)
    bytes_of_sample = source.train.features[0].nbytes + 8
    assert held == samples * bytes_of_sample + batch * blocks
    workers = compose("data=digits", "data.batch_size=auto", "data.loader=workers")
    assert batch_size.beside(workers, source, 128, gpu) == batch * blocks
