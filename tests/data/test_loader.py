"""The order of samples, and blocks, by their values."""

import gc

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from kindling.config.compose import compose
from kindling.data.loader import (
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
from kindling.data.module import DataModule
from kindling.data.sources.digits import digits
from kindling.data.sources.source import Split
from kindling.data.sources.toy import toy

CPU = torch.device("cpu")


def _numbered(count: int) -> Split:
    return Split(torch.arange(count, dtype=torch.float32).view(-1, 1), torch.arange(count))


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


def _bytes_of_tensors() -> int:
    """Of all that live, each memory once."""
    gc.collect()
    living = [
        each
        for each in gc.get_objects()
        if type(each) is torch.Tensor and each.layout == torch.strided
    ]
    memories = [each.untyped_storage() for each in living]
    return sum({memory.data_ptr(): memory.nbytes() for memory in memories}.values())


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (1, 3)])
def test_the_orders_of_many_seeds_take_four_bytes_a_sample(rank: int, ranks: int) -> None:
    """The blocks are those of the whole permutations."""
    samples, seeds = 4001, 50
    orders = [SeededOrder(seed) for seed in range(seeds)]
    before = _bytes_of_tensors()
    sampler = BlockSampler(samples, orders, 16, 4, rank=rank, world_size=ranks)
    blocks = iter(sampler)
    found = [next(blocks)]
    held = -(-(samples - rank) // ranks) * seeds * 4
    assert held <= _bytes_of_tensors() - before <= held + 3 * found[0].nbytes
    found += blocks
    assert {block.dtype for block in found} == {torch.int64}
    for seed, order in enumerate(orders):
        expected = order(0, samples).numpy()[rank::ranks][: samples // ranks]
        joined = np.concatenate([block[:, seed].reshape(-1).numpy() for block in found])
        assert joined.tolist() == expected.tolist()


def test_orders_that_are_made_ahead_are_the_same() -> None:
    """Also after a resume, and when trials have left the stack between two epochs."""
    asked: list[tuple[int, int]] = []

    class Noted(SeededOrder):
        def __call__(self, epoch: int, samples: int) -> Tensor:
            asked.append((self.seed, epoch))
            return super().__call__(epoch, samples)

    seeds = (3, 4, 5)
    plain = BlockSampler(23, [SeededOrder(seed) for seed in seeds], 4, 2, start=(2, 3))
    ahead = BlockSampler(23, [Noted(seed) for seed in seeds], 4, 2, start=(2, 3), ahead=True)
    for epoch, left in ((2, 3), (3, 3), (4, 1), (5, 1), (7, 1)):
        for sampler in (plain, ahead):
            sampler.set_epoch(epoch)
            sampler.orders = sampler.orders[:left]
        for found, expected in zip(ahead, plain, strict=True):
            assert found.equal(expected)
    assert ahead.pool is not None
    ahead.pool.shutdown()
    assert len(asked) == len({*asked})  # what was made ahead was used
    assert {epoch for seed, epoch in asked if seed == 3} == {2, 3, 4, 5, 6, 7, 8}
    assert {epoch for seed, epoch in asked if seed == 4} == {2, 3, 4}


def test_only_a_gpu_has_orders_made_ahead() -> None:
    data = DataModule(compose("data=digits").data)
    data.setup()
    assert data.sampler().pool is None
    assert data.sampler(device=torch.device("cuda")).pool is not None


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
        for pair in zip(block[:2], other[:2], strict=True)
    ]
    return all(torch.equal(tensor, other) for tensor, other in pairs)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_yield_the_resident_blocks(num_workers: int) -> None:
    split = digits().train
    pixels = Split((split.features * 255).byte(), split.labels)
    sampler = BlockSampler(len(split), [SeededOrder(1)], 32, 5)
    resident = ResidentLoader(pixels, sampler, CPU)
    kept = f"data.persistent_workers={num_workers > 0}"
    config = compose("data.loader=workers", f"data.num_workers={num_workers}", kept).data
    assert not config.pin_memory
    workers = worker_loader(Blocks(pixels), sampler, config)
    state = torch.get_rng_state()
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append([block for block in resident if isinstance(block, Block)])
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
