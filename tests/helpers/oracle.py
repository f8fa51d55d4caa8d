"""A run by plain torch: one simple loop that shares only its data with the project.

The loop computes in float64 on a CPU. It follows the configuration of a run: the split, the order
of samples, the initial weights, torch's optimizers and schedulers, early stopping and averages. Its
noise is that of the engine.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.metrics import (
    f1_score,
    precision_score,
    recall_score,
    roc_auc_score,
    top_k_accuracy_score,
)
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR, OneCycleLR

from tests.helpers.philox import normal_numbers

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
DIVERGED = 1e6  # a trial has diverged if the mean loss of a batch is above this bound or NaN

Values = dict[str, Any]
Data = tuple[Tensor, Tensor]
Score = Callable[[np.ndarray, np.ndarray], float]  # of labels (N,), probabilities (N, classes)
LOWER_IS_BETTER = ("train/loss", "val/loss", "val/brier", "val/ece")


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
        """Multiplies each initial weight by 1 + nudge * noise, with standard normal noise: the
        tests measure in this way how much rounding can change the result of a configuration."""
        self.values, self.test_set = values, test
        self.data, self.settings = values["data"], values["trainer"]
        self.samples: int | None = None  # of an epoch, if not all
        self.train_set, self.validation_set = self._split(train)
        torch.manual_seed(values["seed"])
        classes = self.data["classes"]
        self.model = network(values["model"], train[0].shape[1:], classes).double()
        self.weights = list(self.model.parameters())
        stream = torch.Generator().manual_seed(0)
        for weight in self.weights if nudge else ():
            weight.data *= 1 + nudge * torch.randn(
                weight.shape, generator=stream, dtype=weight.dtype
            )
        self.class_weights = self._class_weights(classes)
        self.batches = [len(batch) for batch in self._batches(0)]
        self.steps_per_epoch = -(-len(self.batches) // self.settings["accumulate_grad_batches"])
        self.optimizer = self._optimizer()
        self.scheduler = self._scheduler()
        self.step = 0
        self.average = copy.deepcopy(self.model) if self.settings["ema_decay"] else None

    def run(self) -> Trained:
        trained = Trained([self._row(0, None, None)])
        patience = self.settings["early_stopping_patience"]
        monitor, epochs_since_best = self.values["checkpoint"]["monitor"], 0
        sign = 1.0 if monitor in LOWER_IS_BETTER else -1.0
        best_value = math.inf
        for epoch in range(1, self.settings["max_epochs"] + 1):
            measured, trained.diverged_step = self._epoch(epoch - 1)
            trained.rows.append(self._row(epoch, *measured))
            if trained.diverged_step is not None:
                break
            value = sign * trained.rows[-1][monitor]
            epochs_since_best += 1
            if value < best_value:
                best_value, epochs_since_best, trained.best_epoch = value, 0, epoch
                trained.best = copied(self._evaluated_model())
            if patience and epochs_since_best >= patience and epoch < self.settings["max_epochs"]:
                trained.stopped = True
                break
        trained.last = copied(self.model)
        if trained.best:
            tested = self._evaluated_model()
            tested.load_state_dict(trained.best)
            trained.test = measure(tested, self.test_set)
        return trained

    def _split(self, train: Data) -> tuple[Data, Data]:
        fraction, folds = self.data["val_fraction"], self.data["folds"]
        if folds is not None:
            divider = StratifiedKFold(folds, shuffle=True, random_state=self.data["split_seed"])
            parts = list(divider.split(np.zeros(len(train[1])), train[1].numpy()))
            self.samples = min(len(training) for training, _ in parts)
            chosen = [torch.from_numpy(rows) for rows in parts[self.data["fold"]]]
            training_set, validation_set = ((train[0][r], train[1][r]) for r in chosen)
            return training_set, validation_set
        if fraction is None:
            return train, train
        stream = torch.Generator().manual_seed(self.data["split_seed"])
        order = torch.randperm(len(train[1]), generator=stream)
        count = round(len(train[1]) * fraction)
        validation, training = order[:count].sort().values, order[count:].sort().values
        features, labels = train
        return (features[training], labels[training]), (features[validation], labels[validation])

    def _class_weights(self, classes: int) -> Tensor | None:
        chosen, labels = self.settings["class_weights"], self.train_set[1].numpy()
        if chosen == "balanced":
            chosen = compute_class_weight("balanced", classes=np.arange(classes), y=labels)
        return None if chosen is None else torch.tensor(chosen, dtype=torch.float64)

    def _batches(self, epoch: int) -> Iterator[Tensor]:
        sequence = np.random.SeedSequence([self.values["seed"], epoch])
        key = int(sequence.generate_state(1, np.uint64)[0])
        samples = len(self.train_set[1])
        stream = torch.Generator().manual_seed(key)
        if self.data["sampler"] == "balanced":
            order = self._balanced(stream)
        else:
            order = torch.randperm(samples, generator=stream)
        size = self.data["batch_size"]
        for batch in torch.split(order[: self.samples], size):
            if len(batch) == size or not self.data["drop_last"]:
                yield batch

    def _balanced(self, stream: torch.Generator) -> Tensor:
        """A class, then one of its samples: both uniformly, as often as there are samples."""
        labels, classes = self.train_set[1], self.data["classes"]
        drawn = torch.randint(classes, labels.shape, generator=stream).tolist()
        fractions = torch.rand(len(labels), generator=stream, dtype=torch.float64).tolist()
        members = [(labels == label).nonzero().flatten().tolist() for label in range(classes)]
        return torch.tensor(
            [
                members[label][int(fraction * len(members[label]))]
                for label, fraction in zip(drawn, fractions, strict=True)
            ]
        )

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
        """Trains an epoch. Returns the mean loss and accuracy, with each batch measured before its
        own step, and the first step that showed divergence, or None."""
        self.model.train()
        accumulate, diverged = self.settings["accumulate_grad_batches"], None
        losses, hits, samples = [], 0, 0
        for number, batch in enumerate(self._batches(epoch)):
            x, y = self.train_set[0][batch], self.train_set[1][batch]
            logits = self._logits(x, epoch * len(self.batches) + number)
            smoothing = self.settings["label_smoothing"]
            loss = F.cross_entropy(logits, y, self.class_weights, label_smoothing=smoothing)
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

    def _logits(self, x: Tensor, batch: int) -> Tensor:
        """Of a training batch: with noise on the inputs, on the normalised values of each norm, and
        where there is no norm on the outputs of linear layers."""
        deviation = self.values["model"].get("noise")
        if not deviation:
            return self.model(x)  # type: ignore[no-any-return]

        def noise(like: Tensor, layer: int) -> Tensor:
            return normal_numbers(like.shape, self.values["seed"], batch, layer) * float(deviation)

        flatten, *modules = self.model.children()
        x = flatten(x) + noise(flatten(x), 0)
        layer, last = 0, modules[-1]
        for module in modules:
            x = module(x)
            if isinstance(module, nn.Linear):
                layer += 1
            if isinstance(module, nn.BatchNorm1d | nn.LayerNorm):
                x = x + module.weight * noise(x, layer)
            elif module is last or (
                isinstance(module, nn.Linear) and not self.values["model"]["norm"]
            ):
                x = x + noise(x, layer)
        return x

    def _step(self) -> None:
        (group,) = self.optimizer.param_groups
        scheduled_rate, self.rate = group["lr"], self._rate()
        if self.settings["gradient_clip_val"]:
            nn.utils.clip_grad_norm_(self.weights, self.settings["gradient_clip_val"])
        group["lr"] = self.rate
        self.optimizer.step()
        group["lr"] = scheduled_rate
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
            for mean, value in zip(
                self.average.state_dict().values(), self.model.state_dict().values(), strict=True
            ):
                if value.is_floating_point():
                    mean.copy_(decay * mean + (1 - decay) * value)
                else:
                    mean.copy_(value)
        self.step += 1

    def _evaluated_model(self) -> nn.Module:
        """The moving average of the weights if there is one, else the model."""
        return self.average or self.model

    def _row(self, epoch: int, loss: float | None, accuracy: float | None) -> Values:
        val_loss, val_accuracy = measure(self._evaluated_model(), self.validation_set)
        monitor = self.values["checkpoint"]["monitor"]
        measured = {}
        if monitor in SCORES:
            found = probabilities(self._evaluated_model(), self.validation_set)
            measured[monitor] = SCORES[monitor](self.validation_set[1].numpy(), found)
        return {
            "epoch": epoch,
            "step": self.step,
            "lr": self.rate if epoch else None,
            "train/loss": loss,
            "train/acc": accuracy,
            "val/loss": val_loss,
            "val/acc": val_accuracy,
            **measured,
        }


def network(model: Values, shape: tuple[int, ...], classes: int) -> nn.Module:
    if model["name"] == "cnn":
        return convolutional(model, shape, classes)
    widths = [math.prod(shape), *model.get("hidden_sizes", [])]
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in itertools.pairwise(widths):
        layers.append(nn.Linear(fan_in, fan_out, bias=model["norm"] != "batch"))
        if model["norm"]:
            kind: Any = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}[model["norm"]]
            layers.append(kind(fan_out))
        layers.append(ACTIVATIONS[model["activation"]]())
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def convolutional(model: Values, shape: tuple[int, ...], classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise([shape[0], *model["channels"]]):
        norms = {"batch": nn.BatchNorm2d(fan_out), "layer": nn.GroupNorm(1, fan_out)}
        norm = [norms[model["norm"]]] if model["norm"] else []
        size, bias = model["kernel_size"], model["norm"] != "batch"
        convolution = nn.Conv2d(fan_in, fan_out, size, padding="same", bias=bias)
        layers += [convolution, *norm, nn.ReLU(), nn.MaxPool2d(2, 2)]
    height, width = (side // 2 ** len(model["channels"]) for side in shape[1:])
    units = model["channels"][-1] * height * width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(units, classes))


@torch.no_grad()
def _logits(model: nn.Module, data: Data) -> Tensor:
    training = model.training
    logits: Tensor = model.eval()(data[0])
    model.train(training)
    return logits


def predictions(model: nn.Module, data: Data) -> np.ndarray:
    """The predicted class of each sample."""
    found: np.ndarray = _logits(model, data).argmax(1).numpy()
    return found


def probabilities(model: nn.Module, data: Data) -> np.ndarray:
    found: np.ndarray = _logits(model, data).double().softmax(1).numpy()
    return found


def _of_predictions(score: Callable[..., float]) -> Score:
    """A plain mean over the classes."""
    return lambda labels, found: float(
        score(labels, found.argmax(1), average="macro", zero_division=0)
    )


def _area(labels: np.ndarray, found: np.ndarray) -> float:
    """NaN if all samples belong to one class."""
    present = np.unique(labels)
    if len(present) == 1 or np.isnan(found).any():
        return math.nan
    truth = labels[:, None] == present
    areas = roc_auc_score(truth, found[:, present], average=None)
    return round(float(np.mean(areas)), 12)  # a sum of trapezoids, so equal orders differ in bits


def _top_five(labels: np.ndarray, found: np.ndarray) -> float:
    return float(top_k_accuracy_score(labels, found, k=5, labels=range(found.shape[1])))


def _brier(labels: np.ndarray, found: np.ndarray) -> float:
    return float(np.square(found - np.eye(found.shape[1])[labels]).sum(1).mean())


def _calibration_error(labels: np.ndarray, found: np.ndarray) -> float:
    """Over 15 bins of confidence, each without its lower end."""
    hits, confidence = found.argmax(1) == labels, found.max(1)
    number = np.digitize(confidence, np.linspace(0, 1, 16)[1:-1], right=True)
    gaps = [abs(np.sum(hits[number == b]) - np.sum(confidence[number == b])) for b in range(15)]
    return float(np.sum(gaps)) / len(labels)


SCORES: dict[str, Score] = {
    "val/f1": _of_predictions(f1_score),
    "val/precision": _of_predictions(precision_score),
    "val/recall": _of_predictions(recall_score),
    "val/auroc": _area,
    "val/top5": _top_five,
    "val/brier": _brier,
    "val/ece": _calibration_error,
}


def measure(model: nn.Module, data: Data) -> tuple[float, float]:
    """Mean loss and accuracy."""
    logits = _logits(model, data)
    loss = F.cross_entropy(logits, data[1]).item()
    return loss, int((logits.argmax(1) == data[1]).sum()) / len(data[1])


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}
