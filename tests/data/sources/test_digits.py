"""The embedded digits."""

import torch
from sklearn.datasets import load_digits

from kindling.data.sources.digits import _scanned, digits


def test_the_digits_are_those_of_scikit_learn() -> None:
    """Which are read from its file, without the import of scikit-learn."""
    pictures, labels = _scanned()
    expected = load_digits()
    assert pictures.dtype == torch.float32
    assert (pictures[:, 0].double().numpy() * 16 == expected.images).all()
    assert labels.tolist() == expected.target.tolist()


def test_digits_are_real_handwriting_of_mnists_shape() -> None:
    source = digits()
    assert (len(source.train), len(source.test), source.classes) == (1438, 359, 10)
    assert source.shape == (1, 28, 28)
    assert source.train.features.dtype == torch.float32
    assert source.train.features.min() == 0
    assert 0.99 < source.train.features.max() <= 1
    assert not source.train.features[:, 0, :4].any()  # a margin of four, as MNIST's
    assert source.train.features[:, 0, 4:24, 4:24].any(0).sum() > 350
    assert source.train.labels[:10].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 0, 1]  # the fifth is a 4
