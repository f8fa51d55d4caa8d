"""Base classes for models whose gradient is computed by our own formulas instead of by autograd.

To add a closed form: 1. derive a class from `ClosedForm`; 2. set `closed_form = ThatClass` on the
model class; 3. decorate the section in src/config/schema.py with `@has_closed_form`. Step 3 is
separate because schema.py must not import torch. src/models/mlp.py is an example.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Cost(NamedTuple):
    """How many floats a model keeps in memory."""

    weights: int  # parameters and running statistics
    evaluation: int  # activations of a sample that is evaluated
    training: int  # activations of a sample of a batch, with their gradients, and the sample itself


class StackedParameters:
    """A weight and a bias of S trials, and their gradients once `make_gradients` was called."""

    gradients: Tensor  # the weight gradient followed by the bias gradient, flat
    weight_gradient: Tensor
    bias_gradient: Tensor

    def __init__(
        self, parameters: Sequence[nn.Parameter], weight: Tensor, bias: Tensor | None
    ) -> None:
        """`weight` and `bias` are views of the parameters (S, …). The bias may be missing."""
        self.parameters, self.weight, self.bias = list(parameters), weight, bias

    def make_gradients(self) -> list[Tensor]:
        """Allocates a gradient for each parameter, in one piece, which ranks sum without a copy."""
        sizes = [parameter.numel() for parameter in self.parameters]
        self.gradients = self.weight.new_zeros(sum(sizes))
        pieces = torch.split(self.gradients, sizes)
        self.weight_gradient = pieces[0].view(self.weight.shape)
        if self.bias is not None:
            self.bias_gradient = pieces[1].view(self.bias.shape)
        return [piece.view_as(own) for piece, own in zip(pieces, self.parameters, strict=True)]

    def descend(self, first: Tensor, second: Tensor, /) -> None:
        """Subtracts `first` from the weight and `second` from the bias, in place.

        `Layer` overrides this: there `first` is the gradient of the outputs and `second` the
        inputs. Their product, the weight gradient, is subtracted without being stored.
        """
        self.weight.sub_(first.view_as(self.weight))
        if self.bias is not None:
            self.bias.sub_(second.view_as(self.bias))

    def accumulate(self, first: Tensor, second: Tensor, /, fresh: bool) -> None:
        """Adds to `gradients`, or overwrites them if `fresh`. Arguments: see `descend`."""
        if fresh:
            self.gradients.zero_()
        self.weight_gradient.add_(first.view_as(self.weight))
        if self.bias is not None:
            self.bias_gradient.add_(second.view_as(self.bias))


# What to do with the gradient of a part, see `ClosedFormSteps._use_gradient` in
# src/training/steps.py: the call is passed on to `descend` or `accumulate`.
UseGradient = Callable[[StackedParameters, Tensor, Tensor], None]


class ClosedForm:
    """S models of a family whose tensors have equal shapes: a segment of a stack. The parameters of
    the models become views of the segment's tensors (S, …). `stacked_layers.stack_tensors` creates
    the views."""

    classes: int
    random = False  # whether a step draws random numbers
    generator: torch.Generator | None = None  # of these numbers; None: the global one
    statistics: Sequence[Tensor] = ()  # what a model has besides parameters, such as running means

    def __init__(
        self, trials: Sequence[int], models: Sequence[nn.Module], batches: Sequence[int]
    ) -> None:
        """`trials` are the numbers of the models in the whole stack, `batches` the numbers of the
        R batches that they train on. The trials are sorted by batch: the first S/R trials train
        on batches[0], the next S/R trials on batches[1], and so on."""
        self.trials, self.batches = list(trials), list(batches)
        self.parts = list(self.stack(models))
        self.parameters = [parameter for part in self.parts for parameter in part.parameters]
        self.gradients: list[Tensor] = []

    def stack(self, models: Sequence[nn.Module]) -> Sequence[StackedParameters]:
        """Stacks the tensors. Sets `classes`, and `random` and `statistics` if they differ from the
        class defaults. Returns the parts in the order of a model's parameters."""
        raise NotImplementedError

    @classmethod
    def shape_of(cls, model: nn.Module, rounding: int) -> tuple[Any, ...]:
        """Returns a key; models with the same key share a segment. Here, the key is the shapes of
        all parameters. A family that pads models with zeros may round widths up to multiples of
        `rounding`, which is 1 if the models have few shapes."""
        del rounding
        return tuple(tuple(parameter.shape) for parameter in model.parameters())

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, inputs) that all trials share, to logits (S, classes, N) in evaluation."""
        raise NotImplementedError

    def differentiate(
        self,
        features: Tensor,
        targets: Tensor,
        scale: Tensor | float,
        logits: Tensor,
        use: UseGradient,
    ) -> None:
        """Forward and backward pass of one batch.

        features (R, B, inputs); targets (R, 1, classes, B), one-hot or smoothed. Writes logits
        (S, classes, B). The loss is the sum over samples of the cross entropy, times `scale`: a
        number or (S, 1, 1). Calls `use(part, first, second)` once for each part, as its `descend`:
        the rest of the backward pass must not need the part's parameters.
        """
        raise NotImplementedError

    def constrain(self) -> None:
        """Called after each step of an optimizer. Applies max_norm, if set."""

    def count(self, batches: int) -> None:
        """Called after each block. Adds the number of batches to the counters of batch norm."""

    def make_gradients(self) -> None:
        self.gradients = [gradient for part in self.parts for gradient in part.make_gradients()]

    def attach_gradients(self) -> None:
        """Hands the gradients to the parameters for an optimizer: Lightning may clear them."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient


def closed_form_of(model: nn.Module) -> type[ClosedForm] | None:
    """The closed form of a model's family, or None."""
    return getattr(model, "closed_form", None)
