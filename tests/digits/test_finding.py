"""Drawings are found in photographs: places, reading order, paper, light, and what is left out."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from kindling.config.compose import compose
from kindling.data.pictures import decode
from kindling.data.sources.published import read_idx_set
from kindling.inference.inputs import read_request
from kindling.inference.prediction import predict_inputs
from kindling.records.folder import Run
from kindling.records.loading import open_trained
from kindling.system.errors import InputError
from kindling.training.fit import fit
from kindling_digits import finding
from kindling_digits.drawings import prepare, scale_drawing
from kindling_digits.finding import find_drawings
from tests.helpers.drawings import FIELD, draw, seven
from tests.helpers.forms import Form, Paper, form, overlap

SHAPES = [
    prepare(draw(digit, (300, 300), (60, 40, 200, 260), 22), FIELD).pixels for digit in range(10)
]


def assert_found(page: Form, least: float = 0.7) -> None:
    """The same number of drawings, each at its place, in reading order."""
    found = find_drawings(page.image)
    assert len(found) == len(page.boxes)
    shares = [overlap(place, box) for (_, place), box in zip(found, page.boxes, strict=True)]
    assert min(shares) >= least
    assert np.mean(shares) >= 0.9


@pytest.mark.parametrize("paper", ["plain", "ruled", "squared", "boxes", "grid"])
@pytest.mark.parametrize("angle", [-30, 11])
def test_each_digit_of_a_form_is_found_in_reading_order(paper: Paper, angle: int) -> None:
    assert_found(form(SHAPES, 5, paper=paper, angle=angle, seed=angle + 30))


CONDITIONS: dict[str, dict[str, Any]] = {
    "chalk": {"paper": "plain", "ink": (235, 240, 240), "ground": (30, 60, 45), "angle": -8},
    "pencil": {"paper": "squared", "ink": (120, 120, 125), "noise": 4, "angle": 8},
    "red": {"ink": (200, 40, 40)},
    "deep shadow": {"paper": "boxes", "shadow": 0.85},
    "grain": {"noise": 18},
    "small": {"sizes": (20, 28)},
    "large and small": {"sizes": (26, 66)},
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_ink_light_and_size_do_not_matter(name: str) -> None:
    assert_found(form(SHAPES, 5, **CONDITIONS[name]), 0.6)


def test_a_page_on_a_dark_desk() -> None:
    page = form(SHAPES, 5, angle=12)
    desk = Image.new("RGB", (page.image.width + 400, page.image.height + 400), (60, 40, 25))
    desk.paste(page.image, (200, 200))
    assert_found(Form(desk, [(x + 200, y + 200, w, h) for x, y, w, h in page.boxes]))


@pytest.mark.parametrize("light", [35, 70, 110])
@pytest.mark.parametrize("angle", [-18, 0, 7])
def test_a_sheet_on_a_striped_desk(light: int, angle: int) -> None:
    """The desk has the colour of wood, dark to fairly light; the sheet takes a fifth of the
    picture, or more, and its edge is neither a drawing nor takes drawings away."""
    hand = np.random.default_rng(light + angle)
    page = form(SHAPES, 5, paper="plain", seed=light, shadow=0.3).image
    sheet, mask = (
        picture.rotate(angle, Image.Resampling.BICUBIC, expand=True)
        for picture in (page, Image.new("L", page.size, 255))
    )
    margin = int(hand.uniform(100, 300))
    height, width = sheet.height + 2 * margin, sheet.width + 2 * margin
    stripes = 1 + 0.15 * np.sin(np.arange(width) / hand.uniform(15, 60))
    wood = light * stripes + hand.normal(0, 4, (height, width))
    desk = Image.fromarray((wood[..., None] * (1, 0.8, 0.6)).clip(0, 255).astype(np.uint8))
    desk.paste(sheet, (margin, margin), mask)
    assert len(find_drawings(desk)) == len(SHAPES)


@pytest.mark.parametrize("seed", range(10))
def test_digits_that_dance_about_their_line_are_read_in_order(seed: int) -> None:
    """Each digit is up to a quarter of its height higher or lower than its line."""
    hand = np.random.default_rng(seed)
    page, lefts = np.zeros((400, 1000), np.uint8), []
    for row in range(3):
        for column in range(8):
            digit = SHAPES[hand.integers(10)].repeat(2, 0).repeat(2, 1)  # 40 pixels high
            x, y = (
                np.array([40 + 120 * column, 40 + 110 * row]) + hand.integers(-10, 11, 2)
            ).tolist()
            y += 3 * column * (seed % 2)
            page[y : y + 56, x : x + 56] |= digit
            lefts.append(x)
    found = [box for _, box in find_drawings(Image.fromarray(255 - page))]
    assert len(found) == len(lefts)
    assert np.abs(np.array(found)[:, 0] - lefts).max() <= 30  # the next digit is 104 pixels away


def test_a_large_photograph_has_boxes_in_its_own_pixels() -> None:
    small = form(SHAPES, 5, paper="boxes", angle=5)
    scale = 2400 / small.image.width
    large = small.image.resize((2400, round(small.image.height * scale)))
    boxes = np.rint(np.array(small.boxes) * scale).astype(int).tolist()
    assert_found(Form(large, boxes))


def test_boxes_are_those_of_the_upright_picture() -> None:
    page = form(SHAPES, 5, noise=2)
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6
    page.image.transpose(Image.Transpose.ROTATE_90).save(file, "JPEG", exif=exif, quality=95)
    assert_found(Form(decode(file.getvalue(), "side.jpg"), page.boxes))


def test_a_found_digit_is_prepared_like_a_single_one() -> None:
    """The same shape within a page and alone: nearly the same 28 × 28 pixels."""
    page = form(SHAPES, 5, paper="plain", noise=0, shadow=0, sizes=(60, 61))
    for (drawing, _), shape in zip(find_drawings(page.image), SHAPES, strict=True):
        assert not drawing.blank
        assert drawing.inverted
        pixels = scale_drawing(drawing, FIELD).pixels
        assert pixels.max() == 255
        assert abs(pixels.astype(int) - shape).mean() < 12  # of 255; two digits differ by 40


def test_one_drawing_fills_its_picture() -> None:
    ((_, box),) = find_drawings(seven())
    assert overlap(box, (159, 30, 89, 189)) > 0.9


def test_parts_of_a_five_are_one_digit_and_specks_are_none() -> None:
    image = Image.new("L", (300, 200), 240)
    pencil = ImageDraw.Draw(image)
    pencil.line([(60, 60), (60, 95), (90, 100), (90, 140), (55, 142)], 20, 8)
    pencil.line([(68, 52), (98, 50)], 20, 8)  # the bar does not touch
    pencil.line([(200, 50), (200, 140)], 20, 8)
    for x, y in ((130, 30), (150, 160), (250, 90)):
        pencil.ellipse((x, y, x + 4, y + 4), 20)
    five, one = (box for _, box in find_drawings(image))
    assert overlap(five, (55, 46, 46, 100)) > 0.8
    assert overlap(one, (196, 50, 9, 91)) > 0.7


def test_polarity_can_be_given() -> None:
    page = form(SHAPES[:1], 1, paper="plain", noise=0).image
    assert find_drawings(page, "yes")[0][0].inverted
    assert not any(drawing.inverted for drawing, _ in find_drawings(page, "no"))


NOTHING: dict[str, Image.Image] = {
    "white": Image.new("RGB", (300, 200), "white"),
    "black": Image.new("L", (300, 200)),
    "one pixel": Image.new("L", (1, 1)),
    "one row": Image.new("L", (3000, 1), 200),
    "transparent": Image.new("RGBA", (30, 20), (0, 0, 0, 0)),
    "shadow": Image.fromarray(
        np.add.outer(np.linspace(40, 200, 300), np.zeros(200)).astype(np.uint8)
    ),
    "noise": Image.fromarray(
        np.random.default_rng(0).normal(128, 20, (300, 200)).clip(0, 255).astype(np.uint8)
    ),
    "ruled": form([]).image,
}


@pytest.mark.parametrize("name", NOTHING)
def test_pictures_of_nothing_have_no_drawings(name: str) -> None:
    assert find_drawings(NOTHING[name]) == []


SAVED: dict[str, tuple[str, str, dict[str, Any]]] = {  # mode, format, options
    "palette": ("P", "PNG", {}),
    "transparent palette": ("P", "PNG", {"transparency": 0}),
    "grey and alpha": ("LA", "PNG", {}),
    "16 bits": ("I;16", "PNG", {}),
    "CMYK": ("CMYK", "JPEG", {"quality": 95}),
    "animated": ("RGB", "PNG", {"save_all": True, "append_images": [Image.new("RGB", (9, 9))]}),
}


@pytest.mark.parametrize("name", SAVED)
def test_the_kind_of_file_does_not_matter(name: str) -> None:
    """Of an animation, the first picture is read."""
    page, file = form(SHAPES, 5, noise=2), io.BytesIO()
    mode, kind, options = SAVED[name]
    if mode == "I;16":
        saved = Image.fromarray(np.asarray(page.image.convert("L")).astype(np.uint16) * 257)
    else:
        saved = page.image.convert(mode)
    saved.save(file, kind, **options)
    assert_found(Form(decode(file.getvalue(), name), page.boxes))


def test_photographs_that_cannot_be_read_are_refused_in_one_line(
    finished: Run, tmp_path: Path
) -> None:
    levels = np.random.default_rng(0).normal(150, 40, (1500, 2000)).clip(0, 255).astype(np.uint8)
    thin = np.full((3, 20000), 255, np.uint8)
    thin[1, ::50] = 0
    file = io.BytesIO()
    seven().save(file, "PNG")
    animated = io.BytesIO()
    seven().save(animated, "GIF")
    hostile: dict[str, tuple[Image.Image | bytes, str]] = {
        "thin.png": (Image.fromarray(thin), "no drawing was found"),
        "tall.png": (Image.fromarray(thin.T), "no drawing was found"),
        "noise.png": (Image.fromarray(levels), "no drawing was found"),
        "cut.png": (file.getvalue()[: len(file.getvalue()) // 2], "is damaged"),
        "text.jpg": (b"a text", "is not a PNG or JPEG file"),
        "animated.jpg": (animated.getvalue(), "is not a PNG or JPEG file"),
        "empty.png": (b"", "is not a PNG or JPEG file"),
    }
    for name, (content, reason) in hostile.items():
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content.save(path, compress_level=1)
        with pytest.raises(InputError) as caught:
            read_request(
                finished.folder, [path], "auto", None, force=False, boxes=tmp_path / "out.png"
            )
        assert str(caught.value).startswith(f"{path}: {reason}")
        assert "\n" not in str(caught.value)


def test_too_many_drawings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MOST_SHAPES", 9)
    with pytest.raises(InputError, match="page: has 10 drawings, at most 9 are read; cut the pict"):
        find_drawings(form(SHAPES, 5).image, name="page")


# --- read by a model ----------------------------------------------------------------------------


def right(run: Run, page: Form, classes: Sequence[int], path: Path) -> int:
    """How many digits of a page have a box at their place and the class of the page."""
    page.image.save(path)
    request = read_request(
        run.folder, [path], "auto", None, force=True, boxes=path.with_suffix(".boxes.png")
    )
    found = predict_inputs(open_trained(run.folder), request.inputs)
    count = 0
    for box, true in zip(page.boxes, classes, strict=True):
        best = max(found, key=lambda item: overlap(item.box or (0, 0, 1, 1), box))
        at_place = best.box is not None and overlap(best.box, box) >= 0.5
        count += at_place and best.guess is not None and best.guess.best == true
    return count


@pytest.fixture(scope="module")
def augmented(mnist_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The augmented recipe, made small: half a minute instead of half an hour."""
    config = compose(
        "experiment=mlp_augmented", "model.hidden_sizes=[256]", "trainer.max_epochs=12",
        f"data.root={mnist_root}", "trainer=cpu",
    )  # fmt: skip
    return fit(config, tmp_path_factory.mktemp("augmented") / "run")


@pytest.mark.slow
def test_a_scanned_form_is_read(augmented: Run, mnist_root: Path, tmp_path: Path) -> None:
    test = read_idx_set("mnist", mnist_root).test
    shapes, classes = test.features[:100, 0].numpy(), test.labels[:100].tolist()
    forms: list[tuple[Paper, int]] = [
        ("ruled", -30), ("boxes", 30), ("squared", -12), ("grid", 15), ("plain", 0)
    ]  # fmt: skip
    counts = [
        right(
            augmented,
            form(list(shapes), paper=paper, angle=angle, seed=angle + 99),
            classes,
            tmp_path / "form.png",
        )
        for paper, angle in forms
    ]
    assert min(counts) >= 95, counts


@pytest.mark.slow
def test_letters_between_digits_are_said_to_be_none(mnist_root: Path, tmp_path: Path) -> None:
    """Letters in fonts that the training had not: four fifths of them are none, and hardly a digit.
    The recipe is made small, a quarter of a minute instead of five."""
    config = compose(
        "experiment=digits_or_none", "model.hidden_sizes=[256]", "trainer.max_epochs=6",
        f"data.root={mnist_root}", "trainer=cpu",
    )  # fmt: skip
    run = fit(config, tmp_path / "run")
    test = read_idx_set("mnist", mnist_root).test
    digits = list(test.features[100:150, 0].numpy())
    classes = test.labels[100:150].tolist()
    letters = [
        letter(name, text)
        for name in ("cmr10", "cmss10", "cmtt10")
        for text in "AEFHKMNRWXaehkmnpw"
    ][:50]
    shapes = [each for pair in zip(digits, letters, strict=True) for each in pair]
    none = 10
    expected = [each for number in classes for each in (number, none)]
    page = form(shapes, paper="ruled", angle=-20, seed=3)
    in_pairs = [
        right(run, Form(page.image, page.boxes[first::2]), expected[first::2], tmp_path / "f.png")
        for first in (0, 1)
    ]
    assert in_pairs[0] >= 46
    assert in_pairs[1] >= 40


def letter(font: str, text: str) -> NDArray[np.uint8]:
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    image = Image.new("L", (300, 300))
    ImageDraw.Draw(image).text((150, 150), text, 255, ImageFont.truetype(path, 150), anchor="mm")
    return prepare(image, FIELD).pixels
