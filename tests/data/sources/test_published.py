"""Published data sets: their roots and downloads, IDX files, and pickled batches."""

import hashlib
import os
import pickle
import warnings
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import datasets

from kindling.config.compose import compose
from kindling.data.sources import published
from kindling.data.sources.catalogue import open_source
from kindling.data.sources.published import UnavailableError, read_idx_set
from kindling.system.errors import InputError
from kindling.training.fit import fit
from tests.helpers.data_files import idx_files, mnist_files, python2_pickle


@pytest.mark.parametrize(
    ("data", "dataset"),
    [("fashion_mnist", "FashionMNIST"), ("kmnist", "KMNIST"), ("cifar100", "CIFAR100")],
)
def test_an_unavailable_data_set_says_what_to_type(
    data: str, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, root: str, *, download: bool) -> None:
        raise IncompleteRead(b"")

    monkeypatch.setattr(getattr(datasets, dataset), "__init__", fail)
    with pytest.raises(InputError, match=rf"data={data}: the download failed .*DATA_ROOT=FOLDER"):
        open_source(compose(f"data={data}", f"data.root={tmp_path}/new").data)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            RuntimeError(
                "Error downloading a.gz:\nTried first/a.gz, got:\n<urlopen error timed out>\n"
                "Tried second/a.gz, got:\n<urlopen error [Errno -2] Name or service not known>\n"
            ),
            "[Errno -2] Name or service not known",
        ),
        (RuntimeError("Error downloading a.gz:\nTried b, got:\nHTTP Error 503: Busy"),
         "HTTP Error 503: Busy"),
        (TimeoutError("timed out"), "timed out"),
        (TimeoutError(), "TimeoutError"),
        (OSError("x" * 1000), "x" * 100),
    ],
)  # fmt: skip
def test_a_failed_download_is_told_in_a_few_words(
    error: Exception, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr("torchvision.datasets.MNIST", fail)
    with pytest.raises(UnavailableError) as caught:
        read_idx_set("mnist", tmp_path)
    assert str(caught.value) == f"the download failed ({told})"


def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("Error downloading train-images-idx3-ubyte.gz:\n<no network>")

    monkeypatch.setattr("torchvision.datasets.MNIST", fail)


def test_mnist_falls_back_to_digits_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_network(monkeypatch)
    monkeypatch.delenv("DATA_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    source = open_source(compose().data)
    assert source.name == "digits"
    assert source.instead_of == "mnist, because the download failed (no network)"
    assert not list(tmp_path.iterdir())  # no trace of the attempt
    with pytest.raises(InputError, match="the download failed"):
        open_source(compose(f"data.root={tmp_path}/new/data").data)
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    with pytest.raises(InputError, match="the download failed"):
        open_source(compose().data)


def test_unavailable_mnist_names_both_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_network(monkeypatch)
    with pytest.raises(InputError) as caught:
        open_source(compose("data=mnist", f"data.root={tmp_path}").data)
    text = str(caught.value)
    assert f"{tmp_path}/MNIST/raw" in text
    assert "DATA_ROOT=FOLDER" in text
    assert "data=digits" in text


def test_a_download_lands_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist_files(tmp_path / "there", monkeypatch)

    def download(root: str, *, download: bool) -> None:
        assert download
        raw = Path(root) / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for path in (tmp_path / "there" / "MNIST" / "raw").iterdir():
            (raw / path.name).write_bytes(path.read_bytes())
            (raw / f"{path.name}.gz").write_bytes(b"archive")

    monkeypatch.setattr("torchvision.datasets.MNIST", download)
    assert len(read_idx_set("mnist", tmp_path / "here").train) == 3
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["MNIST"]
    assert len(list((tmp_path / "here" / "MNIST" / "raw").iterdir())) == 4


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"data\.root=.*/file/data: cannot be written"):
        open_source(compose(f"data.root={tmp_path}/file/data").data)


def test_data_root_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mnist_files(tmp_path / "env", monkeypatch)
    monkeypatch.setenv("DATA_ROOT", str(tmp_path / "env"))
    assert open_source(compose().data).name == "mnist"


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
    assert {path.name for path in raw.iterdir()} == set(published.MNIST_FILES)


@pytest.mark.parametrize("damage", [b"", b"cut", None])
def test_a_damaged_file_is_named_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    raw = mnist_files(tmp_path, monkeypatch)
    path = raw / "t10k-labels-idx1-ubyte"
    expected = published.SETS["mnist"].digests[path.name]
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


@pytest.mark.slow
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
        "val_most_frequent_class": 1.0, "test_most_frequent_class": 0.5, "test_in_training": None,
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


def _cifar(root: Path, monkeypatch: pytest.MonkeyPatch, dataset: str, key: str) -> Path:
    """Writes batches of two pictures each, pickled as the published ones; returns their folder."""
    published = getattr(datasets, dataset)
    folder = root / str(published.base_folder)
    folder.mkdir()
    batches = [name for name, _ in published.train_list + published.test_list]
    known = {}
    for number, name in enumerate(batches):
        pixels = np.arange(2 * 3072, dtype=np.int64).reshape(2, 3072) + number
        content = python2_pickle({"data": (pixels % 251).astype(np.uint8), key: [number % 2, 1]})
        (folder / name).write_bytes(content)
        known[name] = hashlib.md5(content).hexdigest()
    meta = published.meta
    content = python2_pickle({meta["key"]: ["cat", "dog"]})
    (folder / meta["filename"]).write_bytes(content)
    digest = hashlib.md5(content).hexdigest()
    monkeypatch.setattr(published, "meta", meta | {"md5": digest})
    monkeypatch.setattr(published, "train_list", [[name, known[name]] for name in batches[:-1]])
    monkeypatch.setattr(published, "test_list", [[batches[-1], known[batches[-1]]]])
    return folder


@pytest.mark.parametrize(
    ("data", "dataset", "key", "batches"),
    [("cifar10", "CIFAR10", "labels", 5), ("cifar100", "CIFAR100", "fine_labels", 1)],
)
def test_cifar_is_what_torchvision_reads(
    data: str,
    dataset: str,
    key: str,
    batches: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _cifar(tmp_path, monkeypatch, dataset, key)
    source = open_source(compose(f"data={data}", f"data.root={tmp_path}").data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs imports numpy.core
        theirs = getattr(datasets, dataset)(str(tmp_path), train=True)
    assert (source.shape, source.labels) == ((3, 32, 32), ("cat", "dog"))
    assert np.array_equal(source.train.features.numpy().transpose(0, 2, 3, 1), theirs.data)
    assert source.train.labels.tolist() == theirs.targets
    assert (len(source.train), len(source.test)) == (2 * batches, 2)


@pytest.mark.slow
def test_a_recipe_of_mnist_trains_on_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cifar(tmp_path, monkeypatch, "CIFAR10", "labels")
    recipe = ("experiment=mlp_tuned", "trainer=cpu", "trainer.max_epochs=1")
    done = fit(compose(*recipe, "data=cifar10", f"data.root={tmp_path}"), tmp_path / "run")
    sizes = ((3072 + 2) * 1024, (1024 + 2) * 1024, (1024 + 1) * 2)  # with scales and shifts
    assert done.result["parameters"] == sum(sizes)
    used = done.result["data"]
    assert (used["train"], used["val"], used["test"]) == (9, 1, 2)


class Harm:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def test_a_strangers_batch_is_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _cifar(tmp_path, monkeypatch, "CIFAR10", "labels")
    content = pickle.dumps({"data": Harm(tmp_path / "harmed")})
    (folder / "test_batch").write_bytes(content)
    config = compose("data=cifar10", f"data.root={tmp_path}").data
    with pytest.raises(InputError, match="test_batch: is not CIFAR10's file: its MD5 is"):
        open_source(config)
    # And were its MD5 the published one, nothing that it names would be called.
    digest = hashlib.md5(content).hexdigest()
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", digest]])
    with pytest.raises(InputError, match=r"test_batch: cannot be read .*it names "):
        open_source(config)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("size", [0, 1, 6, 7, 8, 14, 1000])
def test_a_file_is_read_and_hashed_in_parts(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "PART", 7)
    file, content = tmp_path / "file", os.urandom(size)
    file.write_bytes(content)
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    assert published._read_known(file, digest, "MNIST") == content
    for place in {0, size // 2, size - 1} if size else ():
        flipped = bytearray(content)
        flipped[place] ^= 1
        file.write_bytes(flipped)
        with pytest.raises(InputError, match="its MD5 is"):
            published._read_known(file, digest, "MNIST")
