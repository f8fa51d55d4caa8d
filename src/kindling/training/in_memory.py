"""Trains a run by the engine without files and without Lightning, to the bits that `fit` gives it.

A network for a hundred rows trains in some milliseconds. `fit` spends twenty times as much on
Lightning's loop, and on checkpoints and files that nobody keeps.
"""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kindling.config.measures import measure_of, sort_key
from kindling.config.schema import Config
from kindling.config.section import InMemory
from kindling.data.loader import Slices
from kindling.data.splits import Splits
from kindling.data.targets import spread
from kindling.models import construct_model, count_parameters
from kindling.records.folder import Row, columns
from kindling.records.loading import Trained
from kindling.steps.base import NATIVE, StepPlan, contiguous
from kindling.steps.choice import choose_step
from kindling.steps.lanes import Lanes, available
from kindling.steps.native import NativeEpochs, NativeLearner
from kindling.steps.schedule import Schedule
from kindling.system import machine
from kindling.system.signals import handled
from kindling.tasks.metrics import exact_sum, loss_and_score
from kindling.tasks.task import build_task
from kindling.training import random_state
from kindling.training.decisions import DIVERGED, out_of_patience
from kindling.training.memory import advice_on_memory, require_room

# A run with these values consists of its steps alone. Other keys may have any value that the engine
# takes.
PLAIN: dict[str, Any] = {
    "data.folds": None, "data.fold": None, "data.order": "seeded", "data.loader": "resident",
    "trainer.devices": 1, "trainer.num_nodes": 1, "trainer.strategy": "auto",
    "trainer.precision": "32", "trainer.max_time": None, "trainer.ema_decay": None,
    "trainer.deterministic": False, "trainer.compile": False, "trainer.profiler": None,
    "trainer.fast_dev_run": False, "trainer.limit_train_batches": None,
    "trainer.limit_val_batches": None, "trainer.limit_test_batches": None,
    "trainer.val_check_interval": None, "trainer.overfit_batches": None,
    "trainer.detect_anomaly": False, "logger.tensorboard": False, "logger.mlflow": False,
    "logger.wandb": False, "logger.own": [], "resume": None, "start_from": None, "freeze": [],
    "callbacks": [],
}  # fmt: skip
FEW = 2 * 10**8  # operations of a run below which a second thread costs more than it saves


def takes(config: Config) -> bool:
    """Whether `train_in_memory` does all that the configuration asks for."""
    return (
        config.data.name in ("arrays", "csv")
        and not config.augmentation.chosen
        and measure_of(config.checkpoint.monitor) is None
        and config.data.batch_size != "auto"
        and all(config.read(key) == value for key, value in PLAIN.items())
    )


class MemoryRun(NamedTuple):
    """A model with the best weights, None if training diverged at once; and a row of the history
    before training and after each epoch."""

    trained: Trained | None
    history: list[Row]


def train_in_memory(config: Config, told_as: Path) -> MemoryRun | None:
    """Trains and validates; None if that needs `fit`. `told_as` takes the place of a folder in
    messages about the model. Leaves the global random streams as they are, so that several threads
    may call this at once. Raises InputError as `fit`, and Interrupted at once after a signal."""
    if not takes(config) or machine.resolve(config.trainer).accelerator != "cpu":
        return None
    with handled(rank=False), advice_on_memory(config):
        machine.keep_freed_memory()
        machine.use_own_share()
        data = Splits(config.data, task=config.task, steps_per_call=config.trainer.steps_per_call)
        data.setup()
        data.require_variance(config.model.typed_batch_norm)
        source = data.source
        outputs = config.task.outputs(source.classes)
        require_room(config, data)
        with random_state.seeded(config.seed):
            model = construct_model(config.model, source.shape, outputs)
        weighted = data.train.weights is not None
        if choose_step([config], [model], weighted=weighted).kind != NATIVE:
            return None
        run = _Run(config, data, model)
        with run.running:
            while run.epoch < config.trainer.max_epochs and not run.stops:
                run.train_epoch()
    if not run.best:
        return MemoryRun(None, run.rows)
    run.native.restore(run.best)
    weights = {name: contiguous(value) for name, value in model.state_dict().items()}
    model.load_state_dict(weights, assign=True)  # they were views of one vector
    # What `open_trained` reads from the files of `fit`.
    released = config.data
    if isinstance(released, InMemory):
        released = released.holding(None)
    config = config.unlabelled().model_copy(update={"data": released})
    trained = Trained(
        told_as, config, model.eval(), source.name, source.shape, source.labels, source.digest,
        source.columns, source.arrays, source.targets,
    )  # fmt: skip
    return MemoryRun(trained, run.rows)


class _Run:
    """A run before its first epoch, and after each."""

    def __init__(self, config: Config, data: Splits, model: nn.Module) -> None:
        self.config, self.data, trainer = config, data, config.trainer
        self.order = data.order(config.seed, None)
        sampler, self.plan = data.sampler(), StepPlan.of(trainer, data)
        steps = self.plan.steps_per_epoch
        self.schedule = Schedule(config.scheduler, config.optimizer.lr, trainer.max_epochs, steps)
        self.sort_keys: list[float] = []  # of the monitored values
        self.schedule.sort_keys = lambda: self.sort_keys
        samples = data.training_samples * trainer.max_epochs
        few = 6 * samples * count_parameters(model) < FEW
        self.task = build_task(config.task, data.source.classes)
        lanes = Lanes(1 if few else available())
        self.running = nullcontext() if few else lanes.running()
        learner = NativeLearner([config], [model], [0], lanes, self.task)
        learner.begin([self.schedule], self.plan)
        (validation,) = data.validations
        slices = Slices(validation)
        self.native = learner.native[0]
        self.epochs = NativeEpochs(learner, data.train, sampler, slices)
        self.samples = min(sampler.batches * config.data.batch, data.training_samples)
        weights = [batch.weights for batch in slices if batch.weights is not None]
        self.weight = exact_sum([float(each.sum(dtype=torch.float64)) for each in weights])
        self.weight = (self.weight or 1.0) if weights else len(validation)
        self.spreads = (
            spread(validation.labels, validation.weights),
            spread(data.training_labels(None), data.training_weights(None)),
        )
        self.columns = columns(config.task.name, config.checkpoint.monitor)
        self.rows: list[Row] = []
        self.best, self.least = list[Tensor](), sort_key(config.checkpoint.monitor, None)
        self.epoch, self.stops, self.began = 0, False, time.perf_counter()
        self._validate({})

    def train_epoch(self) -> None:
        order = self.order(self.epoch, self.data.training_samples)
        losses, score = self.epochs.train(order, self.epoch)
        trained = loss_and_score(self.task, losses, score, self.samples, self.spreads[1])
        self.epoch += 1
        self._validate({f"train/{name}": value for name, value in trained.items()})
        bound, monitor = DIVERGED * self.config.data.batch, self.config.checkpoint.monitor
        diverged = not all(loss <= bound for loss in losses)
        self.sort_keys.append(sort_key(monitor, self.rows[-1][monitor]))
        if not diverged and self.sort_keys[-1] < self.least:
            self.least, self.best = self.sort_keys[-1], self.native.snapshot()
        self.stops = diverged or out_of_patience(self.sort_keys, self.config)

    def _validate(self, trained: dict[str, float]) -> None:
        """Adds a row to the history."""
        losses, score = self.epochs.validate()
        found = loss_and_score(self.task, losses, score, self.weight, self.spreads[0])
        steps = self.epoch * self.plan.steps_per_epoch
        row: Row = {
            "epoch": self.epoch, "step": steps, "seconds": time.perf_counter() - self.began,
            "lr": self.schedule(steps - 1) if self.epoch else None, **trained,
            **{f"val/{name}": value for name, value in found.items()},
        }  # fmt: skip
        self.rows.append({name: row.get(name) for name in self.columns})
