"""Files are whole at every instant."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from src.system.files import (
    replacing,
    write_durably,
)


def test_replacing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as part:
        part.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one"

    def fail() -> Iterator[None]:
        with replacing(path) as part:
            part.write_text("two")
            yield
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(fail())
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "one"


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_durably(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_durably(path, "new")
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
