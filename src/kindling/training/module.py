"""The LightningModule of a run or stack. A training_step trains all trials on a block."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer

from kindling.config import registry
from kindling.config.measures import CLASSIFICATION, MEASURES, measure_of
from kindling.config.schema import Config
from kindling.data.augmentation import build_augmentation
from kindling.data.loader import Batch, Block, Rows
from kindling.data.module import DataModule
from kindling.data.sources.source import Source, Split
from kindling.data.targets import spread
from kindling.models import count_parameters
from kindling.ranks import processes as ranks
from kindling.records.checkpoint import FORMAT
from kindling.records.folder import columns
from kindling.steps import base as ways
from kindling.steps.base import Average, Learner, StepChoice, StepPlan, contiguous
from kindling.steps.choice import LEARNERS
from kindling.steps.lanes import Lanes, threads_for
from kindling.steps.schedule import Schedule
from kindling.system import machine
from kindling.system.errors import InputError
from kindling.tasks.measures import try_own
from kindling.tasks.metrics import EpochMetrics, Gather
from kindling.tasks.task import build_task
from kindling.training import random_state
from kindling.training.callbacks import Logged, require_loggable
from kindling.training.decisions import DIVERGED, TrialStatuses

log = logging.getLogger(__name__)


class StackModule(LightningModule):
    """Trains S models, one per trial, by the loss of their task. Each model maps features
    (N, *shape) to outputs (N, outputs).

    The configurations of the trials differ only in the fusible keys (training/grouping.py).
    steps/, not Lightning, sets the learning rate and clips, accumulates and scales
    gradients: Lightning calls this manual optimization.

    `stacked` lists the numbers of the trials in the stack, in ascending order. After each
    validation, `metrics` holds the values of each stacked trial under the names of history.csv, as
    exact Python floats. `status` records for each trial whether it still trains.
    """

    learner: Learner  # built in configure_optimizers, and again when trials leave the stack

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
        self.configs, self.order_of, self.step = configs, order_of, step
        self.data = self.loaders = data
        self.trainer_config = trainer = configs[0].trainer
        # Those that every history of such a run has.
        self.columns = columns(configs[0].task.name, configs[0].checkpoint.monitor)
        self.model = models[0] if len(models) == 1 else nn.ModuleList(models)
        self._all_models = list(models)
        self.metadata = [metadata(config, data.origin()) for config in configs]
        self.step_plan = StepPlan.of(trainer, data)
        steps_per_epoch = self.step_plan.steps_per_epoch
        self.schedules = [
            Schedule(each.scheduler, each.optimizer.lr, each.trainer.max_epochs, steps_per_epoch)
            for each in configs
        ]
        self.task = build_task(configs[0].task, data.source.classes)
        self.status = TrialStatuses(len(configs))
        self.metrics: dict[int, dict[str, float]] = {}
        self.batches_done = 0  # in this epoch
        self.training_began = False  # True from the first training_step on; `restoring` reads it
        self.average: Average | None = None
        self.logged = Logged()
        self.to_restore: dict[str, Any] | None = None  # the state of this rank in a checkpoint
        self.available_threads = threads
        self.set_stacked_trials(
            range(len(configs)), threads_for(models, data.source.shape, data.config.batch, threads)
        )

    @property
    def models(self) -> list[nn.Module]:
        # To list a ModuleList for each trial would take the square of their number. A single model
        # may be replaced by its shards.
        return self._all_models if len(self._all_models) > 1 else [self.model]

    @property
    def lightning(self) -> LightningModule:
        """What Lightning trains."""
        return self

    @property
    def source(self) -> Source:
        return self.data.source

    def arranged(self, users: Sequence[Callback], own: Sequence[Callback]) -> list[Callback]:
        """All callbacks in the order in which Lightning gets them."""
        return [*users, *own]

    def trainer_options(self) -> dict[str, Any]:
        """Arguments of Lightning's Trainer that only some modules have."""
        return {}

    def running(self) -> AbstractContextManager[None]:
        return self.lanes.running()

    def rate(self, trial: int) -> float:
        """The learning rate of the last step."""
        return self.schedules[trial](self.trainer.global_step - 1)

    def test(self, trainer: Trainer) -> None:
        trainer.test(self, self.data, verbose=False)

    # --- building --------------------------------------------------------------------------------

    def set_stacked_trials(self, trials: Sequence[int], threads: int) -> None:
        """Selects the trials to stack, before `fit`.

        There is one lane per trial of the run, but at most one per thread. If there are more
        threads than trials, each lane uses several threads. Each rank has one lane, because all
        ranks must exchange the gradients of the layers in the same order. Models by vmap share one
        lane. The engine's results do not depend on threads, so it takes all that there are now.
        """
        lanes = min(threads, len(self.configs))
        if self.step.kind == ways.NATIVE:
            lanes = threads = self.available_threads
        elif self.data.world_size > 1 or self.step.kind == ways.VMAP:
            lanes = 1
        self.threads, self.lanes = threads, Lanes(lanes, threads // lanes)
        self._select_trials(trials)

    def _select_trials(self, trials: Sequence[int]) -> None:
        self.stacked = list(trials)
        folds = [self.configs[trial].data.fold for trial in trials]
        spreads = [
            spread(self.data.training_labels(fold), self.data.training_weights(fold))
            for fold in folds
        ]
        self.train_metrics = EpochMetrics(self.task, spreads)
        numbers = [self.data.validation_number(self.configs[trial].data.fold) for trial in trials]
        loaders = range(len(self.data.validations))
        self._evaluate_on(
            [[place for place, number in enumerate(numbers) if number == each] for each in loaders],
            self.data.validations,
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
        if self.augmentation is None and self.step.kind == ways.NATIVE:
            sizes = [count_parameters(self.models[trial]) for trial in trials]
            operations = 6 * data.config.batch * sum(sizes)
        elif self.augmentation is None and self.step.kind == ways.KERNEL:
            operations = 1  # an epoch takes milliseconds
        every = self.configs[0].checkpoint.every_n_steps
        data.use_rows(operations, every and every * self.step_plan.accumulate)

    def _evaluate_on(self, evaluated: Sequence[Sequence[int]], splits: Sequence[Split]) -> None:
        """For each loader of an evaluation, the places in the stack of the trials to evaluate, and
        the samples."""
        self.evaluated = evaluated
        monitor, classes = self.configs[0].checkpoint.monitor, self.data.source.classes
        measure = measure_of(monitor)
        classifies = self.configs[0].task.name == CLASSIFICATION
        if measure is not None and classifies and classes < MEASURES[measure].least_classes:
            raise InputError(
                f"checkpoint.monitor={monitor}: {self.data.source.name} has {classes} classes, so "
                f"{MEASURES[measure].with_fewer_classes}; type checkpoint.monitor=val/acc"
            )
        if measure is not None:
            try_own(measure, self.task, self.data.source.targets)
        if measure is not None and any(split.weights is not None for split in splits):
            raise InputError(
                f"checkpoint.monitor={monitor}: knows no weights of samples; type "
                "checkpoint.monitor=val/loss checkpoint.mode=min, or leave the weights out"
            )
        self.evaluation_metrics = [
            EpochMetrics(
                self.task, [spread(split.labels, split.weights)] * len(places), measure,
                self.data.source.targets,
            )
            for places, split in zip(evaluated, splits, strict=True)
        ]  # fmt: skip

    def configure_optimizers(self) -> list[Optimizer]:
        """Builds the learner of the stacked trials. Lightning has already moved the weights."""
        self._build_learner()
        return self.learner.optimizers

    def _build_learner(self) -> None:
        orders = [self.order_of[trial] for trial in self.stacked]
        numbers = sorted(set(orders))
        self.learner = LEARNERS[self.step.kind](
            [self.configs[trial] for trial in self.stacked],
            [self.models[trial] for trial in self.stacked],
            [numbers.index(order) for order in orders],
            self.lanes,
            self.task,
            self.trainer.precision_plugin,
        )

    def on_fit_start(self) -> None:
        """Lightning has moved the weights to the training device."""
        machine.reset_peak_memory(self.device)
        if self.to_restore is not None and self.to_restore["logged"] is not None:
            self.logged.load(self.to_restore["logged"], self.trainer)
        world_size, config = self.trainer.world_size, self.trainer_config
        # FSDP averages the gradients itself.
        if world_size > 1 and config.strategy != "fsdp":
            self.step_plan = replace(
                self.step_plan, ranks=world_size, all_reduce=ranks.all_reduce,
                shared_memory=ranks.SharedMemory,
            )  # fmt: skip
        if config.ema_decay is not None:
            self.average = Average(config.ema_decay, *self.learner.averaged_tensors())
        if self.step.kind == ways.AUTOGRAD and self.device.type == "cuda" and config.cuda_graph:
            log.info("CUDA graphs are not used, because this run uses autograd")
        schedules = [self.schedules[trial] for trial in self.stacked]
        self.learner.begin(schedules, self.step_plan, self.average)

    def drop_ended(self) -> None:
        """Removes the trials that no longer train from the stack. Their models keep the weights."""
        remaining = sorted({*self.stacked} & {*self.status.active_trials})
        states = [self.trial_optimizer_state(trial) for trial in remaining]
        averages = self._averages()
        for trial in set(self.stacked) - set(remaining):
            for tensor in self.models[trial].state_dict(keep_vars=True).values():
                tensor.data = tensor.data.clone()  # a view would keep the whole stack in memory
        self._select_trials(remaining)
        self.trainer.optimizers = self.configure_optimizers()
        self.learner.load_optimizer_states(states)
        self.on_fit_start()  # begins with the new stack
        with self.averaged():
            for trial in remaining if averages else ():
                self.models[trial].load_state_dict(averages[trial])

    # --- training --------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        self.learner.optimizers_restored()
        if self.to_restore is None:
            return
        self.learner.load_gradients(self.to_restore["gradients"])
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
        results = self.learner.train(block, self.current_epoch, first)
        self.step = self.learner.fallback or self.step
        self.batches_done += count
        self.train_metrics.update(results.losses * size, results.scores, size * count)
        plan = self.step_plan
        steps = plan.steps_before(self.batches_done) - plan.steps_before(first)
        # Lightning would count calls of its own optimizers.
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        for tracker in (progress.total, progress.current):
            tracker.ready += steps
            tracker.completed += steps
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
        return any(batch < self.batches_done for batch in self._first_diverged_batches())

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> None:
        """Lightning's method, for callbacks of the user. The value becomes a column of the history,
        unless `logger` is False. A mean over an epoch weighs blocks by their batches."""
        if logger is not False:
            require_loggable(name)
        results = self.trainer._results
        batch = None if results is None else results.batch
        if batch_size is None and isinstance(batch, Block | Rows):
            batch_size = batch.batches
        super().log(name, value, prog_bar, batch_size=batch_size, **options)
        if logger is not False and not self.trainer.sanity_checking:
            self.logged.note(self.trainer, self._current_fx_name, name)

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
        if self.train_metrics.losses:  # not in the validation before training
            trained_to = self.train_metrics.compute(self._gather)
            for trial, trained in zip(self.stacked, trained_to, strict=True):
                self.metrics[trial] |= _named("train", trained)
            for trial, batch in zip(self.stacked, self._first_diverged_batches(), strict=True):
                if batch < self.batches_done:
                    step = self.step_plan.step_of(self.current_epoch, batch) + 1
                    self.status.diverged.setdefault(trial, step)
            self.trainer.should_stop |= not self.status.active_trials
        if len(self.configs) == 1:
            # For callbacks of the user. Lightning's log_dict needs 2 ms to do the same.
            values = {name: torch.tensor(value) for name, value in self.metrics[0].items()}
            self.trainer.callback_metrics.update(values)

    def on_test_start(self) -> None:
        """Stacks all trials again, because all are tested. Lightning may have moved the weights."""
        self.stacked = list(range(len(self.configs)))
        self._evaluate_on([self.stacked], [self.data.source.test])
        self._build_learner()

    def on_test_epoch_end(self) -> None:
        self.metrics = self._evaluated("test")

    def validation_step(self, batch: Batch, _: int = 0, dataloader_idx: int = 0) -> None:
        places = self.evaluated[dataloader_idx]
        if places:  # else all trials of this fold have left the stack
            losses, scores, tallies = self.learner.evaluate(batch, places)
            metrics = self.evaluation_metrics[dataloader_idx]
            metrics.update(losses, scores, len(batch.labels), tallies, batch.weights)

    test_step = validation_step

    @property
    def _gather(self) -> Gather | None:
        return ranks.gather if self.trainer.world_size > 1 else None

    def _evaluated(self, split: str) -> dict[int, dict[str, float]]:
        """The metrics of each stacked trial, in the order of the stack."""
        found: dict[int, dict[str, float]] = {}
        for places, metrics in zip(self.evaluated, self.evaluation_metrics, strict=True):
            values = metrics.compute(self._gather) if places else []
            found |= dict(zip(places, values, strict=True))
        return {trial: _named(split, found[place]) for place, trial in enumerate(self.stacked)}

    # --- state -----------------------------------------------------------------------------------

    def load_weights(self, trial: int, weights: Mapping[str, Tensor]) -> None:
        """Those that `copied_weights` returned."""
        named = {name.removeprefix("model."): value for name, value in weights.items()}
        self.models[trial].load_state_dict(named)

    def copied_weights(self, trials: Sequence[int]) -> list[dict[str, Tensor]]:
        """Those of stacked trials, see `Learner.copied_weights`."""
        places = {trial: place for place, trial in enumerate(self.stacked)}
        return self.learner.copied_weights([places[trial] for trial in trials])

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
        """Adds the state that Lightning does not know: training/resume.py, `State`."""
        rank: dict[str, Any] = {"random": random_state.capture(), "metrics": None, "gradients": []}
        epoch_ends = self.batches_done == self.step_plan.batches_per_epoch
        if not epoch_ends:
            rank["metrics"] = self.train_metrics.sums()
            if not self.step_plan.begins(self.batches_done):
                rank["gradients"] = self.learner.gradients()
        epoch = self.current_epoch + epoch_ends
        for name in ("state_dict", "optimizer_states"):
            checkpoint[name] = self.learner.without_views(checkpoint[name])
        checkpoint |= self.status.state_dict() | {
            "kindling": self.metadata[0] if len(self.configs) == 1 else self.metadata,
            "stacked": self.stacked,
            "threads": self.threads,
            "step": self.step.kind,
            "step_reason": self.step.reason[: ways.LONGEST_REASON],
            # Saved here because this class counts the batches, not the data module.
            "position": {"epoch": epoch, "batch": 0 if epoch_ends else self.batches_done},
            "ranks": ranks.gather(rank),
            "average": self._averages(),
            "logged": self.logged.state(self.trainer) if len(self.configs) == 1 else None,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.status.load_state_dict(checkpoint)
        rank = checkpoint["ranks"][self.trainer.global_rank]
        self.to_restore = {**rank, **{key: checkpoint.get(key) for key in ("average", "logged")}}
        if rank["metrics"] is not None:
            self.train_metrics.update(*rank["metrics"])
        position = checkpoint["position"]
        self.batches_done = position["batch"]
        self.data.start = (position["epoch"], position["batch"])
        if position["batch"]:
            # Lightning ends the epoch after as many blocks as a loader's `len` counts.
            counts = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]
            more = self.data.blocks_before(position["batch"]) - counts["ready"]
            for name in counts:  # one of them is counted after the checkpoint is written
                counts[name] += more


def _named(split: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{split}/{name}": value for name, value in values.items()}


def metadata(config: Config, data: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a checkpoint that says what was trained: the configuration, what of it comes from
    extensions, if anything does, and the data."""
    values = config.unlabelled().to_primitives()
    extensions = registry.origins(values)
    brought = {"extensions": extensions} if extensions else {}
    return {"format": FORMAT, "config": values, **brought, **data}
