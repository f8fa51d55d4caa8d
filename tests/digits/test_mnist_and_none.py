"""MNIST with a class for drawings that are not digits. They are centred like MNIST's, of all kinds,
and the same each time."""

from pathlib import Path

import pytest
import torch

from kindling.config.compose import compose
from kindling.data.sources.catalogue import describe, open_source
from kindling.data.sources.digits import digits
from kindling.data.sources.published import read_idx_set
from kindling.data.sources.source import Description
from kindling.system.machine import torch_threads
from kindling_digits.mnist_and_none import BOX, not_digits, with_other_pens

DIGITS = digits().train
PICTURES = (DIGITS.features[:, 0] * 255).round().to(torch.uint8)


@pytest.fixture(scope="module")
def drawn() -> torch.Tensor:
    return not_digits(PICTURES, DIGITS.labels, 1500, 0)


def test_each_is_scaled_and_centred(drawn: torch.Tensor) -> None:
    """The longer side has 20 pixels, and soft edges; the centre of mass is on pixel (14, 14), as
    that of MNIST's digits and of prepared drawings."""
    assert (drawn.shape, drawn.dtype) == ((1500, 28, 28), torch.uint8)
    ink = drawn.float()
    assert ink.amax((1, 2)).min() >= 127
    places = torch.arange(28.0)
    for axis in (1, 2):
        centres = (ink.sum(3 - axis) * places).sum(1) / ink.sum((1, 2))
        assert (centres - 14).mean().abs() < 0.15
        assert (centres - 14).abs().quantile(0.99) < 1
    sides = [(ink > 64).any(3 - axis).sum(1) for axis in (1, 2)]
    longer = torch.maximum(*sides).float()
    assert longer.quantile(0.05) >= BOX - 4
    assert longer.median() in range(BOX - 1, BOX + 2)


@pytest.mark.slow
def test_the_same_seed_draws_the_same_with_any_number_of_threads(drawn: torch.Tensor) -> None:
    for threads in (1, 2):
        with torch_threads(threads):
            again = not_digits(PICTURES, DIGITS.labels, 1500, 0)
        assert torch.equal(again, drawn)
    other = not_digits(PICTURES, DIGITS.labels, 1500, 1)
    assert not (other == drawn).all((1, 2)).any()


def test_hardly_two_are_alike(drawn: torch.Tensor) -> None:
    assert len({bytes(picture) for picture in drawn.numpy()}) > 1490


def test_what_may_be_a_digit_is_left_out() -> None:
    """Of digits of one class no halves are put together, and a 0, 1, 5 or 8 is neither turned nor
    mirrored. The digits are white all over here, so that what is made of them is a square."""
    white = torch.full((20, 28, 28), 255, dtype=torch.uint8)

    def squares(labels: torch.Tensor) -> int:
        pictures = not_digits(white, labels, 400, 0)
        return int((pictures[:, 6:22:15, 6:22:15] > 150).all(2).all(1).sum())

    assert squares(torch.zeros(20, dtype=torch.long)) == 0
    assert squares(torch.full((20,), 3)) in range(30, 80)  # 3 of 7 kinds, three tenths of all
    assert squares(torch.arange(20) % 2) in range(20, 60)  # 3 of the other 4, half of the pairs


def test_few_look_like_a_one() -> None:
    """A lone stroke is never straight. The thickness of a drawing is small beside its length for 1%
    of all drawings, and for 2% if lone strokes could be straight."""
    ink = not_digits(PICTURES, DIGITS.labels, 4000, 0).double()
    ink /= ink.sum((1, 2), keepdim=True)
    places = torch.arange(28, dtype=torch.float64)
    y, x = (places - (ink.sum(3 - axis) @ places)[:, None] for axis in (1, 2))
    moments = torch.stack([
        torch.einsum("nyx,ny,ny->n", ink, y, y), torch.einsum("nyx,ny,nx->n", ink, y, x),
        torch.einsum("nyx,ny,nx->n", ink, y, x), torch.einsum("nyx,nx,nx->n", ink, x, x),
    ], 1).view(-1, 2, 2)  # fmt: skip
    thickness, length = torch.linalg.eigvalsh(moments).clamp(min=0).sqrt().T
    assert (thickness < 0.2 * length).double().mean() < 0.015


def test_other_pens() -> None:
    """About three tenths stay as they were but for a little more ink; the others are thicker,
    thinner or softer."""
    changed = with_other_pens(PICTURES, 0).float()
    before = PICTURES.float()
    darker = (1.15 * before / 255).clamp(0, 1) * 255
    same = ((changed - darker).abs() <= 1).all(2).all(1)
    assert same.float().mean() == pytest.approx(0.3, abs=0.03)
    share = changed.sum((1, 2)) / before.sum((1, 2))
    assert (share > 1.4).float().mean() == pytest.approx(0.3, abs=0.05)
    assert torch.equal(with_other_pens(PICTURES, 0).float(), changed)


@pytest.mark.slow
def test_digits_and_others(mnist_root: Path) -> None:
    config = compose("data=mnist_and_none", f"data.root={mnist_root}").data
    source, mnist = open_source(config), read_idx_set("mnist", mnist_root)
    assert source.labels == (*"0123456789", "none")
    assert describe(config) == Description(source.shape, 11)
    assert torch.bincount(source.train.labels)[10] == 60_000
    assert torch.bincount(source.test.labels)[10] == 2_000
    assert torch.equal(source.train.labels[:60_000], mnist.train.labels)
    assert torch.equal(source.test.features[:10_000], mnist.test.features)
    assert torch.equal(source.test.labels[:10_000], mnist.test.labels)
    others = source.train.features[60_000:].flatten(1), source.test.features[10_000:].flatten(1)
    assert not {bytes(each) for each in others[0].numpy()} & {
        bytes(each) for each in others[1].numpy()
    }
