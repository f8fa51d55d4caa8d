"""The LightningModule: a classifier that takes a block of optimizer steps per training_step."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from src.config import Config
from src.data.loader import Block
from src.data.module import DataModule
from src.training import ranks
from src.training.metrics import EpochMetrics
from src.training.optimizers import Schedule, build_optimizer
from src.training.steps import AutogradSteps


class Classifier(LightningModule):
    """Cross entropy over any model from features (N, *shape) to logits (N, classes).

    Optimization is manual in Lightning's sense: clipping, accumulation, gradient scaling and the
    learning rate belong to the steps of a block. After each validation `metrics` holds the
    epoch's values under the names of history.csv, as exact Python floats.
    """

    def __init__(self, config: Config, model: nn.Module, data: DataModule) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.config, self.model = config, model
        self.batches_per_epoch = data.batches_per_epoch
        self.saved_with = {
            "config": config.to_primitives(),
            "data": data.source.name,
            "shape": list(data.source.shape),
            "classes": data.source.classes,
        }
        self.train_metrics, self.evaluation_metrics = EpochMetrics(), EpochMetrics()
        self.metrics: dict[str, float] = {}
        accumulate = config.trainer.accumulate_grad_batches
        self.schedule = Schedule(
            config.scheduler,
            config.optimizer.lr,
            config.trainer.max_epochs,
            -(-self.batches_per_epoch // accumulate),
        )

    def configure_optimizers(self) -> Optimizer:
        return build_optimizer(self.config.optimizer, self.model.parameters())

    def on_fit_start(self) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        trainer = self.config.trainer
        self.steps = AutogradSteps(
            self.model,
            optimizer,
            self.schedule,
            self.batches_per_epoch,
            accumulate=trainer.accumulate_grad_batches,
            clip=trainer.gradient_clip_val,
            scaler=getattr(self.trainer.precision_plugin, "scaler", None),
            average=ranks.average if self.trainer.world_size > 1 else None,
        )

    def on_train_epoch_start(self) -> None:
        self.batch = 0
        self.train_metrics.reset()

    def training_step(self, block: Block) -> dict[str, Tensor]:
        first = self.batch
        stepped = self.steps(block, self.current_epoch, first)
        self.batch += len(stepped.losses)
        self.train_metrics.update(stepped.losses, stepped.correct, block.labels.shape[1])
        self._count_steps(first)
        return stepped._asdict()

    def _count_steps(self, first: int) -> None:
        """Tells Lightning, whose global_step counts only the steps of its own optimizer wrapper."""
        accumulate = self.config.trainer.accumulate_grad_batches
        last = self.batch == self.batches_per_epoch
        taken = (-(-self.batch // accumulate) if last else self.batch // accumulate) - (
            first // accumulate
        )
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        for tracker in (progress.total, progress.current):
            tracker.ready += taken
            tracker.completed += taken

    def on_validation_epoch_start(self) -> None:
        self.evaluation_metrics.reset()

    def validation_step(self, block: Block) -> None:
        self._evaluate(block)

    def on_validation_epoch_end(self) -> None:
        self.metrics = _named("val", self.evaluation_metrics)
        if self.train_metrics.update_called:  # not before training
            self.metrics |= _named("train", self.train_metrics)
        self.log_dict(self.metrics)

    def on_test_epoch_start(self) -> None:
        self.evaluation_metrics.reset()

    def test_step(self, block: Block) -> None:
        self._evaluate(block)

    def on_test_epoch_end(self) -> None:
        self.metrics = _named("test", self.evaluation_metrics)
        self.log_dict(self.metrics)

    def _evaluate(self, block: Block) -> None:
        losses, correct = evaluate(self.model, block)
        self.evaluation_metrics.update(losses, correct, block.labels.shape[1])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["kindling"] = self.saved_with


def _named(part: str, metrics: EpochMetrics) -> dict[str, float]:
    return {f"{part}/{name}": value for name, value in metrics.compute().items()}


def evaluate(model: nn.Module, block: Block) -> tuple[Tensor, Tensor]:
    """Mean loss (1,) and correct predictions (1,) of a block of one batch."""
    (features,), (labels,) = block.features, block.labels
    with torch.no_grad():
        logits = model(features)
        loss = F.cross_entropy(logits, labels)
        correct = (logits.argmax(-1) == labels).sum()
    return loss.unsqueeze(0), correct.unsqueeze(0)
