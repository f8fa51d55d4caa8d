"""Digits as people draw them in a paint program: strokes of a round pen through a few points."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from kindling_digits.drawings import prepare

Point = tuple[float, float]
Ink = str | int | tuple[int, ...]

# The strokes of each digit in a box of 1 × 1, x to the right and y down, in the order of a hand.
STROKES: dict[int, list[list[Point]]] = {
    0: [[(0.55, 0.02), (0.2, 0.2), (0.1, 0.6), (0.35, 0.97), (0.75, 0.85), (0.88, 0.4),
         (0.5, 0.03)]],
    1: [[(0.35, 0.22), (0.55, 0.02)], [(0.55, 0.02), (0.52, 0.5), (0.5, 1.0)]],
    2: [[(0.12, 0.28), (0.3, 0.05), (0.65, 0.05), (0.78, 0.3), (0.5, 0.65), (0.1, 0.97)],
        [(0.1, 0.97), (0.5, 0.94), (0.92, 0.96)]],
    3: [[(0.15, 0.1), (0.5, 0.02), (0.78, 0.2), (0.65, 0.42), (0.38, 0.48)],
        [(0.38, 0.48), (0.72, 0.55), (0.85, 0.78), (0.55, 0.98), (0.12, 0.9)]],
    4: [[(0.3, 0.03), (0.2, 0.3), (0.1, 0.58)], [(0.1, 0.58), (0.5, 0.56), (0.92, 0.54)],
        [(0.72, 0.05), (0.68, 0.5), (0.64, 1.0)]],
    5: [[(0.8, 0.04), (0.5, 0.04), (0.25, 0.06)], [(0.25, 0.06), (0.22, 0.25), (0.18, 0.46)],
        [(0.18, 0.46), (0.5, 0.38), (0.82, 0.55), (0.78, 0.85), (0.45, 0.98), (0.1, 0.9)]],
    6: [[(0.68, 0.02), (0.35, 0.25), (0.15, 0.62), (0.3, 0.94), (0.65, 0.95), (0.82, 0.72),
         (0.6, 0.5), (0.32, 0.58), (0.17, 0.75)]],
    7: [[(0.08, 0.08), (0.5, 0.06), (0.88, 0.05)], [(0.88, 0.05), (0.6, 0.5), (0.4, 1.0)]],
    8: [[(0.75, 0.15), (0.5, 0.02), (0.22, 0.18), (0.45, 0.45), (0.75, 0.7), (0.55, 0.97),
         (0.22, 0.85), (0.3, 0.6), (0.65, 0.35), (0.75, 0.15)]],
    9: [[(0.75, 0.25), (0.45, 0.03), (0.18, 0.25), (0.4, 0.5), (0.72, 0.38), (0.77, 0.2)],
        [(0.77, 0.2), (0.74, 0.6), (0.62, 1.0)]],
}  # fmt: skip


def draw(
    digit: int,
    size: tuple[int, int],
    box: tuple[float, float, float, float],
    pen: float,
    *,
    ink: Ink = "black",
    paper: Ink = "white",
    mode: str = "RGB",
    slant: float = 0.0,
    tremble: float = 0.0,
    seed: int = 0,
) -> Image.Image:
    """A digit in the box (left, top, right, bottom), in pixels, of a canvas of `size`.

    `slant` leans its top to the right by that part of its height; the points are off by some
    `tremble` of the box, drawn with `seed`.
    """
    image = Image.new(mode, size, paper)
    pencil = ImageDraw.Draw(image)
    left, top, right, bottom = box
    hand = np.random.default_rng(seed)
    for stroke in STROKES[digit]:
        points = np.array(stroke) + hand.normal(0, tremble, (len(stroke), 2))
        points[:, 0] += slant * (1 - points[:, 1])
        points = points * (right - left, bottom - top) + (left, top)
        curve = smooth(points)
        for (x, y), (next_x, next_y) in pairwise(curve):
            pencil.line((x, y, next_x, next_y), ink, round(pen))
        for x, y in curve:
            pencil.ellipse((x - pen / 2, y - pen / 2, x + pen / 2, y + pen / 2), ink)
    return image


def smooth(points: NDArray[np.float64]) -> list[Point]:
    """A Catmull-Rom curve through the points."""
    ends = np.vstack([2 * points[0] - points[1], points, 2 * points[-1] - points[-2]])
    curve = []
    for before, start, end, after in zip(ends, ends[1:], ends[2:], ends[3:], strict=False):
        for t in np.linspace(0, 1, 12):
            straight = 2 * start + (end - before) * t
            square = (2 * before - 5 * start + 4 * end - after) * t**2
            cube = (3 * start - before - 3 * end + after) * t**3
            x, y = (straight + square + cube) / 2
            curve.append((float(x), float(y)))
    return curve


FIELD = (28, 28)


# What a person may save: canvas, box of the digit, pen in pixels, ink, paper, mode, file.
DRAWINGS: list[tuple[tuple[int, int], tuple[int, int, int, int], int, Ink, Ink, str, str]] = [
    ((640, 480), (210, 90, 400, 390), 14, "black", "white", "RGB", "0.png"),
    ((300, 300), (110, 40, 190, 260), 34, "white", "black", "RGB", "1.png"),
    ((1000, 700), (30, 520, 150, 680), 11, "#1e3cc8", "white", "RGB", "2.jpg"),
    ((120, 160), (30, 25, 90, 130), 9, 90, 200, "L", "3.png"),
    ((500, 400), (250, 60, 430, 330), 26, "yellow", "navy", "RGB", "4.jpeg"),
    ((400, 600), (120, 100, 300, 420), 3, "red", "white", "RGB", "5.png"),
    ((280, 280), (80, 50, 200, 230), 20, (0, 0, 0, 255), (0, 0, 0, 0), "RGBA", "6.png"),
    ((64, 64), (18, 10, 48, 54), 4, "white", "darkgreen", "RGB", "7.png"),
    ((2400, 1800), (900, 250, 1700, 1550), 120, "#201810", "#f0e6d0", "RGB", "8.png"),
    ((200, 300), (60, 60, 140, 220), 12, 0, 1, "1", "9.PNG"),
]


LIGHT_ON_DARK = {1, 4, 7}


def save_drawings(folder: Path) -> Path:
    folder.mkdir()
    for digit, (size, box, pen, ink, paper, mode, name) in enumerate(DRAWINGS):
        image = draw(
            digit,
            size,
            box,
            pen,
            ink=ink,
            paper=paper,
            mode=mode,
            slant=0.1,
            tremble=0.02,
            seed=digit,
        )
        image.save(folder / name)
    return folder


# --- a picture, prepared -----------------------------------------------------------------------


def seven(ink: Ink = "black", paper: Ink = "white", mode: str = "RGB") -> Image.Image:
    """A drawing that looks like itself one way up only."""
    return draw(7, (300, 240), (160, 30, 250, 210), 16, ink=ink, paper=paper, mode=mode)


SEVEN = prepare(seven(), FIELD).pixels.astype(int)
