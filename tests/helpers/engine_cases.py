"""Random models, data and settings for the engine, as NumPy arrays. Run as a program, it trains
them by the engine in a library and prints a digest of all results; it imports no torch:

    python -m tests.helpers.engine_cases LIBRARY FIRST END THREADS
"""

import ctypes
import hashlib
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kindling.native import engine

Array = NDArray[Any]
SAMPLES = 60


@dataclass
class Case:
    """A model with the settings of its training, and the arrays that the engine reads and writes.
    Every array has exactly the size that the engine may touch."""

    network: engine.Network
    optimizer: engine.Optimizer
    plan: engine.PlanStruct
    class_weights: Array | None
    seed: int
    features: Array  # (SAMPLES, inputs)
    labels: Array
    rows: Array  # (batches, batch)
    rates: Array
    weights: Array
    average: Array
    stores_gradient: bool
    sample_weights: Array | None  # (SAMPLES,)
    fill: int  # a byte that fills working memory before its use
    first: Array | None = None  # Adam's means of the gradients, after training

    def scratch(self, by: engine.Engine, samples: int) -> Array:
        return np.full(by.scratch_bytes(self.network, samples), self.fill, np.uint8)

    def train(
        self,
        by: engine.Engine,
        blocks: int = 0,
        threads: int = 1,
        exchange: engine.Exchange | None = None,
    ) -> tuple[Array, Array]:
        """Trains in calls of so many batches, by default in one. Returns losses and scores."""
        gradient, first, second = (np.zeros_like(self.weights) for _ in range(3))
        self.first, adam = first, self.optimizer.kind > 0
        model = engine.ModelStruct(
            self.weights.ctypes.data,
            gradient.ctypes.data if self.stores_gradient or exchange else None,
            first.ctypes.data if adam or self.optimizer.momentum else None,
            second.ctypes.data if adam else None,
            self.average.ctypes.data if self.plan.ema_decay else None,
            ctypes.addressof(exchange) if exchange else None,
            self.seed,
            0,
        )
        count, batch = self.rows.shape
        losses, scores = np.full(count, np.nan), np.full(count, np.nan)
        scratch = self.scratch(by, batch)
        pool = ThreadPoolExecutor(threads)
        members = by.team(threads)
        for start in range(0, count, blocks or count):
            block = engine.BlockStruct(
                self.features.ctypes.data, self.source, self.rows.ctypes.data,
                self.labels.ctypes.data, self._sample_weights, batch, 3, 0, start,
                min(count, start + (blocks or count)), self.rates.ctypes.data,
                losses.ctypes.data, scores.ctypes.data,
            )  # fmt: skip
            arguments = (self.network, (self.optimizer, self.plan), model, block)
            jobs = [
                pool.submit(_train, by, *arguments, scratch.ctypes.data, member)
                for member in members
            ]
            for job in jobs:
                job.result()
        pool.shutdown()
        return losses, scores

    @property
    def source(self) -> int:
        return engine.BYTES if self.features.dtype == np.uint8 else engine.FLOATS

    @property
    def _sample_weights(self) -> int | None:
        return None if self.sample_weights is None else self.sample_weights.ctypes.data

    def samples(self) -> engine.SamplesStruct:
        return engine.SamplesStruct(
            self.features.ctypes.data,
            self.source,
            self.labels.ctypes.data,
            self._sample_weights,
            SAMPLES,
        )

    def evaluate(self, by: engine.Engine) -> tuple[float, float, Array]:
        """The sum of the losses of all samples, the sum of their scores, and the logits."""
        scratch = self.scratch(by, SAMPLES)
        weights = self.weights.ctypes.data
        logits = np.empty((SAMPLES, self.network.widths[-1]), self.weights.dtype)
        by.logits(self.network, weights, self.samples(), logits.ctypes.data, scratch.ctypes.data)
        arguments = self.network, weights, self.samples(), scratch.ctypes.data
        again = np.zeros_like(logits)
        loss, scores = by.evaluate(*arguments, again.ctypes.data)
        assert np.array_equal((loss, scores), by.evaluate(*arguments), equal_nan=True)
        assert np.array_equal(again, logits, equal_nan=True)
        return loss, scores, logits


def _train(by: engine.Engine, *arguments: Any) -> None:
    """After a call, the thread knows numbers below the normal ones again."""
    by.train(*arguments)
    assert np.float32(1e-40) / np.float32(2) > 0


def _labels(numbers: np.random.Generator, loss: str, outputs: int) -> Array:
    if loss == "cross_entropy":
        return numbers.integers(0, outputs, SAMPLES)
    if loss == "binary_cross_entropy":
        return numbers.integers(0, 2, (SAMPLES, outputs)).astype(np.float32)
    return numbers.normal(size=(SAMPLES, outputs)).astype(np.float32)


def draw(
    number: int,
    *,
    bits: int | None = None,
    random_numbers: bool = True,
    loss: str | None = None,
) -> Case:
    """The case of that number. Without random numbers, there is neither dropout nor noise."""
    chance, of_loss = random.Random(number), random.Random(~number)
    loss = loss or of_loss.choice(["cross_entropy", *engine.LOSSES])
    classifies = loss == "cross_entropy"
    numbers = np.random.default_rng(number)
    depth = chance.randint(0, 3)
    widths = [chance.choice([1, 2, 5, 12, 16, 17, 33, 300])]
    widths += [chance.choice([1, 3, 8, 15, 16, 17, 40, 65, 130]) for _ in range(depth)]
    classes = chance.randint(2, 20)
    targets = of_loss.choice([1, 1, 2, 3, 17, 20])
    widths += [classes if classifies else 3 * targets if loss == "quantile" else targets]
    bits = bits or chance.choice([32, 64])
    rate = chance.choice([0.0, 0.3, 0.9]) if random_numbers else 0.0
    network = engine.Network(
        tuple(widths),
        bits,
        chance.choice(engine.ACTIVATIONS),
        chance.choice(engine.NORMS) if depth else None,
        tuple(rate * chance.choice([0, 1]) for _ in range(depth)),
        chance.choice([0.0, 0.2]) if random_numbers else 0.0,
        chance.choice([0.0, 0.3]) if random_numbers else 0.0,
        chance.choice([None, None, 0.5]) if depth else None,
        loss=loss,
        delta=0.1 if loss == "quantile" else of_loss.choice([0.1, 1.0, 3.0]),
    )
    kind = chance.choice(engine.OPTIMIZERS)
    momentum = chance.choice([0.0, 0.5, 0.9]) if kind == "sgd" else 0.0
    decay = chance.choice([0.0, 0.01])
    batches, batch = chance.randint(1, 6), chance.choice([2, 3, 7, 16, 31, 40, 300])
    plan = engine.PlanStruct(
        batches, chance.choice([1, 1, 2, 3]), chance.choice([0.0, 0.0, 0.1, 100.0]),
        chance.choice([0.0, 0.1]), chance.choice([0.0, 0.9]),
    )  # fmt: skip
    class_weights = None
    if chance.random() < 0.4 and classifies:
        class_weights = numbers.choice([0.1, 0.5, 1.0, 3.0, 40.0], widths[-1])
        plan.class_weights = class_weights.ctypes.data
    plain = kind == "sgd" and not momentum and not decay and plan.accumulate == 1 and not plan.clip
    pixels = chance.random() < 0.5
    shape = (SAMPLES, widths[0])
    features: Array = numbers.normal(size=shape).astype(np.float32)
    if pixels:
        features = numbers.integers(0, 256, shape, dtype=np.uint8)
    weights = np.zeros(network.size, np.float32 if bits == 32 else np.float64)
    for place in network.layers:
        matrix = weight_of(place, weights)
        matrix[:] = numbers.normal(size=matrix.shape) / np.sqrt(place.inputs)
        for name, low, high in (
            ("bias", -0.1, 0.1), ("scale", 0.8, 1.2), ("shift", -0.2, 0.2), ("mean", -1, 1),
            ("variance", 0.5, 2),
        ):  # fmt: skip
            vector = vector_of(place, name, weights)
            if vector is not None:
                vector[:] = numbers.uniform(low, high, len(vector))
    return Case(
        network,
        engine.Optimizer(
            engine.OPTIMIZERS.index(kind),
            bool(momentum) and chance.random() < 0.5,
            decay,
            momentum,
            0.9,
            0.999,
            1e-8,
        ),
        plan,
        class_weights,
        chance.getrandbits(40),
        features,
        _labels(numbers, loss, classes if classifies else targets),
        numbers.integers(0, SAMPLES, (batches, batch)),
        (0.05 if kind == "sgd" else 0.003) * np.arange(1.0, batches + 1),
        weights,
        weights.copy(),
        not plain,
        numbers.choice([0.0, 0.5, 1.0, 7.0], SAMPLES).astype(np.float32)
        if of_loss.random() < 0.4
        else None,
        chance.choice([0, 255]),
    )


def weight_of(place: engine.LayerStruct, vector: Array) -> Array:
    """The weight (inputs, units) of a layer, a view of a flat vector."""
    whole = vector[place.weight : place.weight + place.inputs * place.stride]
    return whole.reshape(place.inputs, place.stride)[:, : place.units]


def vector_of(place: engine.LayerStruct, name: str, vector: Array) -> Array | None:
    """The bias, scale, shift, mean or variance of a layer, a view of a flat vector."""
    start: int = getattr(place, name)
    return None if start < 0 else vector[start : start + place.units]


def results(case: Case, by: engine.Engine, blocks: int = 0, threads: int = 1) -> bytes:
    """Everything that training and evaluating a case gives, bit for bit."""
    losses, scores = case.train(by, blocks, threads)
    loss, hits, logits = case.evaluate(by)
    arrays = (losses, scores, case.weights, case.average, logits, np.array([loss, hits]))
    return b"".join(array.tobytes() for array in arrays)


if __name__ == "__main__":
    library, first, end, threads = sys.argv[1:]
    by = engine.Engine(ctypes.CDLL(library))
    digest = hashlib.sha256()
    for number in range(int(first), int(end)):
        digest.update(results(draw(number), by, threads=int(threads)))
    print(digest.hexdigest())
