"""The arithmetic: what an epoch would take if all but its matrix products were free."""

import time
from collections.abc import Callable

import torch

BATCH, HIDDEN, CLASSES = 100, 32, 10


def products(
    samples: int, *, trials: int = 1, hidden: int = HIDDEN, device: str = "cpu"
) -> Callable[[], float]:
    """Seconds of the products of an epoch of 784-hidden-10, those of the gradient added to the
    weights: a gradient of its own would take another place in the cache.

    Over the concatenated units of `trials` networks that share their batches.
    """
    rate = 1e-9  # the weights stay what they are, more or less
    with torch.device(device):
        x = torch.rand(BATCH, 784)
        w1, w2 = torch.randn(trials * hidden, 784), torch.randn(trials, CLASSES, hidden)
        h, d1 = torch.empty(trials * hidden, BATCH), torch.empty(trials, hidden, BATCH)
        z, d2 = torch.empty(trials, CLASSES, BATCH), torch.randn(trials, CLASSES, BATCH)

    def epoch() -> float:
        began = time.perf_counter()
        for _ in range(-(-samples // BATCH)):
            torch.mm(w1, x.T, out=h)
            units = h.view(trials, hidden, BATCH)
            torch.bmm(w2, units, out=z)
            torch.bmm(w2.mT, d2, out=d1)
            w2.baddbmm_(d2, units.mT, alpha=-rate)
            w1.addmm_(d1.view(-1, BATCH), x, alpha=-rate)
        w1[0, 0].item()  # waits for the device
        return time.perf_counter() - began

    return epoch
