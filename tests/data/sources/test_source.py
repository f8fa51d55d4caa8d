"""Splits: scaling of pixels, validation and test sets drawn at random."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import ToTensor

from kindling.data.sources.source import (
    Split,
    as_float,
    grouped,
    split_off_test,
    split_off_validation,
)
from kindling.system.errors import InputError


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


def in_groups(names: Sequence[str], labels: Sequence[int]) -> Split:
    rows = torch.arange(len(names))
    return Split(rows, torch.tensor(labels), grouped("patient", names))


def test_a_class_for_each_sample_is_no_class() -> None:
    split = Split(torch.zeros(6, 2), torch.arange(6))
    with pytest.raises(InputError, match="each of the 6 samples has a class of its own"):
        split_off_test(split, 0.9, 0)


def test_groups_are_sorted_as_numbers_if_all_are() -> None:
    assert grouped("g", ["10", "9", "10", "-1"]).names == ["-1", "9", "10"]
    assert grouped("g", ["10", "9", "nan"]).names == ["10", "9", "nan"]
    found = grouped("g", ["b", "a", "b"])
    assert (found.names, found.numbers.tolist()) == (["a", "b"], [1, 0, 1])
    assert (found.setting, found.sizes().tolist()) == ("data.group=g", [1, 2])


@settings(max_examples=60)
@given(st.data())
def test_groups_stay_together(data: st.DataObject) -> None:
    count, classes = data.draw(st.integers(2, 40)), data.draw(st.integers(2, 4))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    of = random.integers(0, count, data.draw(st.integers(4, 200)))
    labels, names = random.integers(0, classes, len(of)), [f"p{group}" for group in of]
    fraction, seed = data.draw(st.sampled_from([0.1, 0.2, 0.5])), data.draw(st.integers(0, 3))
    whole = in_groups(names, labels.tolist())
    split = data.draw(st.sampled_from([split_off_validation, split_off_test]))
    try:
        rest, held = split(whole, fraction, seed)
    except InputError:
        assume(False)
    assert sorted([*rest.features.tolist(), *held.features.tolist()]) == list(range(len(of)))
    taken = held.features.numpy()
    assert not set(of[taken].tolist()) & set(of[rest.features.numpy()].tolist())
    assert set(rest.labels.tolist()) == set(labels.tolist())
    assert taken.tolist() == sorted(taken)
    assert torch.equal(split(whole, fraction, seed)[1].features, held.features)
    of_class = [labels == label for label in set(labels.tolist())]
    shares = np.array([chosen[taken].sum() / chosen.sum() for chosen in of_class])
    assert ((shares - fraction) ** 2).sum() < len(shares) * fraction**2  # of nothing held out


def test_many_small_groups_have_the_share_of_each_class() -> None:
    labels = np.random.default_rng(0).integers(0, 3, 3000)
    whole = in_groups([f"{n // 3}" for n in range(3000)], labels.tolist())
    for fraction in (0.1, 0.3):
        rest, held = split_off_test(whole, fraction, seed=1)
        shares = torch.bincount(held.labels) / torch.bincount(whole.labels)
        np.testing.assert_allclose(shares, fraction, atol=0.02)
        assert len(rest) + len(held) == 3000


@pytest.mark.parametrize(
    ("names", "labels", "told"),
    [
        ("aaaa", [0, 1] * 2,
         "data.group=patient: all 4 samples are of group 'a', which is not divided; choose groups "
         "of which there are two or more"),
        ("aabb", [0, 1] * 2,
         "fraction=0.2: data.group=patient has no group that can be held out, because each is too "
         "large or has all samples of a class; the smallest group, 'a', has 2 of 4 samples; type a "
         "larger data."),
        ("abcd", [0, 1, 2, 3], "the smallest group, 'a', has 1 of 4 samples"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be_held_out(names: str, labels: list[int], told: str) -> None:
    for split in (split_off_validation, split_off_test):
        with pytest.raises(InputError) as caught:
            split(in_groups(names, labels), 0.2, 0)
        assert told in str(caught.value)
