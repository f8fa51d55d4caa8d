"""The settings of a pack: many small networks for one table, whose committee answers.

The decays are those of TabPack (Yandex Research, arXiv 2607.05380), and so are depths and shares of
dropout, in part. Its networks are wider, and its rates lower. docs/results.md says what was
measured.
"""

import math
from collections.abc import Sequence
from itertools import product
from random import Random

WIDTHS = (64, 128, 256)
RATES = (5e-4, 1e-2)
DECAYS = (1e-3, 1.0)
# Depth, activation and dropout, which networks take in turn. 5 and 12 have no common divisor: few
# networks too have each depth and activation.
FAMILIES = tuple(product((1, 2), ("relu", "gelu"), ("0.0", "0.2", "0.4")))
# The batch size for tables with at least so many rows; smaller steps take too long there.
BATCH_SIZES = {0: 16, 2_000: 32, 5_000: 64, 10_000: 128, 20_000: 256}


def draw_settings(count: int, seed: int) -> dict[str, list[str]]:
    """The values of each key, one for each of `count` networks, as the command line has them. A
    longer pack begins with the shorter one."""
    values: dict[str, list[str]] = {}
    for number in range(count):
        drawn = Random(f"{seed}/{number}")
        depth, activation, dropout = FAMILIES[5 * number % len(FAMILIES)]
        sizes = ",".join(str(drawn.choice(WIDTHS)) for _ in range(depth))
        network = {
            "model.hidden_sizes": f"[{sizes}]",
            "model.activation": activation,
            "model.dropout": dropout,
            "optimizer.lr": f"{_between(drawn, RATES):.2g}",
            "optimizer.weight_decay": f"{_between(drawn, DECAYS):.2g}",
            "seed": str(drawn.randrange(2**31)),
        }
        for key, value in network.items():
            values.setdefault(key, []).append(value)
    return values


def _between(drawn: Random, ends: Sequence[float]) -> float:
    """A number of which all orders of magnitude are equally likely."""
    return math.exp(drawn.uniform(*map(math.log, ends)))


def batch_size(rows: int) -> int:
    return max(size for least, size in BATCH_SIZES.items() if rows >= least)
