"""The LightningModule of a run or stack. A training_step trains all trials on a block."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from src.config.schema import Config, measure_of
from src.data.augmentation import build_augmentation
from src.data.class_balance import class_weights
from src.data.loader import Batch, Block, Rows
from src.data.module import DataModule
from src.data.sources.source import Split
from src.models import count_parameters
from src.models.step_choice import AUTOGRAD, KERNEL, NATIVE, VMAP, StepChoice
from src.runs.checkpoint import FORMAT
from src.system import machine
from src.system.errors import InputError
from src.training import random_state, ranks
from src.training.averaging import Average
from src.training.lanes import Lanes, threads_for
from src.training.learners import LEARNERS, Learner, contiguous, copied
from src.training.lightning_internals import count_steps
from src.training.metrics import EpochMetrics
from src.training.schedule import Schedule
from src.training.steps import StepPlan, Steps
from src.training.tallies import TOP
from src.training.trial_status import TrialStatuses

log = logging.getLogger(__name__)

# A trial has diverged when the loss of a batch, summed over samples and divided by data.batch_size,
# is NaN or above this bound. In float32, the cross entropy of a probability above 0 is at most 104.
# Some losses of thousands have recovered.
DIVERGED = 1e6


class Classifier(LightningModule):
    """Trains S models, one per trial, by cross entropy. Each model maps features (N, *shape) to
    logits (N, classes).

    The configurations of the trials differ only in the fusible keys (src/training/grouping.py).
    src/training/steps.py, not Lightning, sets the learning rate and clips, accumulates and scales
    gradients: Lightning calls this manual optimization.

    `stacked` lists the numbers of the trials in the stack, in ascending order. After each
    validation, `metrics` holds the values of each stacked trial under the names of history.csv, as
    exact Python floats. `status` records for each trial whether it still trains.
    """

    learner: Learner  # built in configure_optimizers, and again when trials leave the stack
    steps: Steps  # built in on_fit_start, and again when trials leave the stack

    def __init__(
        self,
        configs: Sequence[Config],
        models: Sequence[nn.Module],
        data: DataModule,
        order_of: Sequence[int],
        step: StepChoice,
        threads: int = 1,
    ) -> None:
        """Trial s uses the sample order `data.all_orders[order_of[s]]`."""
        super().__init__()
        self.automatic_optimization = False
        self.configs, self.data, self.order_of, self.step = configs, data, order_of, step
        self.trainer_config = trainer = configs[0].trainer
        self.model = models[0] if len(models) == 1 else nn.ModuleList(models)
        self._all_models = list(models)
        self.metadata = [
            {"format": FORMAT, "config": config.unlabelled().to_primitives(), **data.origin()}
            for config in configs
        ]
        self.step_plan = StepPlan(
            data.batches_per_epoch,
            trainer.accumulate_grad_batches,
            trainer.gradient_clip_val,
            trainer.label_smoothing,
            class_weights(trainer.class_weights, data.train, data.source),
        )
        steps_per_epoch = self.step_plan.steps_per_epoch
        self.schedules = [
            Schedule(each.scheduler, each.optimizer.lr, each.trainer.max_epochs, steps_per_epoch)
            for each in configs
        ]
        self.status = TrialStatuses(len(configs))
        self.metrics: dict[int, dict[str, float]] = {}
        self.batches_done = 0  # in this epoch
        self.training_began = False  # True from the first training_step on; `restoring` reads it
        self.average: Average | None = None
        self.to_restore: dict[str, Any] | None = None  # the state of this rank in a checkpoint
        self.available_threads = threads
        self.set_stacked_trials(
            range(len(configs)),
            threads_for(models, data.source.shape, data.config.batch, threads),
        )

    @property
    def models(self) -> list[nn.Module]:
        # To list a ModuleList for each trial would take the square of their number. A single model
        # may be replaced by its shards.
        return self._all_models if len(self._all_models) > 1 else [self.model]

    # --- building --------------------------------------------------------------------------------

    def set_stacked_trials(self, trials: Sequence[int], threads: int) -> None:
        """Selects the trials to stack, before `fit`.

        There is one lane per trial of the run, but at most one per thread. If there are more
        threads than trials, each lane uses several threads. Each rank has one lane, because all
        ranks must exchange the gradients of the layers in the same order. Models by vmap share one
        lane. The engine's results do not depend on threads, so it takes all that there are now.
        """
        if self.step.kind == NATIVE:
            self.threads, self.lanes = self.available_threads, Lanes(self.available_threads)
            self._select_trials(trials)
            return
        one_lane = self.data.world_size > 1 or self.step.kind == VMAP
        lanes = 1 if one_lane else min(threads, len(self.configs))
        self.threads, self.lanes = threads, Lanes(lanes, threads // lanes)
        self._select_trials(trials)

    def _select_trials(self, trials: Sequence[int]) -> None:
        self.stacked = list(trials)
        self.train_metrics = EpochMetrics(len(trials)).to(self.device)
        numbers = [self.data.validation_number(self.configs[trial].data.fold) for trial in trials]
        self._evaluate_on(
            [
                [place for place, number in enumerate(numbers) if number == loader]
                for loader in range(len(self.data.validations))
            ]
        )
        seed_of_order = {self.order_of[trial]: self.configs[trial].seed for trial in trials}
        self.order_numbers, data = sorted(seed_of_order), self.data
        data.keep_orders(self.order_numbers)
        seeds = [seed_of_order[number] for number in self.order_numbers]
        self.augmentation = build_augmentation(
            self.configs[0].augmentation, data.source, seeds, data.config.batch, data.world_size,
            self.configs[0].trainer.max_epochs,
        )  # fmt: skip
        operations = None
        if self.augmentation is None and self.step.kind == NATIVE:
            sizes = [count_parameters(self.models[trial]) for trial in trials]
            operations = 6 * data.config.batch * sum(sizes)
        elif self.augmentation is None and self.step.kind == KERNEL:
            operations = 1  # an epoch takes milliseconds
        every = self.configs[0].checkpoint.every_n_steps
        data.use_rows(operations, every and every * self.step_plan.accumulate)

    def _evaluate_on(self, evaluated: Sequence[Sequence[int]]) -> None:
        """For each loader of an evaluation, the places in the stack of the trials to evaluate."""
        self.evaluated = evaluated
        monitor, classes = self.configs[0].checkpoint.monitor, self.data.source.classes
        measure = measure_of(monitor)
        if measure == "top5" and classes <= TOP:
            raise InputError(
                f"checkpoint.monitor={monitor}: {self.data.source.name} has {classes} classes, so "
                "every label is among the five best; type checkpoint.monitor=val/acc"
            )
        metrics = nn.ModuleList([EpochMetrics(len(places), measure) for places in evaluated])
        self.evaluation_metrics: Sequence[EpochMetrics] = metrics.to(self.device)  # type: ignore[assignment]

    def validation_of(self, trial: int) -> Split:
        """The samples that a trial is validated on."""
        return self.data.validations[self.data.validation_number(self.configs[trial].data.fold)]

    def configure_optimizers(self) -> list[Optimizer]:
        """Builds the learner of the stacked trials. Lightning has already moved the weights."""
        self.learner = self._build_learner(self.stacked)
        return self.learner.optimizers

    def _build_learner(self, trials: Sequence[int]) -> Learner:
        orders = [self.order_of[trial] for trial in trials]
        numbers = sorted(set(orders))
        return LEARNERS[self.step.kind](
            [self.configs[trial] for trial in trials],
            [self.models[trial] for trial in trials],
            [numbers.index(order) for order in orders],
            self.lanes,
            self.data.source.classes,
            self.trainer.precision_plugin,
        )

    def on_fit_start(self) -> None:
        """Builds the steps. By now, Lightning has moved the weights to the training device."""
        machine.reset_peak_memory(self.device)
        world_size, config = self.trainer.world_size, self.trainer_config
        # FSDP averages the gradients itself.
        if world_size > 1 and config.strategy != "fsdp":
            self.step_plan = replace(self.step_plan, ranks=world_size, all_reduce=ranks.all_reduce)
        if config.ema_decay is not None:
            self.average = Average(config.ema_decay, *self.learner.averaged_tensors())
        if self.step.kind == AUTOGRAD and self.device.type == "cuda" and config.cuda_graph:
            log.info("CUDA graphs are not used, because this run uses autograd")
        schedules = [self.schedules[trial] for trial in self.stacked]
        self.steps = self.learner.steps(schedules, self.step_plan, self.average)

    def drop_ended(self) -> None:
        """Removes the trials that no longer train from the stack. Their models keep the weights."""
        remaining = [trial for trial in self.stacked if self.status[trial].trains]
        states = [self.trial_optimizer_state(trial) for trial in remaining]
        averages = self._averages()
        for trial in set(self.stacked) - set(remaining):
            for tensor in self.models[trial].state_dict(keep_vars=True).values():
                tensor.data = tensor.data.clone()  # a view would keep the whole stack in memory
        self._select_trials(remaining)
        self.trainer.optimizers = self.configure_optimizers()
        self.learner.load_optimizer_states(states)
        self.on_fit_start()  # builds the steps of the new stack
        with self.averaged():
            for trial in remaining if averages else ():
                self.models[trial].load_state_dict(averages[trial])

    # --- training --------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        self.learner.optimizers_restored()
        if self.to_restore is None:
            return
        self.steps.load_gradients(self.to_restore["gradients"])
        random_state.restore(self.to_restore["random"])
        with self.averaged():
            # One per trial: the average, or the last weights of a trial that has left the stack.
            for model, weights in zip(self.models, self.to_restore["average"], strict=False):
                model.load_state_dict(weights)
        self.to_restore = None

    def on_train_epoch_start(self) -> None:
        self.batches_done = 0
        self.train_metrics.reset()

    def training_step(self, block: Block | Rows) -> dict[str, Tensor]:
        self.training_began = True
        first, size, count = self.batches_done, block.size, block.batches
        if self.augmentation is not None:
            assert isinstance(block, Block)
            self.augmentation(block, self.current_epoch, first, self.global_rank)
        results = self.steps(block, self.current_epoch, first)
        self.batches_done += count
        self.train_metrics.update(results.losses * size, results.correct, size * count)
        plan = self.step_plan
        count_steps(self.trainer, plan.steps_before(self.batches_done) - plan.steps_before(first))
        return results._asdict()

    def _first_diverged_batches(self) -> list[int]:
        """For each stacked trial the first batch of this epoch that diverged, or `batches_done`."""
        # train_metrics holds the sum, not the mean, of the losses of each batch.
        first = self.train_metrics.first_above(DIVERGED * self.configs[0].data.batch)
        if self.trainer.world_size > 1:
            ranks.all_min(first)  # so that all ranks stop together
        batches: list[int] = first.tolist()
        return batches

    def diverges(self) -> bool:
        """Whether a trial has diverged within this epoch."""
        return any(batch < self.batches_done for batch in self._first_diverged_batches())

    # --- evaluation ------------------------------------------------------------------------------

    def averaged(self) -> AbstractContextManager[None]:
        """Within the context, the models hold the moving averages of their weights, if any."""
        return nullcontext() if self.average is None else self.average.in_place()

    def on_validation_start(self) -> None:
        """Swaps weights and averages in the models. At the end, swaps them back."""
        if self.average is not None:
            self.average.swap()

    on_validation_end = on_validation_start

    def on_validation_epoch_start(self) -> None:
        for metrics in self.evaluation_metrics:
            metrics.reset()

    on_test_epoch_start = on_validation_epoch_start

    def on_validation_epoch_end(self) -> None:
        self.metrics = self._evaluated("val")
        if self.train_metrics.update_called:  # not in the validation before training
            for trial, trained in zip(self.stacked, self.train_metrics.compute(), strict=True):
                self.metrics[trial] |= _named("train", trained)
            for trial, batch in zip(self.stacked, self._first_diverged_batches(), strict=True):
                if batch < self.batches_done:
                    step = self.step_plan.step_of(self.current_epoch, batch) + 1
                    self.status.diverge(trial, step)
            self.trainer.should_stop |= not self.status.active_trials
        if len(self.configs) == 1:
            # For callbacks of the user. Lightning's log_dict needs 2 ms to do the same.
            values = {name: torch.tensor(value) for name, value in self.metrics[0].items()}
            self.trainer.callback_metrics.update(values)

    def on_test_start(self) -> None:
        """Stacks all trials again, because all are tested. Lightning may have moved the weights."""
        if self.step.kind == AUTOGRAD:
            return
        self.stacked = list(range(len(self.configs)))
        self._evaluate_on([self.stacked])
        self.learner = self._build_learner(self.stacked)

    def on_test_epoch_end(self) -> None:
        self.metrics = self._evaluated("test")

    def validation_step(self, batch: Batch, _: int = 0, dataloader_idx: int = 0) -> None:
        places = self.evaluated[dataloader_idx]
        if places:  # else all trials of this fold have left the stack
            losses, correct, counts = self.learner.evaluate(batch, places)
            metrics = self.evaluation_metrics[dataloader_idx]
            metrics.update(losses, correct, len(batch.labels), counts)

    test_step = validation_step

    def predict_classes(self, features: Tensor) -> Tensor:
        """The classes (N,) that the first trial predicts for features (N, *shape)."""
        return self.learner.logits(features).argmax(-1)

    def _evaluated(self, split: str) -> dict[int, dict[str, float]]:
        """The metrics of each stacked trial, in the order of the stack."""
        found: dict[int, dict[str, float]] = {}
        for places, metrics in zip(self.evaluated, self.evaluation_metrics, strict=True):
            values = metrics.compute() if places else []
            found |= dict(zip(places, values, strict=True))
        return {trial: _named(split, found[place]) for place, trial in enumerate(self.stacked)}

    # --- state -----------------------------------------------------------------------------------

    def trial_weights(self, trial: int) -> dict[str, Tensor]:
        """A copy of one trial's weights, with the names that they have in a single run."""
        return copied(self.models[trial])

    def copied_weights(self, trials: Sequence[int]) -> list[dict[str, Tensor]]:
        """The same of stacked trials, see `Learner.copied_weights`."""
        places = {trial: place for place, trial in enumerate(self.stacked)}
        return self.learner.copied_weights([places[trial] for trial in trials])

    def load_trial_weights(self, trial: int, weights: dict[str, Tensor]) -> None:
        plain = {name.removeprefix("model."): value for name, value in weights.items()}
        self.models[trial].load_state_dict(plain)

    def trial_optimizer_state(self, trial: int) -> dict[str, Any]:
        """The state of one trial's optimizer, as its single run would save it."""
        return self.learner.optimizer_state(self.stacked.index(trial))

    def _averages(self) -> list[dict[str, Tensor]]:
        if self.average is None:
            return []
        with self.averaged():
            return [
                {name: contiguous(value) for name, value in model.state_dict().items()}
                for model in self.models
            ]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the state that Lightning does not know: src/training/resume.py, `State`."""
        rank: dict[str, Any] = {"random": random_state.capture(), "metrics": None, "gradients": []}
        epoch_ends = self.batches_done == self.step_plan.batches_per_epoch
        if not epoch_ends:
            rank["metrics"] = self.train_metrics.sums()
            if not self.step_plan.begins(self.batches_done):
                rank["gradients"] = self.steps.gradients()
        epoch = self.current_epoch + epoch_ends
        for name in ("state_dict", "optimizer_states"):
            checkpoint[name] = self.learner.without_views(checkpoint[name])
        checkpoint |= self.status.state_dict() | {
            "kindling": self.metadata[0] if len(self.configs) == 1 else self.metadata,
            "stacked": self.stacked,
            "threads": self.threads,
            "step": self.step.kind,
            # Saved here because this class counts the batches, not the data module.
            "position": {"epoch": epoch, "batch": 0 if epoch_ends else self.batches_done},
            "ranks": ranks.gather(rank),
            "average": self._averages(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.status.load_state_dict(checkpoint)
        rank = checkpoint["ranks"][self.trainer.global_rank]
        self.to_restore = rank | {"average": checkpoint["average"]}
        if rank["metrics"] is not None:
            losses, correct, samples = rank["metrics"]
            device = self.train_metrics.device
            self.train_metrics.update(losses.to(device), correct.to(device), samples)
        position = checkpoint["position"]
        self.batches_done = position["batch"]
        self.data.start = (position["epoch"], position["batch"])


def _named(split: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{split}/{name}": value for name, value in values.items()}
