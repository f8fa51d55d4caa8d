"""A stack of models whose gradients are written out (models/closed_form.py)."""

import logging
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from kindling.data.loader import Batch, Block, Rows, batches_per_block
from kindling.data.sources.source import as_float
from kindling.models.closed_form import ClosedForm, SegmentBatch, StackedParameters, UseGradient
from kindling.steps.base import BatchResults, Learner, aligned, as_saved, empty_aligned
from kindling.steps.cuda_graph import BatchGraph, Run
from kindling.steps.optimizers import (
    StackedOptimizer,
    build_stacked_optimizer,
    is_plain_sgd,
    load_trial_states,
    set_rates,
    trial_state,
)
from kindling.steps.stack import KeptWeights, Lane, Stack
from kindling.system.errors import first_line
from kindling.system.machine import to_device
from kindling.tasks.measures import Evaluated, evaluate
from kindling.tasks.task import factors_of

log = logging.getLogger(__name__)

GRAPH_BATCHES = 32  # in a CUDA graph, or as many more as complete a step
MOST_GRAPHS = 4  # each keeps memory of its own
MIXED_PRECISION_TYPE = {"bf16-mixed": torch.bfloat16}  # 16-mixed always uses autograd


class ClosedFormLearner(Learner):
    """Trains a stack of models by their closed form.

    If nothing comes between gradient and update (SGD without momentum and weight decay, no
    clipping, accumulation or other ranks), no gradient is stored: the deltas are scaled by the
    learning rates, and the products are subtracted from the weights in place. The delta of a layer
    is the gradient of the loss with respect to the outputs of the layer.
    """

    @cached_property
    def stack(self) -> Stack:
        lanes = min(self.lanes.count, len(self.models))
        return Stack(self.models, self.batch_of, lanes, task=self.task)

    @cached_property
    def optimizers(self) -> list[Optimizer]:
        return [build_stacked_optimizer([each.optimizer for each in self.configs], self.stack)]

    # --- training --------------------------------------------------------------------------------

    def begin(self, *arguments: Any) -> None:
        super().begin(*arguments)
        trainer, step_plan, stack = self.configs[0].trainer, self.step_plan, self.stack
        self.product_dtype = MIXED_PRECISION_TYPE.get(trainer.precision)
        self.stores_no_gradient = (
            is_plain_sgd(self.optimizer)
            and step_plan.accumulate == 1
            and step_plan.clip is None
            and step_plan.all_reduce is None
            and self.product_dtype is None
        )
        if not self.stores_no_gradient:
            for segment in stack.segments:
                segment.make_gradients()
        self.class_weights = step_plan.weights_like(stack.parameters[0])
        device = stack.parameters[0].device
        if len(stack.lanes) > 1:  # lanes would draw from the global generator in a random order
            for lane in stack.lanes:
                generator = torch.Generator(device)
                for segment in lane.segments:
                    segment.generator = generator
        self.pending: list[Callable[[], object]] = []  # each waits for an all-reduce
        self.graphs: dict[tuple[torch.Size, ...], BatchGraph | None] = {}  # by shapes of inputs
        self.why_no_graph: str | None = None  # None if batches are replayed as CUDA graphs
        if device.type != "cuda":
            self.why_no_graph = "the device is not a CUDA GPU"
        elif not trainer.cuda_graph:
            self._use_no_graph("trainer.cuda_graph=false")
        elif step_plan.all_reduce is not None:
            self._use_no_graph("ranks exchange gradients between the steps of a block")
        elif self.average is not None:
            self._use_no_graph("the moving average is updated after each step")

    def train(self, block: Block | Rows, epoch: int, batch: int) -> BatchResults:
        if isinstance(block, Rows):
            return self._train_rows(block, epoch, batch)
        like = self.stack.parameters[0]
        if block.weights is not None and self.why_no_graph is None:
            self._use_no_graph("the samples have weights")
        size, count = block.size, block.batches
        loss_scale = 1 / (size * self.step_plan.accumulate * self.step_plan.ranks)
        rates = self.rates(epoch, batch, count)
        if self.stack.trial_count == 1 and like.device.type == "cpu":  # numbers are faster
            results = self._train(
                block.features, block.labels, rates.tolist(), loss_scale, epoch, batch,
                block.weights,
            )  # fmt: skip
            set_rates(self.optimizer, rates[-1].tolist())
        else:
            table, parts = self.on_device(rates), []
            for piece in self._pieces(count, batch):
                inputs = [tensor[piece] for tensor in (block.features, block.labels, table)]
                first = batch + piece.start
                weights = None if block.weights is None else block.weights[piece]
                train = partial(
                    self._train, loss_scale=loss_scale, epoch=epoch, batch=first, weights=weights
                )
                graph = self._graph(train, inputs, first)
                parts.append(BatchResults(*(graph or train)(*inputs)))
            results = BatchResults.joined(parts)
            # The last replay may have left the rate of the step that was captured.
            stacked = isinstance(self.optimizer, StackedOptimizer)
            set_rates(self.optimizer, table[-1] if stacked else rates[-1].tolist())
        self.stack.count_batches(count)
        return results

    def _train_rows(self, rows: Rows, epoch: int, batch: int) -> BatchResults:
        """The same steps from copies of the samples, as many at a time as a block may hold."""
        features, labels = rows.features, rows.labels
        values = rows.rows[0].numel() * features[0].numel()
        most = batches_per_block(4 * values, features.device)
        parts = []
        for first in range(0, rows.batches, most):
            chosen = rows.rows[first : first + most]
            weights = None if rows.weights is None else rows.weights[chosen]
            block = Block(as_float(features[chosen]), labels[chosen], weights)
            parts.append(self.train(block, epoch, batch + first))
        return BatchResults.joined(parts)

    def rates(self, epoch: int, batch: int, count: int) -> np.ndarray:
        """The learning rates (count, S) of consecutive batches."""
        first = self.step_plan.step_of(epoch, 0)
        steps = [self.step_plan.step_of(epoch, batch + k) - first for k in range(count)]
        return np.stack([schedule.of_epoch(epoch)[steps] for schedule in self.schedules], 1)

    def on_device(self, rates: np.ndarray) -> Tensor:
        """Learning rates with the type and on the device of the parameters."""
        like = self.stack.parameters[0]
        return to_device(torch.from_numpy(rates).to(like.dtype), like.device)

    def _pieces(self, count: int, batch: int) -> list[slice]:
        """Divides a block for graphs: the rest of a step, whole steps, what is left. A capture
        takes as long as many replays, so it holds only some steps."""
        if self.why_no_graph is not None:
            return [slice(0, count)]
        accumulate = self.step_plan.accumulate
        size = accumulate * -(-GRAPH_BATCHES // accumulate)
        ends = [*range(-batch % accumulate, count, size), count]
        starts = [0, *ends[:-1]]
        return [slice(start, end) for start, end in zip(starts, ends, strict=True) if start < end]

    def _graph(self, train: Run, inputs: Sequence[Tensor], batch: int) -> BatchGraph | None:
        """The CUDA graph that does what `train` does. None if there must be none, and for the first
        batches of a shape, because many shapes occur only once."""
        accumulate = self.step_plan.accumulate
        if self.why_no_graph is not None or batch % accumulate or len(inputs[1]) % accumulate:
            return None  # before a step begins, or after the last step that is whole
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self.graphs:
            if len(self.graphs) < MOST_GRAPHS:
                self.graphs[shapes] = None
            return None
        if self.graphs[shapes] is None:
            # A replay uses the epoch and the batch of these inputs. This changes nothing: they hold
            # whole steps, and only the moving average, which excludes graphs, counts steps.
            try:
                self.graphs[shapes] = BatchGraph(train, inputs, self.stack.changing, self.optimizer)
            except RuntimeError as error:
                self.graphs.clear()
                self._use_no_graph(first_line(error))
                torch.cuda.empty_cache()
        return self.graphs.get(shapes)

    def _use_no_graph(self, reason: str) -> None:
        self.why_no_graph = reason
        log.info("batches run without CUDA graphs: %s", reason)

    def _train(  # noqa: PLR0917, the inputs of a CUDA graph have places
        self,
        features: Tensor,
        labels: Tensor,
        rates: Sequence[Sequence[float]] | Tensor,
        loss_scale: float,
        epoch: int,
        batch: int,
        weights: Tensor | None = None,
    ) -> BatchResults:
        """The steps of a block: features (K, R, B, *shape), labels (K, R, B, …), rates (K, S) as
        numbers or as a tensor. With a tensor, this method never waits for the GPU, so it can be
        captured. `loss_scale` is 1 / (batch size × accumulated batches × ranks)."""
        if self.product_dtype is not None:
            features = features.to(self.product_dtype)
        features = aligned(features)
        targets, totals = self.task.targets(
            labels, self.stack.parameters[0], self.class_weights, self.step_plan.smoothing
        )
        factors = shares = None
        if weights is not None:
            factors = factors_of(weights, labels, self.class_weights)
            shares = factors_of(weights, labels)
        of_samples = (totals, factors)
        seeds = self._lane_seeds(len(features))
        scales = self._scales(rates, loss_scale)

        def train_lane(lane: Lane) -> list[BatchResults]:
            work = [
                (segment, *self._batches(segment, features, targets, of_samples, scales[number]))
                for number, segment in zip(lane.segment_numbers, lane.segments, strict=True)
            ]
            for k in range(len(features)):
                use = self._use_gradient(batch + k)
                if seeds:  # all segments of a lane have the same generator
                    assert lane.segments[0].generator is not None
                    lane.segments[0].generator.manual_seed(seeds[k][lane.number])
                for segment, batches, _ in work:
                    segment.differentiate(batches[k], use)
                if self.step_plan.completes(batch + k):
                    self._finish_step(lane, rates[k], self.step_plan.step_of(epoch, batch + k))
            return [
                self._batch_results(segment, logits, labels, factors, shares)
                for segment, _, logits in work
            ]

        by_lane = self.lanes.map(train_lane, self.stack.lanes)
        by_segment = zip(*chain.from_iterable(by_lane), strict=True)
        return BatchResults(*(self.stack.by_trial(values, 1) for values in by_segment))

    def _lane_seeds(self, batches: int) -> list[list[int]]:
        """A seed for each batch and lane, so that the random numbers of a lane depend neither on
        other lanes nor on the size of a block. A single lane draws from the global generator."""
        lanes = len(self.stack.lanes)
        if lanes == 1 or not any(segment.random for segment in self.stack.segments):
            return []
        seeds: list[list[int]] = torch.empty(batches, lanes, dtype=torch.int64).random_().tolist()
        return seeds

    def _scales(
        self, rates: Sequence[Sequence[float]] | Tensor, loss_scale: float
    ) -> list[Sequence[Tensor | float]]:
        """The factors of the deltas, for each segment and batch."""
        if not self.stores_no_gradient:
            return [[loss_scale] * len(rates)] * len(self.stack.segments)
        if not isinstance(rates, Tensor):  # a stack of one trial, which has one segment
            return [[rate * loss_scale for (rate,) in rates]]
        scales = (rates * loss_scale)[:, :, None, None]
        return [scales.index_select(1, each.trial_index).unbind() for each in self.stack.segments]

    def _batches(
        self,
        segment: ClosedForm,
        features: Tensor,
        targets: Tensor,
        of_samples: tuple[Tensor | None, Tensor | None],
        scales: Sequence[Tensor | float],
    ) -> tuple[list[SegmentBatch], Tensor]:
        """The batches of a segment, and all their logits (K, S, classes, B). `of_samples` are the
        totals of the targets (K, R, 1, 1, B), and factors (K, R, B), if any."""
        totals, factors = of_samples
        if factors is not None:
            factors = factors[:, :, None, None]
        shape = (len(segment.trials), segment.classes, features.shape[2])
        logits = empty_aligned(len(features), shape, self.stack.parameters[0])
        if segment.batches != list(range(self.stack.batch_count)):
            index, first, last = segment.batch_index, segment.batches[0], segment.batches[-1]
            if segment.batches == list(range(first, last + 1)):
                features = features[:, first : last + 1]
            else:  # in another order, or not adjacent
                features = features.index_select(1, index)
            features, targets = aligned(features), targets.index_select(1, index)
            totals, factors = (
                part if part is None else part.index_select(1, index) for part in (totals, factors)
            )
        nothing = [None] * len(features)
        of_batches, own = (nothing if p is None else p.unbind() for p in (totals, factors))
        parts = (features.unbind(), targets.unbind(), of_batches, scales, logits.unbind(), own)
        return [SegmentBatch(*each) for each in zip(*parts, strict=True)], logits

    def _use_gradient(self, batch: int) -> UseGradient:
        """Returns the function that `differentiate` calls with each part of a segment and the two
        arguments of the part's `descend` (models/closed_form.py)."""
        if self.stores_no_gradient:
            return lambda part, first, second: part.descend(first, second)
        overwrite, all_reduce = self.step_plan.begins(batch), self.step_plan.all_reduce
        completes = self.step_plan.completes(batch)

        def accumulate(part: StackedParameters, first: Tensor, second: Tensor) -> None:
            part.accumulate(first, second, overwrite)
            if all_reduce is not None and completes:
                # The sum over ranks runs while earlier layers are differentiated.
                self.pending.append(all_reduce(part.gradients))

        return accumulate

    def _finish_step(self, lane: Lane, rates: Sequence[float] | Tensor, step: int) -> None:
        if not self.stores_no_gradient:
            self._optimize(lane, rates)
        for segment in lane.segments:
            segment.constrain()
        if self.average is not None:
            self.average.update(step, lane.number)

    def _optimize(self, lane: Lane, rates: Sequence[float] | Tensor) -> None:
        for wait in self.pending:
            wait()
        self.pending.clear()
        for segment in lane.segments:
            if self.step_plan.clip is not None:
                clip_gradients(segment, self.step_plan.clip)
            segment.attach_gradients()
        if isinstance(self.optimizer, StackedOptimizer):
            self.optimizer.set_rates(rates, lane.segment_numbers)
            self.optimizer.step_segments(lane.segment_numbers)
        else:
            set_rates(self.optimizer, rates)
            self.optimizer.step()

    def _batch_results(
        self,
        segment: ClosedForm,
        logits: Tensor,
        labels: Tensor,
        factors: Tensor | None,
        shares: Tensor | None,
    ) -> BatchResults:
        """Losses and scores of a segment, from its logits (K, S, classes, B)."""
        trials_per_batch = len(segment.trials) // len(segment.batches)

        def by_trial(part: Tensor) -> Tensor:  # (K, R, B, …) to (K, S, B, …)
            return part.index_select(1, segment.batch_index).repeat_interleave(trials_per_batch, 1)

        labels = by_trial(labels)
        losses = self.task.batch_losses(
            logits, labels, self.class_weights, self.step_plan.smoothing,
            None if factors is None else by_trial(factors),
        )  # fmt: skip
        scores = self.task.scores(logits, labels)
        scores = scores if shares is None else scores * by_trial(shares)
        return BatchResults(losses, scores.sum(-1))

    def gradients(self) -> list[Tensor]:
        return [gradient for segment in self.stack.segments for gradient in segment.gradients]

    # --- evaluation ------------------------------------------------------------------------------

    def averaged_tensors(self) -> list[list[Tensor]]:
        return [lane.tensors_to_average for lane in self.stack.lanes]

    def evaluate(self, batch: Batch, places: Sequence[int]) -> Evaluated:
        stack, dtype, measure = self.stack, self._input_dtype, self.measure
        by_lane = self.lanes.map(
            lambda lane: evaluate(
                self.task, lane.logits, batch, dtype, stack.trial_count, measure=measure
            ),
            stack.lanes,
        )
        parts = [part for part in zip(*by_lane, strict=True) if part[0] is not None]
        found = [stack.by_trial(part, 1) for part in parts]
        if len(places) < stack.trial_count:  # to evaluate them alone, segments would be divided
            found = [values[:, places] for values in found]
        return Evaluated(*found)

    def logits(self, features: Tensor) -> Tensor:
        return self.stack.lanes[0].logits(as_float(features).to(self._input_dtype))[0].mT

    @property
    def _input_dtype(self) -> torch.dtype:
        precision = self.configs[0].trainer.precision
        return MIXED_PRECISION_TYPE.get(precision, self.stack.parameters[0].dtype)

    # --- state -----------------------------------------------------------------------------------

    @cached_property
    def kept(self) -> KeptWeights:
        return KeptWeights(self.models)

    def copied_weights(self, places: Sequence[int]) -> list[dict[str, Tensor]]:
        if len(self.models) == 1:
            return super().copied_weights(places)
        return [as_saved(weights) for weights in self.kept.copy(places)]

    def optimizer_state(self, place: int) -> dict[str, Any]:
        return trial_state(self.optimizer, self.stack, place, self.configs[place].optimizer)

    def load_optimizer_states(self, states: Sequence[dict[str, Any]]) -> None:
        load_trial_states(self.optimizer, self.stack, states)


def clip_gradients(segment: ClosedForm, bound: float) -> None:
    """torch.nn.utils.clip_grad_norm_ for each trial."""
    trials = len(segment.trials)
    gradients = [gradient.view(trials, -1) for gradient in segment.gradients]
    norms = torch.stack([gradient.norm(dim=1) for gradient in gradients]).norm(dim=0)
    factors = (bound / (norms + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(factors[:, None])
