"""Modules that do what Lightning allows beside one optimizer and one loss, or what it refuses."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, callbacks
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset


class Plain(LightningModule):
    """Cross entropy of a linear model. Its optimizer is that of the configuration."""

    def __init__(self, inputs: int, outputs: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.layer = nn.Linear(inputs, outputs)
        self.calls: list[Any] = []

    def loss(self, batch: Any) -> Tensor:
        features, labels = batch
        assert (features.dtype, labels.dtype) == (torch.float32, torch.int64)
        return nn.functional.cross_entropy(self.layer(features.flatten(1)), labels)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train/loss", loss, on_epoch=True, on_step=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        loss = self.loss(batch)
        self.log("val_loss", loss)
        self.log("val/score", -loss)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self.loss(batch))


class Manual(Plain):
    """Two optimizers and a scheduler, by hand."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.automatic_optimization = False
        self.register_buffer("noise", torch.zeros(1))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        weights, bias = self.optimizers()  # type: ignore[attr-defined]
        self.noise += torch.rand(1)  # type: ignore[operator]
        loss = self.loss(batch)
        for optimizer in (weights, bias):
            optimizer.zero_grad()
        self.manual_backward(loss)
        weights.step()
        if batch_idx % 2:
            bias.step()
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()  # type: ignore[union-attr]
        self.log("train/loss", loss, on_step=False, on_epoch=True)

    def configure_optimizers(self) -> Any:
        weights = torch.optim.SGD([self.layer.weight], self.lr, momentum=0.9)
        bias = torch.optim.Adam([self.layer.bias], self.lr)
        return [weights, bias], [torch.optim.lr_scheduler.ExponentialLR(weights, 0.5)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = {"calls": len(self.calls)}

    def configure_callbacks(self) -> Any:
        return [callbacks.EarlyStopping("val_loss", patience=3)]


class Silent(Plain):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/error_rate", self.loss(batch))


class NotValidated(Plain):
    validation_step = None  # type: ignore[assignment]


class Refused(LightningModule):
    pass


class NoOptimizer(Plain):
    def configure_optimizers(self) -> None:
        return None


class Raises(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.helper(batch_idx)

    def helper(self, batch_idx: int) -> Any:
        raise ValueError(f"boom in batch {batch_idx}")


class NotANumber(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) * (math.nan if batch_idx == 2 else 1)


class Lambda(Plain):
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = {"function": len}


class Many(Plain):
    """Logs more names than a history has columns, and names that are none."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        for number in range(100):
            self.log(f"val/class_{number}", float(number))
        self.log("=HYPERLINK()", 1.0)
        for name in ("lr", "epoch", "step"):
            self.log(name, 1.0)


class Hidden(Plain):
    """Logs for callbacks alone. What else is logged under a name, is not hidden."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("train/hidden", 1.0, logger=False, on_step=True, on_epoch=True)
        self.log("both", 1.0, logger=False, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), logger=False)
        self.log("val/hidden", 1.0, logger=False)
        self.log("both", 2.0)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        super().test_step(batch, batch_idx)
        self.log("test/hidden", 1.0, logger=False)


class Words(LightningModule):
    """Learns the next token of a stream. Each batch is a dictionary."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.table = nn.Embedding(7, 7)

    def loss(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self.table(batch["now"]), batch["next"])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), batch_size=len(batch["now"]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


LOADED: list[str] = []  # the hooks that load what a checkpoint holds, as they are called


class Remembers(Words):
    """Best in its second epoch. Has a state beside its weights, as its data and callback have."""

    def __init__(self, lr: float, seen: int = 0) -> None:
        super().__init__(lr)
        self.save_hyperparameters()
        self.seen: Any = {"epoch": -1, "of": (seen, [torch.zeros(1)])}

    def get_extra_state(self) -> Any:
        return {"epoch": self.seen["epoch"]}

    def set_extra_state(self, state: Any) -> None:
        self.extra = state["epoch"]

    def on_train_epoch_start(self) -> None:
        self.seen["epoch"] = self.current_epoch
        self.seen["of"][1][0] += 1

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", abs(self.current_epoch - 1.0), batch_size=1)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        trainer: Any = self.trainer
        loss, data = self.loss(batch), trainer.datamodule
        (counter,) = (each for each in trainer.callbacks if isinstance(each, Counter))
        values: dict[str, Any] = {"test_loss": loss, "test/epoch": float(self.seen["epoch"])}
        values |= {"test/sum": self.seen["of"][1][0].item(), "test/steps": float(data.loaded)}
        values |= {"test/counted": float(counter.loaded), "test/states": float(counter.epochs)}
        values["test/extra"] = float(self.extra)
        self.log_dict(values, batch_size=1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["seen"] = self.seen

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        LOADED.append("module")
        self.seen = checkpoint["seen"]


class Partial(Plain):
    """Has a frozen backbone of a fixed start, which its checkpoints leave out."""

    strict_loading = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.backbone = nn.Linear(784, 784).requires_grad_(requires_grad=False)

    def loss(self, batch: Any) -> Tensor:
        features, labels = batch
        return super().loss((self.backbone(features.flatten(1)), labels))

    def state_dict(self, *arguments: Any, **more: Any) -> Any:
        state = super().state_dict(*arguments, **more)
        return {name: value for name, value in state.items() if "backbone" not in name}


class Lazy(Plain):
    def __init__(self, inputs: int, outputs: int, lr: float) -> None:
        super().__init__(inputs, outputs, lr)
        self.layer = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(outputs))  # type: ignore[assignment]

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), self.lr)


class LazyUnvalidated(Lazy):
    """The first batch is of the training."""

    validation_step = None  # type: ignore[assignment]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("val_loss", loss, on_epoch=True, on_step=False)
        return loss


class Counter(callbacks.Callback):
    epochs, loaded = 0, -1

    def on_train_epoch_end(self, *_: Any) -> None:
        self.epochs += 1

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": {self.epochs}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        LOADED.append("state")
        (self.epochs,) = state["epochs"]

    def on_save_checkpoint(self, _: Any, __: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["counted"] = self.epochs

    def on_load_checkpoint(self, _: Any, __: Any, checkpoint: dict[str, Any]) -> None:
        LOADED.append("callback")
        self.loaded = checkpoint["counted"]


KINDS = {
    "plain": Plain,
    "manual": Manual,
    "silent": Silent,
    "not_validated": NotValidated,
    "no_optimizer": NoOptimizer,
    "raises": Raises,
    "nan": NotANumber,
    "lambda": Lambda,
    "partial": Partial,
    "lazy": Lazy,
    "lazy_unvalidated": LazyUnvalidated,
    "many": Many,
    "hidden": Hidden,
}


def build_wrongly(section: Any, shape: Any, outputs: Any) -> Any:
    """Registered by register_model."""
    return Plain(math.prod(shape), outputs, 0.1)


def build(section: Any, shape: Any, outputs: Any) -> Any:
    if section.kind == "words":
        return Words(section.lr)
    if section.kind == "remembers":
        return Remembers(section.lr)
    if section.kind == "refused":
        return Refused()
    if section.kind == "text":
        return "a text"
    return KINDS[section.kind](math.prod(shape), outputs, section.lr)


class Stream(IterableDataset[Any]):
    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.batches):
            now = torch.randint(7, (8,))
            yield {"now": now, "next": (now + 1) % 7}


class TokenData(LightningDataModule):
    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches, self.loaded = batches, -1

    def train_dataloader(self) -> Any:
        return DataLoader(Stream(self.batches), batch_size=None)

    def val_dataloader(self) -> Any:
        now = torch.arange(7)
        return DataLoader([{"now": now, "next": (now + 1) % 7}], batch_size=None)  # type: ignore[arg-type]

    test_dataloader = val_dataloader

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.trainer.global_step if self.trainer else 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        LOADED.append("data")
        self.loaded = state["steps"]


def tokens(section: Any) -> TokenData:
    return TokenData(section.batches)


def checkpoint(config: Any) -> callbacks.Callback:
    monitor, mode = config.checkpoint.monitor, config.checkpoint.mode
    return callbacks.ModelCheckpoint(monitor=monitor, mode=mode, filename="mine-{epoch}")


def rates(config: Any) -> callbacks.Callback:
    return callbacks.LearningRateMonitor()


def swa(config: Any) -> callbacks.Callback:
    return callbacks.StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=2)


def early(config: Any) -> callbacks.Callback:
    return callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=1)


def counts(config: Any) -> callbacks.Callback:
    return Counter()
