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
from src.training.lightning_internals import count_steps
from src.training.metrics import EpochMetrics, evaluate
from src.training.optimizers import (
    build_optimizer,
    build_stacked_optimizer,
    load_trial_states,
    to_device,
    trial_state,
)
from src.training.schedule import Schedule
from src.training.steps import AutogradSteps, ClosedFormSteps, StepPlan, Steps
from src.training.trial_status import TrialStatuses

log = logging.getLogger(__name__)

# A trial has diverged when the mean loss of a batch is NaN or above this bound. Cross entropy of a
# probability that float32 can represent is at most 104. Runs that later recovered had losses up to
# some thousands.
DIVERGED = 1e6
MIXED_PRECISION_TYPE = {"bf16-mixed": torch.bfloat16}


class Classifier(LightningModule):
    """Cross entropy over S models from features (N, *shape) to logits (N, classes). S is the number
    of trials.

    The trials share all keys but the fusible ones (src/training/grouping.py). Optimization is
    manual in Lightning's sense: clipping, accumulation, gradient scaling and the learning rate
    belong to the steps of a block.

    `stacked` lists the trials in the stack, in its order. After each validation, `metrics` holds
    the values of each stacked trial under the names of history.csv, as exact Python floats.
    `status` records for each trial whether it still trains.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        models: Sequence[nn.Module],
        data: DataModule,
        order_of: Sequence[int],
        threads: int = 1,
    ) -> None:
        """Trial s uses the sample order `data.orders[order_of[s]]`."""
        super().__init__()
        self.automatic_optimization = False
        self.configs, self.data, self.order_of = configs, data, order_of
        self.trainer_config = trainer = configs[0].trainer
        self.model = models[0] if len(models) == 1 else nn.ModuleList(models)
        self.metadata = [
            {"format": FORMAT, "config": config.to_primitives() | {"resume": None}, **data.origin()}
            for config in configs
        ]
        self.step_plan = StepPlan(
            data.batches_per_epoch,
            trainer.accumulate_grad_batches,
            trainer.gradient_clip_val,
            trainer.label_smoothing,
        )
        steps = self.step_plan.steps_per_epoch
        self.schedules = [
            Schedule(each.scheduler, each.optimizer.lr, each.trainer.max_epochs, steps)
            for each in configs
        ]
        self.status = TrialStatuses(len(configs))
        self.metrics: dict[int, dict[str, float]] = {}
        self.batch = 0  # batches of this epoch that were trained on
        self.trained = False  # True after the first block; `restoring` reads it
        self.stack: Stack | None = None
        self.steps: Steps | None = None
        self.average: Average | None = None
        self.restored: dict[str, Any] | None = None  # this rank's part of a checkpoint
        self.arrange(range(len(configs)), threads_for(models, data.config.batch, threads))

    @property
    def models(self) -> list[nn.Module]:
        return list(self.model) if isinstance(self.model, nn.ModuleList) else [self.model]

    # --- building --------------------------------------------------------------------------------

    def arrange(self, trials: Sequence[int], threads: int) -> None:
        """Selects the trials to stack, before `fit`.

        There is one lane per trial, but at most one per thread. If there are more threads than
        trials, each lane uses several threads. Ranks have one lane: their gradients need one order.
        """
        lanes = min(threads, len(self.configs)) if self.data.world_size == 1 else 1
        self.threads, self.lanes = threads, Lanes(lanes, threads // lanes)
        self._select_trials(trials)

    def _select_trials(self, trials: Sequence[int]) -> None:
        """Chooses the trials of the next stack."""
        self.stacked = list(trials)
        self.train_metrics = EpochMetrics(len(trials)).to(self.device)
        self.evaluation_metrics = EpochMetrics(len(trials)).to(self.device)
        seeds = {self.order_of[trial]: self.configs[trial].seed for trial in trials}
        self.orders, data = sorted(seeds), self.data
        data.keep_orders(self.orders)
        own = [seeds[order] for order in self.orders]
        self.augmentation = build_augmentation(
            self.configs[0].augmentation, data.source, own, data.config.batch, data.world_size
        )

    def configure_optimizers(self) -> Optimizer:
        """Builds the stack and its optimizer from weights that Lightning has moved and restored."""
        if step_kind(self.configs[0], self.models[0]) == "autograd":
            return build_optimizer(self.configs[0].optimizer, self.model.parameters())
        self.stack = Stack(
            [self.models[trial] for trial in self.stacked],
            [self.orders.index(self.order_of[trial]) for trial in self.stacked],
            min(self.lanes.count, len(self.stacked)),
        )
        chosen = [self.configs[trial].optimizer for trial in self.stacked]
        return build_stacked_optimizer(chosen, self.stack)

    @property
    def _optimizer(self) -> Optimizer:
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, Optimizer)
        return optimizer

    def on_fit_start(self) -> None:
        self._build_steps(self._optimizer)

    def _build_steps(self, optimizer: Optimizer) -> None:
        """To be called when the weights lie on the device where they train."""
        world_size = self.trainer.world_size
        # FSDP averages the gradients itself.
        if world_size > 1 and self.trainer_config.strategy != "fsdp":
            self.step_plan = replace(self.step_plan, ranks=world_size, all_reduce=ranks.all_reduce)
        decay = self.trainer_config.ema_decay
        if decay is not None:
            self.average = Average(decay, *self._averaged_tensors())
        schedules = [self.schedules[trial] for trial in self.stacked]
        common = (optimizer, schedules, self.step_plan, self.average)
        if self.stack is None:
            if self.device.type == "cuda" and self.trainer_config.cuda_graph:
                log.info("CUDA graphs are not used, because this run uses autograd")
            scaler = getattr(self.trainer.precision_plugin, "scaler", None)
            compiled = self.trainer_config.compile
            self.steps = AutogradSteps(self.model, *common, scaler=scaler, compiled=compiled)
        else:
            product_dtype = MIXED_PRECISION_TYPE.get(self.trainer_config.precision)
            self.steps = ClosedFormSteps(
                self.stack,
                *common,
                product_dtype=product_dtype,
                graph=self.trainer_config.cuda_graph,
                lanes=self.lanes,
            )

    def _averaged_tensors(self) -> list[list[Tensor]]:
        if self.stack is not None:
            return [lane.tensors_to_average for lane in self.stack.lanes]
        statistics = [value for value in self.model.buffers() if value.is_floating_point()]
        return [[*self.model.parameters(), *statistics]]

    def drop_finished(self) -> None:
        """Removes the trials that have ended from the stack; they keep their weights."""
        remaining = [trial for trial in self.stacked if self.status[trial].trains]
        states = [self.trial_optimizer_state(trial) for trial in remaining]
        averages = self._averages()
        for trial in set(self.stacked) - set(remaining):
            for tensor in self.models[trial].state_dict(keep_vars=True).values():
                tensor.data = tensor.data.clone()  # a view would keep the whole stack in memory
        self._select_trials(remaining)
        optimizer = self.configure_optimizers()
        assert self.stack is not None
        load_trial_states(optimizer, self.stack, states)
        self.trainer.optimizers = [optimizer]
        self._build_steps(optimizer)
        with self.averaged():
            for trial in remaining if averages else ():
                self.models[trial].load_state_dict(averages[trial])

    # --- training --------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        to_device(self._optimizer)
        if self.restored is None:
            return
        assert self.steps is not None
        self.steps.load_gradients(self.restored["gradients"])
        random_state.restore(self.restored["random"])
        with self.averaged():
            for model, weights in zip(self.models, self.restored["average"], strict=False):
                model.load_state_dict(weights)  # trials that have ended too
        self.restored = None

    def on_train_epoch_start(self) -> None:
        self.batch = 0
        self.train_metrics.reset()

    def training_step(self, block: Block) -> dict[str, Tensor]:
        assert self.steps is not None
        self.trained = True
        first, size = self.batch, block.labels.shape[-1]
        if self.augmentation is not None:
            self.augmentation(block, self.current_epoch, first, self.global_rank)
        stepped = self.steps(block, self.current_epoch, first)
        self.batch += len(block.labels)
        self.train_metrics.update(stepped.losses * size, stepped.correct, size * len(block.labels))
        plan = self.step_plan
        count_steps(self.trainer, plan.steps_before(self.batch) - plan.steps_before(first))
        return stepped._asdict()

    def _first_above(self) -> list[int]:
        """For each stacked trial the first batch of this epoch that shows divergence. Returns
        `self.batch` for a trial that has not diverged."""
        first = self.train_metrics.first_above(DIVERGED * self.configs[0].data.batch)
        if self.trainer.world_size > 1:
            ranks.all_min(first)  # all ranks stop together, whichever of them saw it
        found: list[int] = first.tolist()
        return found

    def diverges(self) -> bool:
        """Whether a trial has diverged within this epoch."""
        return any(batch < self.batch for batch in self._first_above())

    # --- evaluation ------------------------------------------------------------------------------

    def averaged(self) -> AbstractContextManager[None]:
        """Within it the models hold the moving averages of their weights, if averages are kept."""
        return nullcontext() if self.average is None else self.average.in_place()

    def on_validation_start(self) -> None:
        """Swaps weights and averages in the models, and back at the end."""
        if self.average is not None:
            self.average.swap()

    on_validation_end = on_validation_start

    def on_validation_epoch_start(self) -> None:
        self.evaluation_metrics.reset()

    on_test_epoch_start = on_validation_epoch_start

    def on_validation_epoch_end(self) -> None:
        self.metrics = self._named("val", self.evaluation_metrics)
        if self.train_metrics.update_called:  # not before training
            trained = self._named("train", self.train_metrics)
            self.metrics = {trial: self.metrics[trial] | trained[trial] for trial in trained}
            for trial, batch in zip(self.stacked, self._first_above(), strict=True):
                if batch < self.batch:
                    step = self.step_plan.step_of(self.current_epoch, batch) + 1
                    self.status.diverge(trial, step)
            self.trainer.should_stop |= not self.status.training
        if len(self.configs) == 1:
            self.log_dict(self.metrics[0])  # for a user's own callbacks

    def on_test_start(self) -> None:
        """Stacks all trials again: every trial is tested, and Lightning may have moved weights."""
        if self.stack is not None:
            self.stacked = list(range(len(self.configs)))
            self.evaluation_metrics = EpochMetrics(len(self.configs)).to(self.device)
            self.stack = Stack(self.models, self.order_of, self.lanes.count)

    def on_test_epoch_end(self) -> None:
        self.metrics = self._named("test", self.evaluation_metrics)

    def validation_step(self, batch: Batch) -> None:
        dtype, stack = self._input_dtype, self.stack
        if stack is not None:
            found = self.lanes.map(
                lambda lane: evaluate(lane.logits, batch, dtype, stack.trial_count), stack.lanes
            )
            losses, correct = (stack.by_trial(parts, 1) for parts in zip(*found, strict=True))
        else:
            losses, correct = evaluate(lambda x: self.model(x).mT.unsqueeze(0), batch, dtype)
        self.evaluation_metrics.update(losses, correct, len(batch.labels))

    test_step = validation_step

    def predict_classes(self, features: Tensor) -> Tensor:
        """The classes (N,) that the first trial predicts for features (N, *shape)."""
        features = as_float(features).to(self._input_dtype)
        if self.stack is None:
            with self.trainer.precision_plugin.forward_context():  # a callback has no autocast
                return self.model(features).argmax(-1)  # type: ignore[no-any-return]
        return self.stack.lanes[0].logits(features)[0].argmax(0)

    @property
    def _input_dtype(self) -> torch.dtype:
        """With autograd, inputs have the type of the weights, and autocast converts them."""
        precision = "" if self.stack is None else self.trainer_config.precision
        return MIXED_PRECISION_TYPE.get(precision, next(self.model.parameters()).dtype)

    def _named(self, part: str, metrics: EpochMetrics) -> dict[int, dict[str, float]]:
        return {
            trial: {f"{part}/{name}": value for name, value in values.items()}
            for trial, values in zip(self.stacked, metrics.compute(), strict=True)
        }

    # --- state -----------------------------------------------------------------------------------

    def trial_weights(self, trial: int) -> dict[str, Tensor]:
        """A copy of one trial's weights under the names of its single run."""
        state = self.models[trial].state_dict()
        return {f"model.{name}": whole(value).detach().clone() for name, value in state.items()}

    def load_trial_weights(self, trial: int, weights: dict[str, Tensor]) -> None:
        plain = {name.removeprefix("model."): value for name, value in weights.items()}
        self.models[trial].load_state_dict(plain)

    def trial_optimizer_state(self, trial: int) -> dict[str, Any]:
        """The state of one trial's optimizer, as its single run would save it."""
        if self.stack is None:
            return self._optimizer.state_dict()
        place = self.stacked.index(trial)
        return trial_state(self._optimizer, self.stack, place, self.configs[trial].optimizer)

    def _averages(self) -> list[dict[str, Tensor]]:
        if self.average is None:
            return []
        with self.averaged():
            return [
                {name: value.clone() for name, value in model.state_dict().items()}
                for model in self.models
            ]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what Lightning does not know; src/training/resume.py has the type of the whole."""
        assert self.steps is not None
        own: dict[str, Any] = {"random": random_state.capture(), "metrics": None, "gradients": []}
        epoch_ends = self.batch == self.step_plan.batches_per_epoch
        if not epoch_ends:
            own["metrics"] = self.train_metrics.sums()
            if not self.step_plan.begins(self.batch):
                own["gradients"] = self.steps.gradients()
        epoch = self.current_epoch + epoch_ends
        checkpoint |= self.status.state_dict() | {
            "kindling": self.metadata[0] if len(self.configs) == 1 else self.metadata,
            "stacked": self.stacked,
            "threads": self.threads,
            # Saved here because this class counts the batches, not the data module.
            "position": {"epoch": epoch, "batch": 0 if epoch_ends else self.batch},
            "ranks": ranks.gather(own),
            "average": self._averages(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.status.load_state_dict(checkpoint)
        self.restored = checkpoint["ranks"][self.trainer.global_rank]
        self.restored["average"] = checkpoint["average"]
        if self.restored["metrics"] is not None:
            self.train_metrics.update(*self.restored["metrics"])
        position = checkpoint["position"]
        self.batch = position["batch"]
        self.data.start = (position["epoch"], position["batch"])
