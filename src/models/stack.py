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

from src.config.rules import autograd_alone
from src.config.schema import Config
from src.models.logistic_regression import LogisticRegression
from src.models.mlp import Mlp, bound_rows

MOST_SEGMENTS = 8  # above it, widths are rounded up to share a segment
ROUNDING = 16


@dataclass(frozen=True)
class Architecture:
    """What a stackable model is made of: its linear layers, and what follows each hidden one."""

    layers: tuple[nn.Linear, ...]
    activation: str = "relu"
    dropouts: tuple[float, ...] = ()  # of each hidden layer, as are the norms, if any
    input_dropout: float = 0.0
    norms: tuple[nn.BatchNorm1d | nn.LayerNorm, ...] = ()
    max_norm: float | None = None

    @classmethod
    def of(cls, model: nn.Module) -> "Architecture | None":
        """The architecture of a model that the closed form covers, else None."""
        if isinstance(model, LogisticRegression):
            return cls((model.output,))
        if isinstance(model, Mlp):
            linear = tuple(layer for layer in model.layers if isinstance(layer, nn.Linear))
            norms = tuple(
                layer for layer in model.layers if isinstance(layer, nn.BatchNorm1d | nn.LayerNorm)
            )
            return cls(
                linear,
                model.activation,
                model.dropouts,
                model.input_dropout.p,
                norms,
                model.max_norm,
            )
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


class Part:
    """A weight and a bias of all trials, as a layer or a norm takes them, and their gradients,
    where `make_gradients` was called.

    A layer before a batch norm has no bias.
    """

    gradients: Tensor  # both, one behind the other
    weight_gradient: Tensor
    bias_gradient: Tensor

    def __init__(
        self, parameters: Sequence[nn.Parameter], weight: Tensor, bias: Tensor | None
    ) -> None:
        """`weight` and `bias` are views of the parameters (S, …)."""
        self.parameters, self.weight, self.bias = list(parameters), weight, bias

    def make_gradients(self) -> list[Tensor]:
        """Makes what `accumulate` fills, in one piece: ranks exchange it without a copy. Returns
        the gradients of the two parameters."""
        sizes = [parameter.numel() for parameter in self.parameters]
        self.gradients = self.weight.new_zeros(sum(sizes))
        parts = torch.split(self.gradients, sizes)
        self.weight_gradient = parts[0].view(self.weight.shape)
        if self.bias is not None:
            self.bias_gradient = parts[1].view(self.bias.shape)
        return [part.view_as(own) for part, own in zip(parts, self.parameters, strict=True)]

    def descend(self, first: Tensor, second: Tensor) -> None:
        """Subtracts the gradient, in place. It comes as its two parts; of a layer as delta and
        inputs, whose product it is."""
        raise NotImplementedError

    def accumulate(self, first: Tensor, second: Tensor, fresh: bool) -> None:
        """Adds to the gradient, or begins it anew."""
        raise NotImplementedError


class Layer(Part):
    """G products side by side: weight (G, rows, columns), bias (G, rows), inputs (G, columns, B).

    With G = 1 all tensors are taken without their first dimension, as one matrix product.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], groups: int) -> None:
        weight, *biases = (parameter.data for parameter in parameters)
        shape = (groups, -1, weight.shape[-1]) if groups > 1 else (-1, weight.shape[-1])
        bias = biases[0].view(*shape[:-1], 1) if biases else None
        super().__init__(parameters, weight.view(shape), bias)
        self.weight_t = self.weight.mT
        self.groups = groups

    def shaped(self, tensor: Tensor) -> Tensor:
        """(S, units, B) as this layer takes or gives it."""
        samples = tensor.shape[-1]
        return (
            tensor.view(self.groups, -1, samples) if self.groups > 1 else tensor.view(-1, samples)
        )

    def forward(self, inputs: Tensor, out: Tensor | None = None) -> Tensor:
        low = inputs.dtype  # mixed precision: the weights are rounded for each product
        weight = self.weight if low == self.weight.dtype else self.weight.to(low)
        if self.bias is None:
            return (torch.bmm if self.groups > 1 else torch.mm)(weight, inputs, out=out)
        bias = self.bias if low == self.bias.dtype else self.bias.to(low)
        return (torch.baddbmm if self.groups > 1 else torch.addmm)(bias, weight, inputs, out=out)

    def backward(self, delta: Tensor, out: Tensor | None = None) -> Tensor:
        """The gradient of the inputs from that of the outputs, (G, rows, B) → (G, columns, B)."""
        weight = (
            self.weight_t if delta.dtype == self.weight.dtype else self.weight_t.to(delta.dtype)
        )
        product = torch.bmm if self.groups > 1 else torch.mm
        return product(weight, delta, out=out)

    def descend(self, first: Tensor, second: Tensor) -> None:
        delta, inputs = first, second
        if self.groups > 1:
            self.weight.baddbmm_(delta, inputs.mT, alpha=-1)
        else:
            self.weight.addmm_(delta, inputs.mT, alpha=-1)
        if self.bias is not None:
            self.bias.sub_(delta.sum(-1, keepdim=True))

    def accumulate(self, first: Tensor, second: Tensor, fresh: bool) -> None:
        delta, inputs = first, second
        beta = 0 if fresh else 1
        if delta.dtype == self.weight_gradient.dtype:
            if self.groups > 1:
                self.weight_gradient.baddbmm_(delta, inputs.mT, beta=beta)
            else:
                self.weight_gradient.addmm_(delta, inputs.mT, beta=beta)
        elif fresh:
            self.weight_gradient.copy_(delta @ inputs.mT)
        else:
            self.weight_gradient.add_(delta @ inputs.mT)
        if self.bias is not None:
            bias = delta.sum(-1, keepdim=True)
            if fresh:
                self.bias_gradient.copy_(bias)
            else:
                self.bias_gradient.add_(bias)


class Norm(Part):
    """What is normalised, (S, units, B), times a weight (S, units) plus a bias, of each trial.

    `forward` keeps what `backward` needs. The latter leaves the gradients of weight and bias in
    `found`.
    """

    found: tuple[Tensor, Tensor]
    bias: Tensor

    def __init__(self, parameters: Sequence[nn.Parameter], trials: int, eps: float) -> None:
        weight, bias = (parameter.data.view(trials, -1, 1) for parameter in parameters)
        super().__init__(parameters, weight, bias)
        self.eps = eps

    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        raise NotImplementedError

    def backward(self, delta: Tensor) -> Tensor:
        """The gradient of what came in from that of what went out."""
        raise NotImplementedError

    def descend(self, first: Tensor, second: Tensor) -> None:
        self.weight.sub_(first.view_as(self.weight))
        self.bias.sub_(second.view_as(self.bias))

    def accumulate(self, first: Tensor, second: Tensor, fresh: bool) -> None:
        if fresh:
            self.gradients.zero_()
        self.weight_gradient.add_(first.view_as(self.weight))
        self.bias_gradient.add_(second.view_as(self.bias))


class BatchNorm(Norm):
    """nn.BatchNorm1d of all trials: their units are the channels of torch's own kernel.

    A unit that pads a trial is 0 in every sample, and so is what comes of it.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], trials: int, norms: Sequence[nn.BatchNorm1d]
    ) -> None:
        first = norms[0]
        assert first.momentum is not None
        super().__init__(parameters, trials, first.eps)
        self.momentum = first.momentum
        self.mean, self.variance, self.batches = (
            _stacked([getattr(norm, name) for norm in norms])
            for name in ("running_mean", "running_var", "num_batches_tracked")
        )

    def forward(self, inputs: Tensor, training: bool) -> Tensor:
        outputs, *self.statistics = torch.native_batch_norm(
            inputs.view(1, -1, inputs.shape[-1]),
            self.weight.view(-1),
            self.bias.view(-1),
            self.mean.view(-1),
            self.variance.view(-1),
            training,
            self.momentum,
            self.eps,
        )
        self.inputs = inputs
        return outputs.view_as(inputs)

    def backward(self, delta: Tensor) -> Tensor:
        shape = (1, -1, delta.shape[-1])
        inputs, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            delta.view(shape),
            self.inputs.view(shape),
            self.weight.view(-1),
            None,
            None,
            *self.statistics,
            True,
            self.eps,
            [True, True, True],
        )
        self.found = of_weight, of_bias
        return inputs.view_as(delta)  # type: ignore[no-any-return]


class LayerNorm(Norm):
    """nn.LayerNorm of trials whose widths are equal; its kernel takes units last, which a copy
    either way would cost more than these sums."""

    def forward(self, inputs: Tensor, training: bool) -> Tensor:  # noqa: ARG002
        centred = inputs - inputs.mean(1, keepdim=True)
        self.inverse = centred.square().mean(1, keepdim=True).add_(self.eps).rsqrt_()
        self.normalised = centred.mul_(self.inverse)
        return torch.addcmul(self.bias, self.normalised, self.weight)

    def backward(self, delta: Tensor) -> Tensor:
        scaled = delta * self.normalised
        self.found = scaled.sum(-1), delta.sum(-1)
        along = scaled.mul_(self.weight).mean(1, keepdim=True)
        inner = delta * self.weight
        inner.sub_(inner.mean(1, keepdim=True)).addcmul_(self.normalised, along, value=-1)
        return inner.mul_(self.inverse)


class Segment:
    """Trials of equal padded widths. Trial r · n + i is the i-th of the n that share batch r.

    Narrower trials are padded with units whose weights are zero. They stay zero: relu, tanh and
    gelu map 0 to 0, so such a unit gets no gradient in either direction. Under a layer norm, which
    averages over units, nothing is padded.
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
        self.activation, self.max_norm = first.activation, first.max_norm
        self.dropouts, self.input_dropout = first.dropouts, first.input_dropout
        self.classes = first.widths[-1]
        self.gradients: list[Tensor] = []
        self.layers: list[Layer] = []
        self.norms: list[Norm] = []
        for depth in range(len(first.layers)):
            linear = [architecture.layers[depth] for architecture in architectures]
            shared = depth == 0 and not self.input_dropout  # whose masks are each trial's own
            groups = len(self.batches) if shared else len(models)
            self.layers.append(Layer(_stacked_parameters(linear), groups))
            if depth < len(first.norms):
                norms = [architecture.norms[depth] for architecture in architectures]
                self.norms.append(_stacked_norm(norms))
        self.first_shared = Layer(self.layers[0].parameters, 1)
        self.generator: torch.Generator | None = None  # of dropout; None: the global one
        self._buffers: dict[tuple[int, torch.dtype], _Buffers] = {}

    @property
    def parts(self) -> list[Part]:
        """In the order of a model's own parameters."""
        if not self.norms:
            return [*self.layers]
        hidden = zip(self.layers, self.norms, strict=False)
        return [*(part for pair in hidden for part in pair), self.layers[-1]]

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for part in self.parts for parameter in part.parameters]

    @property
    def statistics(self) -> list[Tensor]:
        """What a model has besides its parameters: running means and variances."""
        norms = [norm for norm in self.norms if isinstance(norm, BatchNorm)]
        return [value for norm in norms for value in (norm.mean, norm.variance)]

    @property
    def random(self) -> bool:
        """Whether a step draws random numbers."""
        return bool(self.input_dropout) or any(self.dropouts)

    def make_gradients(self) -> None:
        self.gradients = [gradient for part in self.parts for gradient in part.make_gradients()]

    def constrain(self) -> None:
        if self.max_norm is not None:
            for layer in self.layers[:-1]:
                bound_rows(layer.weight, self.max_norm)

    def attach_gradients(self) -> None:
        """Hands the gradients to the parameters, for an optimizer; Lightning may clear them."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient

    def logits(self, features: Tensor) -> Tensor:
        """Features (N, inputs) that all trials share, to logits (S, classes, N); no dropout."""
        outputs = self.first_shared.forward(features.mT)
        for depth, layer in enumerate(self.layers[1:]):
            if self.norms:
                outputs = self._normalised(depth, outputs, training=False)
            hidden = ACTIVATE[self.activation](outputs)
            outputs = layer.forward(self._regroup(hidden, layer))
        return outputs.view(len(self.trials), self.classes, len(features))

    def differentiate(
        self,
        features: Tensor,
        targets: Tensor,
        scale: Tensor | float,
        logits: Tensor,
        take: Callable[[Part, Tensor, Tensor], None],
    ) -> None:
        """One batch: the logits, and for each layer from the last its `take(layer, delta, inputs)`,
        for each norm `take(norm, gradient of its weight, of its bias)`.

        features (R, B, inputs) of the R batches used here; targets (R, 1, classes, B) one-hot;
        delta is `scale` times the gradient of the sum over samples of the cross entropy, scale
        (S, 1, 1) or a number; logits (S, classes, B) are written. A layer's weights may change in
        `take`: nothing needs them any more.
        """
        buffers = self._buffers_for(features)
        if self.input_dropout:
            shared = len(self.trials) // len(self.batches)
            by_trial = features.unsqueeze(1).expand(-1, shared, -1, -1)
            mask = dropout_mask(by_trial, self.input_dropout, self.generator)
            features = (by_trial * mask).flatten(0, 1)
        first = features.mT if self.layers[0].groups > 1 else features[0].mT
        inputs, kept, masks = self._forward(first, buffers)
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
            if self.norms:
                hidden = self._by_trial(hidden)
            if depth - 1 in masks:
                hidden = hidden * masks[depth - 1]
            delta = BACKWARD[self.activation](hidden, kept[depth - 1])
            if self.norms:
                norm = self.norms[depth - 1]
                before_norm = norm.backward(delta.to(norm.weight.dtype)).to(first.dtype)
                take(norm, *norm.found)
                delta = self._regroup(before_norm, self.layers[depth - 1])
        take(self.layers[0], delta, inputs[0])

    def _forward(
        self, first: Tensor, buffers: "_Buffers"
    ) -> tuple[list[Tensor], list[Tensor], dict[int, Tensor]]:
        """The inputs of all layers, what their activations' gradients need, and dropout's masks."""
        inputs, kept, masks = [first], [], {}
        for depth, layer in enumerate(self.layers[:-1]):
            before = layer.forward(inputs[-1], buffers.out[depth])
            if self.norms:
                before = self._normalised(depth, before, training=True)
            after = ACTIVATE[self.activation](before)
            kept.append(before if self.activation == "gelu" else after)
            if self.dropouts[depth]:
                masks[depth] = dropout_mask(after, self.dropouts[depth], self.generator)
                after = after * masks[depth]
            elif after is before and before is buffers.out[depth]:
                inputs.append(buffers.next[depth])
                continue
            inputs.append(self._regroup(after, self.layers[depth + 1]))
        return inputs, kept, masks

    def _normalised(self, depth: int, outputs: Tensor, *, training: bool) -> Tensor:
        """A hidden layer's outputs, behind its norm, (S, units, B); mixed precision normalises in
        the weights' own."""
        norm, whole = self.norms[depth], self._by_trial(outputs)
        return norm.forward(whole.to(norm.weight.dtype), training).to(outputs.dtype)

    def _by_trial(self, tensor: Tensor) -> Tensor:
        return tensor.view(len(self.trials), -1, tensor.shape[-1])

    def _regroup(self, tensor: Tensor, layer: Layer) -> Tensor:
        return layer.shaped(self._by_trial(tensor))

    def _buffers_for(self, features: Tensor) -> "_Buffers":
        key = (features.shape[1], features.dtype)
        if key not in self._buffers:
            self._buffers[key] = _Buffers(self, *key)
        return self._buffers[key]


class _Buffers:
    """What a step writes, kept for the next: outputs of hidden layers, and their gradients."""

    def __init__(self, segment: Segment, samples: int, dtype: torch.dtype) -> None:
        weights = [layer.parameters[0] for layer in segment.layers]
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


def dropout_mask(like: Tensor, dropout: float, generator: torch.Generator | None = None) -> Tensor:
    """0 with probability `dropout`, else the number that makes the mean 1.

    On a CPU the probability is rounded to a multiple of 1/2¹⁶ below 1, and four numbers of 16 bits
    come of one draw, in a quarter of the time of bernoulli_, which was a fifth of a step of
    784-1024-1024-10.
    """
    if like.device.type != "cpu":
        kept = torch.empty_like(like).bernoulli_(1 - dropout, generator=generator)
        return kept.div_(1 - dropout)
    draws = torch.empty(-(-like.numel() // 4), dtype=torch.int64)
    draws.random_(-(2**63), None, generator=generator)
    bits = draws.view(torch.int16)[: like.numel()].view(like.shape)
    dropped = min(round(dropout * 2**16), 2**16 - 1)
    return (bits >= dropped - 2**15).to(like.dtype).mul_(2**16 / (2**16 - dropped))


def _stacked_parameters(
    modules: Sequence[nn.Linear | nn.BatchNorm1d | nn.LayerNorm],
) -> list[nn.Parameter]:
    """Weight and, where there is one, bias over all trials; of a stack of one, its own."""
    names = ("weight", "bias")[: 2 if modules[0].bias is not None else 1]
    if len(modules) == 1:
        return [getattr(modules[0], name) for name in names]
    return [nn.Parameter(_stacked([getattr(module, name) for module in modules])) for name in names]


def _stacked_norm(norms: Sequence[nn.BatchNorm1d | nn.LayerNorm]) -> Norm:
    parameters, trials = _stacked_parameters(norms), len(norms)
    batch_norms = [norm for norm in norms if isinstance(norm, nn.BatchNorm1d)]
    if batch_norms:
        return BatchNorm(parameters, trials, batch_norms)
    return LayerNorm(parameters, trials, norms[0].eps)


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor over all trials, padded with zeros; the given ones become views of it."""
    if len(tensors) == 1:
        return tensors[0]
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    first = tensors[0]
    whole = torch.zeros(len(tensors), *shape, dtype=first.dtype, device=first.device)
    for part, tensor in zip(whole, tensors, strict=True):
        view = part[tuple(slice(size) for size in tensor.shape)]
        view.copy_(tensor.data)
        tensor.data = view
    return whole


class Lane:
    """Some trials of a stack, in segments of equal widths; no other lane touches their tensors."""

    def __init__(self, number: int, segments: Sequence[Segment]) -> None:
        self.number, self.segments = number, segments
        self.trials = [trial for segment in segments for trial in segment.trials]

    @property
    def averaged(self) -> list[Tensor]:
        """The tensors that a moving average follows: parameters, running means and variances."""
        return [
            tensor
            for segment in self.segments
            for tensor in (*segment.parameters, *segment.statistics)
        ]

    def logits(self, features: Tensor) -> Tensor:
        """Features (N, *shape) to logits (trials, classes, N), in the order of the lane."""
        flat = features.flatten(1)
        parts = [segment.logits(flat) for segment in self.segments]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class Stack:
    """S models with their batches: segments of equal widths, over R distinct batches.

    `batch_of[s]` is the number of the batch that trial s trains on. Models that share a batch
    share one product over their first layers' units. The segments lie in `lanes`, at most as many
    as asked for, of about equal arithmetic: these may train at the same time.
    """

    def __init__(
        self, models: Sequence[nn.Module], batch_of: Sequence[int], lanes: int = 1
    ) -> None:
        self.models, self.trials = list(models), len(models)
        self.batches = max(batch_of) + 1
        self.lanes = []
        for number, own in enumerate(_lanes(models, batch_of, lanes)):
            segments = [
                Segment(trials, [models[trial] for trial in trials], batches)
                for trials, batches in _segments(models, batch_of, own)
            ]
            self.lanes.append(Lane(number, segments))
        self.segments = [segment for lane in self.lanes for segment in lane.segments]
        order = [trial for lane in self.lanes for trial in lane.trials]
        self.back = None  # from the order of the lanes to that of the trials
        if order != list(range(self.trials)):
            self.back = torch.tensor(order, device=self.parameters[0].device).argsort()

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for segment in self.segments for parameter in segment.parameters]

    @property
    def statistics(self) -> list[Tensor]:
        return [value for segment in self.segments for value in segment.statistics]

    def by_trial(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        """What the lanes or segments found, one behind the other along `dim`, in the order of the
        trials."""
        whole = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)
        return whole if self.back is None else whole.index_select(dim, self.back)

    def count(self, batches: int) -> None:
        """Tells batch norms, which torch's own count, that they have seen this many batches."""
        for segment in self.segments:
            for norm in segment.norms:
                if isinstance(norm, BatchNorm):
                    norm.batches.add_(batches)

    def logits(self, features: Tensor) -> Tensor:
        """Features (N, *shape) that all trials share, to logits (S, classes, N)."""
        return self.by_trial([lane.logits(features) for lane in self.lanes], 0)


def step_kind(config: Config, model: nn.Module) -> str:
    """`closed_form` where it applies and is not declined, else `autograd`."""
    declined = config.trainer.step == "autograd" or autograd_alone(config)
    return "autograd" if declined or Architecture.of(model) is None else "closed_form"


def _lanes(models: Sequence[nn.Module], batch_of: Sequence[int], count: int) -> list[Sequence[int]]:
    """The trials of each lane, about equal in parameters: equal widths and batches stay together
    as far as that goes."""
    if count == 1:
        return [range(len(models))]
    costs = [sum(value.numel() for value in model.parameters()) for model in models]
    order = sorted(range(len(models)), key=lambda t: (_widths(models[t], 1), batch_of[t], t))
    lanes: list[list[int]] = [[] for _ in range(count)]
    before, whole = 0, sum(costs)
    for trial in order:
        lanes[int((before + costs[trial] / 2) / whole * count)].append(trial)
        before += costs[trial]
    return [sorted(lane) for lane in lanes if lane]


def _segments(
    models: Sequence[nn.Module], batch_of: Sequence[int], chosen: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """(trials, batches) of each segment of the chosen trials: equal widths, and equally many trials
    for every batch."""
    exact = {_widths(models[trial], 1) for trial in chosen}
    padded = len(exact) > MOST_SEGMENTS and not _has_layer_norm(models[0])
    rounding = ROUNDING if padded else 1
    by_width: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for trial in chosen:
        batches = by_width.setdefault(_widths(models[trial], rounding), {})
        batches.setdefault(batch_of[trial], []).append(trial)
    segments = []
    for by_batch in by_width.values():
        counts: dict[int, list[int]] = {}
        for batch, trials in by_batch.items():
            counts.setdefault(len(trials), []).append(batch)
        for same in counts.values():
            trials = [trial for batch in same for trial in by_batch[batch]]
            segments.append((trials, same))
    return segments


def _widths(model: nn.Module, rounding: int) -> tuple[int, ...]:
    architecture = Architecture.of(model)
    assert architecture is not None
    *hidden, classes = architecture.widths
    return (*(-(-width // rounding) * rounding for width in hidden), classes)


def _has_layer_norm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.LayerNorm) for module in model.modules())
