"""The LightningModule: trials that train together, a block of optimizer steps per training_step."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from src.config import schema
from src.config.schema import Config
from src.data.augmentation import build_augmentation
from src.data.loader import Batch, Block
from src.data.module import DataModule
from src.data.sources.source import as_float
from src.models.stack import Stack, step_kind
from src.runs.checkpoint import FORMAT
from src.training import random_state, ranks
from src.training.averaging import Average
from src.training.fsdp import whole
from src.training.lanes import Lanes, threads_for
from src.training.metrics import EpochMetrics, evaluate
from src.training.optimizers import (
    Schedule,
    build_optimizer,
    build_stacked_optimizer,
    load_trial_states,
    to_device,
    trial_state,
)
from src.training.steps import AutogradSteps, ClosedFormSteps, Stepping, Steps

log = logging.getLogger(__name__)

# A mean loss of a batch above this, or none at all, is the end of a run: at a probability that
# float32 can hold, cross entropy is at most 104. Rates that recover were seen at some thousands.
DIVERGED = 1e6
LOWER = {"bf16-mixed": torch.bfloat16}


class Classifier(LightningModule):
    """Cross entropy over S models from features (N, *shape) to logits (N, classes).

    A single run is a list of one. Trials share every key but the fusible ones, which src/training/
    fusion.py lists. Optimization is manual in Lightning's sense: clipping, accumulation, gradient
    scaling and the learning rate belong to the steps of a block. After each validation `metrics`
    holds, for each trial that was evaluated, the values under the names of history.csv, as exact
    Python floats.

    Of the trials, `stacked` are those that still train, in the order of the stack.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        models: Sequence[nn.Module],
        data: DataModule,
        batch_of: Sequence[int],
        threads: int = 1,
    ) -> None:
        """`batch_of[s]` is the number of the order, among the data module's, that trial s takes;
        `threads` as many as the run may use on a CPU."""
        super().__init__()
        self.automatic_optimization = False
        self.configs, self.batch_of = configs, batch_of
        self.model = models[0] if len(models) == 1 else nn.ModuleList(models)
        self.saved_with = [
            {
                "format": FORMAT,
                "config": config.to_primitives() | {"resume": None},
                **data.origin(),
            }
            for config in configs
        ]
        self.data = data
        self.share_out(threads_for(models, data.config.batch, threads))
        self.restrict(range(len(configs)))
        self.metrics: dict[int, dict[str, float]] = {}
        self.diverged: dict[int, int] = {}  # trial → the step that showed it, from 1
        self.stopped: dict[int, str] = {}  # trial → why it ended before its last epoch
        self.when = Stepping(
            data.batches_per_epoch,
            self.trainer_config.accumulate_grad_batches,
            self.trainer_config.gradient_clip_val,
        )
        self.schedules = [
            Schedule(
                config.scheduler,
                config.optimizer.lr,
                config.trainer.max_epochs,
                self.when.steps_per_epoch,
            )
            for config in configs
        ]
        self.stack: Stack | None = None
        self.steps: Steps | None = None
        self.average: Average | None = None
        self.batch = 0  # of this epoch, those that were trained on
        self.restored: dict[str, Any] | None = None  # this rank's part of a checkpoint

    @property
    def trainer_config(self) -> schema.Trainer:
        return self.configs[0].trainer

    @property
    def going(self) -> list[int]:
        """The trials that have not ended."""
        ended = self.stopped.keys() | self.diverged.keys()
        return [trial for trial in range(len(self.configs)) if trial not in ended]

    @property
    def models(self) -> list[nn.Module]:
        return list(self.model) if isinstance(self.model, nn.ModuleList) else [self.model]

    def configure_optimizers(self) -> Optimizer:
        """Builds stack and optimizer; Lightning has moved and restored the weights by now."""
        if step_kind(self.configs[0], self.models[0]) == "autograd":
            return build_optimizer(self.configs[0].optimizer, self.model.parameters())
        batches = sorted({self.batch_of[trial] for trial in self.stacked})
        self.stack = Stack(
            [self.models[trial] for trial in self.stacked],
            [batches.index(self.batch_of[trial]) for trial in self.stacked],
            min(self.lanes.count, len(self.stacked)),
        )
        chosen = [self.configs[trial].optimizer for trial in self.stacked]
        return build_stacked_optimizer(chosen, self.stack)

    def share_out(self, threads: int) -> None:
        """Gives the trials so many threads: a lane each as far as that goes, the others to the
        products of a lane. Ranks exchange their gradients in one order, and have one lane."""
        lanes = min(threads, len(self.configs)) if self.data.ranks == 1 else 1
        self.threads, self.lanes = threads, Lanes(lanes, threads // lanes)

    def restrict(self, trials: Sequence[int]) -> None:
        """Leaves the other trials out of what trains; to be called before the stack is built."""
        self.stacked = list(trials)
        self.train_metrics = EpochMetrics(len(trials)).to(self.device)
        self.evaluation_metrics = EpochMetrics(len(trials)).to(self.device)
        orders = sorted({self.batch_of[trial] for trial in trials})
        self.data.keep_orders(orders)
        seed_of = {self.batch_of[trial]: self.configs[trial].seed for trial in trials}
        self.augmentation = build_augmentation(
            self.configs[0].augmentation,
            self.data.source,
            [seed_of[order] for order in orders],
            self.data.config.batch,
            self.data.ranks,
        )

    def shrink(self) -> None:
        """Goes on with the trials that have not ended alone, between two epochs. The others keep
        the weights that they have."""
        remaining = [trial for trial in self.stacked if trial in self.going]
        states = [self.trial_optimizer_state(trial) for trial in remaining]
        averages = self._averages()
        for trial in set(self.stacked) - set(remaining):
            for tensor in self.models[trial].state_dict(keep_vars=True).values():
                tensor.data = tensor.data.clone()  # of its own, the stack's can go
        self.restrict(remaining)
        optimizer = self.configure_optimizers()
        assert self.stack is not None
        load_trial_states(optimizer, self.stack, states)
        self.trainer.strategy.optimizers = [optimizer]
        self._prepare(optimizer)
        with self.averaged():
            for trial in remaining if averages else ():
                self.models[trial].load_state_dict(averages[trial])

    def on_fit_start(self) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        self._prepare(optimizer)

    def _prepare(self, optimizer: Optimizer) -> None:
        """Makes the steps, once the weights have come to where they train."""
        world = self.trainer.world_size
        if world > 1 and self.trainer_config.strategy != "fsdp":  # which averages by itself
            self.when = replace(self.when, ranks=world, exchange=ranks.exchange)
        decay = self.trainer_config.ema_decay
        if decay is not None:
            self.average = Average(decay, *self._averaged_tensors())
        smoothing = self.trainer_config.label_smoothing
        schedules = [self.schedules[trial] for trial in self.stacked]
        if self.stack is None:
            scaler = getattr(self.trainer.precision_plugin, "scaler", None)
            if self.device.type == "cuda" and self.trainer_config.cuda_graph:
                log.info("blocks run without CUDA graphs: their steps go by autograd")
            self.steps = AutogradSteps(
                self.model,
                optimizer,
                schedules,
                self.when,
                smoothing,
                self.average,
                scaler=scaler,
                compiled=self.trainer_config.compile,
            )
        else:
            lower = LOWER.get(self.trainer_config.precision)
            self.steps = ClosedFormSteps(
                self.stack,
                optimizer,
                schedules,
                self.when,
                smoothing,
                self.average,
                lower=lower,
                graph=self.trainer_config.cuda_graph,
                lanes=self.lanes,
            )

    def _averaged_tensors(self) -> list[list[Tensor]]:
        if self.stack is not None:
            return [lane.averaged for lane in self.stack.lanes]
        statistics = [value for value in self.model.buffers() if value.is_floating_point()]
        return [[*self.model.parameters(), *statistics]]

    def averaged(self) -> AbstractContextManager[None]:
        """Within it the models hold the moving averages of their weights, where such are kept."""
        return nullcontext() if self.average is None else self.average.in_place()

    def on_validation_start(self) -> None:
        if self.average is not None:
            self.average.exchange()

    def on_validation_end(self) -> None:
        if self.average is not None:
            self.average.exchange()

    def on_train_start(self) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        to_device(optimizer)
        if self.restored is not None:
            assert self.steps is not None
            self.steps.load_gradients(self.restored["gradients"])
            random_state.restore(self.restored["random"])
            with self.averaged():
                for model, weights in zip(self.models, self.restored["average"], strict=False):
                    model.load_state_dict(weights)  # of a trial that has ended: as it was
            self.restored = None

    def on_train_epoch_start(self) -> None:
        self.batch = 0
        self.train_metrics.reset()

    def training_step(self, block: Block) -> dict[str, Tensor]:
        assert self.steps is not None
        first, size = self.batch, block.labels.shape[-1]
        if self.augmentation is not None:
            self.augmentation(block, self.current_epoch, first, self.global_rank)
        stepped = self.steps(block, self.current_epoch, first)
        self.batch += len(block.labels)
        self.train_metrics.update(stepped.losses * size, stepped.correct, size * len(block.labels))
        self._count_steps(first)
        return stepped._asdict()

    def _count_steps(self, first: int) -> None:
        """Tells Lightning, whose global_step counts only the steps of its own optimizer wrapper."""
        taken = self.when.steps_before(self.batch) - self.when.steps_before(first)
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        for tracker in (progress.total, progress.current):
            tracker.ready += taken
            tracker.completed += taken

    def on_validation_epoch_start(self) -> None:
        self.evaluation_metrics.reset()

    def validation_step(self, batch: Batch) -> None:
        self._evaluate(batch)

    def on_validation_epoch_end(self) -> None:
        self.metrics = self._named("val", self.evaluation_metrics)
        if self.train_metrics.update_called:  # not before training
            trained = self._named("train", self.train_metrics)
            self.metrics = {trial: self.metrics[trial] | trained[trial] for trial in trained}
            self._note_divergence()
        if len(self.configs) == 1:
            self.log_dict(self.metrics[0])

    def _first_above(self) -> list[int]:
        """For each trial that trains the first batch of this epoch that shows divergence, or
        `batch`."""
        bound = DIVERGED * self.configs[0].data.batch
        first = self.train_metrics.first_above(bound)
        if self.trainer.world_size > 1:
            ranks.least(first)  # all ranks stop together, whichever saw it
        found: list[int] = first.tolist()
        return found

    def diverges(self) -> bool:
        """Whether any trial has diverged within this epoch."""
        return any(batch < self.batch for batch in self._first_above())

    def _note_divergence(self) -> None:
        for trial, batch in zip(self.stacked, self._first_above(), strict=True):
            if batch < self.batch and trial not in self.diverged:
                self.diverged[trial] = self.when.step_of(self.current_epoch, batch) + 1
        self.trainer.should_stop |= not self.going

    def on_test_epoch_start(self) -> None:
        self.evaluation_metrics.reset()

    def test_step(self, batch: Batch) -> None:
        self._evaluate(batch)

    def on_test_epoch_end(self) -> None:
        self.metrics = self._named("test", self.evaluation_metrics)

    def on_test_start(self) -> None:
        """All trials are tested, and after a fit Lightning may have moved their weights."""
        if self.stack is not None:
            self.stacked = list(range(len(self.configs)))
            self.evaluation_metrics = EpochMetrics(len(self.configs)).to(self.device)
            self.stack = Stack(self.models, self.batch_of, self.lanes.count)

    def classes_of(self, features: Tensor) -> Tensor:
        """The classes (N,) that the first trial takes features (N, *shape) for."""
        features = as_float(features).to(self._input_dtype)
        if self.stack is None:
            return self.model(features).argmax(-1)  # type: ignore[no-any-return]
        return self.stack.lanes[0].logits(features)[0].argmax(0)

    @property
    def _input_dtype(self) -> torch.dtype:
        """Autograd's mixed precision takes floats of the weights' own type."""
        dtype = next(self.model.parameters()).dtype
        return dtype if self.stack is None else LOWER.get(self.trainer_config.precision, dtype)

    def _evaluate(self, batch: Batch) -> None:
        dtype, stack = self._input_dtype, self.stack
        if stack is not None:
            found = self.lanes.map(
                lambda lane: evaluate(lane.logits, batch, dtype, stack.trials), stack.lanes
            )
            losses, correct = (stack.by_trial(parts, 1) for parts in zip(*found, strict=True))
        else:
            losses, correct = evaluate(lambda x: self.model(x).mT.unsqueeze(0), batch, dtype)
        self.evaluation_metrics.update(losses, correct, len(batch.labels))

    def trial_weights(self, trial: int) -> dict[str, Tensor]:
        """A copy of one trial's weights under the names of its solo run."""
        state = self.models[trial].state_dict()
        return {f"model.{name}": whole(value).detach().clone() for name, value in state.items()}

    def load_trial_weights(self, trial: int, weights: dict[str, Tensor]) -> None:
        plain = {name.removeprefix("model."): value for name, value in weights.items()}
        self.models[trial].load_state_dict(plain)

    def trial_optimizer_state(self, trial: int) -> dict[str, Any]:
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        if self.stack is None:
            return optimizer.state_dict()
        place = self.stacked.index(trial)
        return trial_state(optimizer, self.stack, place, self.configs[trial].optimizer)

    def _averages(self) -> list[dict[str, Tensor]]:
        if self.average is None:
            return []
        with self.averaged():
            return [_copied(model.state_dict()) for model in self.models]

    def _named(self, part: str, metrics: EpochMetrics) -> dict[int, dict[str, float]]:
        return {
            trial: {f"{part}/{name}": value for name, value in values.items()}
            for trial, values in zip(self.stacked, metrics.compute(), strict=True)
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what Lightning does not know: where the next batch lies, and each rank's streams,
        running metrics and gradients that have not come to a step."""
        single = len(self.configs) == 1
        checkpoint["kindling"] = self.saved_with[0] if single else self.saved_with
        checkpoint["diverged"], checkpoint["stopped"] = self.diverged, self.stopped
        checkpoint["stacked"], checkpoint["threads"] = self.stacked, self.threads
        assert self.steps is not None
        own: dict[str, Any] = {"random": random_state.capture(), "metrics": None, "gradients": []}
        epoch_ends = self.batch == self.when.batches_per_epoch
        if not epoch_ends:
            own["metrics"] = self.train_metrics.sums()
            if not self.when.begins(self.batch):
                own["gradients"] = self.steps.gradients()
        epoch = self.current_epoch
        position = {"epoch": epoch + 1, "batch": 0} if epoch_ends else {"epoch": epoch}
        checkpoint["position"] = {"batch": self.batch, **position}
        checkpoint["ranks"] = ranks.gather(own)
        checkpoint["average"] = self._averages()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.diverged, self.stopped = checkpoint["diverged"], checkpoint["stopped"]
        position = checkpoint["position"]
        self.restored = checkpoint["ranks"][self.trainer.global_rank]
        self.restored["average"] = checkpoint["average"]
        self.batch = position["batch"]
        if self.restored["metrics"] is not None:
            self.train_metrics.update(*self.restored["metrics"])
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        data.start = (position["epoch"], position["batch"])


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}
