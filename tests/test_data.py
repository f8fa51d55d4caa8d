"""Sources, splits, order and blocks, by their values."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms import ToTensor

from src.composition import compose
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
from src.data.sources import Split, as_float, digits, held_out, idx, mnist, open_source, toy
from src.errors import InputError
from tests.datafiles import idx_files

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


def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")

    monkeypatch.setattr("torchvision.datasets.MNIST", fail)


def test_mnist_by_default_falls_back_to_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_network(monkeypatch)
    source = open_source(compose(f"data.root={tmp_path}/new/data").data)
    assert source.name == "digits"
    assert source.instead_of is not None
    assert source.instead_of.startswith("mnist, for the download failed")
    assert not list(tmp_path.iterdir())  # no trace of the attempt


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
            for block in BlockSampler(samples, [SeededOrder(0)], 2, 2, rank=rank, ranks=ranks)
            for index in block.flatten().tolist()
        ]
        for rank in range(ranks)
    ]
    assert {len(part) for part in trained} == {samples // ranks}
    assert len({index for part in trained for index in part}) == samples // ranks * ranks
    evaluated = [
        label
        for rank in range(ranks)
        for batch in Slices(_numbered(samples), size=4, rank=rank, ranks=ranks)
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
