"""An epoch of 784-32-10 at batch size 100 in the training loops that people use."""

import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

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

from src.benchmarks.measure import epoch_seconds, interleave, quiet, ratio, report
from src.benchmarks.products import BATCH, CLASSES, HIDDEN, products
from src.benchmarks.settings import Settings
from src.config.compose import compose
from src.data.sources.catalogue import open_source
from src.data.sources.source import Split, as_float, split_off_validation
from src.system import machine

RATE = 0.5


def run(settings: Settings) -> tuple[str, str]:
    machine.keep_freed_memory()  # as our run does, so that all contenders benefit
    config = compose(f"data={settings.data}").data
    source = open_source(config)
    train, validation = split_off_validation(source.train, config.val_fraction, config.split_seed)
    features, labels = as_float(train.features).flatten(1), train.labels
    contenders = {
        "tutorial": tutorial(train, validation),
        "bare": bare(features, labels),
        "lightning": default_lightning(features, labels),
        "sklearn": sklearn(features, labels),
        **({"keras": keras(features, labels)} if find_spec("keras") else {}),
        "ours": ours(settings.data),
        "products": products(len(features)),
    }
    seconds = interleave(contenders, settings.rounds)
    others = ("tutorial", "lightning", "sklearn", "keras")
    pairs = [("ours", "bare"), *((other, "ours") for other in others), ("ours", "products")]
    ratios = {
        f"{above}/{below}": ratio(seconds, above, below)
        for above, below in pairs
        if above in seconds
    }
    note = f"seconds per epoch: {len(train)} samples of {source.name}, batch {BATCH}, "
    note += f"{settings.rounds} rounds"
    if source.instead_of:
        note += f"; {source.name} instead of {source.instead_of}"
    table, line = report("loops", seconds, ratios, data=source.name, instead_of=source.instead_of)
    return f"{note}\n\n{table}", line


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


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


def tutorial(train: Split, validation: Split) -> Callable[[], float]:
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

    return epoch


def bare(features: Tensor, labels: Tensor) -> Callable[[], float]:
    """Plain torch on tensors in memory, with fused SGD and without any metrics or checkpoints."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, fused=True)

    def epoch() -> float:
        began = time.perf_counter()
        for batch in torch.split(torch.randperm(len(labels)), BATCH):
            loss = F.cross_entropy(
                model(features.index_select(0, batch)), labels.index_select(0, batch)
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return time.perf_counter() - began

    return epoch


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


def default_lightning(
    features: Tensor, labels: Tensor, accelerator: str = "cpu"
) -> Callable[[], float]:
    """Lightning's Trainer with its defaults, on whole batches of the same tensors. The sampler
    yields batches of indices, so that Lightning does not collate single samples."""
    dataset = TensorDataset(features, labels)
    sampler = BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
    # tensors[list of indices] gathers a batch at once; batch_size=None turns collating off.
    loader: DataLoader[Any] = DataLoader(dataset, sampler=sampler, batch_size=None)

    def epoch() -> float:
        with quiet(), tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(max_epochs=1, accelerator=accelerator, default_root_dir=folder)
            module = _Default()
            began = 0.0

            def start(*_: Any) -> None:
                nonlocal began
                began = time.perf_counter()

            module.on_train_epoch_start = start  # type: ignore[method-assign]
            trainer.fit(module, loader)
            return time.perf_counter() - began

    return epoch


def sklearn(features: Tensor, labels: Tensor) -> Callable[[], float]:
    """scikit-learn's MLPClassifier with the same network, batch size and rate; mean of 3 epochs."""
    x, y = features.numpy(), labels.numpy()
    epochs = 3

    def epoch() -> float:
        classifier = MLPClassifier(
            (HIDDEN,), solver="sgd", alpha=0.0, batch_size=BATCH, learning_rate_init=RATE,
            momentum=0.0, nesterovs_momentum=False, max_iter=epochs, n_iter_no_change=epochs + 1,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            began = time.perf_counter()
            classifier.fit(x, y)
            return (time.perf_counter() - began) / int(classifier.n_iter_)

    return epoch


def keras(features: Tensor, labels: Tensor) -> Callable[[], float]:
    """Keras' fit on the same arrays, with torch as backend and without output."""
    os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras reads the variable when it is imported
    import keras

    x, y = features.numpy(), labels.numpy()
    hidden = keras.layers.Dense(HIDDEN, activation="relu")
    model = keras.Sequential([keras.Input((784,)), hidden, keras.layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE), loss, metrics=["accuracy"])

    def epoch() -> float:
        began = time.perf_counter()
        model.fit(x, y, BATCH, verbose=0)
        return time.perf_counter() - began

    return epoch


def ours(data: str) -> Callable[[], float]:
    """This project as its users run it, with validation, history, checkpoints and progress bar."""
    config = compose(
        f"data={data}", "scheduler=none", f"optimizer.lr={RATE}", "trainer.max_epochs=4",
        "trainer.accelerator=cpu", "trainer.progress_bar=true",
    )  # fmt: skip
    return partial(epoch_seconds, config)
