"""Data that need no file of the user's and no download."""

import math

import torch

from src.config import schema
from src.data.sources.source import DIGITS, Source, Split
from src.system.resources import require_memory


def digits() -> Source:
    """scikit-learn's 1,797 handwritten digits of 8×8, scaled to (1, 28, 28) in [0, 1], float32.

    The digit fills the middle 20×20 pixels, as in MNIST; scaled to the whole picture it has twice
    MNIST's energy, and recipes made for MNIST diverge. Every fifth sample is the test set.
    UCI's "Optical recognition of handwritten digits".
    """
    from sklearn.datasets import load_digits

    content = load_digits()
    small = torch.from_numpy(content.images).float().div_(16).unsqueeze(1)
    middle = torch.nn.functional.interpolate(small, size=(20, 20), mode="bilinear")
    features = torch.nn.functional.pad(middle, (4, 4, 4, 4))
    everything = Split(features, torch.from_numpy(content.target).long())
    is_test = torch.arange(len(everything)) % 5 == 4
    return Source("digits", everything.take(~is_test), everything.take(is_test), DIGITS)


def toy(factor: int) -> Source:
    """Raschka's five training and two test points ("PyTorch in One Hour"), features (N, 2).

    factor > 1 gives that many noisy copies of each set (normal, standard deviation 0.1, from a
    stream of their own); factor 1 gives the printed points.
    """
    train = Split(
        torch.tensor([[-1.2, 3.1], [-0.9, 2.9], [-0.5, 2.6], [2.3, -1.1], [2.7, -1.5]]),
        torch.tensor([0, 0, 0, 1, 1]),
    )
    test = Split(torch.tensor([[-0.8, 2.8], [2.6, -1.6]]), torch.tensor([0, 1]))
    require_memory(f"data.factor={factor}: the points need", 100 * factor, "a smaller data.factor")
    if factor > 1:
        noise = torch.Generator().manual_seed(123)

        def repeat(split: Split) -> Split:
            features = split.features.repeat(factor, 1)
            features += 0.1 * torch.randn(features.shape, generator=noise)
            return Split(features, split.labels.repeat(factor))

        train, test = repeat(train), repeat(test)
    return Source("toy", train, test, ("0", "1"))


def synthetic(config: schema.Synthetic) -> Source:
    """Standard normal features (N, *shape), uniform random labels; the same on every machine."""
    samples = config.samples + config.test_samples
    require_memory(
        f"data.samples={config.samples} data.test_samples={config.test_samples}: their features "
        f"need",
        4 * samples * math.prod(config.shape),
        "fewer of them, or a smaller data.shape",
    )
    stream = torch.Generator().manual_seed(0)

    def draw(samples: int) -> Split:
        features = torch.randn(samples, *config.shape, generator=stream)
        return Split(features, torch.randint(config.classes, (samples,), generator=stream))

    labels = tuple(str(number) for number in range(config.classes))
    return Source("synthetic", draw(config.samples), draw(config.test_samples), labels)
