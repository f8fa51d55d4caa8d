"""Pictures of single drawings, prepared as MNIST's digits were: found, scaled and centred.

After LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition,
1998. Ink are the levels of a drawing, light on dark, without background, noise and frame. Imports
no torch, so that broken pictures are reported at once.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kindling.data.pictures import WORKING_SIDE, eight_bits, reduced, upright
from kindling.inference.pictures import Invert

Levels = NDArray[np.uint8]

FAINTEST = 16  # levels; a smaller difference from the background is not a drawing
SPECK = 5e-5  # share of the pixels that is ignored at both ends to find the darkest and lightest
NOISE = 4  # median deviations of the background that are not ink
EDGE = 64  # level of ink at which a drawing begins
BOX = 20 / 28  # share of the field that a digit's longer side takes
INK_SIDE = 128  # pixels per side at most before a drawing is scaled to about twenty
# Parts that do not touch count as separate drawings when their height and ink are at least these
# shares of the largest. One in a thousand of MNIST's digits has two: a five with a detached bar.
PART_HEIGHT, PART_INK = 0.5, 0.15


@dataclass(frozen=True)
class Drawing:
    """The drawing in a picture. At the picture's own scale it is cut to its box, (0, 0) where
    nothing is drawn; scaled to a model's field, (H, W), all pixels are 0 there."""

    pixels: Levels  # light on dark
    inverted: bool  # whether the picture is dark on light
    count: int  # of separate drawings

    @property
    def blank(self) -> bool:
        return self.count == 0


def prepare(image: Image.Image, shape: tuple[int, int], invert: Invert = "auto") -> Drawing:
    """The drawing in a picture of any size and mode, scaled to a field of `shape` (H, W). `invert`
    says whether the picture is dark on light. Raises OSError for a damaged file."""
    return scale_drawing(find_drawing(image, invert), shape)


def find_drawing(image: Image.Image, invert: Invert = "auto") -> Drawing:
    """The drawing in a picture, before it is scaled to a field. Of luminance, red, green and blue
    the channel with the highest contrast is used."""
    looks = [(levels, _look(levels, invert)) for levels in channels(image)]
    levels, look = max(looks, key=lambda pair: pair[1].contrast)
    seen = look.contrast >= FAINTEST
    return cut_drawing(_unframed(look.ink(levels)) if seen else levels[:0, :0], look.light)


def cut_drawing(ink: Levels, inverted: bool) -> Drawing:
    """The drawing in ink (h, w), cut to its box; `inverted` says that it was dark on light."""
    rows, columns = (np.flatnonzero((ink >= EDGE).any(axis)) for axis in (1, 0))
    if rows.size == 0:
        return Drawing(np.zeros((0, 0), np.uint8), inverted, 0)
    cut = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    small = np.asarray(reduced(Image.fromarray(cut), INK_SIDE))
    return Drawing(small, inverted, _count(small))


def _count(ink: Levels) -> int:
    """The number of drawings in ink (h, w): parts of similar size in boxes that do not overlap."""
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


def scale_drawing(drawing: Drawing, shape: tuple[int, int]) -> Drawing:
    """The drawing scaled to 20/28 of a field of `shape` (H, W), proportions kept; its centre of
    mass lies on pixel (H // 2, W // 2), or as near as the field allows."""
    pixels = np.zeros(shape, np.uint8)
    if not drawing.count:
        return replace(drawing, pixels=pixels)
    scale = min(BOX * field / side for field, side in zip(shape, drawing.pixels.shape, strict=True))
    height, width = (max(1, round(side * scale)) for side in drawing.pixels.shape)
    small = Image.fromarray(drawing.pixels).resize((width, height), Image.Resampling.BILINEAR)
    ink = np.asarray(small, np.float64)
    ink = ink * (255 / ink.max())  # scaling has made thin strokes faint
    top, left = (_corner(ink.sum(1 - axis), field) for axis, field in enumerate(shape))
    pixels[top : top + height, left : left + width] = np.rint(ink)
    return replace(drawing, pixels=pixels)


def _corner(mass: NDArray[np.float64], field: int) -> int:
    """The first pixel of the drawing along one axis."""
    centre = float(mass @ np.arange(len(mass)) / mass.sum())
    return min(max(0, round(field // 2 - centre)), field - len(mass))


def channels(image: Image.Image) -> list[Levels]:
    """Luminance, and of a colour picture also red, green and blue, each (h, w), upright, opaque."""
    image = eight_bits(upright(image))
    if image.has_transparency_data:
        image = _opaque(reduced(image.convert("RGBA"), WORKING_SIDE))
    grey = image.mode in ("1", "L", "F")
    image = reduced(image.convert("L" if grey else "RGB"), WORKING_SIDE)
    luminance = np.asarray(image.convert("L"))
    return [luminance] if grey else [luminance, *np.moveaxis(np.asarray(image), 2, 0)]


def _opaque(image: Image.Image) -> Image.Image:
    """An RGBA picture on a background that contrasts with its opaque parts. Where the margin is
    opaque, only holes and corners are transparent: then the background is like the opaque parts."""
    alpha = np.asarray(image)[..., 3]
    levels = np.asarray(image.convert("RGB").convert("L"))
    light = bool(alpha.any()) and np.average(levels, weights=alpha) > 127
    alike = np.median(_margin(alpha)) > 127
    ground = Image.new("RGBA", image.size, "white" if light == alike else "black")
    return Image.alpha_composite(ground, image).convert("RGB")


def _margin(levels: Levels) -> Levels:
    """The levels of the outermost twenty-fifth on each side, (pixels,)."""
    width = max(1, min(levels.shape) // 25)
    outer = np.ones(levels.shape, bool)
    outer[width:-width, width:-width] = False
    return levels[outer]


def _unframed(ink: Levels) -> Levels:
    """The ink without a frame around the picture, as screenshots of a canvas have."""
    while ink.size and min(edge.min() for edge in (ink[0], ink[-1], ink[:, 0], ink[:, -1])) >= EDGE:
        ink = ink[1:-1, 1:-1]
    return ink


@dataclass(frozen=True)
class _Look:
    """The background and the ink of one channel."""

    light: bool  # whether the background is light
    background: int  # level
    peak: int  # level of the strongest ink
    deviation: int  # median deviation of the background, in levels

    @property
    def contrast(self) -> int:
        return self.background - self.peak if self.light else self.peak - self.background

    def ink(self, levels: Levels) -> Levels:
        """The levels scaled from 0, background and noise, to 255, the strongest ink."""
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
    """The level up to which a share of the pixels lies; `counts` are the pixels of each level."""
    cumulated = counts.cumsum()
    return min(int(np.searchsorted(cumulated, share * cumulated[-1], side="right")), 255)
