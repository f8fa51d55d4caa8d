"""Published data sets: found below data.root, or downloaded there by torchvision."""

import hashlib
import logging
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

from src.config import schema
from src.data.paths import FOLDERS, data_root, named_root
from src.data.sources.digits import digits
from src.data.sources.source import Source
from src.system.errors import InputError, reading
from src.system.files import open_regular

log = logging.getLogger(__name__)


class UnavailableError(Exception):
    """A data set that is not on this machine and cannot be downloaded now."""


def obtain(name: str, dataset: str, files: Iterable[str], root: Path) -> Path:
    """The folder of a data set's files, downloaded by torchvision when none of them is there; a
    folder with any of the files is never written.

    Raises InputError for a root that cannot be written, UnavailableError when the download fails.
    """
    folder = root / FOLDERS[name]
    if not any((folder / file).exists() for file in files):
        download(dataset, FOLDERS[name], root)
    return folder


def download(dataset: str, folder: str, root: Path) -> None:
    """Downloads beside the target and renames, so that the root never holds half a data set."""
    created = [parent for parent in (root, *root.parents) if not parent.exists()]
    target = root / folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".download-", dir=root))
    except OSError as error:
        raise InputError(
            f"data.root={root}: cannot be written ({error.strerror}); type data.root=FOLDER "
            f"with a folder that can, or that has {folder} already"
        ) from None
    try:
        from torchvision import datasets

        log.info("downloading %s to %s", dataset, root)
        with _timeout(20):
            getattr(datasets, dataset)(str(beside), download=True)
        for archive in (beside / folder).glob("*.gz"):
            archive.unlink()
        target.parent.mkdir(exist_ok=True)
        try:
            (beside / folder).rename(target)
        except OSError:
            if not target.exists():  # otherwise another run was faster
                raise
    except (OSError, RuntimeError, HTTPException) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UnavailableError(f"the download failed ({reason})") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        for parent in created:
            if not any(parent.iterdir()):
                parent.rmdir()


def open_published(
    config: schema.Mnist | schema.Torchvision, read: Callable[[str, Path], Source]
) -> Source:
    """The result of `read(name, root)`, or the fallback of an unavailable data set. Raises
    InputError as `read`, and where there is no fallback or the user named the root."""
    root, folder = data_root(config.root), FOLDERS[config.name]
    try:
        return read(config.name, root)
    except UnavailableError as error:
        unnamed = named_root(config.root) is None
        if isinstance(config, schema.Mnist) and config.fallback is not None and unnamed:
            return replace(digits(), instead_of=f"mnist, because {error}")
        raise InputError(
            f"data={config.name}: {error}. Either put its files, unpacked, into {root / folder} or "
            f"name the folder that has {folder} with data.root=FOLDER or DATA_ROOT=FOLDER; or type "
            "data=digits, which needs no download"
        ) from None


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """Limits torchvision's download, which would wait for ever on a silent network."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def read_known(path: Path, limit: int, digest: str | None, title: str) -> bytearray:
    """The content of a file, of which at most `limit` bytes are read. Raises InputError when the
    file cannot be read or its MD5 is not `digest`."""
    with reading(path), open_regular(path) as file:
        content = bytearray(file.read(limit + 1))
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest not in (None, found):
        raise InputError(
            f"{path}: is not {title}'s file: its MD5 is {found}, expected {digest}. It was left "
            "as it is; replace it, or move it away to have it downloaded again"
        )
    return content
