"""How somebody's pictures become features of a model: by a reader, a module with the functions of
PictureReader, which `pictures` in the section of the model's data names.

This module is the reader WHOLE: a picture is resized as it is. Imports no torch, so that broken
pictures are reported at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kindling.config.registry import location
from kindling.config.section import WHOLE
from kindling.data.pictures import read_picture, resize
from kindling.system.errors import InputError

Invert = Literal["auto", "yes", "no"]  # whether a picture is dark on light
NONE = "none"  # the class of what belongs to no class
Box = tuple[int, int, int, int]  # x, y, width, height in pixels of the upright picture
Named = tuple[Box, str, float | None]  # with the class, and its probability if it has one


@dataclass(frozen=True)
class Picture:
    """A picture as its reader has read it; with a `box`, one of the drawings in a picture."""

    path: Path
    drawing: Any = None  # of the reader's own kind
    drawings: int | None = None  # separate drawings in the picture; 0: blank
    polarity: str = ""  # "dark on light", "light on dark"; blank: "nothing"; not a drawing: ""
    box: Box | None = None


class PictureReader(Protocol):
    def read(self, path: Path, image: Image.Image, invert: Invert) -> Picture: ...

    def picture_shape(self, shape: Sequence[int]) -> tuple[int, int] | None:
        """(H, W) of a picture for samples of a shape; None if these are not pictures."""

    def features(self, picture: Picture, shape: Sequence[int]) -> NDArray[np.uint8]:
        """One sample, for a model that takes samples of a shape."""

    # Without the following, --boxes is refused.

    def find_all(self, path: Path, image: Image.Image, invert: Invert) -> list[Picture]:
        """All drawings of a picture, with their boxes. Raises InputError for too many."""

    def is_none(self, labels: Sequence[str], probability: float, unlikeness: float) -> bool:
        """Whether a drawing with a box belongs to none of the classes."""

    def draw_boxes(self, image: Image.Image, named: Sequence[Named]) -> bytes:
        """A PNG file of a picture with its boxes, and their classes and probabilities."""


def reader_of(pictures: str | None) -> PictureReader:
    """Raises InputError if no installed extension has the reader."""
    module = location("pictures", pictures or WHOLE)
    if module is None:
        raise InputError(f"no installed extension reads pictures as {pictures}")
    return cast(PictureReader, import_module(module))


def read(path: Path, _image: Image.Image, _invert: Invert) -> Picture:
    return Picture(path)  # which is decoded again: all pictures at once may fill the memory


def picture_shape(shape: Sequence[int]) -> tuple[int, int] | None:
    return (shape[1], shape[2]) if len(shape) == 3 and shape[0] in (1, 3) else None


def features(picture: Picture, shape: Sequence[int]) -> NDArray[np.uint8]:
    return resize(read_picture(picture.path), (shape[1], shape[2]), shape[0])
