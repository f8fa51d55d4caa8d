"""The texts of errors."""

import errno
import io
import zipfile

import pytest

from kindling.system.errors import (
    FAULTS_SHOWN,
    InputError,
    all_at_once,
    exit_on_error,
    first_line,
    parsing,
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("first\nsecond"), "first"),
        (ValueError(), "ValueError"),
        (KeyError(""), "''"),
    ],
)
def test_the_first_line_of_an_error(error: Exception, expected: str) -> None:
    assert first_line(error) == expected


class Failing(io.BytesIO):
    """A file on a disk that fails."""

    def read(self, _size: int | None = -1, /) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    ("file", "told"),
    [(Failing(b"x" * 99), "Input/output error"), (io.BytesIO(b"x" * 99), "File is not a zip file")],
)
def test_a_disk_that_fails_below_a_library_is_told(file: io.BytesIO, told: str) -> None:
    with pytest.raises(InputError) as raised, parsing("f: is no archive", "; restore it"):
        zipfile.ZipFile(file)
    assert str(raised.value) == f"f: is no archive ({told}); restore it"


def test_an_earlier_error_is_no_reason() -> None:
    try:
        raise OSError(errno.ENOENT, "No such file or directory")
    except OSError:
        with pytest.raises(InputError) as raised, parsing("f: is no number"):
            float("x")
    assert str(raised.value).startswith("f: is no number (could not convert")


@pytest.mark.parametrize("count", [1, 2, FAULTS_SHOWN, FAULTS_SHOWN + 1])
def test_many_faults_are_shortened_and_counted(count: int) -> None:
    lines = str(all_at_once([f"fault {n}" for n in range(count)], "nothing was read")).splitlines()
    if count == 1:
        assert lines == ["fault 0"]
        return
    assert lines[0] == f"{count} faults, nothing was read"
    assert lines[1 : FAULTS_SHOWN + 1] == [f"  fault {n}" for n in range(min(count, FAULTS_SHOWN))]
    assert lines[FAULTS_SHOWN + 1 :] == (["  and 1 more"] if count > FAULTS_SHOWN else [])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FileNotFoundError(errno.ENOENT, "gone", "a/b"), "a/b: cannot be read or written (gone)"),
        (PermissionError(errno.EACCES, "no", "a"), "a: cannot be read or written (no)"),
        (OSError(errno.ENOSPC, "full", "a"), "a: cannot be written (full)"),
    ],
)
def test_an_unusable_disk_is_told_in_one_line(
    error: OSError, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end, exit_on_error():
        raise error
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: {told}\n"


def test_other_errors_of_the_system_keep_their_traceback() -> None:
    with pytest.raises(ConnectionResetError), exit_on_error():
        raise ConnectionResetError(errno.ECONNRESET, "reset")
