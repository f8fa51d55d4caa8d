"""A drawing in any picture is found, scaled and centred like MNIST's digits."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kindling.data.pictures import decode
from kindling.data.sources.published import read_idx_set
from kindling.inference.pictures import Invert
from kindling_digits.drawings import Drawing, find_drawing, prepare
from tests.helpers.drawings import FIELD, SEVEN, draw, seven


def assert_seven(prepared: Drawing, inverted: bool, tolerance: int = 4) -> None:
    assert (prepared.inverted, prepared.blank) == (inverted, False)
    assert prepared.pixels.dtype == np.uint8
    assert abs(prepared.pixels - SEVEN).max() <= tolerance


@pytest.mark.parametrize("digit", range(10))
@pytest.mark.parametrize("shape", [(28, 28), (14, 20), (64, 48)])
def test_drawings_are_scaled_and_centred_like_mnist(digit: int, shape: tuple[int, int]) -> None:
    found = prepare(draw(digit, (500, 300), (20, 30, 140, 270), 20), shape)
    rows, columns = (np.flatnonzero(found.pixels.any(axis)) for axis in (1, 0))
    height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
    assert found.pixels.shape == shape
    assert found.pixels.max() == 255
    # The box of MNIST: 20 of 28, or less along one of both.
    room = [round(side * 20 / 28) for side in shape]
    assert (height == room[0] and width <= room[1]) or (width == room[1] and height <= room[0])
    # The centre of mass on the middle pixel, unless the drawing would leave the field for it.
    mass = found.pixels.astype(float)
    for axis, (side, first, size) in enumerate(
        zip(shape, (rows[0], columns[0]), (height, width), strict=True)
    ):
        centre = mass.sum(1 - axis) @ np.arange(side) / mass.sum()
        assert abs(centre - side // 2) <= 0.51 or first in (0, side - size)


def test_digits_of_mnist_stay_unchanged(mnist_root: Path) -> None:
    digits = read_idx_set("mnist", mnist_root).test.features[:200, 0].numpy()
    drift = [
        abs(prepare(Image.fromarray(digit), FIELD).pixels.astype(int) - digit).mean()
        for digit in digits
    ]
    assert np.median(drift) < 0.1
    assert np.mean(drift) < 1


def test_proportions_are_kept() -> None:
    image = Image.new("L", (200, 200))
    image.paste(255, (50, 10, 90, 170))  # 40 × 160
    pixels = prepare(image, FIELD).pixels
    expected = np.zeros(FIELD, np.uint8)
    expected[4:24, 12:17] = 255  # 5 × 20, as near to pixel (14, 14) as whole pixels go
    assert np.array_equal(pixels, expected)


@pytest.mark.parametrize(
    ("ink", "paper", "inverted"),
    [
        ("white", "black", False),
        ("navy", "white", True),
        ("yellow", "white", True),  # of the same luminance, nearly
        ("red", "#004dff", False),
        ("#808080", "#999999", True),  # hardly to be seen
        ("#ff0000", "#008200", False),  # of the very same luminance
    ],
)
def test_colours_and_polarity_do_not_matter(ink: str, paper: str, inverted: bool) -> None:
    assert_seven(prepare(seven(ink, paper), FIELD), inverted)


def _transposed(image: Image.Image, orientation: int) -> Image.Image:
    """The picture on its side, with the EXIF orientation that corrects it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    image.transpose(Image.Transpose.ROTATE_90).save(file, "JPEG", exif=exif, quality=95)
    return decode(file.getvalue(), "side.jpg")


def _saved(image: Image.Image, kind: str, **options: Any) -> Image.Image:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return decode(file.getvalue(), "saved")


def _sixteen_bits() -> Image.Image:
    levels = np.asarray(seven().convert("L")).astype(np.uint16) * 256
    return _saved(Image.fromarray(levels), "PNG")


VARIANTS: dict[str, tuple[Callable[[], Image.Image], bool]] = {
    "grey": (lambda: seven().convert("L"), True),
    "two colours": (lambda: seven().convert("1"), True),
    "palette": (lambda: _saved(seven().convert("P"), "PNG"), True),
    "transparent palette": (lambda: _transparent_palette(seven("red")), True),
    "sixteen bits": (_sixteen_bits, True),
    "CMYK": (lambda: _saved(seven().convert("CMYK"), "JPEG", quality=95), True),
    "JPEG": (lambda: _saved(seven(), "JPEG", quality=50), True),
    "EXIF": (lambda: _transposed(seven(), 6), True),
    "black on nothing": (lambda: _saved(seven((0, 0, 0, 255), (0, 0, 0, 0), "RGBA"), "PNG"), True),
    "white on nothing": (lambda: seven((255, 255, 255, 255), (0, 0, 0, 0), "RGBA"), False),
    "white on nothing white": (lambda: seven((255, 255), (255, 0), "LA"), False),
    "round corners": (lambda: _with_round_corners(seven("black", "white", "RGBA")), True),
    "twenty-fold": (lambda: seven().resize((6000, 4800)), True),
    "framed": (lambda: _framed(seven()), True),
}  # fmt: skip


def _transparent_palette(image: Image.Image) -> Image.Image:
    palette = image.convert("P")
    paper = palette.getpixel((0, 0))
    return _saved(palette, "PNG", transparency=paper)


def _with_round_corners(image: Image.Image) -> Image.Image:
    for x in range(10):
        for y in range(10 - x):
            image.putpixel((x, y), (0, 0, 0, 0))
    return image


def _framed(image: Image.Image) -> Image.Image:
    canvas = Image.new("RGB", (image.width + 6, image.height + 6), "#333")
    canvas.paste(image, (3, 3))
    return canvas


@pytest.mark.parametrize("name", VARIANTS)
def test_any_way_to_save_a_picture(name: str) -> None:
    make, inverted = VARIANTS[name]
    assert_seven(prepare(make(), FIELD), inverted, tolerance=24)


def test_a_sideways_picture_without_exif_is_another_drawing() -> None:
    side = prepare(seven().transpose(Image.Transpose.ROTATE_90), FIELD).pixels
    assert abs(side.astype(int) - SEVEN).max() > 200


@pytest.mark.parametrize("size", [0.15, 0.5, 3.0])
def test_size_does_not_matter(size: float) -> None:
    image = seven().resize((round(300 * size), round(240 * size)), Image.Resampling.LANCZOS)
    found = prepare(image, FIELD).pixels
    assert abs(found.astype(int) - SEVEN).mean() < 5


def test_noise_of_a_photograph_is_not_ink() -> None:
    noise = np.random.default_rng(0).normal(0, 5, (240, 300, 3))
    shade = np.linspace(0, -60, 300)[None, :, None]
    levels = np.asarray(seven("#303040", "#d8d4c8")) + shade + noise
    found = prepare(Image.fromarray(levels.clip(0, 255).astype(np.uint8)), FIELD)
    assert found.inverted
    assert abs(found.pixels.astype(int) - SEVEN).mean() < 2
    assert not found.pixels[SEVEN == 0].any()


@pytest.mark.parametrize(("invert", "inverted"), [("yes", True), ("no", False)])
def test_polarity_can_be_given(invert: Invert, inverted: bool) -> None:
    """In a picture that the digit fills, the ink cannot be detected."""
    image = Image.new("L", (40, 40), 255)
    image.paste(0, (8, 0, 40, 40))
    assert prepare(image, FIELD).inverted is False
    found = prepare(image, FIELD, invert)
    assert found.inverted is inverted
    sizes = [int(np.ptp(np.flatnonzero(found.pixels.any(axis)))) + 1 for axis in (1, 0)]
    assert sizes == ([20, 16] if inverted else [20, 4])


@pytest.mark.parametrize("paper", ["white", "black", "#777"])
@pytest.mark.parametrize("invert", ["auto", "yes", "no"])
def test_an_empty_picture(paper: str, invert: Invert) -> None:
    found = prepare(Image.new("RGB", (30, 20), paper), FIELD, invert)
    assert found.blank
    assert not found.pixels.any()
    assert prepare(Image.new("RGBA", (30, 20), (0, 0, 0, 0)), FIELD, invert).blank
    assert prepare(Image.new("L", (1, 1)), FIELD, invert).blank


def pasted(digits: list[int], places: list[tuple[int, int]], seed: int) -> Image.Image:
    """A picture of digits, dark on light, with their upper left corners in these places."""
    image = Image.new("L", (600, 600), "white")
    for number, (digit, place) in enumerate(zip(digits, places, strict=True)):
        pen = 6 + 5 * number
        image.paste(
            draw(
                digit, (180, 180), (40, 20, 140, 160), pen,
                mode="L", ink=0, paper=255, slant=0.1, tremble=0.01, seed=seed,
            ),
            place,
        )  # fmt: skip
    return image


PLACES: dict[str, list[tuple[int, int]]] = {
    "beside": [(10, 200), (210, 210)],
    "below": [(200, 10), (190, 210)],
    "across": [(20, 20), (300, 380)],
    "three": [(0, 200), (200, 180), (400, 220)],
    "four": [(0, 0), (300, 20), (30, 300), (310, 310)],
}


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_several_drawings_are_counted(places: list[tuple[int, int]]) -> None:
    for seed in range(10):
        digits = [(seed + 3 * number) % 10 for number in range(len(places))]
        image = pasted(digits, places, seed)
        assert find_drawing(image).count == prepare(image, FIELD).count == len(places)


@pytest.mark.slow
def test_a_digit_in_several_strokes_is_one_drawing(mnist_root: Path) -> None:
    """One in a thousand of MNIST's digits counts as two; a speck beside a digit does not count."""
    digits = read_idx_set("mnist", mnist_root).test.features[:, 0].numpy()
    counts = [find_drawing(Image.fromarray(digit)).count for digit in digits[:4000]]
    assert np.mean([count != 1 for count in counts]) <= 0.002
    image = seven()
    image.paste("black", (40, 60, 52, 72))
    assert find_drawing(image).count == 1
    for digit in range(10):
        for pen in (4, 14, 34):
            assert find_drawing(draw(digit, (300, 300), (60, 40, 200, 260), pen)).count == 1
