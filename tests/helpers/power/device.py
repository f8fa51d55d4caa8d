"""A disk whose writes are recorded, under a real file system.

A file of FUSE is the disk: a loop device passes on what the file system writes to it, and when it
wants all of this to be durable. A power cut leaves what was written before the last such moment,
and any part of the rest (Mohan et al., Finding Crash-Consistency Bugs with Bounded Black-Box
Crash Testing, OSDI 2018). Needs the right to mount.

    python tests/helpers/power/device.py IMAGE FILE LOG

serves IMAGE as FILE until FILE is unmounted.
"""

import ctypes
import errno
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

PATIENCE = 60.0  # seconds
MAY_MOUNT = 21  # CAP_SYS_ADMIN
SECTOR = 512  # bytes, which a disk writes as a whole
SIZE = 320 << 20  # bytes: XFS wants 300 MiB
MAKERS = {  # the command that makes each file system
    "ext4": ("mkfs.ext4", "-q", "-F"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
WRITES = struct.Struct("=QI")  # of the log: place and length; a length of 0 is a flush


# --- the disk -------------------------------------------------------------------------------------


class Kind(IntEnum):
    """Of a request, from linux/fuse.h."""

    FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS = 2, 3, 4, 14, 15, 16, 17
    RELEASE, FSYNC, FLUSH, INIT, INTERRUPT, DESTROY = 18, 20, 25, 26, 36, 38


REQUEST = struct.Struct("=IIQQIIII")
REPLY = struct.Struct("=IiQ")
MOST = 1 << 17  # bytes of one write


def attributes(size: int) -> bytes:
    """Of a regular file that its owner alone may read and write."""
    return struct.pack(
        "=6Q10I", 1, size, size // SECTOR, 0, 0, 0, 0, 0, 0, 0o100600, 1, 0, 0, 0, 4096, 0
    )


def serve(image: Path, place: Path, log: Path) -> None:
    """Answers the kernel, one request after the other."""
    disk, channel = os.open(image, os.O_RDWR), os.open("/dev/fuse", os.O_RDWR)
    record = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    options = f"fd={channel},rootmode=100600,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"power", os.fsencode(place), b"fuse", 0, options):
        sys.exit(os.strerror(ctypes.get_errno()))
    print("ready", flush=True)
    while True:
        try:
            request = os.read(channel, MOST + (1 << 16))
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            if error.errno in (errno.ENOENT, errno.EINTR):
                continue
            raise
        _, kind, number, *_ = REQUEST.unpack_from(request)
        if kind not in (Kind.FORGET, Kind.INTERRUPT):  # which want no answer
            reply = answer(kind, request[REQUEST.size :], disk, record)
            status = 0 if reply is not None else -errno.ENOSYS
            reply = reply or b""
            os.write(channel, REPLY.pack(REPLY.size + len(reply), status, number) + reply)


def answer(  # noqa: PLR0911, a case for each kind of request
    kind: int, body: bytes, disk: int, record: int
) -> bytes | None:
    """None for what a disk cannot do."""
    match kind:
        case Kind.INIT:
            return struct.pack("=4IHHII36x", 7, 31, 0, 0, 16, 12, MOST, 1)
        case Kind.GETATTR | Kind.SETATTR:
            return struct.pack("=QII", 3600, 0, 0) + attributes(os.fstat(disk).st_size)
        case Kind.OPEN:
            return bytes(16)
        case Kind.READ:
            _, place, length = struct.unpack_from("=QQI", body)
            return os.pread(disk, length, place)
        case Kind.WRITE:
            _, place, length = struct.unpack_from("=QQI", body)
            data = body[40 : 40 + length]
            os.pwrite(disk, data, place)
            os.write(record, WRITES.pack(place, length) + data)
            return struct.pack("=II", length, 0)
        case Kind.FSYNC:
            os.write(record, WRITES.pack(0, 0))
            return b""
        case Kind.STATFS:
            return struct.pack("=5Q4I24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
        case Kind.RELEASE | Kind.FLUSH | Kind.DESTROY:
            return b""
    return None


# --- cuts -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """A write; without data, the moment at which all before it had to be durable."""

    place: int
    data: bytes


def read_log(log: Path) -> list[Written]:
    content, position, found = log.read_bytes(), 0, list[Written]()
    while position < len(content):
        place, length = WRITES.unpack_from(content, position)
        position += WRITES.size + length
        found.append(Written(place, content[position - length : position]))
    return found


def left(written: Sequence[Written], rule: str, draw: random.Random) -> list[Written]:
    """What is on the disk after a cut: everything up to the last flush, and by the rule all,
    nothing, or some of the rest, or of each write some sectors."""
    last = max((n + 1 for n, each in enumerate(written) if not each.data), default=0)
    sure, rest = [*written[:last]], written[last:]
    match rule:
        case "all":
            return [*sure, *rest]
        case "nothing":
            return sure
        case "some":
            return sure + [each for each in rest if draw.random() < 0.5]
    torn = (
        Written(each.place + at, each.data[at : at + SECTOR])
        for each in rest
        for at in range(0, len(each.data), SECTOR)
        if draw.random() < 0.5
    )
    return [*sure, *torn]


RULES = ("all", "nothing", "some", "torn")


def build(image: Path, start: Path, written: Sequence[Written]) -> None:
    subprocess.run(["cp", "--sparse=always", str(start), str(image)], check=True)
    with image.open("r+b") as disk:
        for each in written:
            disk.seek(each.place)
            disk.write(each.data)


@contextmanager
def mounted(image: Path, root: Path, system: str) -> Iterator[None]:
    root.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", system, "-o", "loop", str(image), str(root)], check=True)
    try:
        yield
    finally:
        _unmount(root)


def _unmount(place: Path) -> None:
    """Waits for the processes that a command leaves behind for a moment."""
    end, umount = time.monotonic() + PATIENCE, ["umount", str(place)]
    while (done := subprocess.run(umount, check=False, capture_output=True)).returncode:
        assert time.monotonic() < end, done.stderr
        time.sleep(0.05)


@contextmanager
def recorded(image: Path, root: Path, system: str, log: Path) -> Iterator[None]:
    """Mounts the image below `root`, and records what is written to it."""
    place = image.with_name("disk")
    place.touch()
    command = [sys.executable, __file__, str(image), str(place), str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        try:
            with mounted(place, root, system):
                yield
            _unmount(place)
        finally:
            server.kill()


def make(image: Path, system: str) -> None:
    with image.open("wb") as disk:
        disk.truncate(SIZE)
    subprocess.run([*MAKERS[system], str(image)], check=True)


def missing(system: str) -> str:
    """Why this file system cannot be tried here; "" if it can."""
    rights = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    if rights is None or not int(rights[1], 16) >> MAY_MOUNT & 1:
        return "this process may not mount file systems"
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not os.access(device, os.W_OK):
            return f"there is no {device}"
    if shutil.which(MAKERS[system][0]) is None:
        return f"there is no {MAKERS[system][0]}"
    known = Path("/proc/filesystems").read_text().split()
    return "" if system in known else f"the kernel does not know {system}"


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:]))
