"""Base classes for models whose gradient is computed by our own formulas instead of by autograd.

To add a closed form: 1. derive a class from `ClosedForm`; 2. set `closed_form = ThatClass` on the
model class; 3. decorate the section in src/config/schema.py with `@has_closed_form`. Step 3 is
separate because schema.py must not import torch. src/models/mlp.py is an example.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class MemoryCost(NamedTuple):
    """How many floats a model keeps in memory."""

    model: int  # parameters and running statistics
    evaluated_sample: int  # activations
    trained_sample: int  # activations, their gradients, and the sample itself


class StackedParameters:
    """A part of a segment: the weight and the bias of one layer or norm of S trials. After
    `make_gradients` a part has their gradients too."""

    gradients: Tensor  # the weight gradient followed by the bias gradient, flat
    weight_gradient: Tensor
    bias_gradient: Tensor

    def __init__(
        self, parameters: Sequence[nn.Parameter], weight: Tensor, bias: Tensor | None
    ) -> None:
        """`weight` and `bias` are views of the parameters (S, …). The bias may be missing."""
        self.parameters, self.weight, self.bias = list(parameters), weight, bias

    def make_gradients(self) -> list[Tensor]:
        """Allocates `gradients`. The gradient of each parameter is a view of this one tensor, so
        that ranks sum the gradients of a part in one call. Returns the views."""
        sizes = [parameter.numel() for parameter in self.parameters]
        self.gradients = self.weight.new_zeros(sum(sizes))
        pieces = torch.split(self.gradients, sizes)
        self.weight_gradient = pieces[0].view(self.weight.shape)
        if self.bias is not None:
            self.bias_gradient = pieces[1].view(self.bias.shape)
        return [view.view_as(p) for view, p in zip(pieces, self.parameters, strict=True)]

    def descend(self, weight_gradient: Tensor, bias_gradient: Tensor, /) -> None:
        """Subtracts gradients times rate, in place. A `Layer` takes (delta, inputs) instead."""
        self.weight.sub_(weight_gradient.view_as(self.weight))
        if self.bias is not None:
            self.bias.sub_(bias_gradient.view_as(self.bias))

    def accumulate(
        self, weight_gradient: Tensor, bias_gradient: Tensor, /, overwrite: bool
    ) -> None:
        """Adds to `gradients`, or overwrites them. Takes the same two tensors as `descend`."""
        if overwrite:
            self.gradients.zero_()
        self.weight_gradient.add_(weight_gradient.view_as(self.weight))
        if self.bias is not None:
            self.bias_gradient.add_(bias_gradient.view_as(self.bias))


# Called as use(part, first, second), as soon as the gradient of a part is known, with the two
# tensors that `part.descend` takes. The function either updates the part (`descend`) or stores the
# gradient (`accumulate`).
UseGradient = Callable[[StackedParameters, Tensor, Tensor], None]


class ClosedForm:
    """A segment of a stack: S models of the same class, whose gradients are computed by formulas.
    Their tensors have equal shapes, if necessary after padding with zeros. The parameters of the
    models become views of the segment's tensors (S, …), see `stacked_layers.stack_tensors`."""

    classes: int
    random = False  # whether a step draws random numbers
    generator: torch.Generator | None = None  # draws these numbers; None: torch's global generator
    statistics: Sequence[Tensor] = ()  # tensors that are not trained, such as running means

    def __init__(
        self, trials: Sequence[int], models: Sequence[nn.Module], batches: Sequence[int]
    ) -> None:
        """`trials` are the models' places in the stack. `batches` are the numbers of the R
        distinct batches that this segment trains on: the first S/R trials train on batches[0], the
        next S/R trials on batches[1], and so on."""
        self.trials, self.batches = list(trials), list(batches)
        self.parts = list(self.stack(models))
        self.parameters = [parameter for part in self.parts for parameter in part.parameters]
        self.gradients: list[Tensor] = []

    def stack(self, models: Sequence[nn.Module]) -> Sequence[StackedParameters]:
        """Stacks the tensors. Sets `classes`, and `random` and `statistics` if they differ from the
        class's values. Returns the parts in the order of a model's parameters."""
        raise NotImplementedError

    @classmethod
    def segment_key(cls, model: nn.Module, rounding: int) -> tuple[Any, ...]:
        """Models with the same key share a segment. Here the key is the shapes of all parameters.
        A class that pads models with zeros may round widths up to multiples of `rounding`."""
        del rounding
        return tuple(tuple(parameter.shape) for parameter in model.parameters())

    def forward(self, features: Tensor) -> Tensor:
        """Evaluates all trials on the same features (N, *shape): logits (S, classes, N)."""
        raise NotImplementedError

    def differentiate(
        self,
        features: Tensor,
        targets: Tensor,
        scale: Tensor | float,
        logits: Tensor,
        use: UseGradient,
        totals: Tensor | None = None,
    ) -> None:
        """Forward and backward pass of one batch.

        features (R, B, *shape); targets (R, 1, classes, B), one-hot, smoothed or weighted. `totals`
        (R, 1, 1, B) are the sums of the targets over classes; without `totals`, all are 1. Writes
        logits (S, classes, B). The loss is the sum over samples and classes of
        -target * log(softmax), times `scale`: a number or (S, 1, 1). Calls `use` once for each
        part. `use` may change the parameters of the part, so call it only when the rest of the
        backward pass does not read them.
        """
        raise NotImplementedError

    def constrain(self) -> None:
        """Called after each step of an optimizer. Applies max_norm, if set."""

    def count_batches(self, count: int) -> None:
        """Called after each block of `count` batches. Adds them to the counters of batch norms."""

    def make_gradients(self) -> None:
        self.gradients = [gradient for part in self.parts for gradient in part.make_gradients()]

    def attach_gradients(self) -> None:
        """Sets `parameter.grad` before each step: Lightning may have set it to None."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient


def closed_form_of(model: nn.Module) -> type[ClosedForm] | None:
    """The closed form of a model's class, or None."""
    return getattr(model, "closed_form", None)
