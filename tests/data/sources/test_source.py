"""Splits: scaling of pixels, validation and test sets drawn at random."""

import pytest
import torch
from PIL import Image
from torchvision.transforms import ToTensor

from src.data.sources.source import Split, as_float, split_off_test, split_off_validation
from src.system.errors import InputError


def test_pixels_are_scaled_as_totensor_does() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    image = Image.fromarray(pixels[0].numpy())
    assert torch.equal(as_float(pixels), ToTensor()(image))


def _numbered(count: int) -> Split:
    return Split(torch.arange(count, dtype=torch.float32).view(-1, 1), torch.arange(count))


def test_the_split_is_disjoint_whole_and_seeded() -> None:
    everything = _numbered(60_000)
    train, validation = split_off_validation(everything, 0.2, seed=0)
    assert (len(train), len(validation)) == (48_000, 12_000)
    assert sorted(train.labels.tolist() + validation.labels.tolist()) == list(range(60_000))
    again, other = (split_off_validation(everything, 0.2, seed=seed)[1] for seed in (0, 1))
    assert torch.equal(again.labels, validation.labels)
    assert not torch.equal(other.labels, validation.labels)


def test_nothing_held_out_validates_on_the_training_set() -> None:
    train, validation = split_off_validation(_numbered(5), None, seed=0)
    assert train.labels.tolist() == validation.labels.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_an_empty_part_is_an_error(fraction: float) -> None:
    with pytest.raises(InputError, match=r"type data\.val_fraction=null"):
        split_off_validation(_numbered(5), fraction, seed=0)


def test_a_test_set_is_drawn_from_each_class_and_never_all_of_it() -> None:
    labels = torch.tensor([0] * 10 + [1] * 5 + [2])
    whole = Split(torch.arange(16.0).view(-1, 1), labels)
    train, test = split_off_test(whole, 0.4, seed=3)
    assert torch.bincount(test.labels, minlength=3).tolist() == [4, 2, 0]
    together = sorted([*train.features[:, 0].tolist(), *test.features[:, 0].tolist()])
    assert together == list(range(16))
    assert torch.equal(split_off_test(whole, 0.4, seed=3)[1].features, test.features)
    assert not torch.equal(split_off_test(whole, 0.4, seed=4)[1].features, test.features)
    with pytest.raises(
        InputError, match=r"data\.test_fraction=0\.01: the test set would have none"
    ):
        split_off_test(whole, 0.01, seed=0)
