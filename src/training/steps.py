"""The optimizer steps of a block, without Lightning between them.

`AutogradSteps` trains one model of any kind and is the reference for the tests. `ClosedFormSteps`
trains a stack of models that have a closed form (src/models/closed_form.py).
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from src.data.loader import Block
from src.models.closed_form import ClosedForm, StackedParameters, UseGradient
from src.models.stack import Lane, Stack
from src.system.errors import InputError, first_line
from src.training.averaging import Average
from src.training.cuda_graph import BlockGraph
from src.training.fsdp import own_part
from src.training.lanes import Lanes
from src.training.optimizers import StackedOptimizer, is_plain_sgd
from src.training.schedule import Schedule

log = logging.getLogger(__name__)


class BatchResults(NamedTuple):
    """Per batch and trial: mean loss (K, S) and correctly classified samples (K, S)."""

    losses: Tensor
    correct: Tensor


def empty_aligned(batches: int, shape: Sequence[int], like: Tensor) -> Tensor:
    """Uninitialised (batches, *shape); each batch starts at an address divisible by 64. The last
    bits of a matrix product can depend on its addresses, but must not depend on a batch's place in
    a block."""
    size, line = math.prod(shape), 64 // like.element_size()
    whole = torch.empty(batches, -(-size // line) * line, dtype=like.dtype, device=like.device)
    return whole[:, :size].view(batches, *shape)


def aligned(tensor: Tensor) -> Tensor:
    """The same values (K, …), each batch at an address divisible by 64; a copy only if needed."""
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
    trial. `smoothing` is the share of each target that is spread over all classes.
    """

    batches_per_epoch: int
    accumulate: int = 1
    clip: float | None = None
    smoothing: float = 0.0
    ranks: int = 1
    all_reduce: Callable[[Tensor], Callable[[], object]] | None = None

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
        """Whether the optimizer steps after this batch."""
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

    def __call__(self, block: Block, epoch: int, batch: int) -> BatchResults:
        """Trains on a block whose first batch is number `batch` of `epoch`, both from 0."""
        raise NotImplementedError

    def gradients(self) -> list[Tensor]:
        """The gradients since the last optimizer step: a checkpoint between two has them."""
        raise NotImplementedError

    def load_gradients(self, saved: Sequence[Tensor]) -> None:
        """Restores saved gradients. There are none if a step had just been completed."""
        for own, value in zip(self.gradients() if saved else [], saved, strict=True):
            own.copy_(value)

    def set_rates(self, rates: Sequence[float] | Tensor) -> None:
        """Sets a learning rate for each trial: numbers, or a tensor that a CUDA graph reads."""
        if isinstance(self.optimizer, StackedOptimizer):
            self.optimizer.set_rates(rates)
            return
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(torch.as_tensor(rates[0]))
            else:
                group["lr"] = rates[0]


class AutogradSteps(Steps):
    """One model of any kind, by torch's autograd. `scaler` scales the loss of 16-bit floats."""

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
        self.parameters = list(model.parameters())
        self.constrain = getattr(model, "constrain", None)
        self.forward = _compiled(self._forward) if compiled else self._forward

    def __call__(self, block: Block, epoch: int, batch: int) -> BatchResults:
        losses, logits = [], []
        all_features = aligned(block.features[:, 0])
        for features, labels in zip(
            all_features.unbind(), block.labels[:, 0].unbind(), strict=True
        ):
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
        correct = (torch.stack(logits).argmax(-1) == block.labels[:, 0]).sum(-1, keepdim=True)
        return BatchResults(torch.stack(losses).unsqueeze(1), correct)

    def _forward(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        output = self.model(features)
        return output, F.cross_entropy(output, labels, label_smoothing=self.step_plan.smoothing)

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
    which size came first, and a resumed run may start with another size."""
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
    """A stack of models, by their closed form.

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
        """`product_dtype` is the type of the products in mixed precision. With `graph`, full blocks
        are replayed as CUDA graphs. Without `lanes`, the lanes of the stack take turns."""
        super().__init__(optimizer, schedules, step_plan, average)
        self.stack, self.product_dtype, self.lanes = stack, product_dtype, lanes or Lanes(1)
        self.updates_in_place = (
            is_plain_sgd(optimizer)
            and step_plan.accumulate == 1
            and step_plan.clip is None
            and step_plan.all_reduce is None
            and product_dtype is None
        )
        if not self.updates_in_place:
            for segment in stack.segments:
                segment.make_gradients()
        device = stack.parameters[0].device
        self.trials_of = [torch.tensor(segment.trials, device=device) for segment in stack.segments]
        self.batches_of = [
            torch.tensor(segment.batches, device=device) for segment in stack.segments
        ]
        ends = list(accumulate(len(lane.segments) for lane in stack.lanes))
        self.numbers_of = [  # for each lane the numbers of its segments in the stack
            range(end - len(lane.segments), end)
            for lane, end in zip(stack.lanes, ends, strict=True)
        ]
        if len(stack.lanes) > 1:  # they would draw from the global stream in a random order
            for lane in stack.lanes:
                stream = torch.Generator(device)
                for segment in lane.segments:
                    segment.generator = stream
        self.pending: list[Callable[[], object]] = []  # each waits for an all-reduce
        self.graph: BlockGraph | None = None
        self.why_no_graph: str | None = None  # None if blocks are replayed as a CUDA graph
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
        size = block.labels.shape[-1]
        loss_scale = 1 / (size * self.step_plan.accumulate * self.step_plan.ranks)
        steps = [self.step_plan.step_of(epoch, batch + k) for k in range(len(block.labels))]
        rates = [[schedule(step) for schedule in self.schedules] for step in steps]
        # For a single trial on a CPU, numbers are faster than tensors.
        if self.stack.trial_count == 1 and like.device.type == "cpu":
            found = self._train(*block, rates, loss_scale, epoch, batch)
        else:
            table = torch.tensor(rates, dtype=like.dtype).to(like.device)
            replayed = self._replayed(block, table, loss_scale, epoch, batch)
            found = replayed or self._train(*block, table, loss_scale, epoch, batch)
        self.set_rates(rates[-1])
        self.stack.count_batches(len(block.labels))
        return found

    def _replayed(
        self, block: Block, table: Tensor, loss_scale: float, epoch: int, batch: int
    ) -> BatchResults | None:
        """Trains on the block by a CUDA graph, captured from the first full block of the run.
        Returns None if the block must run without a graph."""
        if self.why_no_graph is not None:
            return None
        inputs = (block.features, block.labels, table)
        if len(block.labels) % self.step_plan.accumulate and self.step_plan.accumulate > 1:
            self._use_no_graph("the block size is no multiple of trainer.accumulate_grad_batches")
            return None
        if self.graph is None:
            try:
                self.graph = BlockGraph(
                    lambda features, labels, rates: self._train(
                        features, labels, rates, loss_scale, epoch, batch
                    ),
                    inputs,
                    [*self.stack.parameters, *self.stack.statistics],
                    self.optimizer,
                    checked=not any(segment.random for segment in self.stack.segments),
                )
            except RuntimeError as error:
                self._use_no_graph(first_line(error))
                return None
        if [own.shape for own in self.graph.inputs] != [given.shape for given in inputs]:
            return None  # the last block of an epoch may be shorter
        return BatchResults(*self.graph(*inputs))

    def _use_no_graph(self, reason: str) -> None:
        self.why_no_graph = reason
        log.info("blocks run without CUDA graphs: %s", reason)

    def _train(
        self,
        features: Tensor,
        labels: Tensor,
        rates: "Sequence[Sequence[float]] | Tensor",
        loss_scale: float,
        epoch: int,
        batch: int,
    ) -> BatchResults:
        """The steps of a block. If `rates` is a tensor (K, S), this method never waits for the GPU,
        so it can be captured. `loss_scale` is 1 / (batch size × accumulated batches × ranks)."""
        features = features.flatten(3)
        if self.product_dtype is not None:
            features = features.to(self.product_dtype)
        features = aligned(features)
        like = self.stack.parameters[0]
        classes = self.stack.segments[0].classes
        targets = F.one_hot(labels, classes).mT.to(like.dtype).unsqueeze(2)
        smoothing = self.step_plan.smoothing
        if smoothing:
            targets = targets.mul_(1 - smoothing).add_(smoothing / classes)
        seeds = self._stream_seeds(len(features))
        scales = self._scales(rates, loss_scale)

        def train(lane: Lane) -> list[BatchResults]:
            work = [
                (number, *self._inputs(number, features, targets))
                for number in self.numbers_of[lane.number]
            ]
            for k in range(len(features)):
                use = self._use_gradient(batch + k)
                if seeds:
                    assert lane.segments[0].generator is not None
                    lane.segments[0].generator.manual_seed(seeds[k][lane.number])
                for number, x, y, logits in work:
                    segment = self.stack.segments[number]
                    segment.differentiate(x[k], y[k], scales[number][k], logits[k], use)
                if self.step_plan.completes(batch + k):
                    self._finish_step(lane, rates[k], self.step_plan.step_of(epoch, batch + k))
            return [self._batch_results(number, logits, labels) for number, *_, logits in work]

        found = [each for lane in self.lanes.map(train, self.stack.lanes) for each in lane]
        losses, correct = (self.stack.by_trial(parts, 1) for parts in zip(*found, strict=True))
        return BatchResults(losses, correct)

    def _stream_seeds(self, batches: int) -> list[list[int]]:
        """A seed for each batch and lane, so that the random numbers of a lane depend neither on
        other lanes nor on the size of a block. A single lane draws from the global stream."""
        lanes = len(self.stack.lanes)
        if lanes == 1 or not any(segment.random for segment in self.stack.segments):
            return []
        drawn: list[list[int]] = torch.empty(batches, lanes, dtype=torch.int64).random_().tolist()
        return drawn

    def _inputs(
        self, number: int, features: Tensor, targets: Tensor
    ) -> tuple[Sequence[Tensor], Sequence[Tensor], Tensor]:
        """A segment's features and targets by batch, and memory for logits (K, S, classes, B)."""
        segment, batches = self.stack.segments[number], self.batches_of[number]
        shape = (len(segment.trials), segment.classes, features.shape[2])
        logits = empty_aligned(len(features), shape, self.stack.parameters[0])
        if segment.batches == list(range(self.stack.batch_count)):
            return features.unbind(), targets.unbind(), logits
        first, last = segment.batches[0], segment.batches[-1]
        if segment.batches == list(range(first, last + 1)):
            own = features[:, first : last + 1]
        else:  # in another order, or not adjacent
            own = features.index_select(1, batches)
        return aligned(own).unbind(), targets.index_select(1, batches).unbind(), logits

    def _finish_step(self, lane: Lane, rates: Sequence[float] | Tensor, step: int) -> None:
        """Updates a lane once the gradients of a step are complete."""
        if not self.updates_in_place:
            self._optimize(lane, rates)
        for segment in lane.segments:
            segment.constrain()
        if self.average is not None:
            self.average.update(step, lane.number)

    def _use_gradient(self, batch: int) -> UseGradient:
        """Returns the function that `differentiate` calls with each gradient of this batch."""
        if self.updates_in_place:
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
        if not self.updates_in_place:
            return [[loss_scale] * len(rates)] * len(self.stack.segments)
        if not isinstance(rates, Tensor):
            return [[rate * loss_scale for (rate,) in rates]]
        table = rates * loss_scale
        return [table.index_select(1, own)[:, :, None, None].unbind() for own in self.trials_of]

    def _optimize(self, lane: Lane, rates: Sequence[float] | Tensor) -> None:
        for wait in self.pending:
            wait()
        self.pending.clear()
        for segment in lane.segments:
            if self.step_plan.clip is not None:
                clip_gradients(segment, self.step_plan.clip)
            segment.attach_gradients()
        if isinstance(self.optimizer, StackedOptimizer):
            numbers = self.numbers_of[lane.number]
            self.optimizer.set_rates(rates, numbers)
            self.optimizer.step_segments(numbers)
        else:
            self.set_rates(rates)
            self.optimizer.step()

    def _batch_results(self, number: int, logits: Tensor, labels: Tensor) -> BatchResults:
        """Losses and correct predictions of a segment, from its logits (K, S, classes, B)."""
        segment = self.stack.segments[number]
        shared = len(segment.trials) // len(segment.batches)
        own = labels.index_select(1, self.batches_of[number]).repeat_interleave(shared, 1)
        flat, smoothing = logits.flatten(0, 1), self.step_plan.smoothing
        losses = F.cross_entropy(
            flat, own.flatten(0, 1), reduction="none", label_smoothing=smoothing
        )
        # If logits are equal, the first class wins. Uses max, because argmax over an inner
        # dimension takes five times as long; this saves a sixth of a step.
        correct = logits.max(2).indices == own
        return BatchResults(losses.view(own.shape).mean(-1), correct.sum(-1))


def clip_gradients(segment: ClosedForm, bound: float) -> None:
    """torch.nn.utils.clip_grad_norm_ for each trial."""
    trials = len(segment.trials)
    gradients = [gradient.view(trials, -1) for gradient in segment.gradients]
    norms = torch.stack([gradient.norm(dim=1) for gradient in gradients]).norm(dim=0)
    factors = (bound / (norms + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(factors[:, None])
