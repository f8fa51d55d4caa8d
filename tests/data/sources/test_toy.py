"""The points of the tutorial."""

import torch

from kindling.data.sources.toy import toy


def test_toy_is_the_tutorials() -> None:
    source = toy(1)
    expected = [[-1.2, 3.1], [-0.9, 2.9], [-0.5, 2.6], [2.3, -1.1], [2.7, -1.5]]
    assert torch.equal(source.train.features, torch.tensor(expected))
    assert source.train.labels.tolist() == [0, 0, 0, 1, 1]
    assert torch.equal(source.test.features, torch.tensor([[-0.8, 2.8], [2.6, -1.6]]))
    assert source.test.labels.tolist() == [0, 1]


def test_toy_factor_repeats_with_noise_of_a_tenth() -> None:
    once, often = toy(1), toy(400)
    assert (len(often.train), len(often.test)) == (2000, 800)
    noise = often.train.features - once.train.features.repeat(400, 1)
    assert abs(noise.std().item() - 0.1) < 0.005
    assert torch.equal(often.train.labels, once.train.labels.repeat(400))
    assert torch.equal(toy(4).train.features, toy(4).train.features)
