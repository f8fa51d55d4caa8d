"""CIFAR's pickled batches."""

import hashlib
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchvision import datasets

from src.config.compose import compose
from src.data.sources.catalogue import open_source
from src.system.errors import InputError
from src.training.fit import fit
from tests.helpers.data_files import python2_pickle


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
