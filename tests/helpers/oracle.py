"""A run by plain torch: one loop of obvious steps that shares only its data with the project.

In float64, on a CPU. It follows the configuration of a run: the split, the order of samples, the
initial weights, torch's optimizers and schedulers, early stopping and averages.
"""

import copy
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR, OneCycleLR

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
DIVERGED = 1e6  # a mean loss of a batch above it, or none at all

Values = dict[str, Any]
Data = tuple[Tensor, Tensor]


@dataclass
class Trained:
    """The results of a run. Weights have the names of the model's own state."""

    rows: list[Values] = field(default_factory=list)
    diverged_step: int | None = None
    stopped: bool = False
    best_epoch: int | None = None
    last: dict[str, Tensor] = field(default_factory=dict)
    best: dict[str, Tensor] = field(default_factory=dict)
    test: tuple[float, float] = (math.nan, math.nan)


class Loop:
    """A run of a configuration, given as nested primitives."""

    def __init__(self, values: Values, train: Data, test: Data, nudge: float = 0.0) -> None:
        """`nudge` changes each initial weight by about that share of it."""
        self.values, self.test_set = values, test
        self.data, self.settings = values["data"], values["trainer"]
        self.train_set, self.validation_set = self._split(train)
        torch.manual_seed(values["seed"])
        classes = self.data["classes"]
        inputs = train[0].flatten(1).shape[1]
        self.model = network(values["model"], inputs, classes).double()
        self.weights = list(self.model.parameters())
        stream = torch.Generator().manual_seed(0)
        for weight in self.weights if nudge else ():
            weight.data *= 1 + nudge * torch.randn(
                weight.shape, generator=stream, dtype=weight.dtype
            )
        self.batches = [len(part) for part in self._batches(0)]
        self.steps_per_epoch = -(-len(self.batches) // self.settings["accumulate_grad_batches"])
        self.optimizer = self._optimizer()
        self.scheduler = self._scheduler()
        self.step = 0
        self.average = copy.deepcopy(self.model) if self.settings["ema_decay"] else None

    def run(self) -> Trained:
        found = Trained([self._row(0, None, None)])
        patience = self.settings["early_stopping_patience"]
        monitor, since = self.values["checkpoint"]["monitor"], 0
        better = 1.0 if monitor.endswith("loss") else -1.0
        least = math.inf
        for epoch in range(1, self.settings["max_epochs"] + 1):
            measured, found.diverged_step = self._epoch(epoch - 1)
            found.rows.append(self._row(epoch, *measured))
            if found.diverged_step is not None:
                break
            value = better * found.rows[-1][monitor]
            since += 1
            if value < least:
                least, since, found.best_epoch = value, 0, epoch
                found.best = copied(self._validated())
            if patience and since >= patience and epoch < self.settings["max_epochs"]:
                found.stopped = True
                break
        found.last = copied(self.model)
        if found.best:
            tested = self._validated()
            tested.load_state_dict(found.best)
            found.test = measure(tested, self.test_set)
        return found

    def _split(self, train: Data) -> tuple[Data, Data]:
        fraction = self.data["val_fraction"]
        if fraction is None:
            return train, train
        stream = torch.Generator().manual_seed(self.data["split_seed"])
        drawn = torch.randperm(len(train[1]), generator=stream)
        count = round(len(train[1]) * fraction)
        held, kept = drawn[:count].sort().values, drawn[count:].sort().values
        return (train[0][kept], train[1][kept]), (train[0][held], train[1][held])

    def _batches(self, epoch: int) -> Iterator[Tensor]:
        sequence = np.random.SeedSequence([self.values["seed"], epoch])
        key = int(sequence.generate_state(1, np.uint64)[0])
        samples = len(self.train_set[1])
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(key))
        size = self.data["batch_size"]
        for part in torch.split(order, size):
            if len(part) == size or not self.data["drop_last"]:
                yield part

    def _optimizer(self) -> Optimizer:
        chosen = self.values["optimizer"]
        kind: Any = {"sgd": SGD, "adam": Adam, "adamw": AdamW}[chosen["name"]]
        return kind(self.weights, **{k: v for k, v in chosen.items() if k != "name"})  # type: ignore[no-any-return]

    def _scheduler(self) -> LRScheduler | None:
        chosen, epochs = self.values["scheduler"], self.settings["max_epochs"]
        match chosen["name"]:
            case "multistep":
                return MultiStepLR(self.optimizer, chosen["milestones"], chosen["gamma"])
            case "cosine":
                return CosineAnnealingLR(self.optimizer, epochs, chosen["eta_min"])
            case "onecycle":
                return OneCycleLR(
                    self.optimizer,
                    self.values["optimizer"]["lr"],
                    total_steps=epochs * self.steps_per_epoch,
                    cycle_momentum=False,
                    **{k: v for k, v in chosen.items() if k != "name"},
                )
        return None

    def _rate(self) -> float:
        """The learning rate of the next step, with warm-up."""
        rate = float(self.optimizer.param_groups[0]["lr"])
        warmup = round(self.values["scheduler"].get("warmup_epochs", 0.0) * self.steps_per_epoch)
        return rate * min(1.0, (self.step + 1) / warmup) if warmup else rate

    def _epoch(self, epoch: int) -> tuple[tuple[float, float], int | None]:
        """Mean loss and accuracy, each batch before its step, and the step that diverged."""
        self.model.train()
        accumulate, diverged = self.settings["accumulate_grad_batches"], None
        losses, hits, samples = [], 0, 0
        for number, batch in enumerate(self._batches(epoch)):
            x, y = self.train_set[0][batch], self.train_set[1][batch]
            logits = self.model(x)
            loss = F.cross_entropy(logits, y, label_smoothing=self.settings["label_smoothing"])
            if number % accumulate == 0:
                self.optimizer.zero_grad()
            (loss / accumulate).backward()
            losses.append(loss.item() * len(y))
            hits += int((logits.argmax(1) == y).sum())
            samples += len(y)
            if diverged is None and not loss.item() <= DIVERGED:
                diverged = epoch * self.steps_per_epoch + number // accumulate + 1
            if (number + 1) % accumulate == 0 or number + 1 == len(self.batches):
                self._step()
        if self.scheduler is not None and self.values["scheduler"]["name"] != "onecycle":
            self.scheduler.step()
        return (math.fsum(losses) / samples, hits / samples), diverged

    def _step(self) -> None:
        (group,) = self.optimizer.param_groups
        before, self.rate = group["lr"], self._rate()
        if self.settings["gradient_clip_val"]:
            nn.utils.clip_grad_norm_(self.weights, self.settings["gradient_clip_val"])
        group["lr"] = self.rate
        self.optimizer.step()
        group["lr"] = before
        last = self.step + 1 == self.settings["max_epochs"] * self.steps_per_epoch
        if isinstance(self.scheduler, OneCycleLR) and not last:
            self.scheduler.step()
        bound = self.values["model"].get("max_norm")
        if bound is not None:
            *hidden, _ = (layer for layer in self.model.modules() if isinstance(layer, nn.Linear))
            for layer in hidden:
                # torch.renorm divides by the norm plus 1e-7, which Adam and batch norm amplify.
                norms = layer.weight.data.norm(dim=1, keepdim=True)
                layer.weight.data *= (bound / norms).clamp(max=1)
        if self.average is not None:
            decay = min(self.settings["ema_decay"], (1 + self.step) / (10 + self.step))
            for mean, own in zip(
                self.average.state_dict().values(), self.model.state_dict().values(), strict=True
            ):
                if own.is_floating_point():
                    mean.copy_(decay * mean + (1 - decay) * own)
                else:
                    mean.copy_(own)
        self.step += 1

    def _validated(self) -> nn.Module:
        return self.average or self.model

    def _row(self, epoch: int, loss: float | None, accuracy: float | None) -> Values:
        val_loss, val_accuracy = measure(self._validated(), self.validation_set)
        return {
            "epoch": epoch,
            "step": self.step,
            "lr": self.rate if epoch else None,
            "train/loss": loss,
            "train/acc": accuracy,
            "val/loss": val_loss,
            "val/acc": val_accuracy,
        }


def network(model: Values, inputs: int, classes: int) -> nn.Module:
    widths = [inputs, *model.get("hidden_sizes", [])]
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in itertools.pairwise(widths):
        layers.append(nn.Linear(fan_in, fan_out, bias=model["norm"] != "batch"))
        if model["norm"]:
            kind: Any = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}[model["norm"]]
            layers.append(kind(fan_out))
        layers.append(ACTIVATIONS[model["activation"]]())
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


@torch.no_grad()
def measure(model: nn.Module, data: Data) -> tuple[float, float]:
    """Mean loss and accuracy."""
    training = model.training
    logits = model.eval()(data[0])
    model.train(training)
    loss = F.cross_entropy(logits, data[1]).item()
    return loss, int((logits.argmax(1) == data[1]).sum()) / len(data[1])


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}
