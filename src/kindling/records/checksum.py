"""The checksum at the end of a checkpoint file. Nothing here imports torch."""

import hashlib
import struct

# Before the 64 digits of the checksum: the length of the comment, and its first word.
COMMENT = struct.pack("<H", 71) + b"sha256="


def require_checksum(data: bytes) -> None:
    """Raises ValueError unless the content of a checkpoint file has its checksum."""
    end = len(data) - len(COMMENT) - 64  # of the archive without its comment
    if data[end : end + len(COMMENT)] != COMMENT:
        raise ValueError("it has no checksum")
    digest = hashlib.sha256(memoryview(data)[:end])
    digest.update(b"\0\0")  # `pack` hashed the archive when the length of its comment was still 0
    if data[end + len(COMMENT) :] != digest.hexdigest().encode():
        raise ValueError("its checksum is wrong")
