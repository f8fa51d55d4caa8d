"""Pictures of single drawings, prepared as MNIST's digits were: found, scaled and centred.

After LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition,
1998. Imports no torch, so that broken pictures are reported at once.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from src.data.pictures import reduced
from src.inference.ink import EDGE, Invert, Levels, extract_ink

Box = tuple[int, int, int, int]  # x, y, width, height in pixels

LEAST_FIELD = 8  # pixels per side; a digit cannot be recognised in fewer

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
    """The drawing in a picture, before it is scaled to a field."""
    return cut_drawing(*extract_ink(image, invert))


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
