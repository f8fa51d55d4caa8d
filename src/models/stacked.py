"""S models of the MLP family as one network: forward pass and gradient in closed form, no autograd.

A single run is a stack of one. Activations are kept feature-major, (trials, units, samples), so
that a layer's output is the next layer's input without a copy, whether the layer is one product
over the units of all trials or a batch of products.

The models stay what they are: their parameters become views of the stack's tensors, so that they
can be tested, saved or trained on at any time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.config import Config, autograd_alone
from src.models.logistic_regression import LogisticRegression
from src.models.mlp import Mlp

MOST_SEGMENTS = 8  # above it, widths are rounded up to share a segment
ROUNDING = 16


@dataclass(frozen=True)
class Architecture:
    """What a stackable model is made of: its linear layers, and what follows each hidden one."""

    layers: tuple[nn.Linear, ...]
    activation: str
    dropout: float

    @classmethod
    def of(cls, model: nn.Module) -> "Architecture | None":
        """The architecture of a model that the closed form covers, else None."""
        if isinstance(model, LogisticRegression):
            return cls((model.output,), "relu", 0.0)
        if isinstance(model, Mlp):
            linear = tuple(layer for layer in model.layers if isinstance(layer, nn.Linear))
            return cls(linear, model.activation, model.dropout)
        return None

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(layer.out_features for layer in self.layers)


# The gradient of the activation, as autograd takes it: from its output, for gelu from its input.
ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "gelu": F.gelu,
}


def _relu_backward(gradient: Tensor, output: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward.grad_input(  # type: ignore[no-any-return]
        gradient, output, 0, grad_input=gradient
    )


def _tanh_backward(gradient: Tensor, output: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward(gradient, output)  # type: ignore[no-any-return]


def _gelu_backward(gradient: Tensor, before: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(gradient, before)  # type: ignore[no-any-return]


BACKWARD = {"relu": _relu_backward, "tanh": _tanh_backward, "gelu": _gelu_backward}


class Layer:
    """G products side by side: weight (G, rows, columns), bias (G, rows), inputs (G, columns, B).

    With G = 1 all tensors are taken without their first dimension, as one matrix product.
    """

    def __init__(self, weight: Tensor, bias: Tensor, groups: int) -> None:
        shape = (groups, -1, weight.shape[-1]) if groups > 1 else (-1, weight.shape[-1])
        self.weight = weight.view(shape)
        self.weight_t = self.weight.mT
        self.bias = bias.view(*shape[:-1], 1)
        self.groups = groups
        self.gradient: Tensor | None = None
        self.bias_gradient: Tensor | None = None
        self.gradients = torch.empty(0)  # both, one behind the other

    def shaped(self, tensor: Tensor) -> Tensor:
        """(S, units, B) as this layer takes or gives it."""
        samples = tensor.shape[-1]
        return (
            tensor.view(self.groups, -1, samples) if self.groups > 1 else tensor.view(-1, samples)
        )

    def forward(self, inputs: Tensor, out: Tensor | None = None) -> Tensor:
        product = torch.baddbmm if self.groups > 1 else torch.addmm
        if inputs.dtype == self.weight.dtype:
            return product(self.bias, self.weight, inputs, out=out)
        low = inputs.dtype  # mixed precision: the weights are rounded for each product
        return product(self.bias.to(low), self.weight.to(low), inputs)

    def backward(self, delta: Tensor, out: Tensor | None = None) -> Tensor:
        """The gradient of the inputs from that of the outputs, (G, rows, B) → (G, columns, B)."""
        weight = (
            self.weight_t if delta.dtype == self.weight.dtype else self.weight_t.to(delta.dtype)
        )
        product = torch.bmm if self.groups > 1 else torch.mm
        return product(weight, delta, out=out)

    def descend(self, delta: Tensor, inputs: Tensor) -> None:
        """Subtracts the gradient of a delta that is scaled by the learning rate, in place."""
        if self.groups > 1:
            self.weight.baddbmm_(delta, inputs.mT, alpha=-1)
        else:
            self.weight.addmm_(delta, inputs.mT, alpha=-1)
        self.bias.sub_(delta.sum(-1, keepdim=True))

    def accumulate(self, delta: Tensor, inputs: Tensor, fresh: bool) -> None:
        """Adds to the gradient, or begins it anew."""
        assert self.gradient is not None
        assert self.bias_gradient is not None
        beta = 0 if fresh else 1
        if delta.dtype == self.gradient.dtype:
            if self.groups > 1:
                self.gradient.baddbmm_(delta, inputs.mT, beta=beta)
            else:
                self.gradient.addmm_(delta, inputs.mT, beta=beta)
        elif fresh:
            self.gradient.copy_(delta @ inputs.mT)
        else:
            self.gradient.add_(delta @ inputs.mT)
        bias = delta.sum(-1, keepdim=True)
        if fresh:
            self.bias_gradient.copy_(bias)
        else:
            self.bias_gradient.add_(bias)


class Segment:
    """Trials of equal padded widths. Trial r · n + i is the i-th of the n that share batch r.

    Narrower trials are padded with units whose weights are zero. They stay zero: relu, tanh and
    gelu map 0 to 0, so such a unit gets no gradient in either direction.
    """

    def __init__(
        self, trials: Sequence[int], models: Sequence[nn.Module], batches: Sequence[int]
    ) -> None:
        """`trials` are the numbers in the whole stack, `batches` the distinct batches used."""
        self.trials, self.batches = list(trials), list(batches)
        kinds = [Architecture.of(model) for model in models]
        architectures = [kind for kind in kinds if kind is not None]
        assert len(architectures) == len(models)
        first = architectures[0]
        self.activation, self.dropout = first.activation, first.dropout
        self.classes = first.widths[-1]
        self.parameters: list[nn.Parameter] = []
        self.gradients: list[Tensor] = []
        self.layers: list[Layer] = []
        for depth in range(len(first.layers)):
            linear = [architecture.layers[depth] for architecture in architectures]
            weight = _stacked([layer.weight for layer in linear])
            bias = _stacked([layer.bias for layer in linear])
            self.parameters += [weight, bias]
            groups = len(self.batches) if depth == 0 else len(models)
            self.layers.append(Layer(weight.data, bias.data, groups))
        self.first_shared = Layer(self.parameters[0].data, self.parameters[1].data, 1)
        self._buffers: dict[tuple[int, torch.dtype], _Buffers] = {}

    def make_gradients(self) -> None:
        """Makes the gradients that `Layer.accumulate` fills, those of a layer in one piece: ranks
        exchange them without a copy."""
        self.gradients = []
        pairs = zip(self.parameters[::2], self.parameters[1::2], strict=True)
        for layer, (weight, bias) in zip(self.layers, pairs, strict=True):
            layer.gradients = weight.new_zeros(weight.numel() + bias.numel())
            of_weight, of_bias = torch.split(layer.gradients, [weight.numel(), bias.numel()])
            self.gradients += [of_weight.view_as(weight), of_bias.view_as(bias)]
            layer.gradient = of_weight.view(layer.weight.shape)
            layer.bias_gradient = of_bias.view(layer.bias.shape)

    def attach_gradients(self) -> None:
        """Hands the gradients to the parameters, for an optimizer; Lightning may clear them."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient

    def logits(self, features: Tensor) -> Tensor:
        """Features (N, inputs) that all trials share, to logits (S, classes, N); no dropout."""
        outputs = self.first_shared.forward(features.mT)
        for layer in self.layers[1:]:
            hidden = ACTIVATE[self.activation](outputs)
            outputs = layer.forward(layer.shaped(hidden.view(len(self.trials), -1, len(features))))
        return outputs.view(len(self.trials), self.classes, len(features))

    def differentiate(
        self,
        features: Tensor,
        targets: Tensor,
        scale: Tensor | float,
        logits: Tensor,
        take: Callable[[Layer, Tensor, Tensor], None],
    ) -> None:
        """One batch: the logits, and for each layer from the last its `take(layer, delta, inputs)`.

        features (R, B, inputs) of the R batches used here; targets (R, 1, classes, B) one-hot;
        delta is `scale` times the gradient of the sum over samples of the cross entropy, scale
        (S, 1, 1) or a number; logits (S, classes, B) are written. A layer's weights may change in
        `take`: nothing needs them any more.
        """
        buffers = self._buffers_for(features)
        first = features.mT if len(self.batches) > 1 else features[0].mT
        inputs, kept, masks = [first], [], []
        for depth, layer in enumerate(self.layers[:-1]):
            before = layer.forward(inputs[-1], buffers.out[depth])
            after = ACTIVATE[self.activation](before)
            kept.append(before if self.activation == "gelu" else after)
            if self.dropout:
                keep = torch.empty_like(after).bernoulli_(1 - self.dropout)
                masks.append(keep.div_(1 - self.dropout))
                after = after * masks[-1]
            elif after is before and before is buffers.out[depth]:
                inputs.append(buffers.next[depth])
                continue
            inputs.append(self._regroup(after, self.layers[depth + 1]))
        last = self.layers[-1].shaped(logits)
        if first.dtype == logits.dtype:
            self.layers[-1].forward(inputs[-1], last)
        else:
            last.copy_(self.layers[-1].forward(inputs[-1]))

        delta = torch.softmax(logits, 1, out=buffers.delta)
        buffers.delta_by_batch.sub_(targets)
        delta.mul_(scale)
        delta = buffers.delta_shaped
        if first.dtype != logits.dtype:
            delta = delta.to(first.dtype)
        for depth in range(len(self.layers) - 1, 0, -1):
            layer, back = self.layers[depth], buffers.back[depth - 1]
            hidden = layer.backward(delta, back)
            if hidden is back:
                hidden = buffers.previous[depth - 1]
            else:
                hidden = self._regroup(hidden, self.layers[depth - 1])
            take(layer, delta, inputs[depth])
            if self.dropout:
                hidden = hidden * masks[depth - 1]
            delta = BACKWARD[self.activation](hidden, kept[depth - 1])
        take(self.layers[0], delta, inputs[0])

    def _regroup(self, tensor: Tensor, layer: Layer) -> Tensor:
        return layer.shaped(tensor.view(len(self.trials), -1, tensor.shape[-1]))

    def _buffers_for(self, features: Tensor) -> "_Buffers":
        key = (features.shape[1], features.dtype)
        if key not in self._buffers:
            self._buffers[key] = _Buffers(self, *key)
        return self._buffers[key]


class _Buffers:
    """What a step writes, kept for the next: outputs of hidden layers, and their gradients."""

    def __init__(self, segment: Segment, samples: int, dtype: torch.dtype) -> None:
        weights = segment.parameters[::2]
        device = weights[0].device
        trials = len(segment.trials)
        self.delta = torch.empty(
            trials, segment.classes, samples, dtype=weights[0].dtype, device=device
        )
        self.delta_by_batch = self.delta.view(len(segment.batches), -1, segment.classes, samples)
        self.delta_shaped = segment.layers[-1].shaped(self.delta)
        # Outputs and their gradients as the layers on both sides take them.
        self.out: list[Tensor | None] = []
        self.next: list[Tensor] = []
        self.back: list[Tensor | None] = []
        self.previous: list[Tensor] = []
        for depth, weight in enumerate(weights[:-1]):
            if dtype != weight.dtype:  # mixed precision allocates as it goes
                self.out.append(None)
                self.back.append(None)
                continue
            rows = weight.shape[-2]
            out = torch.empty(trials, rows, samples, dtype=dtype, device=device)
            back = torch.empty_like(out)
            here, beyond = segment.layers[depth], segment.layers[depth + 1]
            self.out.append(here.shaped(out))
            self.next.append(beyond.shaped(out))
            self.back.append(beyond.shaped(back))
            self.previous.append(here.shaped(back))


def _stacked(tensors: Sequence[Tensor]) -> nn.Parameter:
    """One tensor over all trials, padded with zeros; the parameters become views of it.

    A stack of one is the parameter itself.
    """
    parameters = [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]
    if len(parameters) == 1:
        return parameters[0]
    shape = [max(sizes) for sizes in zip(*(p.shape for p in parameters), strict=True)]
    first = parameters[0]
    whole = torch.zeros(len(parameters), *shape, dtype=first.dtype, device=first.device)
    for part, parameter in zip(whole, parameters, strict=True):
        view = part[tuple(slice(size) for size in parameter.shape)]
        view.copy_(parameter.data)
        parameter.data = view
    return nn.Parameter(whole)


class Stack:
    """S models with their batches: segments of equal widths, over R distinct batches.

    `batch_of[s]` is the number of the batch that trial s trains on. Models that share a batch
    share one product over their first layers' units.
    """

    def __init__(self, models: Sequence[nn.Module], batch_of: Sequence[int]) -> None:
        self.models, self.trials = list(models), len(models)
        self.batches = max(batch_of) + 1
        self.segments = [
            Segment(trials, [models[trial] for trial in trials], batches)
            for trials, batches in _segments(models, batch_of)
        ]

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for segment in self.segments for parameter in segment.parameters]

    def logits(self, features: Tensor) -> Tensor:
        """Features (N, *shape) that all trials share, to logits (S, classes, N)."""
        flat = features.flatten(1)
        if len(self.segments) == 1 and self.segments[0].trials == list(range(self.trials)):
            return self.segments[0].logits(flat)
        parts = [segment.logits(flat) for segment in self.segments]
        whole = torch.empty(self.trials, *parts[0].shape[1:], dtype=parts[0].dtype).to(flat.device)
        for segment, part in zip(self.segments, parts, strict=True):
            whole[segment.trials] = part
        return whole


def step_kind(config: Config, model: nn.Module) -> str:
    """`closed_form` where it applies and is not declined, else `autograd`."""
    declined = config.trainer.step == "autograd" or autograd_alone(config)
    return "autograd" if declined or Architecture.of(model) is None else "closed_form"


def _segments(
    models: Sequence[nn.Module], batch_of: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """(trials, batches) of each segment: equal widths, and equally many trials for every batch."""
    exact = [_widths(model, 1) for model in models]
    rounding = ROUNDING if len(set(exact)) > MOST_SEGMENTS else 1
    by_width: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for trial, model in enumerate(models):
        batches = by_width.setdefault(_widths(model, rounding), {})
        batches.setdefault(batch_of[trial], []).append(trial)
    segments = []
    for by_batch in by_width.values():
        counts: dict[int, list[int]] = {}
        for batch, trials in by_batch.items():
            counts.setdefault(len(trials), []).append(batch)
        for chosen in counts.values():
            trials = [trial for batch in chosen for trial in by_batch[batch]]
            segments.append((trials, chosen))
    return segments


def _widths(model: nn.Module, rounding: int) -> tuple[int, ...]:
    architecture = Architecture.of(model)
    assert architecture is not None
    *hidden, classes = architecture.widths
    return (*(-(-width // rounding) * rounding for width in hidden), classes)
