"""Points of two spirals that wind about each other."""

import torch
from kindling.data.sources.source import Source, Split, split_off_test

from mine.extension import Data


def open_source(config: Data) -> Source:
    """Features (N, 2) and labels (N,). Kindling splits off the validation set."""
    stream = torch.Generator().manual_seed(0)
    labels = torch.arange(config.points) % 2
    radius = torch.rand(config.points, generator=stream).sqrt()
    angle = 4 * radius + torch.pi * labels
    points = radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
    points += config.noise * torch.randn(config.points, 2, generator=stream)
    train, test = split_off_test(Split(points, labels), 0.2, seed=0)
    return Source("mine", train, test, ("left", "right"))
