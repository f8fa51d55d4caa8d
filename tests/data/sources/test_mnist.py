"""MNIST and the data sets in its format: IDX files, published, damaged and missing."""

import hashlib
from pathlib import Path

import pytest

from src.config.compose import compose
from src.data.sources import mnist as idx
from src.data.sources.catalogue import open_source
from src.data.sources.mnist import read_idx_set
from src.system.errors import InputError
from src.training.fit import fit
from tests.helpers.data_files import idx_files, mnist_files


def test_mnist_is_the_published_one(mnist_root: Path) -> None:
    source = read_idx_set("mnist", mnist_root)
    assert (len(source.train), len(source.test), source.shape) == (60_000, 10_000, (1, 28, 28))
    assert source.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert source.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert source.train.features.float().mean().item() == pytest.approx(33.3184, abs=1e-3)


def test_files_are_read_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = mnist_files(tmp_path, monkeypatch)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    source = read_idx_set("mnist", tmp_path)
    assert (len(source.train), len(source.test)) == (3, 2)
    assert source.train.labels.tolist() == [1, 2, 3]
    assert source.train.features[0, 0, 0, :4].tolist() == [0, 1, 2, 3]
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert {path.name for path in raw.iterdir()} == set(idx.MNIST_FILES)


@pytest.mark.parametrize("damage", [b"", b"cut", None])
def test_a_damaged_file_is_named_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    raw = mnist_files(tmp_path, monkeypatch)
    path = raw / "t10k-labels-idx1-ubyte"
    expected = idx.SETS["mnist"].digests[path.name]
    content = damage if damage is not None else path.read_bytes()[:-1] + b"\x09"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_idx_set("mnist", tmp_path)
    text = str(caught.value)
    assert str(path) in text
    assert expected in text
    assert hashlib.md5(content).hexdigest() in text
    assert path.read_bytes() == content


def test_a_missing_file_among_others_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = mnist_files(tmp_path, monkeypatch)
    (raw / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match=r"train-labels-idx1-ubyte: cannot be read"):
        read_idx_set("mnist", tmp_path)


@pytest.mark.parametrize(
    ("data", "folder", "third"),
    [("fashion_mnist", "FashionMNIST", "Pullover"), ("kmnist", "KMNIST", "su")],
)
def test_data_sets_in_the_format_of_mnist(
    data: str, folder: str, third: str, tmp_path: Path
) -> None:
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    for name, content in idx_files().items():
        (raw / name).write_bytes(content)
    config = compose(f"data={data}", f"data.root={tmp_path}").data
    source = open_source(config)
    assert (source.name, source.shape, source.classes) == (data, (1, 28, 28), 10)
    assert source.train.labels.tolist() == [1, 2, 3]
    assert source.test.features[1, 0, 0, :3].tolist() == [784 % 256, 785 % 256, 786 % 256]
    assert source.labels[2] == third
    short = ("trainer=cpu", "trainer.max_epochs=1", "data.val_fraction=0.3")
    recipe = ("experiment=mlp_tuned", f"data={data}", f"data.root={tmp_path}")
    done = fit(compose(*recipe, *short), tmp_path / "run")
    assert done.result["data"] == {
        "name": data, "instead_of": None, "train": 2, "val": 1, "test": 2, "skipped": 0,
        "val_most_frequent_class": 1.0,
    }  # fmt: skip
    path = raw / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        InputError, match=r"train-images.*is not a complete IDX file .* \(3, 28, 28\)"
    ):
        open_source(config)
    path.write_bytes(idx_files()["t10k-images-idx3-ubyte"])
    with pytest.raises(InputError, match=r"pictures \(2, 28, 28\) and labels \(3,\)"):
        open_source(config)
