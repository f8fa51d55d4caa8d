"""A trained model, opened again from its checkpoint."""

from pathlib import Path

import pytest
import torch

from kindling.data.sources.catalogue import open_source
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from tests.helpers.commands import Train


def test_the_state_is_plain_torch(train: Train) -> None:
    """A state_dict is saved, loaded with weights_only, and restored into a new network."""
    run = train()
    trained = open_trained(run.folder)
    content = torch.load(run.best_checkpoint, weights_only=True)["state_dict"]
    for name, value in trained.model.state_dict().items():
        assert torch.equal(content[f"model.{name}"], value)
    features = open_source(run.config.data).test.features[:5]
    assert trained.model(features).shape == (5, 10)


def test_opening_leaves_the_random_stream_alone(train: Train) -> None:
    run = train()
    state = torch.get_rng_state()
    open_trained(run.folder)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder"):
        open_trained(tmp_path)
    with pytest.raises(InputError, match="there is no such file or folder"):
        open_trained(tmp_path / "nothing.ckpt")


@pytest.mark.parametrize("cut", [0, 1, 100, 5000, -1])
def test_a_damaged_checkpoint(cut: int, train: Train) -> None:
    run = train()
    content = run.best_checkpoint.read_bytes()
    run.best_checkpoint.write_bytes(content[:cut])
    with pytest.raises(InputError, match=r"best\.ckpt: is damaged or not a checkpoint"):
        open_trained(run.folder)


def test_a_foreign_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "foreign.ckpt"
    torch.save({"state_dict": {"weight": torch.zeros(2)}}, path)
    with pytest.raises(
        InputError, match=r"not a checkpoint of this project \(it has no checksum\)"
    ):
        open_trained(path)
