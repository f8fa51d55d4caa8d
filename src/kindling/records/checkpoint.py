"""The checkpoint file: Lightning's content, tensors and primitives only, with a checksum.

A checkpoint is the zip archive that torch.save writes; the archive's comment holds the SHA-256 of
everything before it. `torch.load(path, weights_only=True)` and every zip tool can open it.
"""

import hashlib
import io
import logging
import os
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from kindling.records.checksum import COMMENT, require_checksum
from kindling.system.errors import InputError, parsing
from kindling.system.files import make_folder, read_bounded, temporary_path, write_into_folder

log = logging.getLogger(__name__)

FORMAT = 3  # the version of content["kindling"]: the configuration, and facts about the data
LIMIT = 16 * 2**30  # bytes
DEPTH = 32  # the deepest nesting of values; a checkpoint has eight levels, or more by callbacks
# The functions and classes that rebuild tensors; torch's weights-only loader allows more.
_GLOBALS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    *(f"torch {kind}Storage" for kind in ("Float", "Double", "Half", "BFloat16", "Int", "Long")),
    *(f"torch {kind}Storage" for kind in ("Short", "Byte", "Char", "Bool")),
}
# The pickle operations that torch.save writes, by their effect on the unpickler's stack.
_VALUES = {
    "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "BINUNICODE", "GLOBAL",
}  # fmt: skip
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
# How many values each operation moves from the stack into the value below them; None: all values
# since the last MARK opcode. REDUCE and BINPERSID replace the value below, so it is not counted.
_TAKING: dict[str, int | None] = {
    "TUPLE": None, "APPENDS": None, "SETITEMS": None, **_SHORT_TUPLES,
    "APPEND": 1, "BUILD": 1, "REDUCE": 1, "SETITEM": 2, "BINPERSID": 0,
}  # fmt: skip


def pack(content: dict[str, Any]) -> memoryview:
    """The bytes of a checkpoint file."""
    archive = io.BytesIO()
    torch.save(content, archive)
    digest = hashlib.sha256(archive.getbuffer()).hexdigest().encode()
    archive.seek(-2, io.SEEK_END)
    archive.write(COMMENT + digest)
    return archive.getbuffer()  # a copy of the bytes of a large stack would take much memory


def unpack(data: bytes, path: Path) -> dict[str, Any]:
    """The content of a checkpoint file, on the CPU. Raises InputError unless `pack` wrote it."""
    with parsing(f"{path}: is damaged or not a checkpoint of this project"):
        _verify(data)
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise ValueError("it is not a dictionary")
        # A tensor with stride 0 can be far larger than its storage. Tensors may share storage, so
        # twice the size of the file is allowed.
        if sum(tensor.nbytes for tensor in _tensors(content)) > 2 * len(data):
            raise ValueError("its tensors are larger than the file")
    return content


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in the value. Raises ValueError if an OrderedDict has attributes of its own,
    because an attribute could replace a method."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        if isinstance(value, OrderedDict) and vars(value).keys() - {"_metadata"}:
            raise ValueError(f"it has a dictionary with the attribute {next(iter(vars(value)))}")
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _verify(data: bytes) -> None:
    """Raises ValueError unless the checksum is right and `pack` could have written the content."""
    require_checksum(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = archive.infolist()
        if any(record.compress_type != zipfile.ZIP_STORED for record in records):
            raise ValueError("it is compressed")  # torch.save never compresses
        if sum(record.file_size for record in records) > len(data):
            raise ValueError("its records are larger than the file")
        pickled = [record for record in records if record.filename.endswith("/data.pkl")]
        if len(pickled) != 1:
            raise ValueError("it has no data.pkl")
        _verify_pickle(archive.read(pickled[0]))


def _verify_pickle(pickled: bytes) -> None:
    """Raises ValueError unless the pickled values form a tree.

    The work to unpickle a tree, or to walk it later, is proportional to its bytes. Lists that hold
    each other, by contrast, can unfold to more than memory holds. So only plain values, and short
    tuples of them, may be used twice. Keys of dictionaries must be plain values, because the hash
    of nested tuples is not cached.

    `stack` follows the unpickler's stack, but holds the depth of each value. A plain value has
    depth 0.
    """
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[Any, int | None] = {}  # None: of a value that may not be used twice
    before = ""
    for opcode, argument, _ in pickletools.genops(pickled):
        name = opcode.name
        if name in _VALUES:
            _verify_value(name, argument)
            stack.append(0)
        elif name in ("BINPUT", "LONG_BINPUT"):
            short = stack[-1] == 1 and before in _SHORT_TUPLES
            memo[argument] = stack[-1] if stack[-1] == 0 or short else None
        elif name in ("BINGET", "LONG_BINGET"):
            depth = memo.get(argument)
            if depth is None:
                raise ValueError("it holds a value twice")
            stack.append(depth)
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append(1)
        elif name == "MARK":
            marks.append(len(stack))
        elif name in _TAKING:
            _take(name, stack, marks)
        elif name not in ("PROTO", "STOP"):
            raise ValueError(f"it has {name} {argument or ''}, and only tensors are allowed")
        before = name


def _verify_value(name: str, argument: Any) -> None:
    if name == "GLOBAL" and argument not in _GLOBALS:
        raise ValueError(f"it names {argument}, and only tensors are allowed")
    if name == "LONG1" and not -(2**63) <= argument < 2**63:
        raise ValueError("it has a number of more than 64 bits")
    if name == "BINUNICODE":
        argument.encode()  # half a surrogate pair cannot be printed


def _take(name: str, stack: list[int], marks: list[int]) -> None:
    """Follows an operation that moves values from the stack into another value."""
    count = _TAKING[name]
    first = marks.pop() if count is None else len(stack) - count
    items = stack[first:]
    del stack[first:]
    if name in ("SETITEM", "SETITEMS") and any(items[::2]):
        raise ValueError("it has a dictionary whose keys hold other values")
    deeper = 1 + max(items, default=0)
    if name == "TUPLE" or name in _SHORT_TUPLES:
        stack.append(deeper)
    else:
        stack[-1] = max(stack[-1], deeper)
    if stack[-1] > DEPTH:
        raise ValueError("it is nested too deeply")


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint file. Raises InputError when it is absent or damaged."""
    return unpack(read_bounded(path, LIMIT), path)


def write(content: dict[str, Any], path: Path) -> None:
    write_into_folder({path: pack(content)})


class CheckpointPart(BaseModel):
    """A part of a checkpoint's content. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True, extra="ignore")


def wrong_fields(error: ValidationError) -> str:
    """The names of the first five missing or wrong fields."""
    fields = dict.fromkeys(
        (".".join(map(str, fault["loc"])) or fault["msg"])[:100]
        for fault in error.errors(include_url=False, include_input=False)
    )
    return ", ".join([*fields][:5])


def require_format(saved: Any, path: Path) -> dict[str, Any]:
    """Returns `saved`, a checkpoint's "kindling" part. Raises InputError for another version's."""
    version = saved.get("format") if isinstance(saved, dict) else None
    if isinstance(saved, dict) and version == FORMAT:
        return saved
    raise InputError(
        f"{path}: is not a checkpoint that this version of the project reads: its field "
        f"kindling.format is {version}, expected {FORMAT}; use the version that wrote it, or train "
        "again"
    )


class CheckpointPair:
    """The two newest checkpoints of a run: last.ckpt, and previous.ckpt in case last is damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last, self.previous = folder / "last.ckpt", folder / "previous.ckpt"

    @property
    def empty(self) -> bool:
        return not (self.last.exists() or self.previous.exists())

    def write(self, content: dict[str, Any]) -> None:
        """Writes last.ckpt, and keeps the old one as previous.ckpt: one is always complete."""
        make_folder(self.folder)
        if self.last.exists():
            temporary = temporary_path(self.previous)
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            try:
                os.link(self.last, temporary)
                temporary.replace(self.previous)
                # A rename between two names of one file does nothing: a killed process may have
                # written previous.ckpt, and not last.ckpt.
                temporary.unlink(missing_ok=True)
            except OSError:  # a file system without hard links: last.ckpt is absent for a moment
                self.last.replace(self.previous)
            # Synced with the new one: in any order of the two renames, a whole file has a name.
        write(content, self.last)

    def read(self) -> tuple[dict[str, Any], Path] | None:
        """The newest intact checkpoint and its path, or None if there is no checkpoint. Damaged
        checkpoints are logged. Raises InputError when all are damaged."""
        faults = []
        for path in filter(Path.exists, (self.last, self.previous)):
            try:
                content = read(path)
            except InputError as error:
                faults.append(str(error))
            else:
                for fault in faults:
                    log.warning("%s; resuming from %s", fault, path.name)
                return content, path
        if faults:
            advice = f"to train from the start, delete {self.folder} and history.csv"
            faults.append(f"no checkpoint is left to resume from; {advice}")
            raise InputError("\n".join(faults))
        return None

    def remove(self) -> None:
        for path in (self.last, self.previous):
            path.unlink(missing_ok=True)
