"""Raschka's five training points and two test points ("PyTorch in One Hour")."""

import torch

from kindling.config import schema
from kindling.data.sources.source import Source, Split
from kindling.system.resources import require_memory

BYTES_PER_FACTOR = 100  # about seven points, each with its label


def toy(factor: int) -> Source:
    """Features (N, 2). With factor 1 the points are those that the tutorial prints.

    A factor above 1 repeats each set so many times, with normal noise of deviation 0.1.
    """
    train = Split(
        torch.tensor([[-1.2, 3.1], [-0.9, 2.9], [-0.5, 2.6], [2.3, -1.1], [2.7, -1.5]]),
        torch.tensor([0, 0, 0, 1, 1]),
    )
    test = Split(torch.tensor([[-0.8, 2.8], [2.6, -1.6]]), torch.tensor([0, 1]))
    require_memory(
        f"data.factor={factor}: the points need", BYTES_PER_FACTOR * factor, "a smaller data.factor"
    )
    if factor > 1:
        noise = torch.Generator().manual_seed(123)

        def repeat(split: Split) -> Split:
            features = split.features.repeat(factor, 1)
            features += 0.1 * torch.randn(features.shape, generator=noise)
            return Split(features, split.labels.repeat(factor))

        train, test = repeat(train), repeat(test)
    return Source("toy", train, test, ("0", "1"))


def open_source(config: schema.Toy) -> Source:
    return toy(config.factor)
