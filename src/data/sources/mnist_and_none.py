"""MNIST's digits, and as many drawings that are not digits, of the class `none`."""

from pathlib import Path

import torch

from src.config import schema
from src.data.not_digits import not_digits, with_other_pens
from src.data.sources.downloads import open_published
from src.data.sources.mnist import read_idx_set
from src.data.sources.source import DIGITS, NONE, Description, Source, Split
from src.system.machine import torch_threads

LABELS = (*DIGITS, NONE)
TRAIN_SEED, TEST_SEED, PENS_SEED = 0, 1, 2


def open_source(config: schema.Torchvision) -> Source:
    return open_published(config, _read)


def describe(_config: schema.Torchvision) -> Description:
    return Description((1, 28, 28), len(LABELS))


def _read(name: str, root: Path) -> Source:
    """uint8. The training digits have strokes of various widths. The test set has MNIST's test
    digits as they are, and a fifth as many drawings that are not digits."""
    mnist = read_idx_set("mnist", root)
    train, test = mnist.train, mnist.test
    with torch_threads(1):  # more would wait for each other on a busy machine
        pens = with_other_pens(train.features.squeeze(1), PENS_SEED).unsqueeze(1)
        train = _joined(Split(pens, train.labels), _others(train, len(train), TRAIN_SEED))
        test = _joined(test, _others(test, len(test) // 5, TEST_SEED))
    return Source(name, train, test, LABELS)


def _others(digits: Split, count: int, seed: int) -> Split:
    drawn = not_digits(digits.features.squeeze(1), digits.labels, count, seed).unsqueeze(1)
    return Split(drawn, torch.full((count,), LABELS.index(NONE)))


def _joined(one: Split, other: Split) -> Split:
    return Split(torch.cat([one.features, other.features]), torch.cat([one.labels, other.labels]))
