"""Published data sets: found under a root, or downloaded there by torchvision."""

import hashlib
import logging
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from src.system.errors import InputError
from src.system.files import open_regular

log = logging.getLogger(__name__)


class UnavailableError(Exception):
    """A data set that cannot be had here and now."""


@dataclass(frozen=True)
class Published:
    """A data set by its name in torchvision.datasets, and its files in `folder` under a root."""

    dataset: str
    folder: str
    files: Sequence[str]

    def obtain(self, root: Path) -> Path:
        """The folder of its files, downloaded first where there is none of them.

        A folder that has any of the files is never written. Raises InputError for an unwritable
        root, UnavailableError when the download fails.
        """
        folder = root / self.folder
        if not any((folder / name).exists() for name in self.files):
            self._download(root)
        return folder

    def _download(self, root: Path) -> None:
        """Downloads beside the target and renames, so that root never holds half a data set."""
        created = [folder for folder in (root, *root.parents) if not folder.exists()]
        target = root / self.folder
        try:
            root.mkdir(parents=True, exist_ok=True)
            beside = Path(tempfile.mkdtemp(prefix=".download-", dir=root))
        except OSError as error:
            raise InputError(
                f"data.root={root}: cannot be written ({error.strerror}); type data.root=FOLDER "
                f"with a folder that can, or that has {self.folder} already"
            ) from None
        try:
            from torchvision import datasets

            log.info("downloading %s to %s", self.dataset, root)
            with _timeout(20):
                getattr(datasets, self.dataset)(str(beside), download=True)
            for archive in (beside / self.folder).glob("*.gz"):
                archive.unlink()
            target.parent.mkdir(exist_ok=True)
            try:
                (beside / self.folder).rename(target)
            except OSError:
                if not target.exists():  # else another run was faster
                    raise
        except (OSError, RuntimeError, HTTPException) as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise UnavailableError(f"the download failed ({reason})") from None
        finally:
            shutil.rmtree(beside, ignore_errors=True)
            for folder in created:
                if not any(folder.iterdir()):
                    folder.rmdir()


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """torchvision's download waits for ever on a silent network."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def read_known(path: Path, limit: int, digest: str | None, title: str) -> bytearray:
    """The content of a file of at most `limit` bytes, known by its MD5 where there is one.

    Raises InputError for any other content, and leaves it as it is.
    """
    try:
        with open_regular(path) as file:
            content = bytearray(file.read(limit + 1))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest not in (None, found):
        raise InputError(
            f"{path}: is not {title}'s file: its MD5 is {found}, expected {digest}. It was left "
            "as it is; replace it, or move it away to have it downloaded again"
        )
    return content
