"""The checkpoint file: Lightning's content, tensors and primitives only, with a checksum.

It is what torch.save writes, a zip archive, whose comment holds the SHA-256 of everything before
it: `torch.load(path, weights_only=True)` and every zip tool open it as ever.
"""

import hashlib
import io
import logging
import os
import pickletools
import struct
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from src.errors import InputError
from src.files import beside, read_bounded, sync_folder, write_durably

log = logging.getLogger(__name__)

FORMAT = 3  # of the "kindling" part; a reader refuses any other
LIMIT = 16 * 2**30  # bytes
_LABEL = b"sha256="
_COMMENT = len(_LABEL) + 64
_ZIP_END = 22  # bytes of a zip archive's end record, the length of the comment last
# What tensors and ordered dicts are rebuilt by; torch's weights-only loader allows more.
_GLOBALS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    *(f"torch {kind}Storage" for kind in ("Float", "Double", "Half", "BFloat16", "Int", "Long")),
    *(f"torch {kind}Storage" for kind in ("Short", "Byte", "Char", "Bool")),
}


class DamagedError(InputError):
    """A file that is no checkpoint of this project, or no longer one."""


def pack(content: dict[str, Any]) -> bytes:
    """The bytes of a checkpoint file."""
    archive = io.BytesIO()
    torch.save(content, archive)
    body = archive.getvalue()
    comment = _LABEL + hashlib.sha256(body).hexdigest().encode()
    return body[:-2] + struct.pack("<H", len(comment)) + comment


def unpack(data: bytes, path: Path) -> dict[str, Any]:
    """The content of a checkpoint file, on the CPU. `path` is for the message.

    Raises DamagedError for anything that `pack` did not write.
    """
    try:
        _verify(data)
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise ValueError("it holds no dictionary")
    except Exception as error:  # a parser over hostile bytes: nothing that it raises is a surprise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise DamagedError(
            f"{path}: is damaged or no checkpoint of this project ({reason})"
        ) from None
    return content


def _verify(data: bytes) -> None:
    """Raises ValueError unless the checksum is right and only tensors and primitives are named."""
    body, comment = data[:-_COMMENT], data[-_COMMENT:]
    if not comment.startswith(_LABEL) or body[-2:] != struct.pack("<H", _COMMENT):
        raise ValueError("it has no checksum")
    if comment[len(_LABEL) :] != hashlib.sha256(body[:-2] + b"\0\0").hexdigest().encode():
        raise ValueError("its checksum is wrong")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = archive.infolist()
        if any(record.compress_type != zipfile.ZIP_STORED for record in records):
            raise ValueError("it is compressed")  # as torch never does, and bombs do
        if sum(record.file_size for record in records) > len(data):
            raise ValueError("its records are larger than the file")
        pickled = [record for record in records if record.filename.endswith("/data.pkl")]
        if len(pickled) != 1:
            raise ValueError("it has no data.pkl")
        for opcode, argument, _ in pickletools.genops(archive.read(pickled[0])):
            if opcode.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4") or (
                opcode.name == "GLOBAL" and argument not in _GLOBALS
            ):
                raise ValueError(f"it names {argument}, and only tensors are allowed")


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint file. Raises InputError when there is none, or a damaged one."""
    return unpack(read_bounded(path, LIMIT), path)


def write(content: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, pack(content))


class Slot:
    """The two newest checkpoints of a run: last.ckpt, and previous.ckpt in case it is damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last, self.previous = folder / "last.ckpt", folder / "previous.ckpt"

    @property
    def empty(self) -> bool:
        return not (self.last.exists() or self.previous.exists())

    def write(self, content: dict[str, Any]) -> None:
        """At every instant at least one of the two is whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.last.exists():
            aside = beside(self.previous)
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            try:
                os.link(self.last, aside)
                aside.replace(self.previous)
            except OSError:  # a file system without links: for a moment there is no last.ckpt
                self.last.replace(self.previous)
            sync_folder(self.folder)
        write(content, self.last)

    def read(self) -> tuple[dict[str, Any], Path] | None:
        """The newest good one and its path; None where there is none at all.

        A damaged one is named in the log. Raises InputError when every one is damaged.
        """
        damaged = []
        for path in (self.last, self.previous):
            if not path.exists():
                continue
            try:
                content = read(path)
            except InputError as error:
                damaged.append(str(error))
                continue
            for fault in damaged:
                log.warning("%s; going on from %s", fault, path.name)
            return content, path
        if damaged:
            raise InputError("\n".join([*damaged, "no checkpoint is left to go on from"]))
        return None

    def remove(self) -> None:
        for path in (self.last, self.previous):
            path.unlink(missing_ok=True)
