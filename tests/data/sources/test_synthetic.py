"""Random data."""

import torch

from kindling.config.compose import compose
from kindling.data.sources.catalogue import open_source


def test_synthetic_has_the_shape_and_classes_asked_for() -> None:
    config = compose("data=synthetic", "data.shape=[3,8,8]", "data.classes=4", "data.samples=4000")
    source = open_source(config.data)
    assert source.train.features.shape == (4000, 3, 8, 8)
    assert abs(source.train.features.mean().item()) < 0.01
    assert abs(source.train.features.std().item() - 1) < 0.01
    assert torch.bincount(source.train.labels).min() > 900
    assert len(source.test) == 200
    assert torch.equal(source.train.features, open_source(config.data).train.features)
