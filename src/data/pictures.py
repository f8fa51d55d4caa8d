"""Decodes PNG and JPEG files and resizes pictures. Imports no torch."""

import io
import math
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from src.system.errors import InputError, first_line
from src.system.files import MIB, read_bounded

FORMATS = ("PNG", "JPEG")
SUFFIXES = (".png", ".jpg", ".jpeg")
FILE_LIMIT = 64 * MIB
PIXEL_LIMIT = 64_000_000  # Pillow warns from 89 million
SCALE_DOWN = "scale the picture down, 1,000 pixels a side are plenty"
WORKING_SIDE = 2048  # pixels: larger pictures are first reduced to 1/2, 1/3, …


def read_picture(path: Path) -> Image.Image:
    """Decodes a PNG or JPEG file. Raises InputError for too large files, and as `decode`."""
    with suppress(OSError):  # reading the file reports the error
        if path.stat().st_size > FILE_LIMIT:
            raise InputError(f"{path}: has more than {FILE_LIMIT // MIB} MiB; {SCALE_DOWN}")
    return decode(read_bounded(path, FILE_LIMIT), str(path))


def decode(content: bytes, name: str) -> Image.Image:
    """The picture in the bytes of a PNG or JPEG file; `name` is for the message.

    Raises InputError for other formats and damaged files. A file whose header announces more than
    PIXEL_LIMIT pixels is refused without decoding.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of damage that Pillow can repair
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            if image.width * image.height > PIXEL_LIMIT:
                raise Image.DecompressionBombError
            image.load()
    except Image.DecompressionBombError:
        raise InputError(f"{name}: has more than {PIXEL_LIMIT:,} pixels; {SCALE_DOWN}") from None
    except UnidentifiedImageError:
        raise InputError(f"{name}: is not a PNG or JPEG file; save the picture as PNG") from None
    except Exception as error:  # a parser of hostile bytes may raise anything
        raise InputError(
            f"{name}: is damaged ({first_line(error)}); save the picture again as PNG or JPEG"
        ) from None
    return image


def resize(image: Image.Image, shape: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """Resizes the whole picture to `shape` (H, W), whatever its proportions: (channels, H, W).
    Turns the picture by its EXIF orientation, and puts transparent parts on white."""
    image = eight_bits(upright(image))
    if image.has_transparency_data:
        image = reduced(image.convert("RGBA"), WORKING_SIDE)
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = reduced(image.convert("RGB"), WORKING_SIDE).convert("L" if channels == 1 else "RGB")
    pixels = np.asarray(image.resize(shape[::-1], Image.Resampling.BILINEAR))
    return np.ascontiguousarray(np.moveaxis(pixels.reshape(*shape, channels), 2, 0))


def upright(image: Image.Image) -> Image.Image:
    """The picture turned by its EXIF orientation."""
    image.load()
    with warnings.catch_warnings(), suppress(Exception):  # unreadable EXIF is ignored
        warnings.simplefilter("ignore")
        return ImageOps.exif_transpose(image)
    return image


def eight_bits(image: Image.Image) -> Image.Image:
    """Converts grey pictures of 16 bits to 8 bits; leaves other pictures unchanged."""
    if not image.mode.startswith("I"):
        return image
    levels = np.asarray(image).clip(0, 65535) / 257
    return Image.fromarray(np.rint(levels).astype(np.uint8))


def reduced(image: Image.Image, side: int) -> Image.Image:
    """Reduces the picture to a whole fraction of its size, with no side longer than `side`."""
    factor = math.ceil(max(image.size) / side)
    return image.reduce(factor) if factor > 1 else image
