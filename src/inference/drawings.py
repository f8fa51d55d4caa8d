"""Pictures of single drawings, made into what a model was trained on: found, scaled and centred the
way MNIST's digits were.

No torch here: a broken picture is told at once. LeCun, Bottou, Bengio, Haffner: Gradient-based
learning applied to document recognition, 1998.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from src.data.pictures import WORKING_SIDE, eight_bits, reduced, upright

Invert = Literal["auto", "yes", "no"]
Levels = NDArray[np.uint8]

LEAST_FIELD = 8  # pixels; no digit can be told in fewer

BOX = 20 / 28  # of the field, for a digit's longer side
INK_SIDE = 128  # pixels: a drawing is halved, thirded, … to at most this, and ends in some twenty
FAINTEST = 16  # levels; what differs less from its background is no drawing
SPECK = 5e-5  # of the pixels, which do not count as the darkest or lightest
NOISE = 4  # median deviations of the background, which are no ink
EDGE = 64  # level of ink at which a drawing begins
# Of the parts of a picture that do not touch, those are drawings of their own whose height and ink
# are at least these shares of the greatest. One of a thousand of MNIST's digits has two: a five
# whose bar hangs far from the rest.
PART_HEIGHT, PART_INK = 0.5, 0.15


@dataclass(frozen=True)
class Drawing:
    """What a picture shows: ink (h, w), light on dark, cut to its box; (0, 0) of nothing.

    `inverted`: the picture is dark on light. `count`: how many drawings stand apart in it.
    """

    ink: Levels
    inverted: bool
    count: int


@dataclass(frozen=True)
class Prepared:
    """A drawing as a model takes it: pixels (H, W), light on dark; all 0 where nothing is drawn.

    `inverted`: the picture was dark on light. `count`: how many drawings stand apart in it.
    """

    pixels: Levels
    inverted: bool
    count: int

    @property
    def blank(self) -> bool:
        return self.count == 0


def prepare(image: Image.Image, shape: tuple[int, int], invert: Invert = "auto") -> Prepared:
    """The drawing that a picture shows, in a field of `shape` (H, W).

    Of any size and mode, upright by its EXIF orientation. `invert`: whether it is dark on light,
    `auto` looks. Raises OSError when the file of the picture is damaged; `decode` says it better.
    """
    return fit(find(image, invert), shape)


def find(image: Image.Image, invert: Invert = "auto") -> Drawing:
    """The drawing that a picture shows, as far as that does not depend on the field.

    Looked for in luminance, red, green and blue, and taken from where it stands out most.
    """
    channels = _channels(image)
    looks = [_look(levels, invert) for levels in channels]
    levels, look = max(zip(channels, looks, strict=True), key=lambda pair: pair[1].contrast)
    if look.contrast < FAINTEST:
        return Drawing(np.zeros((0, 0), np.uint8), look.light, 0)
    ink = _unframed(look.ink(levels))
    rows, columns = (np.flatnonzero((ink >= EDGE).any(axis)) for axis in (1, 0))
    if rows.size == 0:
        return Drawing(np.zeros((0, 0), np.uint8), look.light, 0)
    cut = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    small = np.asarray(reduced(Image.fromarray(cut), INK_SIDE))
    return Drawing(small, look.light, _count(small))


def _count(ink: Levels) -> int:
    """How many drawings stand apart in ink (h, w): parts that do not touch, whose boxes do not
    overlap, and that are about as large."""
    from scipy import ndimage

    numbered, parts = ndimage.label(ink >= EDGE, np.ones((3, 3)))
    if parts < 2:
        return int(ink.any())
    boxes: list[tuple[slice, slice]] = ndimage.find_objects(numbered)
    heights = np.array([rows.stop - rows.start for rows, _ in boxes])
    masses = ndimage.sum_labels(ink, numbered, range(1, parts + 1))
    large = (heights >= PART_HEIGHT * heights.max()) & (masses >= PART_INK * masses.max())
    apart: list[tuple[slice, slice]] = []
    for number in np.flatnonzero(large):
        if not any(_overlap(boxes[number], other) for other in apart):
            apart.append(boxes[number])
    return len(apart)


def _overlap(box: tuple[slice, slice], other: tuple[slice, slice]) -> bool:
    return all(a.start < b.stop and b.start < a.stop for a, b in zip(box, other, strict=True))


def fit(drawing: Drawing, shape: tuple[int, int]) -> Prepared:
    """A drawing in a field of `shape` (H, W): scaled with its proportions to fit 20/28 of it, the
    centre of mass on pixel (H // 2, W // 2), as far as the drawing stays within the field."""
    pixels = np.zeros(shape, np.uint8)
    if not drawing.count:
        return Prepared(pixels, drawing.inverted, 0)
    scale = min(BOX * field / side for field, side in zip(shape, drawing.ink.shape, strict=True))
    height, width = (max(1, round(side * scale)) for side in drawing.ink.shape)
    small = Image.fromarray(drawing.ink).resize((width, height), Image.Resampling.BILINEAR)
    ink = np.asarray(small, np.float64)
    ink = ink * (255 / ink.max())  # a thin stroke is faint now
    top, left = (_corner(ink.sum(1 - axis), field) for axis, field in enumerate(shape))
    pixels[top : top + height, left : left + width] = np.rint(ink)
    return Prepared(pixels, drawing.inverted, drawing.count)


def _corner(mass: NDArray[np.float64], field: int) -> int:
    """Where to begin along one axis."""
    centre = float(mass @ np.arange(len(mass)) / mass.sum())
    return min(max(0, round(field // 2 - centre)), field - len(mass))


# --- levels ----------------------------------------------------------------------------------


def _channels(image: Image.Image) -> list[Levels]:
    """Luminance, and of a colour picture red, green and blue, each (h, w), upright and opaque."""
    image = eight_bits(upright(image))
    if image.has_transparency_data:
        image = _opaque(reduced(image.convert("RGBA"), WORKING_SIDE))
    grey = image.mode in ("1", "L", "F")
    image = reduced(image.convert("L" if grey else "RGB"), WORKING_SIDE)
    luminance = np.asarray(image.convert("L"))
    return [luminance] if grey else [luminance, *np.moveaxis(np.asarray(image), 2, 0)]


def _opaque(image: Image.Image) -> Image.Image:
    """An RGBA picture on a ground from which what is opaque stands out; where its margin is
    opaque, and so holes and corners alone are not, on one that looks like the rest."""
    alpha = np.asarray(image)[..., 3]
    levels = np.asarray(image.convert("RGB").convert("L"))
    light = bool(alpha.any()) and np.average(levels, weights=alpha) > 127
    alike = np.median(_margin(alpha)) > 127
    ground = Image.new("RGBA", image.size, "white" if light == alike else "black")
    return Image.alpha_composite(ground, image).convert("RGB")


def _margin(levels: Levels) -> Levels:
    """The outermost twenty-fifth on each side, in one row."""
    width = max(1, min(levels.shape) // 25)
    outer = np.ones(levels.shape, bool)
    outer[width:-width, width:-width] = False
    return levels[outer]


def _unframed(ink: Levels) -> Levels:
    """Without the lines that run all around the picture, as around a canvas in a screenshot."""
    while ink.size and min(edge.min() for edge in (ink[0], ink[-1], ink[:, 0], ink[:, -1])) >= EDGE:
        ink = ink[1:-1, 1:-1]
    return ink


@dataclass(frozen=True)
class _Look:
    """What one channel shows: whether its background is light, the levels of background and ink,
    and the median deviation of the background."""

    light: bool
    background: int
    peak: int
    deviation: int

    @property
    def contrast(self) -> int:
        return self.background - self.peak if self.light else self.peak - self.background

    def ink(self, levels: Levels) -> Levels:
        """Its pixels from 0, the background and its noise, to 255, the strongest ink."""
        floor = min(NOISE * self.deviation, self.contrast / 2)
        away = (self.background - np.arange(256)) * (1 if self.light else -1)
        scaled = (away - floor) * (255 / (self.contrast - floor))
        ink: Levels = np.rint(scaled.clip(0, 255)).astype(np.uint8)[levels]
        return ink


def _look(levels: Levels, invert: Invert) -> _Look:
    counts = np.bincount(levels.ravel(), minlength=256)
    darkest, lightest = _quantile(counts, SPECK), _quantile(counts, 1 - SPECK)
    middle = (darkest + lightest) / 2
    light = bool(np.median(_margin(levels)) > middle) if invert == "auto" else invert == "yes"
    if darkest == lightest:
        return _Look(light if invert != "auto" else darkest > 127, darkest, darkest, 0)
    ground = np.where((np.arange(256) > middle) == light, counts, 0)
    background = _quantile(ground, 0.5)
    deviations = np.bincount(abs(np.arange(256) - background), ground, minlength=256)
    return _Look(light, background, darkest if light else lightest, _quantile(deviations, 0.5))


def _quantile(counts: NDArray[Any], share: float) -> int:
    """The level up to which a share of the pixels lies, of how many have each level."""
    cumulated = counts.cumsum()
    return min(int(np.searchsorted(cumulated, share * cumulated[-1], side="right")), 255)
