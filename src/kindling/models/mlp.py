"""Multilayer perceptron of any depth and width, and its gradient in closed form."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kindling.config import schema
from kindling.models.closed_form import (
    ACTIVATIONS,
    BatchNorm,
    ClosedForm,
    Layer,
    MemoryCost,
    Norm,
    NormModule,
    SegmentBatch,
    StackedParameters,
    UseGradient,
    bound_rows,
    dropout_mask,
    stack_linear,
    stack_norms,
)


def build(config: schema.Mlp, shape: Sequence[int], classes: int) -> "Mlp":
    settings = config.model_dump(exclude={"name", "hidden_sizes"})
    return Mlp(math.prod(shape), config.hidden_sizes, classes, **settings)


def cost(config: schema.Mlp, shape: Sequence[int], classes: int) -> MemoryCost:
    """An upper bound of the memory that a model takes. Each hidden unit is counted with the weight,
    bias, mean and variance of a norm, even if the model has no norm."""
    inputs, hidden = math.prod(shape), config.hidden_sizes
    weights = sum((a + 1) * b for a, b in pairwise([inputs, *hidden, classes])) + 4 * sum(hidden)
    units = sum(hidden) + classes
    # Activation and gradient, mask and masked activation, noise and noisy activation, and three
    # tensors that a norm keeps.
    noisy = 2 * bool(config.noise)
    per_unit = 2 + 2 * bool(config.dropout) + noisy + 3 * (config.norm is not None)
    # The input as bytes and as floats, noise and noisy input, mask and masked input.
    per_input = 2 + noisy + 2 * bool(config.input_dropout)
    return MemoryCost(weights, 2 * units, per_unit * units + per_input * inputs)


@dataclass(frozen=True)
class Architecture:
    """The linear layers of a model, and what follows each hidden one."""

    layers: tuple[nn.Linear, ...]
    activation: str = "relu"
    dropouts: tuple[float, ...] = ()  # of each hidden layer
    input_dropout: float = 0.0
    norms: tuple[NormModule, ...] = ()  # of each hidden layer, or none
    max_norm: float | None = None
    noise: float = 0.0

    @property
    def widths(self) -> tuple[int, ...]:
        """Inputs, hidden layers, classes."""
        return (self.layers[0].in_features, *(layer.out_features for layer in self.layers))


class DenseClosedForm(ClosedForm):
    """The closed form of models that describe themselves by a method `architecture`.

    Narrower models are padded with units whose weights are zero. These weights stay zero: each
    activation maps 0 to 0, so the gradients of the weights into and out of such a unit are zero.
    Models with a layer norm are not padded, because a layer norm averages over units. Models with
    noise are not padded, because the noise reaches every unit.
    """

    def stack(self, models: Sequence[nn.Module]) -> Sequence[StackedParameters]:
        architectures = [architecture_of(model) for model in models]
        first = architectures[0]
        self.activation = ACTIVATIONS[first.activation]
        self.max_norm, self.noise = first.max_norm, first.noise
        self.dropouts, self.input_dropout = first.dropouts, first.input_dropout
        self.random = bool(first.input_dropout or any(first.dropouts) or first.noise)
        self.layers: list[Layer] = []
        self.norms: list[Norm] = []
        parts: list[StackedParameters] = []
        for depth in range(len(first.layers)):
            linear = [architecture.layers[depth] for architecture in architectures]
            # In the first layer, trials that train on the same batch have the same inputs, unless
            # these are random: one product per batch. Otherwise there is one product per trial.
            same_inputs = depth == 0 and not (self.input_dropout or self.noise)
            groups = len(self.batches) if same_inputs else len(models)
            self.layers.append(stack_linear(linear, groups))
            parts.append(self.layers[-1])
            if depth < len(first.norms):
                norms = [architecture.norms[depth] for architecture in architectures]
                self.norms.append(stack_norms(norms))
                parts.append(self.norms[-1])
        self.classes = first.layers[-1].out_features
        self.batch_norms = [norm for norm in self.norms if isinstance(norm, BatchNorm)]
        self.statistics = [v for norm in self.batch_norms for v in (norm.mean, norm.variance)]
        # The first layer for evaluation, where all trials have the same batch.
        self.first_layer_one_batch = Layer(self.layers[0].parameters, 1)
        return parts

    @classmethod
    def segment_key(cls, model: nn.Module, rounding: int) -> tuple[Any, ...]:
        """The widths of all layers, those of hidden layers rounded up."""
        architecture = architecture_of(model)
        _, *hidden, classes = architecture.widths
        has_layer_norm = any(isinstance(norm, nn.LayerNorm) for norm in architecture.norms)
        if has_layer_norm or architecture.noise:
            rounding = 1
        return (*(-(-width // rounding) * rounding for width in hidden), classes)

    def constrain(self) -> None:
        if self.max_norm is not None:
            for layer in self.layers[:-1]:
                bound_rows(layer.weight, self.max_norm)

    def count_batches(self, count: int) -> None:
        for norm in self.batch_norms:
            norm.batches.add_(count)

    def forward(self, features: Tensor) -> Tensor:
        outputs = self.first_layer_one_batch.forward(features.flatten(1).mT)
        for depth, layer in enumerate(self.layers[1:]):
            if self.norms:
                outputs = self._normalise(depth, outputs, training=False)
            outputs = layer.forward(layer.shaped(self.activation.forward(outputs)))
        return outputs.view(len(self.trials), self.classes, len(features))

    def differentiate(self, batch: SegmentBatch, use: UseGradient) -> None:
        features, logits, last = batch.features.flatten(2), batch.logits, self.layers[-1]
        if self.input_dropout or self.noise:
            features = self._disturbed(features)
        first = features.mT if self.layers[0].groups > 1 else features[0].mT
        inputs, for_backward, masks = self._forward_hidden(first)
        if first.dtype == logits.dtype:
            last.forward(inputs[-1], last.shaped(logits))
        else:
            last.shaped(logits).copy_(last.forward(inputs[-1]))
        if self.noise:
            logits.add_(self._noise_like(logits))

        # The delta of a layer is the gradient of the loss with respect to the layer's outputs.
        delta = last.shaped(self.delta(batch).to(first.dtype))
        for depth in range(len(self.layers) - 1, 0, -1):
            layer, before, hidden = self.layers[depth], self.layers[depth - 1], depth - 1
            gradient = before.shaped(layer.backward(delta))
            use(layer, delta, inputs[depth])
            if self.norms:
                gradient = self._by_trial(gradient)
            if hidden in masks:
                gradient = gradient * masks[hidden]
            delta = self.activation.backward(gradient, for_backward[hidden])
            if self.norms:
                norm = self.norms[hidden]
                delta = delta.to(norm.weight.dtype)
                before_norm = norm.backward(delta).to(first.dtype)
                if self.noise:
                    norm.add_noise_gradient(delta)
                use(norm, *norm.parameter_gradients)
                delta = before.shaped(before_norm)
        use(self.layers[0], delta, inputs[0])

    def _disturbed(self, features: Tensor) -> Tensor:
        """The features of each trial, (S, B, inputs): those of its batch, with noise and dropout
        that differ between trials."""
        trials_per_batch = len(self.trials) // len(self.batches)
        by_trial = features.unsqueeze(1).expand(-1, trials_per_batch, -1, -1)
        if self.noise:
            by_trial = by_trial + self._noise_like(by_trial)
        if self.input_dropout:
            by_trial = by_trial * dropout_mask(by_trial, self.input_dropout, self.generator)
        return by_trial.flatten(0, 1)

    def _forward_hidden(
        self, first: Tensor
    ) -> tuple[list[Tensor], list[Tensor], dict[int, Tensor]]:
        """Returns the inputs of all layers, the tensor that the backward of each activation takes,
        and the dropout masks by layer."""
        inputs, for_backward, masks = [first], [], {}
        for depth, (layer, following) in enumerate(pairwise(self.layers)):
            before = layer.forward(inputs[-1])
            if self.norms:
                before = self._normalise(depth, before, training=True)
            elif self.noise:
                before.add_(self._noise_like(before))
            after = self.activation.forward(before)
            for_backward.append(before if self.activation.of_input else after)
            if self.dropouts[depth]:
                masks[depth] = dropout_mask(after, self.dropouts[depth], self.generator)
                after = after * masks[depth]
            inputs.append(following.shaped(after))
        return inputs, for_backward, masks

    def _normalise(self, depth: int, outputs: Tensor, *, training: bool) -> Tensor:
        """Outputs after a layer's norm, (S, units, B), computed in the precision of the weights."""
        norm, by_trial = self.norms[depth], self._by_trial(outputs)
        normalised = norm.forward(by_trial.to(norm.weight.dtype), training)
        if training and self.noise:
            normalised = norm.add_noise(normalised, self._noise_like(normalised))
        return normalised.to(outputs.dtype)

    def _noise_like(self, tensor: Tensor) -> Tensor:
        return noise_like(tensor, self.noise, self.generator)

    def _by_trial(self, tensor: Tensor) -> Tensor:
        """A view (S, units, B) of the outputs or gradients of a layer."""
        return tensor.view(len(self.trials), -1, tensor.shape[-1])


def architecture_of(model: nn.Module) -> Architecture:
    architecture: Architecture = model.architecture()  # type: ignore[operator]
    return architecture


# --- the model -----------------------------------------------------------------------------------


def noise_like(
    tensor: Tensor, deviation: float, generator: torch.Generator | None = None
) -> Tensor:
    """Normal numbers of mean 0 and standard deviation `deviation`, in the shape of a tensor."""
    return torch.empty_like(tensor).normal_(0, deviation, generator=generator)


def add_noise(tensor: Tensor, deviation: float, training: bool) -> Tensor:
    """The tensor with noise; without, if not training or if the deviation is 0."""
    return tensor + noise_like(tensor, deviation) if training and deviation else tensor


class Noise(nn.Module):
    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.deviation = deviation

    def forward(self, inputs: Tensor) -> Tensor:
        return add_noise(inputs, self.deviation, self.training)

    def extra_repr(self) -> str:
        return str(self.deviation)


class _NoisyNorm(nn.Module):
    """Adds noise to the normalised values of a norm, before they are multiplied by its weight. The
    network cannot drown the noise by a large weight, because the weight scales both."""

    weight: nn.Parameter

    def __init__(self, units: int, deviation: float) -> None:
        super().__init__(units)
        self.deviation = deviation

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = super().forward(inputs)
        if self.training and self.deviation:
            # weight · (normalised + noise) + bias
            outputs = outputs + (self.weight * noise_like(outputs, self.deviation)).to(
                outputs.dtype
            )
        return outputs


class NoisyBatchNorm(_NoisyNorm, nn.BatchNorm1d):
    pass


class NoisyLayerNorm(_NoisyNorm, nn.LayerNorm):
    pass


NORMS: dict[str, type[NormModule]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
NOISY_NORMS = {"batch": NoisyBatchNorm, "layer": NoisyLayerNorm}


class Mlp(nn.Module):
    """Linear layers inputs → hidden_sizes → classes. Each hidden layer is followed by its norm,
    activation and dropout, in this order.

    In training, Gaussian noise is added to the inputs, before their dropout, and to each layer: to
    the normalised values of its norm, before these are scaled and shifted; without a norm, and in
    the last layer, to the outputs of the linear layer. This is the encoder of a ladder network
    (Rasmus et al. 2015, algorithm 1), where each layer has a batch norm, the last one too."""

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
        noise: float = 0.0,
        norm: str | None = None,
        max_norm: float | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        """`dropout` is one probability, or one for each hidden layer. `noise` is a standard
        deviation. `max_norm` bounds the 2-norm of the weights into each hidden unit (Srivastava et
        al. 2014, section 5.1). With `gradient_checkpointing`, a hidden layer keeps only its input;
        the backward pass computes the layer again."""
        super().__init__()
        self.gradient_checkpointing, self.activation = gradient_checkpointing, activation
        rates = dropout if isinstance(dropout, Sequence) else [dropout] * len(hidden_sizes)
        self.dropouts = tuple(rates)
        self.max_norm, self.noise = max_norm, noise
        self.input_dropout = nn.Dropout(input_dropout)
        layers: list[nn.Module] = []
        widths = pairwise([inputs, *hidden_sizes])
        for (fan_in, fan_out), rate in zip(widths, self.dropouts, strict=True):
            # A batch norm subtracts the mean, so a bias before it would have no effect.
            layers.append(nn.Linear(fan_in, fan_out, bias=norm != "batch"))
            if norm is not None:
                layers.append(NOISY_NORMS[norm](fan_out, noise) if noise else NORMS[norm](fan_out))
            elif noise:
                layers.append(Noise(noise))
            layers.append(ACTIVATIONS[activation].module())
            if any(self.dropouts):
                layers.append(nn.Dropout(rate))
        self.layers = nn.Sequential(*layers, nn.Linear(hidden_sizes[-1], classes))

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, *shape) with prod(shape) = inputs, to logits (N, classes)."""
        features = add_noise(features.flatten(1), self.noise, self.training)
        hidden: Tensor = self.input_dropout(features)
        layers = self.layers
        if self.gradient_checkpointing and torch.is_grad_enabled():
            size = (len(layers) - 1) // len(self.dropouts)  # modules of one hidden layer
            for first in range(0, len(layers) - 1, size):
                hidden = checkpoint(layers[first : first + size], hidden, use_reentrant=False)
            layers = layers[-1:]
        logits: Tensor = layers(hidden)
        return add_noise(logits, self.noise, self.training)

    def constrain(self) -> None:
        """Called after each optimizer step. Bounds the weights into each hidden unit."""
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
            self.noise,
        )
