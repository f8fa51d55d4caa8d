"""MNIST with a class for drawings that are not digits."""

from pathlib import Path

import torch

from src.config.compose import compose
from src.data.sources.catalogue import describe, open_source
from src.data.sources.mnist import read_idx_set
from src.data.sources.source import Description


def test_digits_and_others(mnist_root: Path) -> None:
    config = compose("data=mnist_and_none", f"data.root={mnist_root}").data
    source, mnist = open_source(config), read_idx_set("mnist", mnist_root)
    assert source.labels == (*"0123456789", "none")
    assert describe(config) == Description(source.shape, 11)
    assert torch.bincount(source.train.labels)[10] == 60_000
    assert torch.bincount(source.test.labels)[10] == 2_000
    assert torch.equal(source.train.labels[:60_000], mnist.train.labels)
    assert torch.equal(source.test.features[:10_000], mnist.test.features)
    assert torch.equal(source.test.labels[:10_000], mnist.test.labels)
    others = source.train.features[60_000:].flatten(1), source.test.features[10_000:].flatten(1)
    assert not {bytes(each) for each in others[0].numpy()} & {
        bytes(each) for each in others[1].numpy()
    }
    again = open_source(config)
    assert torch.equal(again.train.features, source.train.features)
