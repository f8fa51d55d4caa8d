"""Decoding of PNG and JPEG files: the pixels of every kind, and bounded work and memory."""

import io
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kindling.data.pictures import decode, resize
from kindling.system.errors import InputError

GREY, COLOUR, PALETTE, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 3, 4, 6
CHANNELS = {GREY: 1, COLOUR: 3, PALETTE: 1, GREY_ALPHA: 2, COLOUR_ALPHA: 4}
PASSES = (  # of an interlaced PNG file: first column and row, steps
    (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)
)  # fmt: skip
KINDS = [
    *((GREY, depth) for depth in (1, 2, 4, 8, 16)), (COLOUR, 8), (COLOUR, 16),
    *((PALETTE, depth) for depth in (1, 2, 4, 8)),
    (GREY_ALPHA, 8), (GREY_ALPHA, 16), (COLOUR_ALPHA, 8), (COLOUR_ALPHA, 16),
]  # fmt: skip
SIDE = 2500  # pixels of the large pictures


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def packed(values: Any, depth: int) -> bytes:
    """The rows (h, values) of a PNG file, each with the filter 0 before it."""
    if depth == 16:
        rows = values.astype(">u2").view(np.uint8).reshape(len(values), -1)
    elif depth == 8:
        rows = values.astype(np.uint8)
    else:
        bits = np.unpackbits(values.astype(np.uint8)[..., None], axis=-1)[..., -depth:]
        rows = np.packbits(bits.reshape(len(values), -1), axis=1)
    return np.hstack([np.zeros((len(rows), 1), np.uint8), rows]).tobytes()


def png(
    values: Any, kind: int, depth: int, *, interlaced: bool = False, chunks: Sequence[bytes] = ()
) -> bytes:
    """A file of values (h, w, channels), written without Pillow, which has not all kinds."""
    height, width = values.shape[:2]
    parts = [values]
    if interlaced:
        parts = [values[y::down, x::across] for x, y, across, down in PASSES]
    rows = b"".join(packed(p.reshape(len(p), -1), depth) for p in parts if p.size)
    return png_of(rows, width, height, kind, depth, interlaced=interlaced, chunks=chunks)


def png_of(
    rows: bytes, width: int, height: int, kind: int, depth: int, *, interlaced: bool = False,
    chunks: Sequence[bytes] = (),
) -> bytes:  # fmt: skip
    header = struct.pack(">2I5B", width, height, depth, kind, 0, 0, interlaced)
    palette = (
        [chunk(b"PLTE", bytes(n % 256 for n in range(3 * 2**depth)))] if kind == PALETTE else []
    )
    return b"".join([
        b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), *palette, *chunks,
        chunk(b"IDAT", zlib.compress(rows, 1)), chunk(b"IEND"),
    ])  # fmt: skip


def shown(values: Any, kind: int, depth: int, transparent: Any = None) -> Any:
    """The colours (h, w, 3) that values have on white, from 0 to 255, to be rounded."""
    most = 2**depth - 1
    if kind == PALETTE:
        return (np.arange(3 * 2**depth) % 256).reshape(-1, 3)[values[..., 0]]
    colours = values[..., : 1 if kind in (GREY, GREY_ALPHA) else 3] * (255 / most)
    alpha = np.ones(values.shape[:2])
    if kind in (GREY_ALPHA, COLOUR_ALPHA):
        alpha = values[..., -1] / most
    if transparent is not None:
        alpha = (values != transparent).any(-1).astype(float)
    return np.broadcast_to(colours, (*alpha.shape, 3)) * alpha[..., None] + 255 * (
        1 - alpha[..., None]
    )


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("transparent", [False, True])
@pytest.mark.parametrize(("kind", "depth"), KINDS)
def test_all_kinds_of_png_files(kind: int, depth: int, transparent: bool, interlaced: bool) -> None:
    stream = np.random.default_rng(0)
    values = stream.integers(0, 2**depth, (13, 11, CHANNELS[kind]))
    chunks, colour = [], None
    if transparent and kind in (GREY, COLOUR):
        colour = values[5, 7]
        chunks = [chunk(b"tRNS", colour.astype(">u2").tobytes())]
    content = png(values, kind, depth, interlaced=interlaced, chunks=chunks)
    pixels = resize(decode(content, "it"), (13, 11), 3).transpose(1, 2, 0)
    expected = shown(values, kind, depth, colour)
    assert abs(pixels - expected).max() <= 1.5  # Pillow cuts colours of 16 bits, and alpha
    if colour is not None:
        assert pixels[5, 7].tolist() == [255] * 3


def oriented(turned: int) -> bytes:
    return b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x112, 3, 1, turned, 0, 0)


def jpeg_with(segments: Sequence[bytes], picture: Image.Image | None = None) -> bytes:
    """A JPEG file with segments (marker and content) before its own."""
    file = io.BytesIO()
    (picture or Image.new("RGB", (8, 8), "red")).save(file, "JPEG", quality=95)
    own = file.getvalue()
    added = [b"\xff" + s[:1] + struct.pack(">H", len(s) + 1) + s[1:] for s in segments]
    return own[:2] + b"".join(added) + own[2:]


EXIF = b"\xe1Exif\0\0"


@pytest.mark.parametrize("turned", range(1, 9))
@pytest.mark.parametrize("others", [0, 3000])
def test_pictures_are_turned_by_the_first_exif_segment_or_chunk(turned: int, others: int) -> None:
    values = np.zeros((16, 8, 3), np.uint8)
    values[:8] = 255
    plain = Image.fromarray(values)
    turn = {
        1: None, 2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_90,
    }[turned]  # fmt: skip
    expected = np.asarray(plain if turn is None else plain.transpose(turn)).transpose(2, 0, 1)
    segments = [EXIF + oriented(turned), *[EXIF + b"more"] * others]
    text = b"Raw profile type exif\0\nexif\n      26\n" + oriented(turned).hex().encode()
    for content in (
        jpeg_with(segments, plain),
        png(values, COLOUR, 8, chunks=[chunk(b"eXIf", oriented(turned))]),
        png(values, COLOUR, 8, chunks=[chunk(b"tEXt", text), *[chunk(b"tEXt", b"a\0b")] * others]),
    ):
        found = resize(decode(content, "it"), expected.shape[1:], 3)
        assert abs(found.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("size", [(8192, 64), (64, 8192), (5000, 900), (2049, 1), (300, 200)])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "I;16"])
def test_a_long_side_does_not_cost_the_short_one(size: tuple[int, int], mode: str) -> None:
    """Stripes along the long side stay; each side is reduced as often as it needs."""
    width, height = size
    short = np.arange(min(size)) % 64 * 3 + 20
    levels = np.broadcast_to(short[:, None] if width > height else short, (height, width))
    if mode == "I;16":
        image = Image.fromarray((levels * 257).astype(np.uint16))
    else:
        image = Image.fromarray(levels.astype(np.uint8)).convert(mode)
    found = resize(image, (min(height, 64), min(width, 64)), 1)[0]
    box = [math_ceil(side / 2048) for side in (height, width)]
    padded = np.pad(levels, [(0, -side % b) for side, b in zip(levels.shape, box, strict=True)],
                    mode="edge")  # fmt: skip
    means = padded.reshape(
        padded.shape[0] // box[0], box[0], padded.shape[1] // box[1], box[1]
    ).mean((1, 3))
    small = Image.fromarray(np.floor(means + 0.5).astype(np.uint8))
    expected = small.resize(found.shape[::-1], Image.Resampling.BILINEAR)
    assert abs(found - np.asarray(expected).astype(int)).max() <= 1
    if min(size) == 64:
        assert abs(found - levels[:64, :64].astype(int)).max() <= 1


def math_ceil(value: float) -> int:
    return -int(-value // 1)


def zeros(kind: int, depth: int, *, interlaced: bool = False) -> Callable[[], bytes]:
    parts = PASSES if interlaced else ((0, 0, 1, 1),)
    count = sum(
        -(-(SIDE - y) // down) * (1 + -(-CHANNELS[kind] * depth * -(-(SIDE - x) // across) // 8))
        for x, y, across, down in parts
    )
    return lambda: png_of(bytes(count), SIDE, SIDE, kind, depth, interlaced=interlaced)


def jpeg(mode: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (SIDE, SIDE)).save(file, "JPEG", **options)
    return file.getvalue()


def scans(count: int) -> bytes:
    """A progressive file, its last scan many times."""
    content = jpeg_with((), Image.new("L", (64, 64)))
    file = io.BytesIO()
    Image.new("L", (64, 64)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * count + b"\xff\xd9"


ONE = np.zeros((1, 1, 1), np.uint8)
BOMB = b"icc\0\0" + zlib.compress(bytes(2**20), 9)
# Overlapping entries: each names all bytes.
ENTRIES = b"II*\0\x08\0\0\0" + struct.pack("<H", 20_000) + b"".join(
    struct.pack("<HHII", 1 + n, 7, 240_000, 10) for n in range(20_000)
)  # fmt: skip
CASES: dict[str, tuple[Callable[[], bytes], int, str]] = {  # a file, its pixels, its fault
    **{f"png {kind} {depth}": (zeros(kind, depth), SIDE**2, "") for kind, depth in KINDS},
    "png interlaced": (zeros(GREY, 16, interlaced=True), SIDE**2, ""),
    "png interlaced alpha": (zeros(COLOUR_ALPHA, 16, interlaced=True), SIDE**2, ""),
    "png too wide": (
        lambda: png_of(bytes(10**6 + 1), 10**6, 1, GREY, 8), 10**6, "a side of 1,000,000"
    ),
    "png profiles": (lambda: png(ONE, GREY, 8, chunks=[chunk(b"iCCP", BOMB)] * 3000), 1, ""),
    "png texts": (
        lambda: png(ONE, GREY, 8, chunks=[chunk(b"zTXt", b"k%d\0\0" % n + BOMB[5:])
                                          for n in range(60)]), 1, "",
    ),
    "png large exif": (lambda: png(ONE, GREY, 8, chunks=[chunk(b"eXIf", ENTRIES)]), 1, ""),
    "png exif in text": (
        lambda: png(ONE, GREY, 8, chunks=[chunk(
            b"zTXt", b"Raw profile type exif\0\0"
            + zlib.compress(b"\n\n\n\n" + ENTRIES.hex().encode())
        )]), 1, "",
    ),
    "png chunks": (
        lambda: png(ONE, GREY, 8, chunks=[chunk(b"tEXt")] * 70_000), 1, "more than 65,536 chunks"
    ),
    "jpeg": (lambda: jpeg("RGB"), SIDE**2, ""),
    "jpeg progressive": (lambda: jpeg("RGB", progressive=True, subsampling=0), SIDE**2, ""),
    "jpeg four colours": (lambda: jpeg("CMYK", progressive=True), SIDE**2, ""),
    "jpeg exif": (lambda: jpeg_with([EXIF + bytes(180)] * 60_000), 64, ""),
    "jpeg comments": (lambda: jpeg_with([b"\xfe" + bytes(180)] * 60_000), 64, ""),
    "jpeg profiles": (lambda: jpeg_with([b"\xe2ICC_PROFILE\0" + bytes(180)] * 60_000), 64, ""),
    "jpeg segments": (lambda: jpeg_with([EXIF] * 70_000), 64, "more than 65,536 segments"),
    "jpeg scans": (lambda: scans(200), 4096, "more than 100 scans"),
}  # fmt: skip

# Decodes each file in a process of its own, and prints the peak of its memory, the bytes that
# Pillow got, and the fault. No torch is imported, so the memory is that of the decoder.
CHILD = """
import json, os, resource, sys
from pathlib import Path
import numpy as np
from PIL import Image
from kindling.data.pictures import read_picture, resize
from kindling.system.errors import InputError
open_image, given = Image.open, [0]
def counting(file, **options):
    given[0] += len(file.getbuffer())
    return open_image(file, **options)
Image.open = counting
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
found = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        fault = ""
        try:
            resize(read_picture(path), (32, 32), 3)
        except InputError as error:
            fault = str(error)
        os.write(writer, json.dumps([given[0], fault]).encode())
        os._exit(0)
    os.close(writer)
    _, status, usage = os.wait4(pid, 0)
    told = json.loads(os.read(reader, 10**5) or '[0, "killed"]')
    found[path.name] = [usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), *told]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int, str]]:
    folder = tmp_path_factory.mktemp("decoders")
    for name, (content, _, _) in CASES.items():
        (folder / name).write_bytes(content())
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)], capture_output=True, text=True, check=True
    )
    found: dict[str, tuple[int, int, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", CASES)
def test_decoders_are_bounded(name: str, decoded: dict[str, tuple[int, int, str]]) -> None:
    """At most 12 bytes of memory for each pixel, 100 MiB for small ones with all libraries, and no
    bytes for Pillow that do not decide the pixels."""
    _, pixels, fault = CASES[name]
    peak, given, told = decoded[name]
    assert bool(told) == bool(fault), told
    assert fault in told
    assert peak < 100 * 2**20 + 12 * pixels
    if pixels < SIDE**2:
        assert given < 2**18 + 2**19 * (name == "png large exif")


def test_damaged_files_are_refused() -> None:
    whole = jpeg_with([EXIF + oriented(6)], Image.effect_noise((64, 64), 50))
    for content in (whole[:-900], whole[:200], whole[:2] + b"\xff\xe1\0\0" + whole[2:]):
        with pytest.raises(InputError, match=r"it: is (damaged|not a PNG or JPEG file)"):
            decode(content, "it")
    picture = png(np.zeros((64, 64, 3), np.uint8), COLOUR, 8)
    for content in (picture[:-30], picture[:40], picture[:33] + b"\0\0\0\0\x01abc" + picture[33:]):
        with pytest.raises(InputError, match=r"it: is (damaged|not a PNG or JPEG file)"):
            decode(content, "it")


def test_a_picture_of_colours_by_number_has_a_palette() -> None:
    """Pillow opens one without."""
    whole = png_of(b"\0\1\2\3" * 3, 3, 3, PALETTE, 8)
    colours = whole.index(chunk(b"PLTE", bytes(n % 256 for n in range(768))))
    assert decode(whole, "it").getpixel((1, 0)) == 2
    with pytest.raises(InputError, match=r"it: is damaged \(its pixels name .* no palette\)"):
        decode(whole[:colours] + whole[colours + 12 + 768 :], "it")
