"""Files are whole at every instant."""

import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kindling.system import files
from kindling.system.errors import InputError
from kindling.system.files import (
    WRITERS,
    lock_or_fail,
    make_folder,
    replace_quickly,
    replacing,
    wait_for_lock,
    write_durably,
    write_first,
    write_into_folder,
    write_together,
)
from tests.helpers.kills import Killed, die_at_sync


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


def test_writers_of_the_same_file_wait_for_each_other(tmp_path: Path) -> None:
    """Each replaces the file as the one before has left it."""
    path = tmp_path / "file"
    path.write_text("")

    def add(number: int) -> None:
        with replacing(path) as temporary:
            time.sleep(0.001)
            temporary.write_text(f"{path.read_text()}{number}\n")

    with ThreadPoolExecutor(4) as threads:
        for number in range(20):
            threads.submit(add, number)
    assert sorted(map(int, path.read_text().split())) == [*range(20)]
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_is_removed_before_its_lock_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, real = tmp_path / "folder" / ".lock", files.open_in_place
    removed = list[Path]()

    def late(path: Path, flags: int) -> int:
        if not removed:
            path.parent.rmdir()
            removed.append(path)
        return real(path, flags)

    monkeypatch.setattr(files, "open_in_place", late)
    with lock_or_fail(lock):
        assert lock.exists()
    assert removed == [lock]


def test_a_disk_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is trained in needs locks; a file is replaced without them."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    for lock in (lock_or_fail, wait_for_lock):
        told = f"{tmp_path / '.lock'}: cannot be locked (No locks available); name a folder on"
        with pytest.raises(InputError, match=re.escape(told)), lock(tmp_path / ".lock"):
            pass
    for text in ("one", "two"):
        write_durably(tmp_path / "file", text)
    assert (tmp_path / "file").read_text() == "two"


def test_a_look_at_a_lock_keeps_nobody_out(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    with lock.open("w") as file, ThreadPoolExecutor(1) as threads:
        fcntl.flock(file, fcntl.LOCK_SH)

        def unlock() -> None:
            time.sleep(0.05)
            fcntl.flock(file, fcntl.LOCK_UN)

        threads.submit(unlock)
        with lock_or_fail(lock):
            pass


def test_a_quick_write_does_not_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link is replaced, not followed."""
    monkeypatch.delattr(os, "fsync")
    behind, path = tmp_path / "behind", tmp_path / "file"
    behind.write_text("of someone else")
    path.symlink_to(behind)
    for content in ("first", "second"):
        replace_quickly(path, content)
        assert path.read_text() == content
    assert behind.read_text() == "of someone else"
    assert {entry.name for entry in tmp_path.iterdir()} == {"behind", "file"}


def test_files_of_a_folder_are_replaced_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any sync: each file is old or new, and none is new after an old one."""
    paths = [tmp_path / name for name in "abc"]
    for number, replaced in enumerate((0, 1, 2, 3)):  # the last sync is that of the folder
        write_into_folder(dict.fromkeys(paths, "old"))
        with monkeypatch.context() as patch:
            die_at_sync(patch, number)
            with pytest.raises(Killed):
                write_into_folder(dict.fromkeys(paths, b"new"))
        texts = [path.read_text() for path in paths]
        assert texts == ["new"] * replaced + ["old"] * (3 - replaced)


def test_only_the_first_writes(tmp_path: Path) -> None:
    """All files are of one process."""
    names = [tmp_path / "new" / name for name in ("a", "b", "last")]
    write_first({})
    with ThreadPoolExecutor(4) as threads:
        for number in range(12):
            threads.submit(write_first, dict.fromkeys(names, str(number)))
    (written,) = {path.read_text() for path in names}
    write_first({names[0]: "other", names[2]: "other"})
    assert [path.read_text() for path in names] == [written] * 3
    assert len([*names[0].parent.iterdir()]) == 3


@pytest.mark.parametrize("kind", ["file", "link", "link to itself", "link to nothing"])
def test_what_a_killed_process_left_is_replaced(tmp_path: Path, kind: str) -> None:
    """Links are never followed."""
    behind, first, last = tmp_path / "behind", tmp_path / "run" / "a", tmp_path / "run" / "last"
    behind.write_text("of someone else")
    first.parent.mkdir()
    for path in (first, last) if kind.endswith(("itself", "nothing")) else (first,):
        match kind:
            case "file":
                path.write_text("half")
            case "link":
                path.symlink_to(behind)
            case "link to itself":
                path.symlink_to(path)
            case _:
                path.symlink_to(tmp_path / "nothing")
    write_first({first: "new", last: "new"})
    write_durably(tmp_path / "run" / "b", "b")
    assert behind.read_text() == "of someone else"
    assert not any(path.is_symlink() for path in first.parent.iterdir())
    assert [path.read_text() for path in (first, last)] == ["new", "new"]
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("write", [write_durably, lambda path, text: write_first({path: text})])
def test_a_disk_that_takes_some_bytes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, str], None]
) -> None:
    take = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: take(descriptor, data[:3]))
    write(tmp_path / "file", "fünfzehn Zeichen")
    assert (tmp_path / "file").read_text() == "fünfzehn Zeichen"


def test_folders_are_made_durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[Path]()
    monkeypatch.setattr(files, "sync", synced.append)
    make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    synced.clear()
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    make_folder(tmp_path / "link")
    assert synced == []
    make_folder(tmp_path / "link" / "d")
    assert synced == [tmp_path / "link"]
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "in"):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            make_folder(path)
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    with pytest.raises(FileNotFoundError):
        make_folder(Path("x/y"))


def test_items_are_written_together(tmp_path: Path) -> None:
    """Every item is written once; few are in memory at a time; the first exception is raised, and
    no item after it is begun."""
    taken: list[int] = []
    written: list[int] = []

    def items() -> Iterator[int]:
        for number in range(200):
            taken.append(number)
            assert len(taken) - len(written) <= 2 * WRITERS + 1
            yield number

    write_together(written.append, items())
    assert sorted(written) == taken == list(range(200))

    def fail(number: int) -> None:
        if number == 3:
            raise Killed
        written.append(number)

    taken.clear()
    written.clear()
    with pytest.raises(Killed):
        write_together(fail, items())
    assert max(taken) < 200 - 1
    assert 3 not in written
