"""Multilayer perceptron of any depth and width, and its gradient in closed form."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from src.config import schema
from src.models.closed_form import ClosedForm, Cost, StackedParameters, UseGradient
from src.models.stacked_layers import (
    ACTIVATE,
    BACKWARD,
    BatchNorm,
    Layer,
    Norm,
    NormModule,
    bound_rows,
    dropout_mask,
    stack_linear,
    stack_norms,
)

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
NORMS: dict[str, type[NormModule]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


def build(config: schema.Mlp, shape: Sequence[int], classes: int) -> "Mlp":
    settings = config.model_dump(exclude={"name", "hidden_sizes"})
    return Mlp(math.prod(shape), config.hidden_sizes, classes, **settings)


def cost(config: schema.Mlp, shape: Sequence[int], classes: int) -> Cost:
    """An upper bound: 4 numbers per hidden unit are added for a norm (weight, bias, mean and
    variance), even without a norm."""
    inputs, hidden = math.prod(shape), config.hidden_sizes
    weights = sum((a + 1) * b for a, b in pairwise([inputs, *hidden, classes])) + 4 * sum(hidden)
    units = sum(hidden) + classes
    # Activation and gradient, mask and masked activation, and three tensors that a norm keeps.
    by_unit = 2 + 2 * bool(config.dropout) + 3 * (config.norm is not None)
    by_input = 2 + 2 * bool(config.input_dropout)  # as bytes and as floats, mask and masked input
    return Cost(weights, 2 * units, by_unit * units + by_input * inputs)


@dataclass(frozen=True)
class Architecture:
    """The linear layers of a model, and what follows each hidden one."""

    layers: tuple[nn.Linear, ...]
    activation: str = "relu"
    dropouts: tuple[float, ...] = ()  # of each hidden layer
    input_dropout: float = 0.0
    norms: tuple[NormModule, ...] = ()  # of each hidden layer, or none
    max_norm: float | None = None


class DenseClosedForm(ClosedForm):
    """The closed form of models that describe themselves by a method `architecture`.

    Narrower models are padded with units whose weights are zero. They stay zero: relu, tanh and
    gelu map 0 to 0, so such a unit gets no gradient in either direction. Models with a layer norm,
    which averages over units, are not padded.
    """

    def stack(self, models: Sequence[nn.Module]) -> Sequence[StackedParameters]:
        architectures = [_architecture(model) for model in models]
        first = architectures[0]
        self.activation, self.max_norm = first.activation, first.max_norm
        self.dropouts, self.input_dropout = first.dropouts, first.input_dropout
        self.random = bool(first.input_dropout) or any(first.dropouts)
        self.layers: list[Layer] = []
        self.norms: list[Norm] = []
        parts: list[StackedParameters] = []
        for depth in range(len(first.layers)):
            linear = [architecture.layers[depth] for architecture in architectures]
            # With dropout of the inputs, trials that share a batch still have different inputs.
            shared = depth == 0 and not self.input_dropout
            groups = len(self.batches) if shared else len(models)
            self.layers.append(stack_linear(linear, groups))
            parts.append(self.layers[-1])
            if depth < len(first.norms):
                norms = [architecture.norms[depth] for architecture in architectures]
                self.norms.append(stack_norms(norms))
                parts.append(self.norms[-1])
        self.classes = first.layers[-1].out_features
        self.batch_norms = [norm for norm in self.norms if isinstance(norm, BatchNorm)]
        self.statistics = [v for norm in self.batch_norms for v in (norm.mean, norm.variance)]
        self.first_shared = Layer(self.layers[0].parameters, 1)
        self._buffers: dict[tuple[int, torch.dtype], _Buffers] = {}
        return parts

    @classmethod
    def shape_of(cls, model: nn.Module, rounding: int) -> tuple[Any, ...]:
        """The widths of all layers."""
        architecture = _architecture(model)
        *hidden, classes = (layer.out_features for layer in architecture.layers)
        if any(isinstance(norm, nn.LayerNorm) for norm in architecture.norms):
            rounding = 1
        return (*(-(-width // rounding) * rounding for width in hidden), classes)

    def constrain(self) -> None:
        if self.max_norm is not None:
            for layer in self.layers[:-1]:
                bound_rows(layer.weight, self.max_norm)

    def count(self, batches: int) -> None:
        for norm in self.batch_norms:
            norm.batches.add_(batches)

    def forward(self, features: Tensor) -> Tensor:
        outputs = self.first_shared.forward(features.mT)
        for depth, layer in enumerate(self.layers[1:]):
            if self.norms:
                outputs = self._normalise(depth, outputs, training=False)
            hidden = ACTIVATE[self.activation](outputs)
            outputs = layer.forward(self._regroup(hidden, layer))
        return outputs.view(len(self.trials), self.classes, len(features))

    def differentiate(
        self,
        features: Tensor,
        targets: Tensor,
        scale: Tensor | float,
        logits: Tensor,
        use: UseGradient,
    ) -> None:
        buffers = self._buffers_for(features)
        if self.input_dropout:
            shared = len(self.trials) // len(self.batches)
            by_trial = features.unsqueeze(1).expand(-1, shared, -1, -1)
            mask = dropout_mask(by_trial, self.input_dropout, self.generator)
            features = (by_trial * mask).flatten(0, 1)
        first = features.mT if self.layers[0].groups > 1 else features[0].mT
        inputs, for_backward, masks = self._forward_hidden(first, buffers)
        last = self.layers[-1].shaped(logits)
        if first.dtype == logits.dtype:
            self.layers[-1].forward(inputs[-1], last)
        else:
            last.copy_(self.layers[-1].forward(inputs[-1]))

        # delta: the gradient of the loss with respect to the outputs of a layer, first of the last
        # layer (S, classes, B), then in the shape of the current layer.
        delta = torch.softmax(logits, 1, out=buffers.delta)
        buffers.delta_by_batch.sub_(targets)
        delta.mul_(scale)
        delta = buffers.delta_shaped
        if first.dtype != logits.dtype:
            delta = delta.to(first.dtype)
        for depth in range(len(self.layers) - 1, 0, -1):
            layer, back = self.layers[depth], buffers.back[depth - 1]
            gradient = layer.backward(delta, back)  # of the inputs of this layer
            if gradient is back:
                gradient = buffers.previous[depth - 1]
            else:
                gradient = self._regroup(gradient, self.layers[depth - 1])
            use(layer, delta, inputs[depth])
            if self.norms:
                gradient = self._by_trial(gradient)
            if depth - 1 in masks:
                gradient = gradient * masks[depth - 1]
            delta = BACKWARD[self.activation](gradient, for_backward[depth - 1])
            if self.norms:
                norm = self.norms[depth - 1]
                before_norm = norm.backward(delta.to(norm.weight.dtype)).to(first.dtype)
                use(norm, *norm.own_gradients)
                delta = self._regroup(before_norm, self.layers[depth - 1])
        use(self.layers[0], delta, inputs[0])

    def _forward_hidden(
        self, first: Tensor, buffers: "_Buffers"
    ) -> tuple[list[Tensor], list[Tensor], dict[int, Tensor]]:
        """Returns the inputs of all layers, the tensor that the backward of each activation needs
        (its output; for gelu its input), and the dropout masks by layer."""
        inputs, for_backward, masks = [first], [], {}
        for depth, layer in enumerate(self.layers[:-1]):
            before = layer.forward(inputs[-1], buffers.out[depth])
            if self.norms:
                before = self._normalise(depth, before, training=True)
            after = ACTIVATE[self.activation](before)
            for_backward.append(before if self.activation == "gelu" else after)
            if self.dropouts[depth]:
                masks[depth] = dropout_mask(after, self.dropouts[depth], self.generator)
                after = after * masks[depth]
            elif after is before and before is buffers.out[depth]:
                inputs.append(buffers.next[depth])
                continue
            inputs.append(self._regroup(after, self.layers[depth + 1]))
        return inputs, for_backward, masks

    def _normalise(self, depth: int, outputs: Tensor, *, training: bool) -> Tensor:
        """Outputs after a layer's norm, (S, units, B), computed in the precision of the weights."""
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


def _architecture(model: nn.Module) -> Architecture:
    found: Architecture = model.architecture()  # type: ignore[operator]
    return found


class _Buffers:
    """The tensors that every step writes: outputs of hidden layers, and their gradients."""

    def __init__(self, stacked: DenseClosedForm, samples: int, dtype: torch.dtype) -> None:
        weights = [layer.parameters[0] for layer in stacked.layers]
        device = weights[0].device
        trials = len(stacked.trials)
        self.delta = torch.empty(
            trials, stacked.classes, samples, dtype=weights[0].dtype, device=device
        )
        self.delta_by_batch = self.delta.view(len(stacked.batches), -1, stacked.classes, samples)
        self.delta_shaped = stacked.layers[-1].shaped(self.delta)
        # For each hidden layer, `out` and `next` are two views of its outputs: in the shape that
        # this layer writes, and in the shape that the next layer reads. `back` and `previous` are
        # two views of the gradient of the outputs: in the shape that the next layer writes, and in
        # the shape that this layer reads.
        self.out: list[Tensor | None] = []
        self.next: list[Tensor] = []
        self.back: list[Tensor | None] = []
        self.previous: list[Tensor] = []
        for depth, weight in enumerate(weights[:-1]):
            if dtype != weight.dtype:  # mixed precision allocates in each step
                self.out.append(None)
                self.back.append(None)
                continue
            rows = weight.shape[-2]
            out = torch.empty(trials, rows, samples, dtype=dtype, device=device)
            back = torch.empty_like(out)
            before, after = stacked.layers[depth], stacked.layers[depth + 1]
            self.out.append(before.shaped(out))
            self.next.append(after.shaped(out))
            self.back.append(after.shaped(back))
            self.previous.append(before.shaped(back))


class Mlp(nn.Module):
    """Linear layers inputs → hidden_sizes → classes. Each hidden layer is followed by its norm,
    activation and dropout, in this order."""

    closed_form = DenseClosedForm

    def __init__(
        self,
        inputs: int,
        hidden_sizes: Sequence[int],
        classes: int,
        activation: str = "relu",
        dropout: float | Sequence[float] = 0.0,
        *,
        input_dropout: float = 0.0,
        norm: str | None = None,
        max_norm: float | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        """`dropout` is one probability, or one for each hidden layer. `max_norm` bounds the 2-norm
        of the weights into each hidden unit (Srivastava et al. 2014, section 5.1). With
        `gradient_checkpointing` a hidden layer keeps only its input and is computed again for its
        gradient."""
        super().__init__()
        self.gradient_checkpointing, self.activation = gradient_checkpointing, activation
        rates = dropout if isinstance(dropout, Sequence) else [dropout] * len(hidden_sizes)
        self.dropouts = tuple(rates)
        self.max_norm = max_norm
        self.input_dropout = nn.Dropout(input_dropout)
        layers: list[nn.Module] = []
        for (fan_in, fan_out), rate in zip(
            pairwise([inputs, *hidden_sizes]), self.dropouts, strict=True
        ):
            # A batch norm subtracts the mean, so a bias before it would have no effect.
            layers.append(nn.Linear(fan_in, fan_out, bias=norm != "batch"))
            if norm is not None:
                layers.append(NORMS[norm](fan_out))
            layers.append(ACTIVATIONS[activation]())
            if any(self.dropouts):
                layers.append(nn.Dropout(rate))
        self.layers = nn.Sequential(*layers, nn.Linear(hidden_sizes[-1], classes))

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, *shape) with prod(shape) = inputs, to logits (N, classes)."""
        hidden: Tensor = self.input_dropout(features.flatten(1))
        if not (self.gradient_checkpointing and torch.is_grad_enabled()):
            logits: Tensor = self.layers(hidden)
            return logits
        per_hidden = (len(self.layers) - 1) // len(self.dropouts)
        for first in range(0, len(self.layers) - 1, per_hidden):
            hidden = checkpoint(
                self.layers[first : first + per_hidden], hidden, use_reentrant=False
            )
        output: Tensor = self.layers[-1](hidden)
        return output

    def constrain(self) -> None:
        """Holds the weights to `max_norm`. Called after each step of an optimizer."""
        if self.max_norm is not None:
            *hidden, _ = (layer for layer in self.layers if isinstance(layer, nn.Linear))
            for layer in hidden:
                bound_rows(layer.weight, self.max_norm)

    def architecture(self) -> Architecture:
        return Architecture(
            tuple(layer for layer in self.layers if isinstance(layer, nn.Linear)),
            self.activation,
            self.dropouts,
            self.input_dropout.p,
            tuple(layer for layer in self.layers if isinstance(layer, NormModule)),
            self.max_norm,
        )
