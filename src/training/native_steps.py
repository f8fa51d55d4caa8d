"""The optimizer steps of a block by the engine.

The numbers of a trial depend on the trial alone: not on other trials, threads, or the division of
an epoch into blocks.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from src.config import schema
from src.data.loader import CHUNK, OPERATIONS, Batch, Block, Rows
from src.models.native import SOURCES, NativeModel, scratch
from src.native import engine
from src.training.averaging import Average
from src.training.lanes import Lanes
from src.training.metrics import Evaluated
from src.training.optimizers import ADAM_BETAS, ADAM_EPS, is_plain_sgd
from src.training.schedule import Schedule
from src.training.steps import BatchResults, StepPlan, Steps
from src.training.tallies import joined, tally
from src.training.team_size import TeamSize


class Trial:
    """One model with the vectors of its optimizer. The state of torch's optimizer is views of them,
    so that checkpoints and other kinds of steps can read it."""

    def __init__(
        self, model: NativeModel, optimizer: Optimizer, config: schema.Optimizer, seed: int
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.gradient: Tensor | None = None
        adam = config.name != "sgd"
        decay, momentum = config.weight_decay, getattr(config, "momentum", 0.0)
        names = ["exp_avg", "exp_avg_sq"] if adam else ["momentum_buffer"] * bool(momentum)
        self.moments = {name: model.new_vector() for name in names}
        self.count = torch.tensor(0.0) if adam else None  # of steps; torch keeps a float
        self.settings = engine.Optimizer(
            engine.OPTIMIZERS.index(config.name), getattr(config, "nesterov", False), decay,
            momentum, *ADAM_BETAS, ADAM_EPS,
        )  # fmt: skip
        vectors = [vector.data_ptr() for vector in self.moments.values()]
        self.pointers = engine.Model(
            model.weights.data_ptr(), None, *(*vectors, None, None)[:2], None, seed, 0
        )
        self.adopt()

    def store_gradients(self) -> None:
        """Gives the trial a vector of gradients. Without it, steps add them to the weights."""
        self.gradient = self.model.new_vector()
        self.pointers.gradient = self.gradient.data_ptr()

    def adopt(self) -> None:
        """Takes over the state that was loaded into torch's optimizer, and makes it views."""
        state: dict[Any, dict[str, Tensor]] = self.optimizer.state
        parameters = list(self.model.model.parameters())
        for name, vector in self.moments.items():
            for parameter, view in zip(parameters, self.model.views(vector), strict=True):
                if name in state[parameter]:
                    view.copy_(state[parameter][name])
                state[parameter][name] = view
        if self.count is not None:
            self.count = state[parameters[0]].get("step", self.count).detach().clone()
            self.pointers.steps = int(self.count)
            for parameter in parameters:
                state[parameter]["step"] = self.count

    def finish_block(self, rate: float) -> None:
        """Makes the optimizer's state that of the last step."""
        if self.count is not None:
            self.count.fill_(self.pointers.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate


class NativeSteps(Steps):
    """Trains trials by the engine: each on a thread of `lanes`, a single one on several."""

    def __init__(
        self,
        trials: Sequence[Trial],
        batch_of: Sequence[int],
        schedules: Sequence[Schedule],
        step_plan: StepPlan,
        average: Average | None,
        lanes: Lanes,
    ) -> None:
        """Trial s trains on batch `batch_of[s]` of a block. The average has one lane, of each
        trial's flat vector."""
        super().__init__(trials[0].optimizer, schedules, step_plan, average)
        self.trials, self.batch_of, self.lanes = trials, batch_of, lanes
        decay = 0.0
        if average is not None:
            decay = average.decay
            for trial, values in zip(trials, average.values[0], strict=True):
                trial.pointers.average = values.data_ptr()
        whole_steps = step_plan.accumulate == 1 and step_plan.clip is None
        for trial in trials:
            if not (whole_steps and is_plain_sgd(trial.optimizer)):
                trial.store_gradients()
        weights = step_plan.class_weights
        self.class_weights = None if weights is None else np.array(weights, np.float64)
        self.plan = engine.Plan(
            step_plan.batches_per_epoch, step_plan.accumulate, step_plan.clip or 0.0,
            step_plan.smoothing, decay,
            None if self.class_weights is None else self.class_weights.ctypes.data,
        )  # fmt: skip
        self.team_size = TeamSize(lanes.count)
        self.teams = {size: engine.engine().team(size) for size in self.team_size.sizes}
        # The longest first, so that threads end at about the same time.
        sizes = [trial.model.network.size for trial in trials]
        self.by_size = sorted(range(len(trials)), key=lambda n: -sizes[n])

    def __call__(self, block: Block | Rows, epoch: int, batch: int) -> BatchResults:
        count = block.batches
        losses = np.empty((len(self.trials), count))
        correct = np.empty((len(self.trials), count), np.int64)
        features, labels = block.features.contiguous(), block.labels.contiguous()
        first = 0 if isinstance(block, Rows) else 2  # the dimension of the samples
        self.trials[0].model.check(features.flatten(0, first), labels)

        def train(number: int) -> None:
            trial, order = self.trials[number], self.batch_of[number]
            network = trial.model.network
            steps = (batch + np.arange(count)) // self.step_plan.accumulate
            rates = np.ascontiguousarray(self.schedules[number].of_epoch(epoch)[steps])
            if isinstance(block, Rows):
                x, y, rows = features, labels, block.rows[:, order].contiguous()
            else:
                x, y, rows = features[:, order].contiguous(), labels[:, order].contiguous(), None
            memory = scratch(engine.engine().scratch_bytes(network, block.size))
            settings = trial.settings, self.plan

            # Signals are handled between calls, even if trainer.steps_per_call is large.
            most = max(1, OPERATIONS // (6 * block.size * network.size))

            def run(size: int, begin: int, end: int) -> None:
                for start in range(begin, end, most):
                    call(size, start, min(start + most, end))

            def call(size: int, begin: int, end: int) -> None:
                part = engine.Block(
                    x.data_ptr(), SOURCES[x.dtype], None if rows is None else rows.data_ptr(),
                    y.data_ptr(), block.size, epoch, batch, begin, end, rates.ctypes.data,
                    losses[number].ctypes.data, correct[number].ctypes.data,
                )  # fmt: skip
                self.lanes.map(
                    lambda member: engine.engine().train(
                        network, settings, trial.pointers, part, memory, member
                    ),
                    self.teams[size],
                )

            if len(self.trials) == 1 and self.lanes.pool is not None:
                self.team_size.train(run, count)
            else:
                run(1, 0, count)
            trial.finish_block(float(rates[-1]))
            for norm in trial.model.batch_norms:
                assert norm.num_batches_tracked is not None
                norm.num_batches_tracked += count

        self.lanes.deal(train, self.by_size)
        return BatchResults(torch.from_numpy(losses).T, torch.from_numpy(correct).T)

    def gradients(self) -> list[Tensor]:
        return [trial.gradient for trial in self.trials if trial.gradient is not None]


def evaluate_natively(
    models: Sequence[NativeModel], batch: Batch, lanes: Lanes, *, measure: str | None = None
) -> Evaluated:
    """Evaluates S models on a batch, with the tally of a measure if one is named."""
    features, labels = batch.features.contiguous(), batch.labels.contiguous()
    starts = range(0, len(labels), CHUNK)
    losses = np.empty((len(starts), len(models)))
    correct = np.empty((len(starts), len(models)), np.int64)
    classes = models[0].network.perceptron.widths[-1]
    tallies = dict[tuple[int, int], Tensor]()

    def evaluate(task: tuple[int, int]) -> None:
        number, chunk = task
        model, part = models[number], slice(starts[chunk], starts[chunk] + CHUNK)
        samples = model.samples(features[part], labels[part])
        memory = scratch(engine.engine().scratch_bytes(model.network, samples.size))
        logits = None if measure is None else model.weights.new_empty(samples.size, classes)
        losses[chunk, number], correct[chunk, number] = engine.engine().evaluate(
            model.network, model.weights.data_ptr(), samples, memory,
            None if logits is None else logits.data_ptr(),
        )  # fmt: skip
        if logits is not None:
            assert measure is not None
            tallies[task] = tally(measure, logits.mT[None], labels[part])

    chunks = range(len(starts))
    lanes.deal(evaluate, [(number, chunk) for number in range(len(models)) for chunk in chunks])
    whole = None
    if measure is not None:
        by_model = [[tallies[n, chunk] for chunk in chunks] for n in range(len(models))]
        whole = torch.cat([joined(measure, parts) for parts in by_model], 1)
    return Evaluated(torch.from_numpy(losses), torch.from_numpy(correct), whole)
