"""Small files in the formats of the data sets."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from kindling.data.sources.published import MNIST_FILES, SETS

# Of a table with the columns a, b and a class.
ROWS = "\n".join(f"{n},{10 * n * n},{'red' if n % 3 else 'blue'}" for n in range(20))


def idx_bytes(values: NDArray[np.uint8]) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()


def idx_files() -> dict[str, bytes]:
    """Three pictures to train and two to test, of counting pixels, labels 1, 2, 3 and 1, 2."""
    files = {}
    for name in MNIST_FILES:
        count = 3 if name.startswith("train") else 2
        pixels = np.arange(count * 784, dtype=np.uint8).reshape(count, 28, 28)
        labels = np.arange(1, count + 1, dtype=np.uint8)
        files[name] = idx_bytes(pixels if "images" in name else labels)
    return files


def python2_pickle(
    values: Mapping[str, NDArray[np.uint8] | Sequence[int] | Sequence[str]],
) -> bytes:
    """A dict as Python 2 and NumPy 1 pickled it: the arrays by numpy.core, texts by their bytes."""
    parts = [b"\x80\x02}("]
    for key, value in values.items():
        parts.append(_text(key.encode()))
        if isinstance(value, np.ndarray):
            shape = b"(" + b"".join(map(_number, value.shape)) + b"t"
            kind = b"cnumpy\ndtype\n" + _text(b"u1") + b"K\x00K\x01\x87R"
            kind += b"(K\x03" + _text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            parts.append(
                b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85"
                + _text(b"b") + b"\x87R(K\x01" + shape + kind + b"\x89"
                + _text(value.tobytes()) + b"tb"
            )  # fmt: skip
        else:
            items = [_text(v.encode()) if isinstance(v, str) else _number(v) for v in value]
            parts.append(b"](" + b"".join(items) + b"e")
    return b"".join([*parts, b"u."])


def _text(value: bytes) -> bytes:
    return b"T" + len(value).to_bytes(4, "little") + value


def _number(value: int) -> bytes:
    return b"J" + int(value).to_bytes(4, "little", signed=True)


def write_pictures(root: Path, counts: Mapping[str, int], size: tuple[int, int] = (6, 5)) -> None:
    """Colour PNG files root/CLASS/0.png, 1.png, … of `size` (width, height), no two alike."""
    stream = np.random.default_rng(0)
    for number, (name, count) in enumerate(counts.items()):
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        for picture in range(count):
            pixels = stream.integers(0, 128, (*size[::-1], 3), np.uint8)
            pixels[..., number % 3] += 100  # so that the classes can be told apart
            Image.fromarray(pixels).save(folder / f"{picture}.png")


def mnist_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that passes for MNIST: three images to train, two to test."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    known = {}
    for name, content in idx_files().items():
        (raw / name).write_bytes(content)
        known[name] = hashlib.md5(content).hexdigest()
    monkeypatch.setitem(SETS, "mnist", replace(SETS["mnist"], digests=known))
    return raw
