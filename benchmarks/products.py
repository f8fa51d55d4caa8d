"""The matrix products of an epoch alone: a lower limit of its time."""

import time
from collections.abc import Callable

import torch

BATCH, HIDDEN, CLASSES = 100, 32, 10


def products(
    samples: int, *, trials: int = 1, hidden: int = HIDDEN, device: str = "cpu"
) -> Callable[[], float]:
    """Times the products of an epoch of `trials` networks 784-hidden-10 that share their batches,
    their hidden units concatenated. The gradient is added to the weights to save cache."""
    rate = 1e-9  # leaves the weights almost unchanged
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
