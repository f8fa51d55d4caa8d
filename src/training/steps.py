"""The optimizer steps of a block, without Lightning between them.

`AutogradSteps` trains one model of any kind and is the reference for the tests. `ClosedFormSteps`
trains a stack of models that have a closed form (src/models/closed_form.py).
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from src.data.loader import Block
from src.models.closed_form import ClosedForm, StackedParameters, UseGradient
from src.models.stack import Lane, Stack
from src.system.errors import InputError, first_line
from src.system.machine import to_device
from src.training.averaging import Average
from src.training.cuda_graph import BatchGraph, Run
from src.training.fsdp import own_part
from src.training.lanes import Lanes
from src.training.optimizers import StackedOptimizer, is_plain_sgd
from src.training.schedule import Schedule

log = logging.getLogger(__name__)

GRAPH_BATCHES = 32  # in a CUDA graph, or as many more as complete a step
MOST_GRAPHS = 4  # each keeps memory of its own


class BatchResults(NamedTuple):
    """Per batch and trial: mean loss (K, S) and correctly classified samples (K, S)."""

    losses: Tensor
    correct: Tensor


def empty_aligned(batches: int, shape: Sequence[int], like: Tensor) -> Tensor:
    """Uninitialised (batches, *shape); each batch starts at an address divisible by 64. The last
    bits of a matrix product can depend on the addresses of its operands. Equal alignment makes them
    independent of a batch's place in a block."""
    size, line = math.prod(shape), 64 // like.element_size()
    padded = torch.empty(batches, -(-size // line) * line, dtype=like.dtype, device=like.device)
    return padded[:, :size].view(batches, *shape)


def aligned(tensor: Tensor) -> Tensor:
    """The same values (K, …), each batch at an address divisible by 64. Copies only if needed."""
    stride = tensor.stride(0) * tensor.element_size()
    if stride % 64 == 0 and tensor.data_ptr() % 64 == 0 and tensor[0].is_contiguous():
        return tensor
    return empty_aligned(len(tensor), tensor.shape[1:], tensor).copy_(tensor)


@dataclass(frozen=True)
class StepPlan:
    """Defines after which batches `optimizer.step()` is called, and how gradients are accumulated,
    summed over ranks and clipped.

    The loss of each batch is divided by `accumulate` and `ranks`. The last batch of an epoch always
    completes a step. `all_reduce` begins to sum a gradient over ranks, in place, and returns a
    function that waits for the sum. Then `clip` bounds the joint 2-norm of the gradients of each
    trial. `smoothing` is the share of each target that is spread over all classes. With
    `class_weights`, the loss of a batch is that of torch.nn.CrossEntropyLoss(weight=class_weights):
    a weighted mean over the samples of the batch on this rank.
    """

    batches_per_epoch: int
    accumulate: int = 1
    clip: float | None = None
    smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None
    ranks: int = 1
    all_reduce: Callable[[Tensor], Callable[[], object]] | None = None

    def weights_like(self, like: Tensor) -> Tensor | None:
        """The class weights (classes,) with the type and the device of another tensor."""
        weights = self.class_weights
        return None if weights is None else torch.tensor(weights, dtype=like.dtype).to(like.device)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.batches_per_epoch // self.accumulate)

    def step_of(self, epoch: int, batch: int) -> int:
        """The optimizer step that a batch belongs to, counted from 0 over the whole run."""
        return epoch * self.steps_per_epoch + batch // self.accumulate

    def steps_before(self, batch: int) -> int:
        """How many optimizer steps the first `batch` batches of an epoch complete."""
        last = batch == self.batches_per_epoch
        return self.steps_per_epoch if last else batch // self.accumulate

    def begins(self, batch: int) -> bool:
        """Whether this batch is the first of an optimizer step."""
        return batch % self.accumulate == 0

    def completes(self, batch: int) -> bool:
        """Whether an optimizer step follows this batch."""
        return (batch + 1) % self.accumulate == 0 or batch + 1 == self.batches_per_epoch


class Steps:
    """Trains on blocks: consecutive batches of an epoch. Each step ends with the models' own
    constraint and an update of the moving `average`, if configured."""

    def __init__(
        self,
        optimizer: Optimizer,
        schedules: Sequence[Schedule],
        step_plan: StepPlan,
        average: Average | None,
    ) -> None:
        self.optimizer, self.schedules, self.step_plan = optimizer, schedules, step_plan
        self.average = average

    def __call__(self, block: Any, epoch: int, batch: int) -> BatchResults:
        """Trains on a block whose first batch is number `batch` of `epoch`, both from 0."""
        raise NotImplementedError

    def gradients(self) -> list[Tensor]:
        """The gradients since the last optimizer step, for a checkpoint between two steps."""
        raise NotImplementedError

    def load_gradients(self, saved: Sequence[Tensor]) -> None:
        """Restores saved gradients. `saved` is empty if a step had just been completed."""
        for gradient, value in zip(self.gradients() if saved else [], saved, strict=True):
            gradient.copy_(value)

    def set_rates(self, rates: Sequence[float] | Tensor) -> None:
        """Sets the learning rate of each trial: S numbers, or a tensor (S,), which a CUDA graph can
        read. One of torch's own optimizers trains one trial, at rates[0]."""
        if isinstance(self.optimizer, StackedOptimizer):
            self.optimizer.set_rates(rates)
            return
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rates[0])  # a copy of a number would wait for the GPU
            else:
                group["lr"] = rates[0]


class AutogradSteps(Steps):
    """Trains one model of any kind by autograd. `scaler` scales the loss of 16-bit floats."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedules: Sequence[Schedule],
        step_plan: StepPlan,
        average: Average | None = None,
        *,
        scaler: "torch.amp.GradScaler | None" = None,
        compiled: bool = False,
    ) -> None:
        super().__init__(optimizer, schedules, step_plan, average)
        self.model, self.scaler = model, scaler or torch.amp.GradScaler(enabled=False)
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self.class_weights = step_plan.weights_like(self.parameters[0])
        self.constrain = getattr(model, "constrain", None)
        self.forward = _compiled(self._forward) if compiled else self._forward

    def __call__(self, block: Block, epoch: int, batch: int) -> BatchResults:
        losses, logits = [], []
        all_features, all_labels = aligned(block.features[:, 0]), block.labels[:, 0]
        for features, labels in zip(all_features.unbind(), all_labels.unbind(), strict=True):
            if self.step_plan.begins(batch):
                for parameter in self.parameters:
                    parameter.grad = None
            output, loss = self.forward(features, labels)
            losses.append(loss.detach())
            logits.append(output.detach())
            self._backward(loss)
            if self.step_plan.completes(batch):
                self._step(self.step_plan.step_of(epoch, batch))
            batch += 1
        correct = (torch.stack(logits).argmax(-1) == all_labels).sum(-1, keepdim=True)
        return BatchResults(torch.stack(losses).unsqueeze(1), correct)

    def _forward(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model(features)
        smoothing = self.step_plan.smoothing
        return output, F.cross_entropy(
            output, labels, self.class_weights, label_smoothing=smoothing
        )

    def gradients(self) -> list[Tensor]:
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [own_part(p.grad) for p in self.parameters if p.grad is not None]

    def _backward(self, loss: Tensor) -> None:
        share = self.step_plan.accumulate * self.step_plan.ranks
        loss = loss / share if share > 1 else loss
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def _step(self, step: int) -> None:
        self.set_rates([self.schedules[0](step)])
        if self.step_plan.all_reduce is not None:
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            for wait in [self.step_plan.all_reduce(gradient) for gradient in gradients]:
                wait()
        if self.step_plan.clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.step_plan.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.constrain is not None:
            self.constrain()
        if self.average is not None:
            self.average.update(step)


Forward = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _compiled(forward: Forward) -> Forward:
    """Compiles forward and backward once per batch size. A program for all sizes would depend on
    the first size, and a resumed run may start with another size."""
    from torch._dynamo.exc import BackendCompilerFailed  # slow to import, rarely needed

    log.info("the step is compiled, which takes some tens of seconds")
    compiled = torch.compile(forward, dynamic=False)

    def run(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        try:
            return compiled(features, labels)
        except BackendCompilerFailed as error:
            raise InputError(
                f"trainer.compile=true: torch cannot compile here ({first_line(error)}); "
                "type trainer.compile=false"
            ) from None

    return run


class ClosedFormSteps(Steps):
    """Trains a stack of models by their closed form.

    If nothing comes between gradient and update (SGD without momentum and weight decay, no
    clipping, accumulation or other ranks), no gradient is stored: the deltas are scaled by the
    learning rates, and the products are subtracted from the weights in place. The delta of a layer
    is the gradient of the loss with respect to the outputs of the layer.
    """

    def __init__(
        self,
        stack: Stack,
        optimizer: Optimizer,
        schedules: Sequence[Schedule],
        step_plan: StepPlan,
        average: Average | None = None,
        *,
        product_dtype: torch.dtype | None = None,
        graph: bool = True,
        lanes: Lanes | None = None,
    ) -> None:
        """`product_dtype` is the type of the products in mixed precision. With `graph`, batches
        are replayed as CUDA graphs. Without `lanes`, the lanes of the stack take turns."""
        super().__init__(optimizer, schedules, step_plan, average)
        self.stack, self.product_dtype, self.lanes = stack, product_dtype, lanes or Lanes(1)
        self.stores_no_gradient = (
            is_plain_sgd(optimizer)
            and step_plan.accumulate == 1
            and step_plan.clip is None
            and step_plan.all_reduce is None
            and product_dtype is None
        )
        if not self.stores_no_gradient:
            for segment in stack.segments:
                segment.make_gradients()
        self.class_weights = step_plan.weights_like(stack.parameters[0])
        device = stack.parameters[0].device
        segments = stack.segments
        self.trials_of_segment = [torch.tensor(each.trials, device=device) for each in segments]
        self.batches_of_segment = [torch.tensor(each.batches, device=device) for each in segments]
        numbers = iter(range(len(segments)))
        self.segments_of_lane = [list(islice(numbers, len(lane.segments))) for lane in stack.lanes]
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
        elif not graph:
            self._use_no_graph("trainer.cuda_graph=false")
        elif step_plan.all_reduce is not None:
            self._use_no_graph("ranks exchange gradients between the steps of a block")
        elif average is not None:
            self._use_no_graph("the moving average is updated after each step")

    def __call__(self, block: Block, epoch: int, batch: int) -> BatchResults:
        like = self.stack.parameters[0]
        size, count = block.labels.shape[-1], len(block.labels)
        loss_scale = 1 / (size * self.step_plan.accumulate * self.step_plan.ranks)
        rates = self.rates(epoch, batch, count)
        if self.stack.trial_count == 1 and like.device.type == "cpu":  # numbers are faster
            results = self._train(*block, rates.tolist(), loss_scale, epoch, batch)
            self.set_rates(rates[-1].tolist())
        else:
            table = self.on_device(rates)
            whole = (block.features, block.labels, table)
            parts = []
            for piece in self._pieces(count, batch):
                inputs = [tensor[piece] for tensor in whole]
                train = partial(
                    self._train, loss_scale=loss_scale, epoch=epoch, batch=batch + piece.start
                )
                graph = self._graph(train, inputs, batch + piece.start)
                parts.append(BatchResults(*(graph or train)(*inputs)))
            joined = map(torch.cat, zip(*parts, strict=True))
            results = parts[0] if len(parts) == 1 else BatchResults(*joined)
            # The last replay may have left the rate of the step that was captured.
            stacked = isinstance(self.optimizer, StackedOptimizer)
            self.set_rates(table[-1] if stacked else rates[-1].tolist())
        self.stack.count_batches(count)
        return results

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
                weights = [*self.stack.parameters, *self.stack.statistics]
                self.graphs[shapes] = BatchGraph(train, inputs, weights, self.optimizer)
            except RuntimeError as error:
                self.graphs.clear()
                self._use_no_graph(first_line(error))
                torch.cuda.empty_cache()
        return self.graphs.get(shapes)

    def _use_no_graph(self, reason: str) -> None:
        self.why_no_graph = reason
        log.info("batches run without CUDA graphs: %s", reason)

    def _train(
        self,
        features: Tensor,
        labels: Tensor,
        rates: "Sequence[Sequence[float]] | Tensor",
        loss_scale: float,
        epoch: int,
        batch: int,
    ) -> BatchResults:
        """The steps of a block: features (K, R, B, *shape), labels (K, R, B), rates (K, S) as
        numbers or as a tensor. With a tensor, this method never waits for the GPU, so it can be
        captured. `loss_scale` is 1 / (batch size × accumulated batches × ranks)."""
        if self.product_dtype is not None:
            features = features.to(self.product_dtype)
        features = aligned(features)
        like = self.stack.parameters[0]
        classes = self.stack.segments[0].classes
        targets = F.one_hot(labels, classes).mT.to(like.dtype).unsqueeze(2)  # (K, R, 1, classes, B)
        smoothing = self.step_plan.smoothing
        if smoothing:
            targets = targets.mul_(1 - smoothing).add_(smoothing / classes)
        totals = None
        if self.class_weights is not None:
            weights = self.class_weights / self._mean_weights(labels)[..., None]  # (K, R, classes)
            targets = targets.mul_(weights[:, :, None, :, None])
            totals = targets.sum(3, keepdim=True)
        seeds = self._lane_seeds(len(features))
        scales = self._scales(rates, loss_scale)

        def train_lane(lane: Lane) -> list[BatchResults]:
            work = [
                (number, *self._inputs(number, features, targets, totals))
                for number in self.segments_of_lane[lane.number]
            ]
            for k in range(len(features)):
                use = self._use_gradient(batch + k)
                if seeds:  # all segments of a lane have the same generator
                    assert lane.segments[0].generator is not None
                    lane.segments[0].generator.manual_seed(seeds[k][lane.number])
                for number, x, y, total, logits in work:
                    segment = self.stack.segments[number]
                    segment.differentiate(x[k], y[k], scales[number][k], logits[k], use, total[k])
                if self.step_plan.completes(batch + k):
                    self._finish_step(lane, rates[k], self.step_plan.step_of(epoch, batch + k))
            return [self._batch_results(number, logits, labels) for number, *_, logits in work]

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

    def _mean_weights(self, labels: Tensor) -> Tensor:
        """The mean class weight of the samples of each batch: labels (…, B) to (…)."""
        assert self.class_weights is not None
        # The last bits of a sum depend on the number of batches beside it, except in float64.
        exact = torch.float32 if labels.device.type == "mps" else torch.float64
        means = self.class_weights[labels].mean(-1, dtype=exact)
        return means.to(self.class_weights.dtype)

    def _inputs(
        self, segment_number: int, features: Tensor, targets: Tensor, totals: Tensor | None
    ) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor | None], Tensor]:
        """A segment's features, targets and their totals by batch, and memory for logits
        (K, S, classes, B)."""
        segment = self.stack.segments[segment_number]
        batches = self.batches_of_segment[segment_number]
        shape = (len(segment.trials), segment.classes, features.shape[2])
        logits = empty_aligned(len(features), shape, self.stack.parameters[0])
        if segment.batches == list(range(self.stack.batch_count)):
            by_batch = [None] * len(features) if totals is None else totals.unbind()
            return features.unbind(), targets.unbind(), by_batch, logits
        first, last = segment.batches[0], segment.batches[-1]
        if segment.batches == list(range(first, last + 1)):
            selected = features[:, first : last + 1]
        else:  # in another order, or not adjacent
            selected = features.index_select(1, batches)
        targets = targets.index_select(1, batches)
        by_batch = [None] * len(features)
        if totals is not None:
            by_batch = totals.index_select(1, batches).unbind()
        return aligned(selected).unbind(), targets.unbind(), by_batch, logits

    def _finish_step(self, lane: Lane, rates: Sequence[float] | Tensor, step: int) -> None:
        """Updates a lane once the gradients of a step are complete."""
        if not self.stores_no_gradient:
            self._optimize(lane, rates)
        for segment in lane.segments:
            segment.constrain()
        if self.average is not None:
            self.average.update(step, lane.number)

    def _use_gradient(self, batch: int) -> UseGradient:
        """Returns the function that `differentiate` calls with each part of a segment and the two
        arguments of the part's `descend` (src/models/closed_form.py)."""
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

    def gradients(self) -> list[Tensor]:
        return [gradient for segment in self.stack.segments for gradient in segment.gradients]

    def _scales(
        self, rates: "Sequence[Sequence[float]] | Tensor", loss_scale: float
    ) -> list[Sequence[Tensor | float]]:
        """The factors of the deltas, for each segment and batch."""
        if not self.stores_no_gradient:
            return [[loss_scale] * len(rates)] * len(self.stack.segments)
        if not isinstance(rates, Tensor):  # a stack of one trial, which has one segment
            return [[rate * loss_scale for (rate,) in rates]]
        scales = (rates * loss_scale)[:, :, None, None]
        return [scales.index_select(1, trials).unbind() for trials in self.trials_of_segment]

    def _optimize(self, lane: Lane, rates: Sequence[float] | Tensor) -> None:
        for wait in self.pending:
            wait()
        self.pending.clear()
        for segment in lane.segments:
            if self.step_plan.clip is not None:
                clip_gradients(segment, self.step_plan.clip)
            segment.attach_gradients()
        if isinstance(self.optimizer, StackedOptimizer):
            segments = self.segments_of_lane[lane.number]
            self.optimizer.set_rates(rates, segments)
            self.optimizer.step_segments(segments)
        else:
            self.set_rates(rates)
            self.optimizer.step()

    def _batch_results(self, segment_number: int, logits: Tensor, labels: Tensor) -> BatchResults:
        """Losses and correct predictions of a segment, from its logits (K, S, classes, B)."""
        segment = self.stack.segments[segment_number]
        trials_per_batch = len(segment.trials) // len(segment.batches)
        labels = labels.index_select(1, self.batches_of_segment[segment_number])
        labels = labels.repeat_interleave(trials_per_batch, 1)  # (K, S, B)
        flat, smoothing = (logits.flatten(0, 1), labels.flatten(0, 1)), self.step_plan.smoothing
        losses = F.cross_entropy(
            *flat, self.class_weights, reduction="none", label_smoothing=smoothing
        )
        means = losses.view(labels.shape).mean(-1)
        if self.class_weights is not None:
            means = means / self._mean_weights(labels)
        # argmax over an inner dimension takes five times as long as max: a sixth of a step. Both
        # choose the first of equal logits.
        correct = logits.max(2).indices == labels
        return BatchResults(means, correct.sum(-1))


def clip_gradients(segment: ClosedForm, bound: float) -> None:
    """torch.nn.utils.clip_grad_norm_ for each trial."""
    trials = len(segment.trials)
    gradients = [gradient.view(trials, -1) for gradient in segment.gradients]
    norms = torch.stack([gradient.norm(dim=1) for gradient in gradients]).norm(dim=0)
    factors = (bound / (norms + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(factors[:, None])
