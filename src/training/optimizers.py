"""torch's optimizers and the learning rate of every step, built from the checked configuration."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from src.config import schema
from src.models.stack import Segment, Stack


def build_optimizer(config: schema.Optimizer, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The optimizer, fused: one kernel for all parameters, faster on CPU too. On CUDA its learning
    rate is a tensor and its step counts stay on the device, so that a graph can hold its steps.
    Sharded weights have no fused SGD, and no graph."""
    own = list(parameters)
    fused = not isinstance(own[0], DTensor)
    on_cuda = own[0].is_cuda and fused
    lr = torch.tensor(config.lr, device=own[0].device) if on_cuda else config.lr
    match config:
        case schema.Sgd():
            return SGD(
                own,
                lr=lr,
                momentum=config.momentum,
                nesterov=config.nesterov,
                weight_decay=config.weight_decay,
                fused=fused,
            )
        case schema.Adam() | schema.AdamW():
            kind = Adam if isinstance(config, schema.Adam) else AdamW
            decay = config.weight_decay
            return kind(own, lr=lr, weight_decay=decay, fused=fused, capturable=on_cuda)


class Numbers(NamedTuple):
    """What differs from trial to trial, each (S, 1, …) beside a parameter (S, …)."""

    lr: Tensor
    weight_decay: Tensor
    momentum: Tensor


class StackedOptimizer(Optimizer):
    """Optimizes the segments of a stack, every number of its own for every trial.

    A parameter group is a segment; its `lr`, `weight_decay` and `momentum` are tensors (S,) over
    the segment's trials, its parameters (S, …).
    """

    def __init__(self, configs: Sequence[schema.Optimizer], segments: Sequence[Segment]) -> None:
        self.trials = [segment.trials for segment in segments]
        device = segments[0].parameters[0].device
        self.places = [torch.tensor(trials, device=device) for trials in self.trials]
        groups: list[dict[str, Any]] = []
        for segment in segments:
            first = segment.parameters[0]

            def numbers(
                name: str, segment: Segment = segment, like: nn.Parameter = first
            ) -> Tensor:
                values = [getattr(configs[trial], name, 0.0) for trial in segment.trials]
                return torch.tensor(values, dtype=like.dtype, device=like.device)

            group = {name: numbers(name) for name in Numbers._fields}
            groups.append({"params": segment.parameters, **group})
        super().__init__(groups, {})

    def set_rates(
        self, rates: Sequence[float] | Tensor, segments: Collection[int] | None = None
    ) -> None:
        """A learning rate for each trial of the whole stack; of some segments alone, where they
        are named by their numbers."""
        like = self.param_groups[0]["lr"]
        if not isinstance(rates, Tensor):
            rates = torch.tensor(rates, dtype=like.dtype).to(like.device)
        for number, (group, places) in enumerate(zip(self.param_groups, self.places, strict=True)):
            if segments is None or number in segments:
                group["lr"].copy_(rates.index_select(0, places))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        self.step_segments(range(len(self.param_groups)))

    @torch.no_grad()
    def step_segments(self, segments: Iterable[int]) -> None:
        """The step of these segments, by their numbers: lanes step by themselves."""
        for group in (self.param_groups[number] for number in segments):
            for parameter in group["params"]:
                shape = (-1,) + (1,) * (parameter.dim() - 1)
                numbers = Numbers(*(group[name].view(shape) for name in Numbers._fields))
                self.update(parameter, parameter.grad, self.state[parameter], numbers)

    def update(
        self,
        parameter: Tensor,
        gradient: Tensor,
        state: dict[str, Any],
        numbers: Numbers,
    ) -> None:
        """One step of one parameter (S, …)."""
        raise NotImplementedError


class StackedSgd(StackedOptimizer):
    """torch.optim.SGD for a stack, Nesterov or not."""

    def __init__(self, configs: Sequence[schema.Sgd], segments: Sequence[Segment]) -> None:
        super().__init__(configs, segments)
        self.nesterov = configs[0].nesterov
        self.has_momentum = any(config.momentum for config in configs)
        self.has_decay = any(config.weight_decay for config in configs)

    def update(
        self,
        parameter: Tensor,
        gradient: Tensor,
        state: dict[str, Any],
        numbers: Numbers,
    ) -> None:
        if self.has_decay:
            gradient.addcmul_(parameter, numbers.weight_decay)
        if self.has_momentum:
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            velocity = state["momentum_buffer"].mul_(numbers.momentum).add_(gradient)
            gradient = gradient.addcmul_(velocity, numbers.momentum) if self.nesterov else velocity
        parameter.addcmul_(gradient, numbers.lr, value=-1)


class StackedAdam(StackedOptimizer):
    """torch.optim.Adam for a stack, or AdamW where `decoupled`; Kingma and Ba's default betas."""

    betas, eps = (0.9, 0.999), 1e-8

    def __init__(
        self,
        configs: Sequence[schema.Adam | schema.AdamW],
        segments: Sequence[Segment],
        decoupled: bool,
    ) -> None:
        super().__init__(configs, segments)
        self.decoupled = decoupled
        self.has_decay = any(config.weight_decay for config in configs)

    def update(
        self,
        parameter: Tensor,
        gradient: Tensor,
        state: dict[str, Any],
        numbers: Numbers,
    ) -> None:
        if not state:
            # Where a graph holds the steps, their count must live where it can advance it.
            where = parameter.device if parameter.is_cuda else None
            state["step"] = torch.tensor(0.0, device=where)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        (beta1, beta2), corrections = self.betas, self._corrections(state["step"])
        if self.has_decay and self.decoupled:
            parameter.mul_(1 - numbers.lr * numbers.weight_decay)
        elif self.has_decay:
            gradient.addcmul_(parameter, numbers.weight_decay)
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = square.sqrt().div_(corrections[1]).add_(self.eps)
        parameter.addcmul_(mean.div(root), numbers.lr / corrections[0], value=-1)

    def _corrections(self, step: Tensor) -> tuple[float, float] | tuple[Tensor, Tensor]:
        """Of the bias of both moments, the second under its root."""
        beta1, beta2 = self.betas
        if step.is_cuda:
            return 1 - beta1**step, (1 - beta2**step).sqrt()
        return 1 - beta1 ** float(step), math.sqrt(1 - beta2 ** float(step))


def build_stacked_optimizer(configs: Sequence[schema.Optimizer], stack: Stack) -> Optimizer:
    """The optimizer of a whole stack; of a stack of one, torch's own."""
    if stack.trials == 1:
        return build_optimizer(configs[0], stack.parameters)
    if isinstance(configs[0], schema.Sgd):
        sgd = [config for config in configs if isinstance(config, schema.Sgd)]
        return StackedSgd(sgd, stack.segments)
    adam = [config for config in configs if not isinstance(config, schema.Sgd)]
    return StackedAdam(adam, stack.segments, isinstance(configs[0], schema.AdamW))


def to_device(optimizer: Optimizer) -> None:
    """Moves what a checkpoint left on the CPU, learning rates and step counts, to a GPU."""
    for group in optimizer.param_groups:
        first = group["params"][0]
        if first.is_cuda:
            for values in (group, *(optimizer.state[parameter] for parameter in group["params"])):
                for key, value in values.items():
                    if isinstance(value, Tensor):
                        values[key] = value.to(first.device)


def trial_state(
    optimizer: Optimizer, stack: Stack, trial: int, config: schema.Optimizer
) -> dict[str, Any]:
    """The optimizer state of one trial, as torch's own optimizer for its model would save it."""
    if stack.trials == 1:
        return optimizer.state_dict()
    model = stack.models[trial]
    found = build_optimizer(config, model.parameters()).state_dict()
    segment = next(segment for segment in stack.segments if trial in segment.trials)
    place = [segment.trials.index(trial)] if len(segment.trials) > 1 else []
    for number, (whole, own) in enumerate(zip(segment.parameters, model.parameters(), strict=True)):
        corner = (*place, *(slice(size) for size in own.shape))
        found["state"][number] = {
            key: value.clone() if value.dim() == 0 else value[corner].clone()
            for key, value in optimizer.state[whole].items()
        }
    found["state"] = {key: value for key, value in found["state"].items() if value}
    for group, trials in zip(
        optimizer.param_groups, [s.trials for s in stack.segments], strict=True
    ):
        if trial in trials:
            found["param_groups"][0]["lr"] = float(group["lr"][trials.index(trial)])
    return found


def load_trial_states(optimizer: Optimizer, stack: Stack, states: Sequence[dict[str, Any]]) -> None:
    """Puts what `trial_state` gave for each trial together again, for another stack of them."""
    if stack.trials == 1:
        optimizer.load_state_dict(states[0])
        return
    for segment in stack.segments:
        for number, whole in enumerate(segment.parameters):
            parts = [states[trial]["state"].get(number, {}) for trial in segment.trials]
            for key in parts[0]:
                optimizer.state[whole][key] = _together([part[key] for part in parts], whole)


def _together(values: Sequence[Tensor], whole: Tensor) -> Tensor:
    """The trials' values as one tensor like `whole`, padded with zeros; counts are all alike."""
    if values[0].dim() == 0 or len(values) == 1:
        return values[0]
    found = torch.zeros_like(whole)
    for part, value in zip(found, values, strict=True):
        part[tuple(slice(size) for size in value.shape)] = value
    return found


class Schedule:
    """The learning rate as a function of the optimizer step alone: a resume cannot miss one.

    Values are those of torch's MultiStepLR and CosineAnnealingLR (stepped per epoch) and
    OneCycleLR (stepped per step, cosine, momentum left alone). Over the first `warmup_epochs` the
    rate is multiplied by a factor that grows by the same amount with each step, to 1 (Goyal et
    al. 2017, section 2.2). Past the last epoch the rate stays at its last value.
    """

    def __init__(
        self, config: schema.Scheduler, lr: float, epochs: int, steps_per_epoch: int
    ) -> None:
        self.config, self.lr = config, lr
        self.epochs, self.steps_per_epoch = epochs, steps_per_epoch

    def __call__(self, step: int) -> float:
        """The rate of optimizer step `step`, counted from 0 over the whole run."""
        step = min(step, self.epochs * self.steps_per_epoch - 1)
        if isinstance(self.config, schema.OneCycle):
            return self._one_cycle(self.config, step)
        warmup = round(self.config.warmup_epochs * self.steps_per_epoch)
        factor = (step + 1) / warmup if step < warmup else 1.0
        return factor * self._by_epoch(self.config, step // self.steps_per_epoch)

    def _by_epoch(
        self, config: schema.NoScheduler | schema.MultiStep | schema.Cosine, epoch: int
    ) -> float:
        match config:
            case schema.NoScheduler():
                return self.lr
            case schema.MultiStep(milestones=milestones, gamma=gamma):
                return self.lr * gamma ** sum(epoch >= milestone for milestone in milestones)
            case schema.Cosine(eta_min=low):
                return _cosine(self.lr, low, epoch / self.epochs)

    def _one_cycle(self, config: schema.OneCycle, step: int) -> float:
        steps = self.epochs * self.steps_per_epoch
        peak = config.pct_start * steps - 1
        start = self.lr / config.div_factor
        if step < peak:
            return _cosine(start, self.lr, step / peak)
        # A short run has no way up: the peak may lie on step 0, or before it.
        way = (step - peak) / (steps - 1 - peak) if steps - 1 > peak else 1.0
        return _cosine(self.lr, start / config.final_div_factor, way)


def _cosine(start: float, end: float, fraction: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * fraction)) / 2
