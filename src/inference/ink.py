"""Ink: the levels of a drawing, light on dark, without background, noise and frame; no torch."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from src.data.pictures import WORKING_SIDE, eight_bits, reduced, upright

Invert = Literal["auto", "yes", "no"]
Levels = NDArray[np.uint8]

FAINTEST = 16  # levels; a smaller difference from the background is not a drawing
SPECK = 5e-5  # share of the pixels that is ignored at both ends to find the darkest and lightest
NOISE = 4  # median deviations of the background that are not ink
EDGE = 64  # level of ink at which a drawing begins


def extract_ink(image: Image.Image, invert: Invert) -> tuple[Levels, bool]:
    """The ink (h, w) from 0 to 255, (0, 0) without a drawing, and whether it is dark on light. Of
    luminance, red, green and blue the channel with the highest contrast is used."""
    looks = [(levels, _look(levels, invert)) for levels in channels(image)]
    levels, look = max(looks, key=lambda pair: pair[1].contrast)
    if look.contrast < FAINTEST:
        return np.zeros((0, 0), np.uint8), look.light
    return _unframed(look.ink(levels)), look.light


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
