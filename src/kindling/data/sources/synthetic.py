"""Random data of any size and shape, to measure speed: standard normal features, random labels."""

import math

import torch

from kindling.config import schema
from kindling.data.sources.source import Description, Source, Split
from kindling.system.resources import require_memory


def open_source(config: schema.Synthetic) -> Source:
    """Features (N, *shape), uniform labels. Raises InputError when memory is too small for them."""
    samples = config.samples + config.test_samples
    require_memory(
        f"data.samples={config.samples} data.test_samples={config.test_samples}: their features "
        "need",
        4 * samples * math.prod(config.shape),
        "fewer of them, or a smaller data.shape",
    )
    stream = torch.Generator().manual_seed(0)

    def draw(samples: int) -> Split:
        features = torch.randn(samples, *config.shape, generator=stream)
        return Split(features, torch.randint(config.classes, (samples,), generator=stream))

    labels = tuple(str(number) for number in range(config.classes))
    return Source("synthetic", draw(config.samples), draw(config.test_samples), labels)


def describe(config: schema.Synthetic) -> Description:
    return Description(tuple(config.shape), config.classes)
