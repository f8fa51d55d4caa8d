"""Sources, splits, order and blocks, by their values."""

import hashlib
import pickle
import warnings
from dataclasses import replace
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets
from torchvision.transforms import ToTensor

from src.config.compose import compose
from src.data.loader import (
    Block,
    Blocks,
    BlockSampler,
    ResidentLoader,
    SeededOrder,
    Slices,
    StreamOrder,
    batches_per_block,
    worker_loader,
)
from src.data.sources import mnist as idx
from src.data.sources.catalogue import open_source
from src.data.sources.embedded import digits, toy
from src.data.sources.mnist import mnist
from src.data.sources.source import Split, as_float, held_out
from src.system.errors import InputError
from tests.helpers.data_files import idx_files, python2_pickle

CPU = torch.device("cpu")


# --- sources ---


def test_digits_are_real_handwriting_of_mnists_shape() -> None:
    source = digits()
    assert (len(source.train), len(source.test), source.classes) == (1438, 359, 10)
    assert source.shape == (1, 28, 28)
    assert source.train.features.dtype == torch.float32
    assert source.train.features.min() == 0
    assert 0.99 < source.train.features.max() <= 1
    assert not source.train.features[:, 0, :4].any()  # a margin of four, as MNIST's
    assert source.train.features[:, 0, 4:24, 4:24].any(0).sum() > 350
    assert source.train.labels[:10].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 0, 1]  # the fifth is a 4


def test_toy_is_the_tutorials() -> None:
    source = toy(1)
    expected = [[-1.2, 3.1], [-0.9, 2.9], [-0.5, 2.6], [2.3, -1.1], [2.7, -1.5]]
    assert torch.equal(source.train.features, torch.tensor(expected))
    assert source.train.labels.tolist() == [0, 0, 0, 1, 1]
    assert torch.equal(source.test.features, torch.tensor([[-0.8, 2.8], [2.6, -1.6]]))
    assert source.test.labels.tolist() == [0, 1]


def test_toy_factor_repeats_with_noise_of_a_tenth() -> None:
    once, often = toy(1), toy(400)
    assert (len(often.train), len(often.test)) == (2000, 800)
    noise = often.train.features - once.train.features.repeat(400, 1)
    assert abs(noise.std().item() - 0.1) < 0.005
    assert torch.equal(often.train.labels, once.train.labels.repeat(400))
    assert torch.equal(toy(4).train.features, toy(4).train.features)


def test_synthetic_has_the_shape_and_classes_asked_for() -> None:
    config = compose("data=synthetic", "data.shape=[3,8,8]", "data.classes=4", "data.samples=4000")
    source = open_source(config.data)
    assert source.train.features.shape == (4000, 3, 8, 8)
    assert abs(source.train.features.mean().item()) < 0.01
    assert abs(source.train.features.std().item() - 1) < 0.01
    assert torch.bincount(source.train.labels).min() > 900
    assert len(source.test) == 200
    assert torch.equal(source.train.features, open_source(config.data).train.features)


def test_pixels_are_scaled_as_totensor_does() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    image = Image.fromarray(pixels[0].numpy())
    assert torch.equal(as_float(pixels), ToTensor()(image))


def test_mnist_is_the_published_one(mnist_root: Path) -> None:
    source = mnist(mnist_root)
    assert (len(source.train), len(source.test), source.shape) == (60_000, 10_000, (1, 28, 28))
    assert source.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert source.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert source.train.features.float().mean().item() == pytest.approx(33.3184, abs=1e-3)


def _four_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that passes for MNIST: three images to train, two to test."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    known = {}
    for name, content in idx_files().items():
        (raw / name).write_bytes(content)
        known[name] = hashlib.md5(content).hexdigest()
    monkeypatch.setattr(idx, "MNIST", replace(idx.MNIST, digests=known))
    return raw


def test_files_are_read_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = _four_files(tmp_path, monkeypatch)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    source = mnist(tmp_path)
    assert (len(source.train), len(source.test)) == (3, 2)
    assert source.train.labels.tolist() == [1, 2, 3]
    assert source.train.features[0, 0, 0, :4].tolist() == [0, 1, 2, 3]
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert {path.name for path in raw.iterdir()} == set(idx.MNIST_FILES)


@pytest.mark.parametrize("damage", [b"", b"cut", None])
def test_a_damaged_file_is_named_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    raw = _four_files(tmp_path, monkeypatch)
    path = raw / "t10k-labels-idx1-ubyte"
    expected = idx.MNIST.digests[path.name]
    content = damage if damage is not None else path.read_bytes()[:-1] + b"\x09"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        mnist(tmp_path)
    text = str(caught.value)
    assert str(path) in text
    assert expected in text
    assert hashlib.md5(content).hexdigest() in text
    assert path.read_bytes() == content


def test_a_missing_file_among_others_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = _four_files(tmp_path, monkeypatch)
    (raw / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match=r"train-labels-idx1-ubyte: cannot be read"):
        mnist(tmp_path)


@pytest.mark.parametrize(
    ("data", "folder", "third"),
    [("fashion_mnist", "FashionMNIST", "Pullover"), ("kmnist", "KMNIST", "su")],
)
def test_sets_in_mnists_likeness(data: str, folder: str, third: str, tmp_path: Path) -> None:
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
    path = raw / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"train-images.*is no whole IDX file .* \(3, 28, 28\)"):
        open_source(config)
    path.write_bytes(idx_files()["t10k-images-idx3-ubyte"])
    with pytest.raises(InputError, match=r"pictures \(2, 28, 28\) and labels \(3,\)"):
        open_source(config)


def _cifar(root: Path, monkeypatch: pytest.MonkeyPatch, dataset: str, key: str) -> Path:
    """Batches of two pictures each, as the published ones are pickled; their folder."""
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


@pytest.mark.parametrize(
    ("data", "dataset"),
    [("fashion_mnist", "FashionMNIST"), ("kmnist", "KMNIST"), ("cifar100", "CIFAR100")],
)
def test_a_set_that_cannot_be_had_says_what_to_type(
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


def test_mnist_by_default_falls_back_to_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_network(monkeypatch)
    monkeypatch.delenv("DATA_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    source = open_source(compose().data)
    assert source.name == "digits"
    reason = "Error downloading train-images-idx3-ubyte.gz: <no network>"
    assert source.instead_of == f"mnist, for the download failed ({reason})"
    assert not list(tmp_path.iterdir())  # no trace of the attempt
    with pytest.raises(InputError, match="the download failed"):
        open_source(compose(f"data.root={tmp_path}/new/data").data)
    monkeypatch.setenv("DATA_ROOT", str(tmp_path))
    with pytest.raises(InputError, match="the download failed"):
        open_source(compose().data)


def test_mnist_by_name_tells_both_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _no_network(monkeypatch)
    with pytest.raises(InputError) as caught:
        open_source(compose("data=mnist", f"data.root={tmp_path}").data)
    text = str(caught.value)
    assert f"{tmp_path}/MNIST/raw" in text
    assert "DATA_ROOT=FOLDER" in text
    assert "data=digits" in text


def test_a_download_lands_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _four_files(tmp_path / "there", monkeypatch)

    def download(root: str, *, download: bool) -> None:
        assert download
        raw = Path(root) / "MNIST" / "raw"
        raw.mkdir(parents=True)
        for path in (tmp_path / "there" / "MNIST" / "raw").iterdir():
            (raw / path.name).write_bytes(path.read_bytes())
            (raw / f"{path.name}.gz").write_bytes(b"archive")

    monkeypatch.setattr("torchvision.datasets.MNIST", download)
    assert len(mnist(tmp_path / "here").train) == 3
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["MNIST"]
    assert len(list((tmp_path / "here" / "MNIST" / "raw").iterdir())) == 4


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"data\.root=.*/file/data: cannot be written"):
        open_source(compose(f"data.root={tmp_path}/file/data").data)


def test_data_root_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _four_files(tmp_path / "env", monkeypatch)
    monkeypatch.setenv("DATA_ROOT", str(tmp_path / "env"))
    assert open_source(compose().data).name == "mnist"


# --- splits ---


def _numbered(count: int) -> Split:
    return Split(torch.arange(count, dtype=torch.float32).view(-1, 1), torch.arange(count))


def test_the_split_is_disjoint_whole_and_seeded() -> None:
    everything = _numbered(60_000)
    train, validation = held_out(everything, 0.2, seed=0)
    assert (len(train), len(validation)) == (48_000, 12_000)
    assert sorted(train.labels.tolist() + validation.labels.tolist()) == list(range(60_000))
    assert torch.equal(held_out(everything, 0.2, seed=0)[1].labels, validation.labels)
    assert not torch.equal(held_out(everything, 0.2, seed=1)[1].labels, validation.labels)


def test_nothing_held_out_validates_on_the_training_set() -> None:
    train, validation = held_out(_numbered(5), None, seed=0)
    assert train.labels.tolist() == validation.labels.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_an_empty_part_is_an_error(fraction: float) -> None:
    with pytest.raises(InputError, match=r"type data\.val_fraction=null"):
        held_out(_numbered(5), fraction, seed=0)


# --- order and blocks ---


def in_order(epoch: int, samples: int) -> Tensor:
    return torch.arange(samples)


def backwards(epoch: int, samples: int) -> Tensor:
    return torch.arange(samples).flip(0)


def _blocks(sampler: BlockSampler) -> list[list[list[int]]]:
    return [indices[:, 0].tolist() for indices in sampler]


def test_blocks_of_an_epoch() -> None:
    sampler = BlockSampler(11, [in_order], batch_size=2, batches_per_block=3)
    assert _blocks(sampler) == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9]], [[10]]]
    assert (len(sampler), sampler.batches) == (3, 6)
    sampler = BlockSampler(11, [in_order], 2, 3, drop_last=True)
    assert _blocks(sampler) == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9]]]
    assert (len(sampler), sampler.batches) == (2, 5)
    assert _blocks(BlockSampler(3, [in_order], 100, 5)) == [[[0, 1, 2]]]


def test_blocks_of_several_orders() -> None:
    sampler = BlockSampler(5, [in_order, backwards], batch_size=2, batches_per_block=2)
    blocks = [indices.tolist() for indices in sampler]
    assert blocks == [[[[0, 1], [4, 3]], [[2, 3], [2, 1]]], [[[4], [0]]]]


@pytest.mark.parametrize("samples", [11, 12, 13])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_an_epoch(samples: int, ranks: int) -> None:
    trained = [
        [
            index
            for block in BlockSampler(samples, [SeededOrder(0)], 2, 2, rank=rank, world_size=ranks)
            for index in block.flatten().tolist()
        ]
        for rank in range(ranks)
    ]
    assert {len(part) for part in trained} == {samples // ranks}
    assert len({index for part in trained for index in part}) == samples // ranks * ranks
    evaluated = [
        label
        for rank in range(ranks)
        for batch in Slices(_numbered(samples), size=4, rank=rank, world_size=ranks)
        for label in batch.labels.tolist()
    ]
    assert sorted(evaluated) == list(range(samples))  # each exactly once


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    order = SeededOrder(3)
    assert sorted(order(0, 100).tolist()) == list(range(100))
    assert torch.equal(order(7, 100), SeededOrder(3)(7, 100))
    assert not torch.equal(order(0, 100), order(1, 100))
    assert not torch.equal(order(1, 100), SeededOrder(4)(1, 100))
    state = torch.get_rng_state()
    order(5, 100)
    assert torch.equal(torch.get_rng_state(), state)


def test_stream_order_is_torchs_dataloader() -> None:
    torch.manual_seed(123)
    order = StreamOrder(torch.get_rng_state())
    loader = DataLoader(TensorDataset(torch.arange(50)), batch_size=50, shuffle=True)
    epochs = [next(iter(loader))[0] for _ in range(4)]
    for epoch in (2, 0, 3, 1):
        assert torch.equal(order(epoch, 50), epochs[epoch])


def test_first_batches_of_the_tutorial() -> None:
    torch.manual_seed(123)
    sampler = BlockSampler(5, [StreamOrder(torch.get_rng_state())], 2, 1, drop_last=True)
    loader = ResidentLoader(toy(1).train, sampler, CPU)
    batches = [block.features[0, 0].tolist() for block in loader]
    expected = [[[2.3, -1.1], [-0.9, 2.9]], [[-1.2, 3.1], [-0.5, 2.6]]]
    assert torch.equal(torch.tensor(batches), torch.tensor(expected))


def _equal(blocks: list[Block], others: list[Block]) -> bool:
    pairs: list[tuple[Tensor, Tensor]] = [
        pair
        for block, other in zip(blocks, others, strict=True)
        for pair in zip(block, other, strict=True)
    ]
    return all(torch.equal(tensor, other) for tensor, other in pairs)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_yield_the_resident_blocks(num_workers: int) -> None:
    split = digits().train
    pixels = Split((split.features * 255).byte(), split.labels)
    sampler = BlockSampler(len(split), [SeededOrder(1)], 32, 5)
    resident = ResidentLoader(pixels, sampler, CPU)
    workers = worker_loader(
        Blocks(pixels),
        sampler,
        num_workers=num_workers,
        pin_memory=False,
        persistent_workers=num_workers > 0,
    )
    state = torch.get_rng_state()
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append(list(resident))
        assert _equal(list(workers), epochs[-1])
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(epochs[0][0].labels, epochs[1][0].labels)
    assert epochs[0][0].features.shape == (5, 1, 32, 1, 28, 28)
    assert epochs[0][-1].features.shape == (1, 1, 1438 % 32, 1, 28, 28)


def test_block_size_suits_the_device() -> None:
    batch = 4 * 784 * 100
    assert batches_per_block(batch, CPU) == 33
    assert batches_per_block(batch, torch.device("cuda")) > 480
    assert batches_per_block(2**40, CPU) == 1
