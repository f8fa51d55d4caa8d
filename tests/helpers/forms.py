"""Scanned forms: handwritten digits on printed paper, with shadow and noise, turned by an angle."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Paper = Literal["plain", "ruled", "squared", "boxes", "grid"]
CELL = 96  # pixels


@dataclass(frozen=True)
class Form:
    image: Image.Image
    boxes: list[tuple[int, int, int, int]]  # x, y, width, height of each shape, in reading order


def form(
    shapes: Sequence[NDArray[np.uint8]],
    columns: int = 10,
    *,
    paper: Paper = "ruled",
    angle: float = 0,
    sizes: tuple[int, int] = (42, 66),
    shadow: float = 0.5,
    noise: float = 6,
    ink: tuple[int, int, int] = (40, 50, 110),
    ground: tuple[int, int, int] = (235, 230, 215),
    seed: int = 0,
) -> Form:
    """Shapes (28, 28), light on dark, in rows of `columns` cells. A shape's box of 20 pixels is
    scaled to one of `sizes`, in pixels. `shadow` is the share of light that the darkest corner
    loses, `noise` the standard deviation of each pixel, in levels."""
    hand = np.random.default_rng(seed)
    rows = -(-len(shapes) // columns)
    size = (CELL * (columns + 1), CELL * (rows + 1))
    lines, page = Image.new("L", size), np.zeros(size[::-1], np.uint8)
    _print(lines, paper, rows, columns)
    places = []
    for number, shape in enumerate(shapes):
        side = int(hand.integers(*sizes) * 1.4)
        row, column = divmod(number, columns)
        corner = [
            int(CELL / 2 + CELL * place + (CELL - side) / 2 + hand.integers(-6, 7))
            for place in (column, row)
        ]
        drawn = Image.fromarray(shape).resize((side, side), Image.Resampling.BICUBIC)
        page[corner[1] : corner[1] + side, corner[0] : corner[0] + side] = np.asarray(drawn)
        places.append(np.argwhere(np.asarray(drawn) >= 128)[:, ::-1] + corner)
    turned = [
        np.asarray(layer.rotate(angle, Image.Resampling.BICUBIC, expand=True), np.float64) / 255
        for layer in (lines, Image.fromarray(page))
    ]
    height, width = turned[0].shape
    levels = np.broadcast_to(np.array(ground, np.float64), (height, width, 3))
    for cover, colour in zip(turned, ((120, 140, 160), ink), strict=True):
        levels = levels + cover[..., None] * (np.array(colour) - levels)
    boxes = [_turned_box(pixels, angle, size, (width, height)) for pixels in places]
    light = 1 - shadow * np.add.outer(np.linspace(0, 1, height), np.linspace(0, 1, width)) / 2
    levels = levels * light[..., None] + hand.normal(0, noise, levels.shape)
    return Form(Image.fromarray(levels.clip(0, 255).astype(np.uint8)), boxes)


def _turned_box(
    pixels: NDArray[np.int64], angle: float, size: tuple[int, int], turned: tuple[int, int]
) -> tuple[int, int, int, int]:
    """The box of pixels (N, 2), x and y, after Pillow has turned their picture."""
    cosine, sine = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    points = (pixels - np.array(size) / 2) @ [[cosine, -sine], [sine, cosine]] + np.array(
        turned
    ) / 2
    (left, top), (right, bottom) = np.rint(points.min(0)), np.rint(points.max(0))
    return int(left), int(top), int(right - left) + 1, int(bottom - top) + 1


def _print(lines: Image.Image, paper: Paper, rows: int, columns: int) -> None:
    pencil = ImageDraw.Draw(lines)
    left, right, bottom = CELL // 2, CELL // 2 + CELL * columns, CELL // 2 + CELL * rows
    if paper == "ruled":
        for row in range(rows + 1):
            pencil.line((0, left + CELL * row - 12, lines.width, left + CELL * row - 12), 255, 2)
    elif paper == "squared":
        for place in range(0, max(lines.size), CELL // 2):
            pencil.line((0, place, lines.width, place), 160, 2)
            pencil.line((place, 0, place, lines.height), 160, 2)
    elif paper == "grid":
        for row in range(rows + 1):
            pencil.line((left, left + CELL * row, right, left + CELL * row), 255, 3)
        for column in range(columns + 1):
            pencil.line((left + CELL * column, left, left + CELL * column, bottom), 255, 3)
    elif paper == "boxes":
        for row in range(rows):
            for column in range(columns):
                x, y = left + CELL * column, left + CELL * row
                pencil.rectangle((x + 4, y + 4, x + CELL - 5, y + CELL - 5), outline=255, width=3)


def overlap(box: Sequence[int], other: Sequence[int]) -> float:
    """Intersection over union of two boxes (x, y, width, height)."""
    shared = 1.0
    for axis in (0, 1):
        start = max(box[axis], other[axis])
        end = min(box[axis] + box[axis + 2], other[axis] + other[axis + 2])
        shared *= max(0, end - start)
    return shared / (box[2] * box[3] + other[2] * other[3] - shared)
