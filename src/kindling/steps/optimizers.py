"""Optimizers: torch's own for one model, and the same algorithms for the models of a stack.

A new optimizer is a section in config/schema.py, whose keys are the arguments of torch's class,
a YAML in conf/optimizer, and here a class derived from StackedOptimizer and a line in OPTIMIZERS;
or an extension registers it (config/registry.py).
"""

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from kindling.config import registry, schema
from kindling.models.closed_form import ClosedForm
from kindling.steps.stack import Stack

ADAM_BETAS, ADAM_EPS = (0.9, 0.999), 1e-8  # of Kingma and Ba

NUMBERS = ("lr", "weight_decay", "momentum")  # the settings in which trials may differ

State = dict[str, Any]  # of one parameter, with torch's names


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor, without the import of DTensor, which takes half a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def build_optimizer(
    config: schema.Optimizer, parameters: Iterable[nn.Parameter], *, fused: bool = True
) -> Optimizer:
    """torch's optimizer for one model: fused, unless parameters are sharded. On CUDA, the learning
    rate and the counts of steps are tensors there, so that a CUDA graph can hold the steps."""
    parameters = list(parameters)
    fused = fused and not is_sharded(parameters[0])  # torch has no fused SGD for DTensors
    on_cuda = parameters[0].is_cuda and fused
    kind = _class_of("optimizer", config.name)
    options = config.model_dump(exclude={"name"}) | {"fused": fused, "capturable": on_cuda}
    known = inspect.signature(kind).parameters
    optimizer: Optimizer = kind(
        parameters, **{name: value for name, value in options.items() if name in known}
    )
    if on_cuda:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(config.lr, device=parameters[0].device)
    return optimizer


class StackedOptimizer(Optimizer):
    """Optimizes the segments of a stack, each trial with its own NUMBERS.

    A parameter group is a segment. Its `lr`, `weight_decay` and `momentum` are tensors (S,), its
    parameters are (S, …). Other settings are the same in all `configs`.
    """

    def __init__(self, configs: Sequence[Any], segments: Sequence[ClosedForm]) -> None:
        self.places = [segment.trial_index for segment in segments]
        self.has_decay = any(getattr(config, "weight_decay", 0.0) for config in configs)
        groups: list[dict[str, Any]] = []
        for segment in segments:
            weights = segment.parameters[0].data
            numbers = {
                name: weights.new_tensor([getattr(configs[n], name, 0.0) for n in segment.trials])
                for name in NUMBERS
            }
            groups.append({"params": segment.parameters, **numbers})
        super().__init__(groups, {})

    def set_rates(
        self, rates: Sequence[float] | Tensor, segments: Collection[int] | None = None
    ) -> None:
        """Sets the rates of these segments, or of all. `rates` has one per trial of the stack."""
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
        """The step of the segments with these numbers. Each lane steps its own segments."""
        for group in (self.param_groups[number] for number in segments):
            numbers = self.begin_step(group)
            for parameter in group["params"]:
                shape = (-1,) + (1,) * (parameter.dim() - 1)
                own = [value.view(shape) for value in numbers]
                self.update(parameter, parameter.grad, self.state[parameter], *own)

    def begin_step(self, group: dict[str, Any]) -> Sequence[Tensor]:
        """Called before the updates of a segment. Returns their numbers, each (S,)."""
        return [group[name] for name in NUMBERS]

    def update(self, parameter: Tensor, gradient: Tensor, state: State, *numbers: Tensor) -> None:
        """One step of one parameter (S, …), in place. May overwrite the gradient. The numbers are
        those of `begin_step`, each (S, 1, …)."""
        raise NotImplementedError


class StackedSgd(StackedOptimizer):
    def __init__(self, configs: Sequence[schema.Sgd], segments: Sequence[ClosedForm]) -> None:
        super().__init__(configs, segments)
        self.nesterov = configs[0].nesterov
        self.has_momentum = any(config.momentum for config in configs)

    def update(self, parameter: Tensor, gradient: Tensor, state: State, *numbers: Tensor) -> None:
        lr, weight_decay, momentum = numbers
        if self.has_decay:
            gradient.addcmul_(parameter, weight_decay)
        if self.has_momentum:
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            velocity = state["momentum_buffer"].mul_(momentum).add_(gradient)
            gradient = gradient.addcmul_(velocity, momentum) if self.nesterov else velocity
        parameter.addcmul_(gradient, lr, value=-1)


class StackedAdam(StackedOptimizer):
    betas, eps = ADAM_BETAS, ADAM_EPS
    decoupled: ClassVar[bool] = False  # whether weight decay bypasses the moments, as in AdamW

    def state_dict(self) -> dict[str, Any]:
        """With a count of its own for each parameter, because a checkpoint holds no value twice."""
        content = super().state_dict()
        states = content["state"].items()
        own = {number: {**state, "step": state["step"].clone()} for number, state in states}
        return {**content, "state": own}

    def begin_step(self, group: dict[str, Any]) -> Sequence[Tensor]:
        """Counts the step, by one tensor for all parameters. The numbers are the rates, divided by
        the bias correction of the mean; the share of the weights that joins the gradient, or in
        AdamW, that stays; the root (1,) of the bias correction of the mean of squares."""
        parameters = group["params"]
        states: list[State] = [self.state[parameter] for parameter in parameters]
        if not states[0]:
            # On CUDA, a graph must be able to increment the count of steps.
            device = parameters[0].device if parameters[0].is_cuda else None
            states[0]["step"] = torch.tensor(0.0, device=device)
            for parameter, state in zip(parameters, states, strict=True):
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        count = states[0]["step"].add_(1)
        for state in states:  # restored states have a count each
            state["step"] = count
        (beta1, beta2), steps = self.betas, count if count.is_cuda else float(count)
        rates, decay = group["lr"], group["weight_decay"]
        if self.has_decay and self.decoupled:
            decay = 1 - rates * decay
        root = (1 - beta2**steps) ** 0.5
        root = root if isinstance(root, Tensor) else rates.new_tensor(root)
        return rates / (1 - beta1**steps), decay, root

    def update(self, parameter: Tensor, gradient: Tensor, state: State, *numbers: Tensor) -> None:
        (beta1, beta2), (corrected_lr, decay, root_correction) = self.betas, numbers
        if self.has_decay and self.decoupled:
            parameter.mul_(decay)
        elif self.has_decay:
            gradient.addcmul_(parameter, decay)
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = square.sqrt().div_(root_correction).add_(self.eps)
        parameter.addcmul_(mean.div(root), corrected_lr, value=-1)


class StackedAdamW(StackedAdam):
    decoupled = True


# By optimizer.name: torch's class for one model, and the class for a stack.
OPTIMIZERS: dict[str, tuple[Callable[..., Optimizer], type[StackedOptimizer]]] = {
    "sgd": (SGD, StackedSgd),
    "adam": (Adam, StackedAdam),
    "adamw": (AdamW, StackedAdamW),
}


def _class_of(kind: str, name: str) -> Any:
    if name in OPTIMIZERS:
        return OPTIMIZERS[name][kind == "stacked"]
    return registry.resolve(kind, name)


def has_stacked(name: str) -> bool:
    """Whether models of a stack can train with the optimizer of this name."""
    return name in OPTIMIZERS or registry.location("stacked", name) is not None


def build_stacked_optimizer(configs: Sequence[schema.Optimizer], stack: Stack) -> Optimizer:
    if stack.trial_count == 1:
        return build_optimizer(configs[0], stack.parameters)
    stacked: Optimizer = _class_of("stacked", configs[0].name)(configs, stack.segments)
    return stacked


def set_rates(optimizer: Optimizer, rates: Sequence[float] | Tensor) -> None:
    """Sets the learning rate of each trial: S numbers, or a tensor (S,), which a CUDA graph can
    read. One of torch's own optimizers trains one trial, at rates[0]."""
    if isinstance(optimizer, StackedOptimizer):
        optimizer.set_rates(rates)
        return
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rates[0])  # a copy of a number would wait for the GPU
        else:
            group["lr"] = rates[0]


def is_plain_sgd(optimizer: Optimizer) -> bool:
    """Whether a step only subtracts the gradient times the learning rate."""
    if isinstance(optimizer, StackedSgd):
        return not (optimizer.has_decay or optimizer.has_momentum)
    return isinstance(optimizer, SGD) and not any(
        group[name] for group in optimizer.param_groups for name in ("momentum", "weight_decay")
    )


def adapt_restored(optimizer: Optimizer) -> None:
    """Moves the state of an optimizer, restored on the CPU, to the GPU of the parameters. Elsewhere
    a learning rate, which is a tensor in a checkpoint from a GPU, becomes a number."""
    for group in optimizer.param_groups:
        first = group["params"][0]
        if not first.is_cuda and isinstance(group["lr"], Tensor) and not group["lr"].dim():
            group["lr"] = float(group["lr"])
        elif first.is_cuda:
            for values in (group, *(optimizer.state[parameter] for parameter in group["params"])):
                for key, value in values.items():
                    if isinstance(value, Tensor):
                        values[key] = value.to(first.device)


def trial_state(
    optimizer: Optimizer, stack: Stack, trial: int, config: schema.Optimizer
) -> dict[str, Any]:
    """The optimizer state of one trial, in the format of torch's optimizer for its model."""
    if stack.trial_count == 1:
        return optimizer.state_dict()
    model = stack.models[trial]
    state = build_optimizer(config, model.parameters()).state_dict()
    segment = next(segment for segment in stack.segments if trial in segment.trials)
    place = segment.trials.index(trial)
    pairs = zip(segment.parameters, model.parameters(), strict=True)
    for number, (stacked, parameter) in enumerate(pairs):
        unpadded = tuple(slice(size) for size in parameter.shape)
        corner = (place, *unpadded) if len(segment.trials) > 1 else unpadded
        state["state"][number] = {
            key: value[corner].clone() if value.dim() else value.clone()
            for key, value in optimizer.state[stacked].items()
        }
    state["state"] = {number: values for number, values in state["state"].items() if values}
    group = optimizer.param_groups[stack.segments.index(segment)]
    state["param_groups"][0]["lr"] = float(group["lr"][place])
    return state


def load_trial_states(optimizer: Optimizer, stack: Stack, states: Sequence[dict[str, Any]]) -> None:
    """Restores the states that `trial_state` returned, one for each trial of another stack."""
    if stack.trial_count == 1:
        optimizer.load_state_dict(states[0])
        return
    for segment in stack.segments:
        for number, parameter in enumerate(segment.parameters):
            by_trial = [states[trial]["state"].get(number, {}) for trial in segment.trials]
            for key in by_trial[0]:
                values = [values[key] for values in by_trial]
                optimizer.state[parameter][key] = _stacked(values, parameter)


def _stacked(values: Sequence[Tensor], parameter: Tensor) -> Tensor:
    """One tensor like `parameter`, padded with zeros. Counts of steps are equal in all trials."""
    if values[0].dim() == 0 or len(values) == 1:
        return values[0]
    stacked = torch.zeros_like(parameter)
    for target, value in zip(stacked, values, strict=True):
        target[tuple(slice(size) for size in value.shape)] = value
    return stacked
