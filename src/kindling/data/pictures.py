"""Decodes PNG and JPEG files and resizes pictures. Imports no torch.

A file may come from a stranger. Pillow gets only the parts of a file that decide its pixels, in
bounded numbers, so that the work and the memory depend on the size of the file and on its pixels.
"""

import io
import math
import re
import struct
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from kindling.system.errors import InputError, parsing
from kindling.system.files import read_bounded
from kindling.system.units import MIB

FORMATS = ("PNG", "JPEG")
SUFFIXES = (".png", ".jpg", ".jpeg")
FILE_LIMIT = 64 * MIB
PIXEL_LIMIT = 64_000_000  # Pillow warns from 89 million
SIDE_LIMIT = 65_535  # pixels, of a JPEG file by its format; a PNG decoder holds two whole rows
PART_LIMIT = 65_536  # segments of a JPEG file, chunks of a PNG file
SCAN_LIMIT = 100  # of a progressive JPEG file, which has about ten; each visits all pixels
EXIF_LIMIT = 65_536  # bytes, of a JPEG segment by its format
SCALE_DOWN = "scale the picture down, 1,000 pixels a side are plenty"
SAVE_AGAIN = "save the picture again as PNG or JPEG"
WORKING_SIDE = 2048  # pixels: larger pictures are first reduced to 1/2, 1/3, …
BAND = 2**21  # pixels that are converted at once

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"  # the first bytes of a file
PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
EXIF_TEXT, XMP_TEXT = b"Raw profile type exif", b"XML:com.adobe.xmp"
ORIENTED = {  # the beginnings of the chunks and segments that may hold the orientation
    b"eXIf": (b"",),
    **dict.fromkeys((b"tEXt", b"zTXt", b"iTXt"), (EXIF_TEXT, XMP_TEXT)),
    b"\xe1": (b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"),
}
# In JPEG files, 0xff before 0 is a byte of pixels, and before 0xd0 to 0xd7 a mark among them.
MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])", re.DOTALL)


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
    if content.startswith(PNG):
        content = _needed_chunks(content, name)
    elif content.startswith(JPEG):
        content = _needed_segments(content, name)
    with parsing(f"{name}: is damaged", f"; {SAVE_AGAIN}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of damage that Pillow can repair
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
            if image.width * image.height > PIXEL_LIMIT:
                raise Image.DecompressionBombError
            if max(image.size) > SIDE_LIMIT:
                raise InputError(
                    f"{name}: has a side of {max(image.size):,} pixels, at most {SIDE_LIMIT:,}; "
                    f"{SCALE_DOWN}"
                )
            image.load()
            if image.mode == "P" and image.palette is None:
                raise ValueError("its pixels name colours, and it has no palette")
        except Image.DecompressionBombError:
            fault = f"{name}: has more than {PIXEL_LIMIT:,} pixels; {SCALE_DOWN}"
            raise InputError(fault) from None
        except UnidentifiedImageError:
            fault = f"{name}: is not a PNG or JPEG file; save the picture as PNG"
            raise InputError(fault) from None
    if len(image.info.get("exif", b"")) > EXIF_LIMIT:  # its entries may overlap
        del image.info["exif"]
    if len(image.info.get(EXIF_TEXT.decode(), "")) > 2 * EXIF_LIMIT:  # in hexadecimal digits
        del image.info[EXIF_TEXT.decode()]
    if "transparency" in image.info and content.startswith(PNG):
        depth, kind = content[24:26]
        image.info["transparency"] = _in_eight_bits(image.info["transparency"], depth, kind)
    return image


def _in_eight_bits(colour: Any, depth: int, kind: int) -> Any:
    """The transparent colour of a PNG file as Pillow's pixels have it: grey of 2 or 4 bits is
    spread to 8 bits, colours of 16 bits are cut to 8."""
    if kind == 0 and depth in (2, 4):
        return colour * (255 // (2**depth - 1))
    if kind == 2 and depth == 16:
        return tuple(value >> 8 for value in colour)
    return colour


def _needed_chunks(content: bytes, name: str) -> bytes:
    """The chunks of a PNG file that decide its pixels and its orientation. Raises InputError for
    too many chunks."""
    view, seen, place = memoryview(content), set[bytes](), len(PNG)
    parts = [view[:place]]
    for _ in range(PART_LIMIT):
        if place + 8 > len(content):
            return b"".join(parts)
        length, kind = struct.unpack_from(">I4s", content, place)
        if not kind.isalpha():  # Pillow reports it, or ignores it behind the pixels
            return b"".join([*parts, view[place:]])
        end = place + 12 + length
        if kind in PIXEL_CHUNKS or _is_first(kind, content, place + 8, seen):
            parts.append(view[place:end])
        place = len(content) if kind == b"IEND" else end
    raise _too_many(name, PART_LIMIT, "chunks")


def _needed_segments(content: bytes, name: str) -> bytes:
    """The same of a JPEG file and its segments."""
    view, seen, place, scans = memoryview(content), set[bytes](), 2, 0
    parts: list[bytes | memoryview] = [view[:place]]
    for _ in range(PART_LIMIT):
        found = MARKER.search(content, place)
        if scans:  # the pixels before the marker
            parts.append(view[place : found.start() if found else len(content)])
        if found is None:
            return b"".join(parts)
        kind, start = found[1], found.end()
        if kind in b"\x01\xd8\xd9":  # without content
            if kind == b"\xd9":
                return b"".join([*parts, b"\xff\xd9"])
            place = start
            continue
        length = int.from_bytes(content[start : start + 2])
        place = start + length
        if length < 2 or place > len(content):
            return b"".join(parts)  # Pillow reports it
        scans += kind == b"\xda"
        if scans > SCAN_LIMIT:
            raise _too_many(name, SCAN_LIMIT, "scans")
        decides = not b"\xe0" <= kind <= b"\xef" or kind in b"\xe0\xee"  # JFIF, Adobe
        if (decides and kind != b"\xfe") or _is_first(kind, content, start + 2, seen):
            parts += [b"\xff" + kind, view[start:place]]
    raise _too_many(name, PART_LIMIT, "segments")


def _is_first(kind: bytes, content: bytes, place: int, seen: set[bytes]) -> bool:
    """Whether a chunk or segment is the first that holds the orientation in its way."""
    begins = next((b for b in ORIENTED.get(kind, ()) if content.startswith(b, place)), None)
    if begins is None or begins in seen:
        return False
    seen.add(begins)
    return True


def _too_many(name: str, limit: int, what: str) -> InputError:
    return InputError(f"{name}: has more than {limit:,} {what}; {SAVE_AGAIN}")


def resize(image: Image.Image, shape: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """Resizes the whole picture to `shape` (H, W), whatever its proportions: (channels, H, W).
    Turns the picture by its EXIF orientation, and puts transparent parts on white."""
    image = upright(image)
    clear = image.has_transparency_data
    image = _converted(image, "RGBA" if clear else "RGB")
    if clear:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    image = image.convert("L" if channels == 1 else "RGB")
    pixels = np.asarray(image.resize(shape[::-1], Image.Resampling.BILINEAR))
    return np.ascontiguousarray(np.moveaxis(pixels.reshape(*shape, channels), 2, 0))


def _converted(image: Image.Image, mode: str) -> Image.Image:
    """The picture in `mode`, its width and height each reduced to a whole fraction of at most
    WORKING_SIDE pixels. Converts some rows at a time: a copy of all pixels would take much memory.
    """
    width, height = image.size
    across, down = (math.ceil(side / WORKING_SIDE) for side in image.size)
    small = Image.new(mode, (math.ceil(width / across), math.ceil(height / down)))
    rows = max(1, BAND // (width * down)) * down
    for top in range(0, height, rows):
        band = image.crop((0, top, width, min(top + rows, height)))
        band = eight_bits(band).convert(mode)
        small.paste(band.reduce((across, down)) if across * down > 1 else band, (0, top // down))
    return small


def upright(image: Image.Image) -> Image.Image:
    """The picture turned by its EXIF orientation; the same picture if there is nothing to turn."""
    image.load()
    with warnings.catch_warnings(), suppress(Exception):  # unreadable EXIF is ignored
        warnings.simplefilter("ignore")
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            return ImageOps.exif_transpose(image)
    return image


def eight_bits(image: Image.Image) -> Image.Image:
    """Converts grey pictures of 16 bits to 8 bits, with an alpha channel if a colour is
    transparent; leaves other pictures unchanged."""
    if not image.mode.startswith("I"):
        return image
    levels = np.asarray(image)
    grey = Image.fromarray(ROUNDED[levels])
    colour = image.info.get("transparency")
    if colour is None:
        return grey
    return Image.merge("LA", (grey, Image.fromarray((levels != colour) * np.uint8(255))))


ROUNDED = np.rint(np.arange(65536) / 257).astype(np.uint8)  # 16 bits in 8


def reduced(image: Image.Image, side: int) -> Image.Image:
    """Reduces the picture to a whole fraction of its size, with no side longer than `side`."""
    factor = math.ceil(max(image.size) / side)
    return image.reduce(factor) if factor > 1 else image
