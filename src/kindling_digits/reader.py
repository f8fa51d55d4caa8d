"""The reader of drawings: a picture has one drawing, light or dark, which is scaled and centred as
MNIST's digits are; a photograph may have many."""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from kindling.data.pictures import WORKING_SIDE, eight_bits, reduced, upright
from kindling.inference.pictures import NONE, Invert, Named, Picture
from kindling_digits.drawings import find_drawing, scale_drawing

LEAST_FIELD = 8  # pixels per side; a digit cannot be recognised in fewer
# Of a model without a class `none`: a drawing of a photograph whose class is less probable is none.
LEAST_SURE = 0.6
READ, UNREAD = "#c2255c", "#e67700"  # of boxes with a class, and without


def read(path: Path, image: Image.Image, invert: Invert) -> Picture:
    drawing = find_drawing(image, invert)
    polarity = "dark on light" if drawing.inverted else "light on dark"
    return Picture(path, drawing, drawing.count, "nothing" if drawing.blank else polarity)


def picture_shape(shape: Sequence[int]) -> tuple[int, int] | None:
    sizes = shape[1:] if len(shape) == 3 else shape
    grey = math.prod(sizes) == math.prod(shape)  # one channel
    if len(sizes) != 2 or not grey or min(sizes) < LEAST_FIELD:
        return None
    return sizes[0], sizes[1]


def features(picture: Picture, shape: Sequence[int]) -> NDArray[np.uint8]:
    return scale_drawing(picture.drawing, (shape[-2], shape[-1])).pixels


def find_all(path: Path, image: Image.Image, invert: Invert) -> list[Picture]:
    from kindling_digits.finding import find_drawings  # SciPy

    found = find_drawings(image, invert, str(path))
    return [Picture(path, drawing, box=box) for drawing, box in found]


def is_none(labels: Sequence[str], probability: float, unlikeness: float) -> bool:
    return NONE not in labels and (unlikeness > 1 or probability < LEAST_SURE)


def draw_boxes(image: Image.Image, named: Sequence[Named]) -> bytes:
    """The upright picture is reduced to WORKING_SIDE. Above a box, its class has the probability in
    percent."""
    whole = upright(image)
    picture = reduced(eight_bits(whole).convert("RGB"), WORKING_SIDE)
    scale = picture.width / whole.width
    pen = max(1, max(picture.size) // 600)
    font = ImageFont.load_default(max(12.0, max(picture.size) / 70))
    pencil = ImageDraw.Draw(picture)
    for box, name, probability in named:
        x, y, width, height = (side * scale for side in box)
        told = name if probability is None else f"{name} ({probability:.0%})"
        colour = UNREAD if name == NONE else READ
        around = (x - pen, y - pen, x + width + pen - 1, y + height + pen - 1)
        pencil.rectangle(around, outline=colour, width=pen)
        pencil.text(
            (max(0.0, x - pen), max(0.0, y - 2 * pen)), told, colour, font, "lb" if y > 20 else "lt"
        )
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
