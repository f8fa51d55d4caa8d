"""Training loops that people use, each with an epoch of 784-32-10 at batch size 100.

All train the same network on the same samples by plain SGD with the same rate, in float32.
"""

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from PIL import Image
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
)
from torchvision.transforms import ToTensor

from benchmarks.measure import quiet, seconds_per_epoch, wait_for_gpu
from benchmarks.products import BATCH, CLASSES, HIDDEN
from kindling.config.compose import compose
from kindling.data.sources.source import Split, as_float
from kindling.records.loading import open_trained
from kindling.training.fit import fit

RATE = 0.5


@dataclass(frozen=True)
class Contender:
    """A training loop. A call of `train` trains for an epoch or more, and returns seconds per
    epoch. `logits` maps features (N, 784) float32 to logits (N, 10) of the trained network."""

    train: Callable[[], float]
    logits: Callable[[Tensor], Tensor]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def _initial_arrays() -> list[np.ndarray]:
    """New weights (inputs, outputs) and biases of the network."""
    return [parameter.detach().numpy().T.copy() for parameter in network().parameters()]


class _Pictures(Dataset[tuple[Tensor, int]]):
    """Makes a PIL image of each sample and a tensor by ToTensor, as torchvision's MNIST does."""

    def __init__(self, split: Split) -> None:
        self.data = (as_float(split.features)[:, 0] * 255).round().byte()
        self.targets, self.transform = split.labels, ToTensor()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.data[index].numpy(), mode="L")
        return self.transform(image), int(self.targets[index])


def tutorial(train: Split, validation: Split) -> Contender:
    """The loop of Zero to GANs: DataLoader, sampler, ToTensor, a step per batch, validation."""
    model = network()
    loader, validation_loader = (
        DataLoader(_Pictures(split), BATCH, sampler=SubsetRandomSampler(range(len(split))))
        for split in (train, validation)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def epoch() -> float:
        began = time.perf_counter()
        for images, labels in loader:
            loss = F.cross_entropy(model(images.reshape(-1, 784)), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        measured = []
        for images, labels in validation_loader:
            logits = model(images.reshape(-1, 784))
            accuracy = (logits.argmax(1) == labels).sum().item() / len(labels)
            measured.append((F.cross_entropy(logits, labels).item(), accuracy))
        return time.perf_counter() - began

    return Contender(epoch, torch.no_grad()(model))


def bare(features: Tensor, labels: Tensor) -> Contender:
    """Plain torch on tensors in memory, with fused SGD and without any metrics or checkpoints."""
    model = network().to(features.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, fused=True)

    def epoch() -> float:
        began = time.perf_counter()
        for batch in torch.split(torch.randperm(len(labels), device=features.device), BATCH):
            loss = F.cross_entropy(
                model(features.index_select(0, batch)), labels.index_select(0, batch)
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        wait_for_gpu()
        return time.perf_counter() - began

    return Contender(epoch, torch.no_grad()(model))


def _functions(
    features: Tensor, labels: Tensor
) -> tuple[tuple[Tensor, ...], Callable[..., Tensor], Callable[..., None]]:
    """The weights of a new network, its logits (weights, features), and a step (weights, batch),
    from gathering the batch to the new weights."""
    weights = tuple(parameter.detach() for parameter in network().to(features.device).parameters())

    def logits(weights: tuple[Tensor, ...], x: Tensor) -> Tensor:
        w1, b1, w2, b2 = weights
        return F.linear(F.linear(x, w1, b1).relu(), w2, b2)

    def loss(weights: tuple[Tensor, ...], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits(weights, x), y)

    def descend(weights: tuple[Tensor, ...], batch: Tensor) -> None:
        x, y = features.index_select(0, batch), labels.index_select(0, batch)
        gradients = torch.func.grad(loss)(weights, x, y)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.sub_(gradient, alpha=RATE)

    return weights, logits, descend


def compiled(features: Tensor, labels: Tensor) -> Contender:
    """The same loop; torch.compile makes one function of a step. The first epoch takes longer,
    because it compiles."""
    weights, logits, descend = _functions(features, labels)
    step = torch.compile(descend)

    def epoch() -> float:
        with quiet():
            began = time.perf_counter()
            for batch in torch.split(torch.randperm(len(labels)), BATCH):
                step(weights, batch)
            return time.perf_counter() - began

    return Contender(epoch, partial(logits, weights))


def graphed(features: Tensor, labels: Tensor) -> Contender:
    """The same step on a GPU as a CUDA graph, which each batch replays. The number of samples is a
    multiple of the batch size."""
    weights, logits, descend = _functions(features, labels)
    batch = torch.zeros(BATCH, dtype=torch.int64, device=features.device)
    step = partial(torch.compile(descend), weights, batch)
    with quiet(), torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        for _ in range(3):
            step()
    wait_for_gpu()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def epoch() -> float:
        began = time.perf_counter()
        for rows in torch.split(torch.randperm(len(labels), device=features.device), BATCH):
            batch.copy_(rows)
            graph.replay()
        wait_for_gpu()
        return time.perf_counter() - began

    return Contender(epoch, partial(logits, weights))


def can_compile() -> bool:
    """Whether there is a C++ compiler, which torch.compile needs on a CPU."""
    return any(map(shutil.which, ("c++", "g++", "clang++")))


def by_numpy(features: Tensor, labels: Tensor) -> Contender:
    """NumPy alone, with the gradients written out."""
    x, y, stream = features.numpy(), labels.numpy(), np.random.default_rng(0)
    w1, b1, w2, b2 = _initial_arrays()

    def epoch() -> float:
        began = time.perf_counter()
        order = stream.permutation(len(y))
        for start in range(0, len(y), BATCH):
            batch = order[start : start + BATCH]
            inputs, targets = x[batch], y[batch]
            hidden = np.maximum(inputs @ w1 + b1, 0)
            logits = hidden @ w2 + b2
            delta = np.exp(logits - logits.max(1, keepdims=True))
            delta /= delta.sum(1, keepdims=True)
            delta[np.arange(len(batch)), targets] -= 1
            delta *= RATE / len(batch)
            hidden_delta = delta @ w2.T * (hidden > 0)
            for weight, change in (
                (w1, inputs.T @ hidden_delta), (b1, hidden_delta.sum(0)),
                (w2, hidden.T @ delta), (b2, delta.sum(0)),
            ):  # fmt: skip
                np.subtract(weight, change, out=weight)
        return time.perf_counter() - began

    return Contender(
        epoch, lambda given: torch.from_numpy(np.maximum(given.numpy() @ w1 + b1, 0) @ w2 + b2)
    )


def by_jax(features: Tensor, labels: Tensor) -> Contender:
    """JAX: one compiled call per epoch, in which lax.scan takes the steps. A smaller last batch is
    a call of its own. Gathering each batch in the scan is faster than gathering all of them first.
    """
    import jax
    from jax import numpy as jnp

    x, y = jnp.asarray(features.numpy()), jnp.asarray(labels.numpy().astype(np.int32))
    stream, full = np.random.default_rng(0), len(y) // BATCH * BATCH
    weights = tuple(map(jnp.asarray, _initial_arrays()))

    def logits(weights: Any, x: Any) -> Any:
        w1, b1, w2, b2 = weights
        return jax.nn.relu(x @ w1 + b1) @ w2 + b2

    def loss(weights: Any, x: Any, y: Any) -> Any:
        found = jnp.take_along_axis(jax.nn.log_softmax(logits(weights, x)), y[:, None], 1)
        return -found.mean()

    def scan(weights: Any, x: Any, y: Any, batches: Any) -> Any:
        def step(weights: Any, batch: Any) -> tuple[Any, None]:
            gradients = jax.grad(loss)(weights, x[batch], y[batch])
            return tuple(w - RATE * g for w, g in zip(weights, gradients, strict=True)), None

        return jax.lax.scan(step, weights, batches)[0]

    steps = jax.jit(scan)

    def epoch() -> float:
        nonlocal weights
        began = time.perf_counter()
        order = stream.permutation(len(y))
        weights = steps(weights, x, y, order[:full].reshape(-1, BATCH))
        if full < len(y):
            weights = steps(weights, x, y, order[full:][None])
        jax.block_until_ready(weights)
        return time.perf_counter() - began

    return Contender(
        epoch, lambda given: torch.from_numpy(np.array(logits(weights, given.numpy())))
    )


class _Default(LightningModule):
    """A module as in Lightning's introduction."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        features, labels = batch
        loss = F.cross_entropy(self.model(features), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


def default_lightning(features: Tensor, labels: Tensor, accelerator: str = "cpu") -> Contender:
    """Lightning's Trainer with its defaults, on whole batches of the same tensors. The sampler
    yields batches of indices, so that Lightning does not collate single samples."""
    dataset = TensorDataset(features, labels)
    sampler = BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
    # tensors[list of indices] gathers a batch at once; batch_size=None turns collating off.
    loader: DataLoader[Any] = DataLoader(dataset, sampler=sampler, batch_size=None)
    module = _Default()

    def epoch() -> float:
        with quiet(), tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(
                max_epochs=1, accelerator=accelerator, devices=1, default_root_dir=folder
            )
            began = 0.0

            def start(*_: Any) -> None:
                nonlocal began
                began = time.perf_counter()

            module.on_train_epoch_start = start  # type: ignore[method-assign]
            trainer.fit(module, loader)
            return time.perf_counter() - began

    return Contender(epoch, torch.no_grad()(module.model))


def sklearn(features: Tensor, labels: Tensor) -> Contender:
    """scikit-learn's MLPClassifier with the same network, batch size and rate; mean of 3 epochs."""
    x, y = features.numpy(), labels.numpy()
    epochs = 3
    classifier = MLPClassifier(
        (HIDDEN,), solver="sgd", alpha=0.0, batch_size=BATCH, learning_rate_init=RATE,
        momentum=0.0, nesterovs_momentum=False, max_iter=epochs, n_iter_no_change=10**6,
        warm_start=True,
    )  # fmt: skip
    classifier.partial_fit(x, y, classes=np.arange(CLASSES))  # makes the arrays
    w1, b1, w2, b2 = _initial_arrays()
    classifier.coefs_, classifier.intercepts_ = [w1, w2], [b1, b2]

    def epoch() -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            began = time.perf_counter()
            classifier.fit(x, y)
            return (time.perf_counter() - began) / epochs

    return Contender(
        epoch, lambda given: torch.from_numpy(classifier.predict_log_proba(given.numpy()))
    )


def keras(features: Tensor, labels: Tensor) -> Contender:
    """Keras' fit on the same arrays, with torch as backend and without output."""
    os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras reads the variable when it is imported
    import keras

    x, y = features.numpy(), labels.numpy()
    hidden = keras.layers.Dense(HIDDEN, activation="relu")
    model = keras.Sequential([keras.Input((784,)), hidden, keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.set_weights(_initial_arrays())
    model.compile(keras.optimizers.SGD(RATE), loss, metrics=["accuracy"])

    def epoch() -> float:
        began = time.perf_counter()
        model.fit(x, y, BATCH, verbose=0)
        return time.perf_counter() - began

    return Contender(epoch, lambda given: torch.as_tensor(model(given.numpy())).detach())


def ours(data: str, epochs: int = 4) -> Contender:
    """This project as its users run it, with validation, history, checkpoints and progress bar.
    Each call is a new run; its first epoch does not count."""
    config = compose(
        f"data={data}", "scheduler=none", f"optimizer.lr={RATE}", f"trainer.max_epochs={epochs}",
        "trainer.accelerator=cpu", "trainer.progress_bar=true",
    )  # fmt: skip
    model = network()

    def run() -> float:
        with quiet(), tempfile.TemporaryDirectory() as folder:
            done = fit(config, Path(folder))
            trained = open_trained(done.last_checkpoint).model.parameters()
            for parameter, value in zip(model.parameters(), trained, strict=True):
                parameter.data = value.data
            return seconds_per_epoch(done.history)

    return Contender(run, torch.no_grad()(model))
