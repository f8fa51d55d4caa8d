"""Groups tensors into blocks of K batches, in an order that depends only on (seed, epoch).

Training uses Blocks of a split; evaluation uses Slices.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from kindling.config import schema
from kindling.data.sources.source import Split, as_float
from kindling.system.machine import to_device
from kindling.system.resources import cpu_count

# Features and logits of a block on a CPU. 20 to 50 batches of 100 MNIST images were fastest on two
# cores; larger blocks leave the cache (480 batches at once: 1.3 times the time).
BLOCK_BYTES_CPU = 10 * 2**20
BLOCK_BYTES_GPU = 256 * 2**20
ROWS_BYTES = 256 * 2**20  # the most of a block that copies nothing
# Operations of a block that copies nothing: a tenth of a second or two, so that signals, progress
# and timed checkpoints do not wait longer.
OPERATIONS = 2 * 10**10
# Operations of a trial within a block: some milliseconds, so that a call costs little beside them.
CALL_OPERATIONS = 10**8
SLICE_VALUES = 64 * 2**20  # the largest number of feature values in a slice
CHUNK = 1000  # samples of an evaluation that go through a model at once, to stay in the cache


class Block(NamedTuple):
    """K training batches for each of R orders: features (K, R, B, *shape) float32, labels
    (K, R, B) int64, or (K, R, B, outputs) float32. A single run has one order. A stack has one
    order per seed of its trials. `weights` (K, R, B) are those of the samples, None: all 1.
    """

    features: Tensor
    labels: Tensor
    weights: Tensor | None = None

    @property
    def batches(self) -> int:
        return self.labels.shape[0]

    @property
    def size(self) -> int:
        """The samples of a batch."""
        return self.labels.shape[2]


class Rows:
    """A block that copies nothing: features (N, *shape), uint8 or float32, and labels
    (N, …) are those of the whole split, and `rows` (K, R, B) int64 are the samples of the batches.

    No tuple, because Lightning would convert all features to the precision of the run."""

    def __init__(
        self, features: Tensor, labels: Tensor, rows: Tensor, weights: Tensor | None = None
    ) -> None:
        self.features, self.labels, self.rows, self.weights = features, labels, rows, weights

    @property
    def batches(self) -> int:
        return self.rows.shape[0]

    @property
    def size(self) -> int:
        """The samples of a batch."""
        return self.rows.shape[-1]


# (epoch, samples) → the order of the epoch: a permutation of range(samples), (samples,) int64
Order = Callable[[int, int], Tensor]


def random_stream(*numbers: int, kind: Sequence[int] = ()) -> torch.Generator:
    """Random numbers that depend only on `numbers`, such as (seed, epoch), and on the `kind`."""
    key = np.random.SeedSequence(numbers, spawn_key=kind).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(key[0]))


class SeededOrder:
    """A permutation that depends only on (seed, epoch)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, epoch: int, samples: int) -> Tensor:
        return torch.randperm(samples, generator=random_stream(self.seed, epoch))


def in_order(_epoch: int, samples: int) -> Tensor:
    """The order of the split in every epoch."""
    return torch.arange(samples)


class FoldOrder:
    """An order of the samples outside of a fold, as rows of the whole training set.

    Folds differ in size by a sample or more. So that all trials of a stack take the same steps,
    an epoch takes as many samples as the smallest training set has; `order` chooses them.
    """

    def __init__(self, order: Order, rows: Tensor) -> None:
        self.order, self.rows = order, rows

    def __call__(self, epoch: int, samples: int) -> Tensor:
        return self.rows[self.order(epoch, len(self.rows))[:samples]]


class StreamOrder:
    """The permutations that torch's DataLoader(shuffle=True) draws from the global random stream.

    Reproduces tutorials that set the seed once. `state` is that of the stream when training begins.
    Each epoch takes two numbers from the stream: the workers' base seed and the sampler's seed
    (torch.utils.data: _BaseDataLoaderIter, RandomSampler).
    """

    def __init__(self, state: Tensor) -> None:
        self.state = state

    def __call__(self, epoch: int, samples: int) -> Tensor:
        stream = torch.Generator()
        stream.set_state(self.state)
        drawn = torch.empty((epoch + 1, 2), dtype=torch.int64)
        for number in drawn.view(-1):
            number.random_(generator=stream)
        return torch.randperm(samples, generator=stream.manual_seed(int(drawn[epoch, 1])))


def limited(batches: int, limit: int | float | None) -> int:
    """As many batches as a number or a share of them allows, at least one of them if there is one;
    as Lightning counts them."""
    if limit is None:
        return batches
    return min(batches, max(1, limit if isinstance(limit, int) else int(batches * limit)))


class BlockSampler(Sampler[Tensor]):
    """The sample indices of an epoch's blocks, (K, R, B) each; a smaller last batch is (1, R, B').

    Rank r of W takes every W-th sample of the same permutation. All ranks take equally many, so
    up to W - 1 samples are not used in an epoch. `start` is (epoch, batches): a resumed run skips
    the first `batches` batches of that epoch. `len` counts the skipped blocks too, because
    Lightning expects the full number. With `ahead`, other threads make the orders of the next
    epoch while this one trains: on a GPU, the CPU is free.
    """

    def __init__(
        self,
        samples: int,
        orders: Sequence[Order],
        batch_size: int,
        batches_per_block: int,
        *,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        start: tuple[int, int] = (0, 0),
        ahead: bool = False,
        limit: int | float | None = None,
    ) -> None:
        """`limit`: the batches of an epoch, or their share; None: all."""
        self.pool = ThreadPoolExecutor(cpu_count()) if ahead else None
        self.made_ahead: dict[tuple[Order, int], Future[Tensor]] = {}
        self.samples, self.orders, self.epoch, self.start = samples, orders, start[0], start
        self.batch_size, self.batches_per_block = batch_size, batches_per_block
        self.rank, self.world_size = rank, world_size
        self.full_batches, rest = divmod(samples // world_size, batch_size)
        self.last_batch = 0 if drop_last else rest
        most = limited(self.batches, limit)
        if most < self.batches:
            self.full_batches, self.last_batch = most, 0

    @property
    def smallest(self) -> int:
        """The number of samples in the smallest batch."""
        return self.last_batch or self.batch_size

    @property
    def batches(self) -> int:
        """The number of batches of an epoch on this rank."""
        return self.full_batches + bool(self.last_batch)

    def __len__(self) -> int:
        return self.blocks_from(0)

    def blocks_from(self, batch: int) -> int:
        """The number of blocks of an epoch that begins with this batch."""
        full = max(0, self.full_batches - batch)
        return -(-full // self.batches_per_block) + bool(self.last_batch)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Tensor]:
        on_rank = self._permutations()
        end = self.full_batches * self.batch_size
        done = self.start[1] if self.epoch == self.start[0] else 0
        blocks: list[Tensor] = []
        if done < self.full_batches:
            full = on_rank[:, :end].reshape(len(on_rank), -1, self.batch_size).transpose(0, 1)
            each = self.batches_per_block
            blocks += [full[n : n + each] for n in range(done, self.full_batches, each)]
        if self.last_batch:
            blocks.append(on_rank[:, end : end + self.last_batch].unsqueeze(0))
        for block in blocks:
            yield block.to(torch.int64, memory_format=torch.contiguous_format)

    def _permutation(self, order: Order, epoch: int) -> Tensor:
        """The part of this rank. A stack keeps one order for each seed, so int32 saves memory. A
        training set has at least half of the rows, so its rows are below 2**31."""
        found = order(epoch, self.samples)
        if self.world_size > 1:
            found = found[self.rank :: self.world_size]
        several = len(self.orders) > 1 or self.pool is not None
        return found.to(torch.int32) if several and self.samples < 2**30 else found

    def _permutations(self) -> Tensor:
        """The orders of this epoch, (R, samples of this rank). The list of orders may have changed
        since the last one."""
        pool, made = self.pool, self.made_ahead
        if pool is None:
            first = self._permutation(self.orders[0], self.epoch)
            if len(self.orders) == 1:
                return first.unsqueeze(0)
            found = first.new_empty((len(self.orders), len(first)))
            for place, order in enumerate(self.orders):
                found[place] = self._permutation(order, self.epoch) if place else first
            return found

        def begin(epoch: int) -> dict[tuple[Order, int], Future[Tensor]]:
            return {
                (order, epoch): made.get((order, epoch))
                or pool.submit(self._permutation, order, epoch)
                for order in self.orders
            }

        now = begin(self.epoch)
        permutations = torch.stack([future.result() for future in now.values()])
        self.made_ahead = begin(self.epoch + 1)
        return permutations


class Blocks(Dataset[Block]):
    """A split for training, indexed by the sample indices of a block."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __getitem__(self, indices: Tensor) -> Block:
        """The block of sample indices (K, R, B)."""
        chosen = self.split.take(indices.reshape(-1))
        features = as_float(chosen.features)
        shape = indices.shape
        weights = None if chosen.weights is None else chosen.weights.view(shape)
        features, labels = (t.view(*shape, *t.shape[1:]) for t in (features, chosen.labels))
        return Block(features, labels, weights)


class ResidentLoader:
    """Blocks of a split that stays on the device; with `rows`, as Rows of the split."""

    batch_sampler = None  # Lightning requires this attribute. It calls `sampler.set_epoch`.

    def __init__(
        self, split: Split, sampler: BlockSampler, device: torch.device, *, rows: bool = False
    ) -> None:
        self.split, self.sampler, self.device, self.rows = split.to(device), sampler, device, rows

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Block | Rows]:
        blocks = Blocks(self.split)
        for indices in self.sampler:
            chosen = to_device(indices, self.device)
            if self.rows:
                yield Rows(self.split.features, self.split.labels, chosen, self.split.weights)
            else:
                yield blocks[chosen]


class Batch(NamedTuple):
    """One batch of an evaluation: features (N, *shape) as the split holds them, labels (N, …),
    weights (N,), None: all 1."""

    features: Tensor
    labels: Tensor
    weights: Tensor | None = None


class Slices(Dataset[Batch]):
    """A split for evaluation, in its order, `size` samples at a time.

    Rank r of W takes every W-th sample, so each sample comes exactly once for any W. Copies
    nothing. Slices of large samples have fewer samples, at most SLICE_VALUES values.
    """

    def __init__(self, split: Split, size: int = 2**14, rank: int = 0, world_size: int = 1) -> None:
        self.split = split.take(slice(rank, None, world_size))
        self.size = max(1, min(size, SLICE_VALUES // math.prod(split.shape)))

    def __len__(self) -> int:
        return math.ceil(len(self.split) / self.size)

    def __getitem__(self, number: int) -> Batch:
        part = self.split.take(slice(number * self.size, (number + 1) * self.size))
        return Batch(part.features, part.labels, part.weights)

    def __iter__(self) -> Iterator[Batch]:
        return (self[number] for number in range(len(self)))


def worker_loader(
    dataset: "Dataset[Any]", sampler: BlockSampler | None, config: schema.Data
) -> "DataLoader[Any]":
    """Blocks or slices through torch's DataLoader, used with data.loader=workers."""
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        num_workers=config.num_workers,
        pin_memory=config.pin_memory,
        persistent_workers=config.persistent_workers,
        generator=torch.Generator(),  # otherwise every epoch takes a number from the global stream
    )


def batches_per_block(batch_bytes: int, device: torch.device) -> int:
    """The number of batches in a block, if a batch has `batch_bytes` bytes."""
    return max(1, (BLOCK_BYTES_CPU if device.type == "cpu" else BLOCK_BYTES_GPU) // batch_bytes)
