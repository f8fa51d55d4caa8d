"""Where published data sets are looked for, and what happens when a download fails."""

from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import pytest
from torchvision import datasets

from src.config.compose import compose
from src.data.sources.catalogue import open_source
from src.data.sources.mnist import read_idx_set
from src.system.errors import InputError
from tests.helpers.data_files import mnist_files


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
    reason = "Error downloading train-images-idx3-ubyte.gz: <no network>"
    assert source.instead_of == f"mnist, because the download failed ({reason})"
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
