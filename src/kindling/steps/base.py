"""What all ways of a step have in common: a way is a class of `Learner`."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kindling.config import schema
from kindling.config.measures import measure_of
from kindling.config.schema import Config
from kindling.data.class_balance import class_weights
from kindling.data.loader import Batch
from kindling.data.splits import Splits
from kindling.steps.lanes import Lanes
from kindling.steps.optimizers import adapt_restored, is_sharded
from kindling.steps.schedule import Schedule
from kindling.tasks.measures import Evaluated
from kindling.tasks.task import Task

NATIVE, KERNEL, CLOSED_FORM = "native", "kernel", "closed_form"
VMAP, AUTOGRAD = "vmap", "autograd"
LIGHTNING = "lightning"  # a LightningModule of the user takes its own steps
LONGEST_REASON = 500  # characters of a reason in a checkpoint


@dataclass(frozen=True)
class StepChoice:
    """`kind` is native (CPUs), kernel (CUDA), closed_form, vmap (stacks) or autograd. `reason` says
    why it is not a faster one; it is empty for the fastest on the device, and for what
    `trainer.step` names."""

    kind: str
    reason: str = ""


class BatchResults(NamedTuple):
    """Per batch and trial: mean loss (K, S) and the sum of the task's scores (K, S)."""

    losses: Tensor
    scores: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The results of consecutive batches."""
        return parts[0] if len(parts) == 1 else cls(*map(torch.cat, zip(*parts, strict=True)))


class SharedMemory(Protocol):
    """Memory of several ranks, all 0 at first: its address, the rank of this process, and the
    address of an int32 that is 1 once another rank has ended."""

    address: int
    rank: int
    ended: int


@dataclass(frozen=True)
class StepPlan:
    """Defines after which batches `optimizer.step()` is called, and how gradients are accumulated,
    summed over ranks and clipped.

    The loss of each batch is divided by `accumulate` and `ranks`. The last batch of an epoch always
    completes a step. `all_reduce` begins to sum a gradient over ranks, in place, and returns a
    function that waits for the sum; `shared_memory` gives so many bytes that the ranks of this
    machine share. Then `clip` bounds the joint 2-norm of the gradients of each
    trial, or with `clip_values`, in autograd alone, each of their numbers. With `class_weights`,
    the loss of a batch is a weighted mean over the samples of the batch on this rank.
    """

    batches_per_epoch: int
    accumulate: int = 1
    clip: float | None = None
    smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None
    ranks: int = 1
    all_reduce: Callable[[Tensor], Callable[[], object]] | None = None
    shared_memory: Callable[[int], SharedMemory] | None = None
    clip_values: bool = False

    def weights_like(self, like: Tensor) -> Tensor | None:
        """The class weights (classes,) with the type and the device of another tensor."""
        weights = self.class_weights
        return None if weights is None else torch.tensor(weights, dtype=like.dtype).to(like.device)

    @classmethod
    def of(cls, trainer: schema.Trainer, data: Splits) -> Self:
        """That of the configuration, for one process."""
        return cls(
            data.batches_per_epoch,
            trainer.accumulate_grad_batches,
            trainer.gradient_clip_val,
            trainer.label_smoothing,
            class_weights(
                trainer.class_weights, data.training_split(data.folds or [None]), data.source
            ),
            clip_values=trainer.gradient_clip_algorithm == "value",
        )

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


class Average:
    """Exponential moving average of the weights over optimizer steps (Polyak and Juditsky 1992), in
    the form of TensorFlow's ExponentialMovingAverage: step t, counted from 0, keeps
    min(decay, (1 + t) / (10 + t)) of the average.

    Lightning's WeightAveraging and torch's AveragedModel average one model, not a stack.
    """

    def __init__(self, decay: float, *lanes: Sequence[Tensor]) -> None:
        """`lanes` holds the tensors of each lane. Each lane updates its own averages."""
        self.decay = decay
        self.tensors = [[tensor.detach() for tensor in lane] for lane in lanes]
        self.values = [[tensor.clone() for tensor in lane] for lane in self.tensors]

    def update(self, step: int, lane: int = 0) -> None:
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.values[lane], self.tensors[lane], weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the context, the models hold the averages instead of their weights."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def swap(self) -> None:
        """Swaps the values of averages and weights, in place."""
        for value, tensor in zip(chain(*self.values), chain(*self.tensors), strict=True):
            weights = tensor.clone()
            tensor.copy_(value)
            value.copy_(weights)


@dataclass
class Learner:
    """Trains and evaluates S models. `configs` are those of their trials, and `batch_of` the number
    of the batch in a block that each of them trains on; `task` is that of all. `precision` is
    Lightning's plugin, or None outside of Lightning.

    Training consists of `begin`, and of `train` for each block. Each step ends with the models' own
    constraint and an update of the moving `average`, if configured.
    """

    configs: Sequence[Config]
    models: Sequence[nn.Module]
    batch_of: Sequence[int]
    lanes: Lanes
    task: Task
    precision: Any = None

    schedules: Sequence[Schedule] = field(init=False)
    step_plan: StepPlan = field(init=False)
    average: Average | None = field(init=False)
    # What trains since this way has failed.
    fallback: StepChoice | None = field(default=None, init=False)

    def begin(
        self, schedules: Sequence[Schedule], step_plan: StepPlan, average: Average | None = None
    ) -> None:
        """Called before the first block, when the weights are on the training device."""
        self.schedules, self.step_plan, self.average = schedules, step_plan, average

    def train(self, block: Any, epoch: int, batch: int) -> BatchResults:
        """Trains on a block, consecutive batches of an epoch, whose first batch is number `batch`
        of `epoch`, both from 0."""
        raise NotImplementedError

    def gradients(self) -> list[Tensor]:
        """The gradients since the last optimizer step, for a checkpoint between two steps."""
        raise NotImplementedError

    def load_gradients(self, saved: Sequence[Tensor]) -> None:
        """Restores saved gradients. `saved` is empty if a step had just been completed."""
        for gradient, value in zip(self.gradients() if saved else [], saved, strict=True):
            gradient.copy_(value)

    @cached_property
    def optimizers(self) -> list[Optimizer]:
        """Those that Lightning sees."""
        raise NotImplementedError

    @property
    def optimizer(self) -> Optimizer:
        return self.optimizers[0]

    def optimizers_restored(self) -> None:
        """Called after Lightning has loaded the optimizers' states."""
        for optimizer in self.optimizers:
            adapt_restored(optimizer)

    def averaged_tensors(self) -> list[list[Tensor]]:
        """The tensors that a moving average follows: parameters, running means and variances; a
        list for each lane."""
        raise NotImplementedError

    def evaluate(self, batch: Batch, places: Sequence[int]) -> Evaluated:
        raise NotImplementedError

    @property
    def measure(self) -> str | None:
        return measure_of(self.configs[0].checkpoint.monitor)

    def logits(self, features: Tensor) -> Tensor:
        """The logits (N, classes) of the first model, for features (N, *shape)."""
        raise NotImplementedError

    def copied_weights(self, places: Sequence[int]) -> list[dict[str, Tensor]]:
        """Copies of the tensors of some models, by their names in a checkpoint. Those of a stack
        are views of one copy, which the next copy of the same models overwrites."""
        return [copied(self.models[place]) for place in places]

    def optimizer_state(self, place: int) -> dict[str, Any]:
        """The state of one trial's optimizer, as its single run would save it."""
        return self.optimizers[place].state_dict()

    def without_views(self, state: Any) -> Any:
        """A part of a checkpoint whose tensors do not share memory with others."""
        return state

    def load_optimizer_states(self, states: Sequence[dict[str, Any]]) -> None:
        """Restores what `optimizer_state` returned for each trial, perhaps of another learner."""
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)


def contiguous(tensor: Tensor) -> Tensor:
    """A copy with rows one after the other, as torch saves it."""
    return tensor.clone(memory_format=torch.contiguous_format)


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded. All ranks must call this function."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def as_saved(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"model.{name}": value for name, value in state.items()}


@torch.no_grad()
def copied(model: nn.Module) -> dict[str, Tensor]:
    """Copies of a model's tensors, whole and contiguous, by their names in a checkpoint."""
    state = model.state_dict(keep_vars=True)  # a view of each takes as long again
    return as_saved({name: contiguous(whole(value)) for name, value in state.items()})


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
