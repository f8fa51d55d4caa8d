"""Pictures as pixels: PNG and JPEG files, decoded and resized. No torch here."""

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
PIXEL_LIMIT = 64_000_000  # Pillow's own guard warns from 89 million, and is the second line
WORKING_SIDE = 2048  # pixels: larger pictures are halved, thirded, … to at most this


def read_picture(path: Path) -> Image.Image:
    """A PNG or JPEG file, decoded. Raises InputError for any other, see `decode`."""
    with suppress(OSError):  # which reading it tells
        if path.stat().st_size > FILE_LIMIT:
            raise InputError(
                f"{path}: has more than {FILE_LIMIT // MIB} MiB; scale the picture down, 1,000 "
                "pixels a side are plenty"
            )
    return decode(read_bounded(path, FILE_LIMIT), str(path))


def decode(content: bytes, name: str) -> Image.Image:
    """The picture in the bytes of a PNG or JPEG file; `name` is for the message.

    Raises InputError for another format, a damaged file, and one whose header says that it has
    more than PIXEL_LIMIT pixels, of which none is decoded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is damaged but can be shown
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            if image.width * image.height > PIXEL_LIMIT:
                raise Image.DecompressionBombError
            image.load()
    except Image.DecompressionBombError:
        raise InputError(
            f"{name}: has more than {PIXEL_LIMIT:,} pixels; scale the picture down, 1,000 pixels "
            "a side are plenty"
        ) from None
    except UnidentifiedImageError:
        raise InputError(f"{name}: is not a PNG or JPEG file; save the picture as PNG") from None
    except Exception as error:  # a parser over hostile bytes: nothing that it raises is a surprise
        raise InputError(
            f"{name}: is damaged ({first_line(error)}); save the picture again as PNG or JPEG"
        ) from None
    return image


def resize(image: Image.Image, shape: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """The whole picture as pixels (channels, H, W) of `shape` (H, W), its proportions not kept.

    Upright by its EXIF orientation, what is transparent on white. Raises OSError as `prepare`.
    """
    image = eight_bits(upright(image))
    if image.has_transparency_data:
        image = reduced(image.convert("RGBA"), WORKING_SIDE)
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = reduced(image.convert("RGB"), WORKING_SIDE).convert("L" if channels == 1 else "RGB")
    pixels = np.asarray(image.resize(shape[::-1], Image.Resampling.BILINEAR))
    return np.ascontiguousarray(np.moveaxis(pixels.reshape(*shape, channels), 2, 0))


def upright(image: Image.Image) -> Image.Image:
    image.load()
    with warnings.catch_warnings(), suppress(Exception):  # EXIF that cannot be read turns nothing
        warnings.simplefilter("ignore")
        return ImageOps.exif_transpose(image)
    return image


def eight_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 bits, of either byte order, in 8; any other picture as it is."""
    if not image.mode.startswith("I"):
        return image
    levels = np.asarray(image).clip(0, 65535) / 257
    return Image.fromarray(np.rint(levels).astype(np.uint8))


def reduced(image: Image.Image, side: int) -> Image.Image:
    """The picture at a whole fraction of its size, no side longer than `side`."""
    factor = math.ceil(max(image.size) / side)
    return image.reduce(factor) if factor > 1 else image
