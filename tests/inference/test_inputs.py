"""Pictures, arrays and folders: what is read, and what is said of the rest."""

import csv
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kindling.inference import inputs
from kindling.inference.inputs import left_out, read_inputs
from kindling.inference.prediction import predict_inputs, to_csv
from kindling.records.loading import open_trained
from kindling.system import errors
from kindling.system.errors import InputError
from tests.helpers.commands import Train
from tests.helpers.drawings import seven


def png_of(side: int) -> bytes:
    """A PNG whose header claims side × side pixels, without data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(bytes(9))), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)


def saved(kind: str, cut: int | None = None) -> bytes:
    file = io.BytesIO()
    seven().save(file, kind)
    return file.getvalue()[:cut]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a PNG or JPEG file; save the picture as PNG"),
        (b"a text", "is not a PNG or JPEG file"),
        (saved("GIF"), "is not a PNG or JPEG file"),
        (saved("PNG", 400), "is damaged .*; save the picture again"),
        (saved("JPEG", 3000), "is damaged .*; save the picture again"),
        (png_of(100_000), "has more than 64,000,000 pixels; scale the picture down"),
        (png_of(10_000), "has more than 64,000,000 pixels"),
        (png_of(8_001), "has more than 64,000,000 pixels"),
        (png_of(100), "is damaged"),  # as the ones above were, had they been decoded
    ],
)
def test_wrong_pictures(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"^{path}: {message}") as caught:
        read_inputs([path])
    assert "\n" not in str(caught.value)


def test_too_large_files_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    with path.open("wb") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(InputError, match=r"has more than 64 MiB; scale the picture down"):
        read_inputs([path])


def test_wrong_paths(tmp_path: Path) -> None:
    (tmp_path / ".hidden.png").write_bytes(saved("PNG"))
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=r"has no \.png, \.jpg or \.jpeg file; name a folder"):
        read_inputs([tmp_path])
    with pytest.raises(InputError, match="there is no such file or folder"):
        read_inputs([tmp_path / "absent.png"])
    with pytest.raises(InputError, match="is neither a file nor a folder"):
        read_inputs([Path("/dev/null")])
    with pytest.raises(InputError, match=r"cannot be read \(File name too long\)"):
        read_inputs([tmp_path / ("x" * 300)])


def test_a_single_array_is_told_the_way_to_an_archive(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    with pytest.raises(InputError, match=r"a\.npy: is a single array; .* numpy\.savez\(FILE, x="):
        read_inputs([tmp_path / "a.npy"])


def test_all_faults_are_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    with pytest.raises(InputError) as caught:
        read_inputs(paths)
    lines = str(caught.value).splitlines()
    assert lines[0] == "5 faults, nothing was predicted"
    assert [line.split(":")[0] for line in lines[1:]] == [f"  {path}" for path in paths]
    monkeypatch.setattr(errors, "FAULTS_SHOWN", 2)
    with pytest.raises(InputError, match=r"1\.png.*\n  and 3 more$"):
        read_inputs(paths)


def test_skipped_files_are_counted_and_listed(tmp_path: Path) -> None:
    seven().save(tmp_path / "seven.png")
    (tmp_path / ".hidden.txt").write_text("")
    (tmp_path / "folder.png").mkdir()
    assert left_out([tmp_path, tmp_path / "seven.png"]) == [
        f"{tmp_path}: 1 skipped, not PNG or JPEG: folder.png/"
    ]
    for name in ("a.gif", "b.npz", "c\n.csv", "d.txt", "e", "f"):
        (tmp_path / name).write_text("")
    assert left_out([tmp_path]) == [
        f"{tmp_path}: 7 skipped, not PNG or JPEG: a.gif, b.npz, c\ufffd.csv, d.txt, e and 2 more"
    ]


@pytest.mark.parametrize("seed", range(5))
def test_readable_files_have_predictions_beside_broken_ones(
    seed: int, train: Train, tmp_path: Path
) -> None:
    """Whole and broken files of every kind in any order: each keeps its place in the output."""
    hand = np.random.default_rng(seed)
    whole = saved("PNG")
    np.savez(tmp_path / "good.npz", x=np.zeros((2, 28, 28), np.uint8))
    np.savez(tmp_path / "shape.npz", x=np.zeros((2, 7), np.uint8))
    np.savez(tmp_path / "labels.npz", x=np.zeros((2, 28, 28), np.uint8), y=[0, 99])
    (tmp_path / "good.png").write_bytes(whole)
    (tmp_path / "cut.png").write_bytes(whole[: hand.integers(len(whole) // 2)])
    (tmp_path / "torn.npz").write_bytes(hand.bytes(int(hand.integers(1, 500))))
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty").mkdir()
    good = {"good.npz": 2, "good.png": 1}
    bad = ["shape.npz", "labels.npz", "cut.png", "torn.npz", "table.csv", "empty", "absent.png"]
    names = [str(name) for name in hand.permutation([*good, *bad, *good])]
    found = predict_inputs(
        open_trained(train("trainer.max_epochs=1").folder),
        read_inputs([tmp_path / name for name in names]),
    )
    expected = [name for name in names for _ in range(good.get(name, 1))]
    assert [item.path.name for item in found] == expected
    for item in found:
        assert (item.guess is None) == bool(item.fault) == (item.path.name in bad)
        assert item.fault.startswith(f"{item.path}: " if item.fault else "")
    rows = csv.DictReader(io.StringIO(to_csv(found, "0123456789")))
    assert [bool(row["fault"]) for row in rows] == [name in bad for name in expected]


ONES = np.ones((3, 28, 28), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": ONES}, "has no array x, it has images"),
        ({}, "has no array x, it has none"),
        ({"x": np.array([None, {}])}, "Object arrays cannot be loaded"),
        ({"x": np.array(["a", "b"])}, "x is of <U1, must be uint8 or floats, of pictures"),
        ({"x": ONES.astype(int)}, "x is of int64"),
        ({"x": ONES[:0]}, r"x is \(0, 28, 28\), must be \(N, \.\.\.\)"),
        ({"x": np.float32(1)}, r"x is \(\), must be"),
        ({"x": np.full((2, 28, 28), [[[0]], [[np.nan]]])}, r"x\[1\] has NaN or infinite"),
        ({"x": np.full((2, 28, 28), 1e300)}, r"x\[0\] has NaN or infinite"),
        ({"x": ONES * 255.0}, "x goes from 255 to 255, floats of pictures must be from 0 to 1"),
        ({"x": ONES, "y": [1, 2]}, r"y is \(2,\), must be \(3,\), a label for each row"),
        ({"x": ONES * 2.0, "y": [1.0, 2, 3]}, "x goes .*; y is of float64, must be whole"),
    ],
)
def test_wrong_arrays(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=rf"^{path}: .*{message}"):
        read_inputs([path])


def test_arrays_are_bounded_before_they_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "samples.npz"
    np.savez_compressed(path, x=np.zeros((2000, 28, 28), np.uint8))
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(inputs, "ARRAYS_LIMIT", 2**20)
    monkeypatch.delattr(np, "load")
    with pytest.raises(InputError, match="unpacks to more than 1 MiB; split it"):
        read_inputs([path])
    path.write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"cannot be read as \.npz \(File is not a zip file\)"):
        read_inputs([path])
