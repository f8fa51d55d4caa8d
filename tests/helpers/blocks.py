"""A block of random batches, and a model for it."""

from typing import Any

import torch

from kindling.data.loader import Block
from kindling.models.mlp import Mlp

BATCHES, SIZE = 12, 8


def block(seed: int = 0) -> Block:
    stream = torch.Generator().manual_seed(seed)
    features = torch.randn(BATCHES, 1, SIZE, 6, generator=stream)
    return Block(features, torch.randint(3, (BATCHES, 1, SIZE), generator=stream))


def model(seed: int = 0, width: int = 5, **settings: Any) -> Mlp:
    torch.manual_seed(seed)
    return Mlp(6, [width], 3, **settings)
