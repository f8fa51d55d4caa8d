"""Random damage to the bytes of a file, and the checksums of checkpoints and PNG files."""

import hashlib
import io
import os
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from PIL import Image

MANY = "TORTURE" in os.environ


def examples(share: int) -> Callable[[Any], Any]:
    """Settings for a share of the hundred thousand examples; by default for a 320th of that."""
    return settings(
        max_examples=8 * share if MANY else share // 40,
        deadline=timedelta(seconds=10),
        derandomize=not MANY,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


Mutation = list[tuple[str, float, bytes]]
MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "delete", "repeat"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)


def mutated(content: bytes, mutations: Mutation) -> bytes:
    data = bytearray(content)
    for kind, where, patch in mutations:
        at = int(where * len(data))
        if kind == "flip":
            data[at : at + len(patch)] = patch
        elif kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = patch
        elif kind == "delete":
            del data[at : at + len(patch) ** 2]
        else:
            data[at:at] = data[max(0, at - 50) : at] * patch[0]
    return bytes(data)


def signed(body: bytes) -> bytes:
    """A zip archive with a checksum like a checkpoint's."""
    comment = b"sha256=" + hashlib.sha256(body).hexdigest().encode()
    return body[:-2] + len(comment).to_bytes(2, "little") + comment


def unsigned(data: bytes) -> bytes:
    return data[:-73] + b"\0\0"


PNG = b"\x89PNG\r\n\x1a\n"


def sealed(data: bytes) -> bytes:
    """A PNG whose chunks have right checksums again; other bytes as they are."""
    if not data.startswith(PNG):
        return data
    parts, at = [PNG], len(PNG)
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4])
        chunk = data[at + 4 : at + 8 + size]
        parts += [data[at : at + 4], chunk, zlib.crc32(chunk).to_bytes(4)]
        at += 12 + size
    return b"".join(parts)


def pictures() -> list[bytes]:
    """Pictures with parts that have their own parsers: palette, transparency, text and EXIF."""
    image = Image.linear_gradient("L").resize((40, 30)).rotate(20)
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a description"
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("PNG", "P", {"transparency": 3, "exif": exif}),
        ("PNG", "LA", {}),
        ("PNG", "I;16", {}),
        ("JPEG", "RGB", {"exif": exif, "progressive": True}),
        ("JPEG", "CMYK", {}),
    ]
    contents = []
    for kind, mode, options in kinds:
        file = io.BytesIO()
        image.convert(mode).save(file, kind, **options)
        contents.append(file.getvalue())
    return contents
